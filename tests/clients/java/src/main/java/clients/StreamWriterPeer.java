package clients;

import com.google.api.core.ApiFuture;
import com.google.api.gax.core.NoCredentialsProvider;
import com.google.cloud.bigquery.storage.v1.AppendRowsResponse;
import com.google.cloud.bigquery.storage.v1.BQTableSchemaToProtoDescriptor;
import com.google.cloud.bigquery.storage.v1.BigQueryWriteClient;
import com.google.cloud.bigquery.storage.v1.BigQueryWriteSettings;
import com.google.cloud.bigquery.storage.v1.ProtoRows;
import com.google.cloud.bigquery.storage.v1.ProtoSchemaConverter;
import com.google.cloud.bigquery.storage.v1.StreamWriter;
import com.google.cloud.bigquery.storage.v1.TableFieldSchema;
import com.google.cloud.bigquery.storage.v1.TableSchema;
import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import com.google.gson.JsonParser;
import com.google.protobuf.Descriptors.Descriptor;
import com.google.protobuf.Descriptors.FieldDescriptor;
import com.google.protobuf.DynamicMessage;
import io.grpc.ManagedChannelBuilder;
import java.lang.management.ManagementFactory;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Instant;
import java.time.LocalDate;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;

/**
 * What the consumer is measured beside: changes of a file, one a line, written by Google's StreamWriter.
 *
 * <p>Each line is a message of one change, as the consumer takes them. It is parsed, made a protobuf message, and sent with
 * others of its table, 1,000 in a request, on a connection that stays open. All is sent before the first answer is awaited.
 * It reads no Pub/Sub, compares no sequences and acknowledges nothing. The file is written more than once, since Java compiles
 * as it goes; the last time counts. Run by tests/benchmarks/peer.py: ADDRESS TABLES FILE COLUMNS (JSON: name to type) TIMES.
 */
final class StreamWriterPeer {
    private static final int AT_ONCE = 1_000;
    private final BigQueryWriteClient client;
    private final String tables;
    private final JsonObject columns;
    private final Map<String, Writer> writers = new HashMap<>();

    private StreamWriterPeer(String address, String tables, JsonObject columns) throws Exception {
        this.tables = tables;
        this.columns = columns;
        client = BigQueryWriteClient.create(BigQueryWriteSettings.newBuilder()
            .setCredentialsProvider(NoCredentialsProvider.create())
            .setTransportChannelProvider(BigQueryWriteSettings.defaultGrpcTransportProviderBuilder()
                .setEndpoint(address).setChannelConfigurator(ManagedChannelBuilder::usePlaintext).build())
            .build());
    }

    public static void main(String[] told) throws Exception {
        StreamWriterPeer peer = new StreamWriterPeer(told[0], told[1], JsonParser.parseString(told[3]).getAsJsonObject());
        List<String> lines = Files.readAllLines(Path.of(told[2]));
        double seconds = 0;
        double cpu = 0;
        for (int time = 0; time < Integer.parseInt(told[4]); time++) {
            long began = System.nanoTime();
            long used = processor();
            peer.write(lines);
            seconds = (System.nanoTime() - began) / 1e9;
            cpu = (processor() - used) / 1e9;
        }
        System.out.println("{\"seconds\": " + seconds + ", \"cpu_seconds\": " + cpu + "}");
        System.exit(0); // the clients leave threads behind
    }

