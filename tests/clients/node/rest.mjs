// Definitions, queries and jobs with @google-cloud/bigquery.
import { BigQuery } from "@google-cloud/bigquery";
import { OAuth2Client } from "google-auth-library";

export const PROJECT = "millrace-test";

export class Rest {
  constructor(client, dataset) {
    this.client = client;
    this.dataset = client.dataset(dataset);
  }

  static async open(address, dataset) {
    const rest = new Rest(new BigQuery({ projectId: PROJECT, apiEndpoint: `http://${address}`, authClient: anyone() }), dataset);
    await rest.dataset.create({ description: "as created" });
    return rest;
  }

  sessions() {
    return {
      dataset_update: () => this.datasetUpdate(),
      definitions: () => this.definitions(),
      missing_table: () => this.missingTable(),
      query: () => this.query(),
      pages: () => this.pages(),
      job: () => this.job(),
    };
  }

  // Makes a table k INT64 NOT NULL, v STRING; k is its primary key where keyed.
  async table(name, keyed) {
    const [table] = await this.dataset.createTable(name, {
      schema: { fields: [{ name: "k", type: "INT64", mode: "REQUIRED" }, { name: "v", type: "STRING" }] },
      ...(keyed ? { tableConstraints: { primaryKey: { columns: ["k"] } } } : {}),
    });
    return table;
  }

  // Runs a statement and returns its rows, each as the list of its values.
  async rows(query, more = {}) {
    const [rows] = await this.client.query({ query, defaultDataset: { datasetId: this.dataset.id }, ...more });
    return rows.map((row) => Object.values(row));
  }

  // Changes the description, reads it back, and makes and removes a dataset.
  async datasetUpdate() {
    await this.dataset.setMetadata({ description: "as changed" });
    const [found] = await this.dataset.getMetadata();
    const passing = this.client.dataset(`${this.dataset.id}_passing`);
    await passing.create();
    await passing.delete();
    const [exists] = await passing.exists();
    return { description: found.description, deleted: !exists };
  }

  async definitions() {
    const table = await this.table("defined", true);
    const passing = await this.table("passing", false);
    const before = await this.tables();
    await passing.delete();
    const [found] = await table.getMetadata();
    return {
      before,
      after: await this.tables(),
      columns: found.schema.fields.map((field) => field.name),
      primary_key: found.tableConstraints.primaryKey.columns,
    };
  }

  async tables() {
    const [tables] = await this.dataset.getTables();
    return tables.map((table) => table.id);
  }

  async missingTable() {
    try {
      await this.dataset.table("missing").getMetadata();
      return "found";
    } catch (refused) {
      return refused.code;
    }
  }

  async query() {
    return this.rows("SELECT @number + 1 AS a, @text AS b, (SELECT SUM(each) FROM UNNEST(@list) AS each) AS c", {
      params: { number: 41, text: "it's", list: [1, 2, 3] },
    });
  }

  // Reads five rows of a table and of a query's answer, two at a time.
  async pages() {
    const table = await this.table("paged", false);
    await this.rows("INSERT INTO paged (k) VALUES (1), (2), (3), (4), (5)");
    const query = "SELECT k FROM paged ORDER BY k";
    const [job] = await this.client.createQueryJob({ query, defaultDataset: { datasetId: this.dataset.id } });
    return {
      query: await sizes((options) => job.getQueryResults(options)),
      table: await sizes((options) => table.getRows(options)),
    };
  }

  // Starts a query as a job, waits for it, finds it in the list, and reads its rows as the job's results.
  async job() {
    const [job] = await this.client.createQueryJob({ query: "SELECT 1 AS one" });
    const [rows] = await job.getQueryResults();
    const [found] = await job.getMetadata();
    const [jobs] = await this.client.getJobs();
    return {
      done: found.status.state === "DONE",
      rows: rows.map((row) => Object.values(row)),
      listed: jobs.some((each) => each.id === job.id),
    };
  }
}

async function sizes(read) {
  const found = [];
  for (let options = { maxResults: 2, autoPaginate: false }; options; ) {
    const [rows, next] = await read(options);
    found.push(rows.length);
    options = next;
  }
  return found;
}

// The client wants credentials; the stand-in takes any.
function anyone() {
  const client = new OAuth2Client();
  client.setCredentials({ access_token: "any", expiry_date: Date.now() + 3_600_000 });
  return client;
}
