// Sessions of Google's Node clients, as a user writes them: no interceptor, no header of our own.
//
// It takes the addresses from the environment (BIGQUERY_REST and BIGQUERY_GRPC, each host:port), runs the sessions, and
// prints one JSON line for each: {"session": ..., "saw": ...}, or "error" in place of "saw". What has to be seen is not
// known here: tests/clients/sessions.py says it.
import { Appends } from "./appends.mjs";
import { Rest } from "./rest.mjs";

const LIMIT_MS = 60_000;

async function run(sessions) {
  for (const [session, seen] of Object.entries(sessions)) {
    let timer;
    const late = new Promise((_, reject) => {
      timer = setTimeout(() => reject(new Error(`not finished after ${LIMIT_MS} ms`)), LIMIT_MS);
    });
    try {
      console.log(JSON.stringify({ session, saw: await Promise.race([seen(), late]) }));
    } catch (error) {
      console.error(error);
      console.log(JSON.stringify({ session, error: String(error) }));
    }
    clearTimeout(timer);
  }
}

const { BIGQUERY_REST, BIGQUERY_GRPC } = process.env;
const rest = await Rest.open(BIGQUERY_REST, `node_${process.pid}_${Date.now()}`);
await run(rest.sessions());
await run(new Appends(BIGQUERY_GRPC, rest).sessions());
process.exit(0); // some clients leave sockets open
