package clients;

import com.google.gson.Gson;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;

/**
 * Sessions of Google's Java clients, as a user writes them: no interceptor, no header of our own.
 *
 * <p>It takes the addresses from the environment (BIGQUERY_REST, BIGQUERY_GRPC, BIGTABLE, each host:port), runs the
 * sessions of those that are set, and prints one JSON line for each: {"session": ..., "saw": ...}, or "error" in place
 * of "saw". What has to be seen is not known here: tests/clients/sessions.py says it.
 */
final class Main {
    private static final ExecutorService RUNNING = Executors.newCachedThreadPool(Main::daemon);
    private static final Gson JSON = new Gson();

    public static void main(String[] arguments) throws Exception {
        String rest = System.getenv("BIGQUERY_REST");
        if (rest != null) {
            Rest queries = new Rest(rest, "java_" + System.nanoTime());
            try (Appends appends = new Appends(System.getenv("BIGQUERY_GRPC"), queries)) {
                run(queries.sessions());
                run(appends.sessions());
            }
        }
        String bigtable = System.getenv("BIGTABLE");
        if (bigtable != null) {
            try (ChangeStreams streams = new ChangeStreams(bigtable)) {
                run(streams.sessions());
            }
        }
        System.exit(0); // some clients leave threads behind
    }

    private static void run(Map<String, Callable<Object>> sessions) {
        sessions.forEach((name, session) -> {
            Map<String, Object> line = new LinkedHashMap<>();
            line.put("session", name);
            try {
                line.put("saw", RUNNING.submit(session).get(60, TimeUnit.SECONDS));
            } catch (Exception failed) {
                Throwable cause = failed.getCause() == null ? failed : failed.getCause();
                line.put("error", cause.toString());
                cause.printStackTrace();
            }
            System.out.println(JSON.toJson(line));
        });
    }

    private static Thread daemon(Runnable task) {
        Thread thread = new Thread(task);
        thread.setDaemon(true);
        return thread;
    }
}
