// Appends with the managed writer of @google-cloud/bigquery-storage.
import { adapt, managedwriter } from "@google-cloud/bigquery-storage";
import { credentials } from "@grpc/grpc-js";
import { setTimeout as after } from "node:timers/promises";
import { PROJECT } from "./rest.mjs";

const PLAIN = ["k", "v"];
const CHANGES = [...PLAIN, "_CHANGE_TYPE", "_CHANGE_SEQUENCE_NUMBER"];
const rowsOf = (columns, rows) => rows.map((row) => Object.fromEntries(row.map((value, at) => [columns[at], value])));

export class Appends {
  constructor(address, rest) {
    const [apiEndpoint, port] = address.split(":");
    this.rest = rest;
    this.client = new managedwriter.WriterClient({
      projectId: PROJECT, apiEndpoint, port: Number(port), sslCreds: credentials.createInsecure(),
    });
  }

  sessions() {
    return {
      default_stream: () => this.defaultStream(),
      row_errors: () => this.rowErrors(),
      committed_stream: () => this.committedStream(),
      pending_stream: () => this.pendingStream(),
      buffered_stream: () => this.bufferedStream(),
      schema_update: () => this.schemaUpdate(),
    };
  }

  // Applies changes of which some come late; more than one request is on its way at a time.
  async defaultStream() {
    await this.rest.table("changed", true);
    const { writer } = await this.writer("changed", managedwriter.DefaultStream, CHANGES);
    const sent = [
      [[1, "first", "UPSERT", "1"], [2, "only", "UPSERT", "A"], [3, "kept", "UPSERT", "1/0"]],
      [[1, "newest", "UPSERT", "3"], [3, "kept too", "UPSERT", "1/1"]],
      [[1, "late", "UPSERT", "2"], [2, "", "DELETE", "B"]],
    ].map((rows) => writer.appendRows(rowsOf(CHANGES, rows)));
    for (const one of sent) {
      await one.getResult();
    }
    writer.close();
    return this.rest.rows("SELECT k, v FROM changed ORDER BY k");
  }

  // Sends one good row between two that cannot be taken; nothing of the request is written.
  async rowErrors() {
    await this.rest.table("refused", true);
    const { writer } = await this.writer("refused", managedwriter.DefaultStream, CHANGES);
    const append = (rows) => writer.appendRows(rowsOf(CHANGES, rows)).getResult();
    const refused = await append([[1, "a", "INSERT", "1"], [2, "b", "UPSERT", "1"], [3, "c", "UPSERT", "G"]]);
    await append([[2, "b", "UPSERT", "1"]]);
    writer.close();
    const indexes = refused.rowErrors.map((one) => Number(one.index));
    return { indexes, rows: await this.rest.rows("SELECT k, v FROM refused") };
  }

  // Repeats an offset and passes one over; both are refused with their code.
  async committedStream() {
    await this.rest.table("committed", false);
    const { writer, connection } = await this.writer("committed", managedwriter.CommittedStream, PLAIN);
    const codes = [];
    for (const offset of ["0", "0", "1", "7"]) {
      try {
        const answer = await writer.appendRows(rowsOf(PLAIN, [[Number(offset), "row"]]), offset).getResult();
        codes.push(answer.error?.code ?? 0);
      } catch (refused) {
        codes.push(refused.code);
      }
    }
    const { rowCount } = await connection.finalize();
    writer.close();
    return { codes, count: Number(rowCount), rows: await this.rest.rows("SELECT k, v FROM committed ORDER BY k") };
  }

  // Counts what a query sees before and after the commit.
  async pendingStream() {
    await this.rest.table("pending", false);
    const { writer, connection } = await this.writer("pending", managedwriter.PendingStream, PLAIN);
    await writer.appendRows(rowsOf(PLAIN, [[1, "a"], [2, "b"]])).getResult();
    const before = await this.rest.rows("SELECT COUNT(*) FROM pending");
    await connection.finalize();
    writer.close();
    const answer = await this.client.batchCommitWriteStream({
      parent: this.path("pending"), writeStreams: [connection.getStreamId()],
    });
    return { before, errors: answer.streamErrors.length, after: await this.rest.rows("SELECT COUNT(*) FROM pending") };
  }

  // Flushes the first of two rows. The offset is text: the client drops a number 0.
  async bufferedStream() {
    await this.rest.table("buffered", false);
    const { writer, connection } = await this.writer("buffered", managedwriter.BufferedStream, PLAIN);
    await writer.appendRows(rowsOf(PLAIN, [[1, "a"], [2, "b"]])).getResult();
    const { offset } = await connection.flushRows({ offset: "0" });
    writer.close();
    return { flushed: Number(offset), rows: await this.rest.rows("SELECT k FROM buffered") };
  }

  // Adds a column while a writer is open: an answer names it, and the same writer takes rows that have it.
  async schemaUpdate() {
    await this.rest.table("widened", false);
    const { writer } = await this.writer("widened", managedwriter.DefaultStream, PLAIN);
    await writer.appendRows([{ k: 1, v: "a" }]).getResult();
    await this.rest.rows("ALTER TABLE widened ADD COLUMN added STRING");
    let updated = null;
    while (!updated) {
      const answer = await writer.appendRows([{ k: 1, v: "a" }]).getResult();
      updated = answer.updatedSchema;
      await after(100);
    }
    await writer.appendRows([{ k: 1, v: "a", added: "new" }]).getResult();
    writer.close();
    return {
      columns: updated.fields.map((field) => field.name),
      rows: await this.rest.rows("SELECT k, v, added FROM widened WHERE added IS NOT NULL"),
    };
  }

  path(table) {
    return `projects/${PROJECT}/datasets/${this.rest.dataset.id}/tables/${table}`;
  }

  // Opens a stream; its rows have k as a number and all else as text.
  async writer(table, streamType, columns) {
    const fields = columns.map((name) => ({ name, type: name === "k" ? "INTEGER" : "STRING" }));
    const schema = adapt.convertBigQuerySchemaToStorageTableSchema({ fields });
    const protoDescriptor = adapt.convertStorageSchemaToProto2Descriptor(schema, "root");
    const which = streamType === managedwriter.DefaultStream ? { streamId: streamType } : { streamType };
    const connection = await this.client.createStreamConnection({ ...which, destinationTable: this.path(table) });
    return { connection, writer: new managedwriter.JSONWriter({ connection, protoDescriptor }) };
  }
}
