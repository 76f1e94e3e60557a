package clients;

import com.google.api.gax.core.NoCredentialsProvider;
import com.google.cloud.bigquery.storage.v1.AppendRowsResponse;
import com.google.cloud.bigquery.storage.v1.BQTableSchemaToProtoDescriptor;
import com.google.cloud.bigquery.storage.v1.BatchCommitWriteStreamsRequest;
import com.google.cloud.bigquery.storage.v1.BigQueryWriteClient;
import com.google.cloud.bigquery.storage.v1.BigQueryWriteSettings;
import com.google.cloud.bigquery.storage.v1.Exceptions.AppendSerializationError;
import com.google.cloud.bigquery.storage.v1.FlushRowsRequest;
import com.google.cloud.bigquery.storage.v1.JsonStreamWriter;
import com.google.cloud.bigquery.storage.v1.ProtoRows;
import com.google.cloud.bigquery.storage.v1.ProtoSchemaConverter;
import com.google.cloud.bigquery.storage.v1.StreamWriter;
import com.google.cloud.bigquery.storage.v1.TableFieldSchema;
import com.google.cloud.bigquery.storage.v1.TableName;
import com.google.cloud.bigquery.storage.v1.TableSchema;
import com.google.cloud.bigquery.storage.v1.WriteStream;
import com.google.protobuf.Descriptors.Descriptor;
import com.google.protobuf.DynamicMessage;
import com.google.protobuf.Int64Value;
import io.grpc.ManagedChannelBuilder;
import io.grpc.Status;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeSet;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import org.json.JSONArray;
import org.json.JSONObject;

/** Appends with google-cloud-bigquerystorage: JsonStreamWriter, and StreamWriter with messages of our own. */
final class Appends implements AutoCloseable {
    private static final List<String> PLAIN = List.of("k", "v");
    private static final List<String> CHANGES = List.of("k", "v", "_CHANGE_TYPE", "_CHANGE_SEQUENCE_NUMBER");
    private final BigQueryWriteClient client;
    private final Rest rest;

    Appends(String address, Rest rest) throws Exception {
        this.rest = rest;
        client = BigQueryWriteClient.create(BigQueryWriteSettings.newBuilder()
            .setCredentialsProvider(NoCredentialsProvider.create())
            .setTransportChannelProvider(BigQueryWriteSettings.defaultGrpcTransportProviderBuilder()
                .setEndpoint(address).setChannelConfigurator(ManagedChannelBuilder::usePlaintext).build())
            .build());
    }

    Map<String, Callable<Object>> sessions() {
        Map<String, Callable<Object>> sessions = new LinkedHashMap<>();
        sessions.put("default_stream", this::defaultStream);
        sessions.put("row_errors", this::rowErrors);
        sessions.put("committed_stream", this::committedStream);
        sessions.put("pending_stream", this::pendingStream);
        sessions.put("buffered_stream", this::bufferedStream);
        sessions.put("schema_update", this::schemaUpdate);
        sessions.put("shared_connection", this::sharedConnection);
        return sessions;
    }

    @Override
    public void close() {
        client.close();
    }

    /** Applies changes of which some come late; more than one request is on its way at a time. */
    private Object defaultStream() throws Exception {
        rest.table("changed", true);
        List<Future<AppendRowsResponse>> sent = new ArrayList<>();
        try (JsonStreamWriter writer = jsonWriter("changed").build()) {
            sent.add(writer.append(json(new Object[][] {
                {1, "first", "UPSERT", "1"}, {2, "only", "UPSERT", "A"}, {3, "kept", "UPSERT", "1/0"}})));
            sent.add(writer.append(json(new Object[][] {{1, "newest", "UPSERT", "3"}, {3, "kept too", "UPSERT", "1/1"}})));
            sent.add(writer.append(json(new Object[][] {{1, "late", "UPSERT", "2"}, {2, "", "DELETE", "B"}})));
            for (Future<AppendRowsResponse> one : sent) {
                one.get();
            }
        }
        return rest.rows("SELECT k, v FROM changed ORDER BY k");
    }

    /** Sends one good row between two that cannot be taken; nothing of the request is written. */
    private Object rowErrors() throws Exception {
        rest.table("refused", true);
        TreeSet<Integer> indexes = new TreeSet<>();
        try (Rows rows = new Rows(table("refused") + "/streams/_default", CHANGES)) {
            try {
                rows.append(-1, new Object[][] {{1, "a", "INSERT", "1"}, {2, "b", "UPSERT", "1"}, {3, "c", "UPSERT", "G"}});
            } catch (ExecutionException refused) {
                indexes.addAll(((AppendSerializationError) refused.getCause()).getRowIndexToErrorMessage().keySet());
            }
            rows.append(-1, new Object[][] {{2, "b", "UPSERT", "1"}});
        }
        return Map.of("indexes", indexes, "rows", rest.rows("SELECT k, v FROM refused"));
    }

    /** Repeats an offset and passes one over; both are refused with their code. */
    private Object committedStream() throws Exception {
        String name = create("committed", WriteStream.Type.COMMITTED);
        List<Integer> codes = new ArrayList<>();
        try (Rows rows = new Rows(name, PLAIN)) {
            for (int offset : new int[] {0, 0, 1, 7}) {
                try {
                    rows.append(offset, new Object[][] {{offset, "row"}});
                    codes.add(Status.Code.OK.value());
                } catch (ExecutionException refused) {
                    codes.add(Status.fromThrowable(refused.getCause()).getCode().value());
                }
            }
        }
        long count = client.finalizeWriteStream(name).getRowCount();
        return Map.of("codes", codes, "count", count, "rows", rest.rows("SELECT k, v FROM committed ORDER BY k"));
    }

