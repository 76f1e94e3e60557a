// A subscriber of Millrace's topic: it keeps the newest version of each row, and prints each change as a line of JSON.
//
// Usage: node subscriber.mjs projects/PROJECT/subscriptions/SUBSCRIPTION
import { PubSub } from "@google-cloud/pubsub";

const NEWEST_FORMAT = 2;

// Row id to sequence and row. A deleted row stays here as null, so that an older upsert does not bring it back.
const newest = new Map();

// This subscriber can neither apply nor acknowledge the message.
class RefusedError extends Error {}

// Returns the change batch in a message. RefusedError if there is none, or its format is newer.
function decode({ attributes, data }) {
  if (!/^[0-9]+$/.test(attributes.format)) throw new RefusedError("no change batch: it has no attribute format");
  if (Number(attributes.format) > NEWEST_FORMAT) {
    throw new RefusedError(
      `wire format ${attributes.format}, this subscriber reads up to ${NEWEST_FORMAT}: upgrade it`,
    );
  }
  let batch, complete;
  try {
    batch = JSON.parse(data);
    if (typeof batch.header.table !== "string") throw new TypeError("no table");
    if (new Set([batch.op, batch.keys, batch.rows, batch.sequence].map((list) => list.length)).size !== 1) {
      throw new TypeError("lists of different lengths");
    }
    complete = batch.op.every((op, at) => (op === "DELETE") === (batch.rows[at] === null));
  } catch (error) {
    throw new RefusedError("no change batch: its data does not read as one", { cause: error });
  }
  if (!complete) throw new RefusedError("no change batch: an upsert has a row, a delete has none");
  return batch;
}

// Keeps each change that is newer than the known version of its row. A greater sequence is newer.
function apply(batch) {
  const { table } = batch.header;
  batch.keys.forEach((key, at) => {
    const id = JSON.stringify([table, Object.entries(key).sort(([a], [b]) => (a < b ? -1 : 1))]);
    const [op, row, sequence] = [batch.op[at], batch.rows[at], batch.sequence[at]];
    const isNewest = !newest.has(id) || newest.get(id).sequence < sequence;
    if (isNewest) newest.set(id, { sequence, row });
    console.log(JSON.stringify({ table, op, key, row, newest: isNewest }));
  });
}

const name = process.argv[2];
const pubsub = new PubSub({ projectId: name.split("/")[1] });
const subscription = pubsub.subscription(name);
subscription.on("message", (message) => {
  try {
    apply(decode(message));
    message.ack();
  } catch (error) {
    if (!(error instanceof RefusedError)) throw error;
    console.error(`message ${message.id} refused: ${error.message}`);
    message.nack();
  }
});
subscription.on("error", (error) => {
  console.error(error);
  process.exit(1);
});
process.on("SIGINT", async () => {
  await subscription.close(); // sends the acknowledgements that are left
  process.exit(0);
});
