package clients;

import com.google.api.gax.rpc.ApiException;
import com.google.api.gax.rpc.ServerStream;
import com.google.cloud.bigtable.admin.v2.BigtableTableAdminClient;
import com.google.cloud.bigtable.admin.v2.BigtableTableAdminSettings;
import com.google.cloud.bigtable.admin.v2.models.CreateTableRequest;
import com.google.cloud.bigtable.data.v2.BigtableDataClient;
import com.google.cloud.bigtable.data.v2.BigtableDataSettings;
import com.google.cloud.bigtable.data.v2.models.ChangeStreamContinuationToken;
import com.google.cloud.bigtable.data.v2.models.ChangeStreamMutation;
import com.google.cloud.bigtable.data.v2.models.ChangeStreamRecord;
import com.google.cloud.bigtable.data.v2.models.CloseStream;
import com.google.cloud.bigtable.data.v2.models.Entry;
import com.google.cloud.bigtable.data.v2.models.Range.ByteStringRange;
import com.google.cloud.bigtable.data.v2.models.ReadChangeStreamQuery;
import com.google.cloud.bigtable.data.v2.models.RowMutation;
import com.google.cloud.bigtable.data.v2.models.SetCell;
import com.google.protobuf.ByteString;
import java.time.Instant;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Callable;
import org.threeten.bp.Duration;

/** Change streams with google-cloud-bigtable, as Beam's connector reads them. */
final class ChangeStreams implements AutoCloseable {
    private static final int LARGE = 2_000_000; // a value that comes in several chunks
    private final BigtableTableAdminClient tables;
    private final BigtableDataClient data;

    ChangeStreams(String address) throws Exception {
        String host = address.substring(0, address.lastIndexOf(':'));
        int port = Integer.parseInt(address.substring(address.lastIndexOf(':') + 1));
        tables = BigtableTableAdminClient.create(BigtableTableAdminSettings.newBuilderForEmulator(host, port)
            .setProjectId(Rest.PROJECT).setInstanceId("front").build());
        data = BigtableDataClient.create(BigtableDataSettings.newBuilderForEmulator(host, port)
            .setProjectId(Rest.PROJECT).setInstanceId("front").build());
    }

    Map<String, Callable<Object>> sessions() {
        Map<String, Callable<Object>> sessions = new LinkedHashMap<>();
        sessions.put("partitions", this::partitions);
        sessions.put("mutations", this::mutations);
        sessions.put("resume", this::resume);
        sessions.put("refusals", this::refusals);
        return sessions;
    }

    @Override
    public void close() {
        data.close();
        tables.close();
    }

    /** Lists the partitions of a table that was made with two splits. */
    private Object partitions() {
        String table = create("partitions", true, "h", "p");
        List<List<String>> ranges = new ArrayList<>();
        data.generateInitialChangeStreamPartitions(table).forEach(
            range -> ranges.add(List.of(range.getStart().toStringUtf8(), range.getEnd().toStringUtf8())));
        return ranges;
    }

    /** Makes a change of every kind and reads all of them, up to an end time. */
    private Object mutations() {
        String table = create("mutations", true);
        Instant start = Instant.now();
        data.mutateRow(RowMutation.create(table, "a").setCell("f", "one", "1").setCell("g", "two", "2"));
        data.mutateRow(RowMutation.create(table, "a").deleteCells("f", "one"));
        data.mutateRow(RowMutation.create(table, "a").deleteFamily("g"));
        data.mutateRow(RowMutation.create(table, "b").setCell("f", "large", "x".repeat(LARGE)));
        data.mutateRow(RowMutation.create(table, "b").deleteRow());
        List<List<Object>> changes = new ArrayList<>();
        String end = "";
        for (ChangeStreamRecord each : read(table, start, null, Instant.now())) {
            if (each instanceof ChangeStreamMutation change) {
                changes.add(List.of(change.getRowKey().toStringUtf8(), kinds(change)));
            } else if (each instanceof CloseStream closed) {
                end = closed.getStatus().getCode().name();
            }
        }
        return Map.of("changes", changes, "end", end);
    }

    /** Reads one change, opens a second stream with its token, and reads the next ones there. */
    private Object resume() {
        String table = create("resume", true);
        Instant start = Instant.now();
        for (String key : List.of("a", "b", "c")) {
            data.mutateRow(RowMutation.create(table, key).setCell("f", "q", key));
        }
        Instant end = Instant.now();
        ChangeStreamContinuationToken token = null;
        for (ChangeStreamRecord each : read(table, start, null, end)) {
            if (token == null && each instanceof ChangeStreamMutation change) {
                token = ChangeStreamContinuationToken.create(ByteStringRange.create("", ""), change.getToken());
            }
        }
        List<String> keys = new ArrayList<>();
        for (ChangeStreamRecord each : read(table, null, token, end)) {
            if (each instanceof ChangeStreamMutation change) {
                keys.add(change.getRowKey().toStringUtf8());
            }
        }
        return keys;
    }

    /** A table without a change stream, a token that is none, and a start before the stream are refused. */
    private Object refusals() {
        String without = create("without", false);
        String table = create("refusals", true);
        ChangeStreamContinuationToken none = ChangeStreamContinuationToken.create(ByteStringRange.create("", ""), "none");
        return Map.of(
            "without", refusal(without, Instant.now(), null),
            "token", refusal(table, null, none),
            "start", refusal(table, Instant.now().minusSeconds(3600), null));
    }

    private String refusal(String table, Instant start, ChangeStreamContinuationToken token) {
        try {
            read(table, start, token, Instant.now()).forEach(each -> { });
            return "OK";
        } catch (ApiException refused) {
            return refused.getStatusCode().getCode().name();
        }
    }

    private ServerStream<ChangeStreamRecord> read(
        String table, Instant start, ChangeStreamContinuationToken token, Instant end
    ) {
        ReadChangeStreamQuery query = ReadChangeStreamQuery.create(table).streamPartition("", "").endTime(end);
        return data.readChangeStream(token == null ? query.startTime(start) : query.continuationTokens(List.of(token)));
    }

    private static List<String> kinds(ChangeStreamMutation change) {
        List<String> kinds = new ArrayList<>();
        for (Entry entry : change.getEntries()) {
            String kind = entry.getClass().getSimpleName().replace("AutoValue_", "");
            kinds.add(entry instanceof SetCell cell ? kind + " of " + cell.getValue().size() : kind);
        }
        return kinds;
    }

    private String create(String name, boolean streamed, String... splits) {
        String table = name + "-" + System.nanoTime();
        CreateTableRequest request = CreateTableRequest.of(table).addFamily("f").addFamily("g");
        for (String split : splits) {
            request.addSplit(ByteString.copyFromUtf8(split));
        }
        tables.createTable(streamed ? request.addChangeStreamRetention(Duration.ofDays(1)) : request);
        return table;
    }
}