    private static long processor() {
        return ((com.sun.management.OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean()).getProcessCpuTime();
    }

    private void write(List<String> lines) throws Exception {
        List<ApiFuture<AppendRowsResponse>> answers = new ArrayList<>();
        for (String line : lines) {
            JsonObject batch = JsonParser.parseString(line).getAsJsonObject();
            String table = batch.getAsJsonObject("header").get("table").getAsString();
            Writer writer = writers.get(table);
            if (writer == null) {
                writer = new Writer(table);
                writers.put(table, writer);
            }
            writer.add(batch);
            if (writer.rows.getSerializedRowsCount() == AT_ONCE) {
                answers.add(writer.send());
            }
        }
        for (Writer writer : writers.values()) {
            if (writer.rows.getSerializedRowsCount() > 0) {
                answers.add(writer.send());
            }
        }
        for (ApiFuture<AppendRowsResponse> answer : answers) {
            answer.get();
        }
    }

    /** The rows of one table that wait, and its connection. */
    private final class Writer {
        private final Descriptor message;
        private final StreamWriter writer;
        private ProtoRows.Builder rows = ProtoRows.newBuilder();

        Writer(String table) throws Exception {
            TableSchema.Builder schema = TableSchema.newBuilder();
            columns.entrySet().forEach(column -> schema.addFieldsBuilder().setName(column.getKey())
                .setMode(TableFieldSchema.Mode.NULLABLE).setType(type(column.getValue().getAsString())));
            message = BQTableSchemaToProtoDescriptor.convertBQTableSchemaToProtoDescriptor(schema.build());
            writer = StreamWriter.newBuilder(tables + "/" + table + "/streams/_default", client)
                .setWriterSchema(ProtoSchemaConverter.convert(message)).build();
        }

        void add(JsonObject batch) {
            DynamicMessage.Builder row = DynamicMessage.newBuilder(message);
            put(row, batch.getAsJsonArray("keys").get(0).getAsJsonObject());
            JsonElement values = batch.getAsJsonArray("rows").get(0);
            if (!values.isJsonNull()) {
                put(row, values.getAsJsonObject());
            }
            String sequence = batch.getAsJsonArray("sequence").get(0).getAsString();
            String committed = batch.getAsJsonArray("commit_timestamp").get(0).getAsString();
            put(row, "_millrace_sequence", sequence);
            put(row, "_millrace_commit_timestamp", value("TIMESTAMP", committed));
            put(row, "_CHANGE_TYPE", batch.getAsJsonArray("op").get(0).getAsString());
            put(row, "_CHANGE_SEQUENCE_NUMBER", sequence);
            rows.addSerializedRows(row.build().toByteString());
        }

        ApiFuture<AppendRowsResponse> send() {
            ProtoRows full = rows.build();
            rows = ProtoRows.newBuilder();
            return writer.append(full);
        }

        private void put(DynamicMessage.Builder row, JsonObject values) {
            for (Map.Entry<String, JsonElement> one : values.entrySet()) {
                if (!one.getValue().isJsonNull()) {
                    put(row, one.getKey(), value(columns.get(one.getKey()).getAsString(), one.getValue().getAsString()));
                }
            }
        }

        private void put(DynamicMessage.Builder row, String name, Object value) {
            FieldDescriptor field = message.findFieldByName(name.toLowerCase()); // the client's schema is in small letters
            row.setField(field == null ? message.findFieldByName(name) : field, value);
        }
    }

    private static TableFieldSchema.Type type(String kind) {
        return switch (kind) {
            case "INT64" -> TableFieldSchema.Type.INT64;
            case "FLOAT64" -> TableFieldSchema.Type.DOUBLE;
            case "BOOL" -> TableFieldSchema.Type.BOOL;
            case "DATE" -> TableFieldSchema.Type.DATE;
            case "TIMESTAMP" -> TableFieldSchema.Type.TIMESTAMP;
            default -> TableFieldSchema.Type.STRING; // NUMERIC is taken as text, too
        };
    }

    private static Object value(String kind, String text) {
        switch (kind) {
            case "INT64":
                return Long.valueOf(text);
            case "FLOAT64":
                return Double.valueOf(text);
            case "BOOL":
                return Boolean.valueOf(text);
            case "DATE":
                return (int) LocalDate.parse(text).toEpochDay();
            case "TIMESTAMP":
                Instant instant = Instant.parse(text);
                return instant.getEpochSecond() * 1_000_000 + instant.getNano() / 1_000;
            default:
                return text;
        }
    }
}
