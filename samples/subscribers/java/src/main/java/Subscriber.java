import com.google.api.gax.core.NoCredentialsProvider;
import com.google.api.gax.grpc.GrpcTransportChannel;
import com.google.api.gax.rpc.FixedTransportChannelProvider;
import com.google.cloud.pubsub.v1.AckReplyConsumer;
import com.google.gson.JsonArray;
import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import com.google.gson.JsonParser;
import com.google.pubsub.v1.PubsubMessage;
import io.grpc.ManagedChannelBuilder;
import java.io.FileDescriptor;
import java.io.FileOutputStream;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.Map;
import java.util.TreeMap;

/**
 * A subscriber of Millrace's topic: it keeps the newest version of each row, and prints each change as a line of JSON.
 *
 * <p>Usage: java Subscriber projects/PROJECT/subscriptions/SUBSCRIPTION
 */
public final class Subscriber {
  private static final int NEWEST_FORMAT = 2;
  private static final PrintStream OUT =
      new PrintStream(new FileOutputStream(FileDescriptor.out), true, StandardCharsets.UTF_8);

  /** The change batch in a message. What stands at one place of each list is one change. */
  record Batch(String table, JsonArray op, JsonArray keys, JsonArray rows, JsonArray sequence) {}

  /** What is known of a row. */
  record Version(String sequence, JsonElement row) {}

  /** This subscriber can neither apply nor acknowledge the message. */
  static final class RefusedException extends Exception {
    RefusedException(String why) {
      super(why);
    }
  }

  /** By row id. A deleted row stays here as null, so that an older upsert does not bring it back. */
  private final Map<String, Version> newest = new HashMap<>();

  /** Returns the change batch in a message, unless there is none, or its format is newer. */
  static Batch decode(PubsubMessage message) throws RefusedException {
    String format = message.getAttributesOrDefault("format", "");
    if (!format.matches("[0-9]{1,9}")) {
      throw new RefusedException("no change batch: it has no attribute format");
    }
    if (Integer.parseInt(format) > NEWEST_FORMAT) {
      throw new RefusedException(
          "wire format " + format + ", this subscriber reads up to " + NEWEST_FORMAT + ": upgrade it");
    }
    try {
      JsonObject data = JsonParser.parseString(message.getData().toStringUtf8()).getAsJsonObject();
      Batch batch = new Batch(
          data.getAsJsonObject("header").get("table").getAsString(), data.getAsJsonArray("op"),
          data.getAsJsonArray("keys"), data.getAsJsonArray("rows"), data.getAsJsonArray("sequence"));
      int count = batch.sequence.size();
      if (batch.op.size() != count || batch.keys.size() != count || batch.rows.size() != count) {
        throw new IllegalStateException("lists of different lengths");
      }
      for (int at = 0; at < count; at++) {
        if (batch.op.get(at).getAsString().equals("DELETE") != batch.rows.get(at).isJsonNull()) {
          throw new RefusedException("no change batch: an upsert has a row, a delete has none");
        }
      }
      return batch;
    } catch (RuntimeException error) {
      throw new RefusedException("no change batch: its data does not read as one");
    }
  }

  /** Keeps each change that is newer than the known version of its row. A greater sequence is newer. */
  synchronized void apply(Batch batch) { // the client calls receive in several threads
    for (int at = 0; at < batch.keys.size(); at++) {
      JsonObject key = batch.keys.get(at).getAsJsonObject();
      JsonElement row = batch.rows.get(at);
      String sequence = batch.sequence.get(at).getAsString();
      String id = batch.table + " " + new TreeMap<>(key.asMap()); // the columns of the key, sorted
      Version known = newest.get(id);
      boolean isNewest = known == null || known.sequence.compareTo(sequence) < 0;
      if (isNewest) {
        newest.put(id, new Version(sequence, row));
      }
      JsonObject line = new JsonObject();
      line.addProperty("table", batch.table);
      line.add("op", batch.op.get(at));
      line.add("key", key);
      line.add("row", row);
      line.addProperty("newest", isNewest);
      OUT.println(line);
    }
  }

  void receive(PubsubMessage message, AckReplyConsumer reply) {
    try {
      apply(decode(message));
      reply.ack();
    } catch (RefusedException refused) {
      System.err.println("message " + message.getMessageId() + " refused: " + refused.getMessage());
      reply.nack();
    }
  }

  public static void main(String[] arguments) {
    Subscriber kept = new Subscriber();
    var builder = com.google.cloud.pubsub.v1.Subscriber.newBuilder(arguments[0], kept::receive);
    String emulator = System.getenv("PUBSUB_EMULATOR_HOST"); // this client does not look for it
    if (emulator != null) {
      var channel = ManagedChannelBuilder.forTarget(emulator).usePlaintext().build();
      builder.setChannelProvider(FixedTransportChannelProvider.create(GrpcTransportChannel.create(channel)));
      builder.setCredentialsProvider(NoCredentialsProvider.create());
    }
    var subscriber = builder.build();
    Runtime.getRuntime().addShutdownHook(new Thread(() -> subscriber.stopAsync().awaitTerminated()));
    subscriber.startAsync().awaitTerminated();
  }
}