    /** Counts what a query sees before and after the commit. */
    private Object pendingStream() throws Exception {
        String name = create("pending", WriteStream.Type.PENDING);
        try (Rows rows = new Rows(name, PLAIN)) {
            rows.append(0, new Object[][] {{1, "a"}, {2, "b"}});
        }
        List<List<String>> before = rest.rows("SELECT COUNT(*) FROM pending");
        client.finalizeWriteStream(name);
        int errors = client.batchCommitWriteStreams(BatchCommitWriteStreamsRequest.newBuilder()
            .setParent(table("pending")).addWriteStreams(name).build()).getStreamErrorsCount();
        return Map.of("before", before, "errors", errors, "after", rest.rows("SELECT COUNT(*) FROM pending"));
    }

    /** Flushes the first of two rows. */
    private Object bufferedStream() throws Exception {
        String name = create("buffered", WriteStream.Type.BUFFERED);
        try (Rows rows = new Rows(name, PLAIN)) {
            rows.append(0, new Object[][] {{1, "a"}, {2, "b"}});
        }
        long flushed = client.flushRows(
            FlushRowsRequest.newBuilder().setWriteStream(name).setOffset(Int64Value.of(0)).build()).getOffset();
        return Map.of("flushed", flushed, "rows", rest.rows("SELECT k FROM buffered"));
    }

    /** Adds a column while a writer is open: an answer names it, and the same writer takes rows that have it. */
    private Object schemaUpdate() throws Exception {
        rest.table("widened", false);
        List<String> columns = new ArrayList<>();
        try (JsonStreamWriter writer = JsonStreamWriter.newBuilder(table("widened"), client).build()) {
            writer.append(json(new Object[][] {{1, "a"}})).get();
            rest.rows("ALTER TABLE widened ADD COLUMN added STRING");
            while (columns.isEmpty()) { // until the session's time is up
                writer.append(json(new Object[][] {{1, "a"}})).get()
                    .getUpdatedSchema().getFieldsList().forEach(field -> columns.add(field.getName()));
                Thread.sleep(100);
            }
            JSONObject wider = new JSONObject(Map.of("k", 1, "v", "a", "added", "new"));
            writer.append(new JSONArray().put(wider)).get();
        }
        return Map.of("columns", columns, "rows", rest.rows("SELECT k, v, added FROM widened WHERE added IS NOT NULL"));
    }

    /** Writes to the default streams of two tables in turn, from the client's pool of connections. */
    private Object sharedConnection() throws Exception {
        rest.table("left", true);
        rest.table("right", true);
        try (JsonStreamWriter left = jsonWriter("left").setEnableConnectionPool(true).build();
                JsonStreamWriter right = jsonWriter("right").setEnableConnectionPool(true).build()) {
            for (int turn = 0; turn < 2; turn++) {
                String sequence = String.valueOf(turn + 1);
                left.append(json(new Object[][] {{turn, sequence, "UPSERT", sequence}})).get();
                right.append(json(new Object[][] {{10 + turn, sequence, "UPSERT", sequence}})).get();
            }
        }
        return rest.rows("SELECT k, v FROM `left` UNION ALL SELECT k, v FROM `right` ORDER BY k");
    }

    private String table(String name) {
        return TableName.of(Rest.PROJECT, rest.dataset, name).toString();
    }

    private String create(String name, WriteStream.Type type) {
        rest.table(name, false);
        return client.createWriteStream(table(name), WriteStream.newBuilder().setType(type).build()).getName();
    }

    /** Begins a writer of changes: their two columns are not the table's, so the schema is given. */
    private JsonStreamWriter.Builder jsonWriter(String name) {
        return JsonStreamWriter.newBuilder(table(name) + "/_default", schema(CHANGES), client);
    }

    private static TableSchema schema(List<String> columns) {
        TableSchema.Builder schema = TableSchema.newBuilder();
        for (String column : columns) {
            schema.addFieldsBuilder().setName(column).setMode(TableFieldSchema.Mode.NULLABLE)
                .setType(column.equals("k") ? TableFieldSchema.Type.INT64 : TableFieldSchema.Type.STRING);
        }
        return schema.build();
    }

    private static JSONArray json(Object[][] rows) {
        JSONArray array = new JSONArray();
        for (Object[] row : rows) {
            JSONObject object = new JSONObject();
            for (int index = 0; index < row.length; index++) {
                object.put(CHANGES.get(index), row[index]);
            }
            array.put(object);
        }
        return array;
    }

    /** A StreamWriter whose rows are messages of our own: the values of the columns in their order. */
    private final class Rows implements AutoCloseable {
        private final Descriptor message;
        private final StreamWriter writer;

        Rows(String stream, List<String> columns) throws Exception {
            message = BQTableSchemaToProtoDescriptor.convertBQTableSchemaToProtoDescriptor(schema(columns));
            writer = StreamWriter.newBuilder(stream, client).setWriterSchema(ProtoSchemaConverter.convert(message)).build();
        }

        /** Sends rows and waits for the answer; an offset of -1 is none. */
        void append(long offset, Object[][] rows) throws Exception {
            ProtoRows.Builder serialized = ProtoRows.newBuilder();
            for (Object[] row : rows) {
                DynamicMessage.Builder built = DynamicMessage.newBuilder(message);
                for (int index = 0; index < row.length; index++) {
                    Object value = row[index] instanceof Integer number ? Long.valueOf(number) : row[index];
                    built.setField(message.getFields().get(index), value);
                }
                serialized.addSerializedRows(built.build().toByteString());
            }
            writer.append(serialized.build(), offset).get();
        }

        @Override
        public void close() {
            writer.close();
        }
    }
}
