package rocketstore.interop;

import com.alibaba.fastjson.JSONObject;
import java.net.InetSocketAddress;
import java.net.SocketAddress;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageConst;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExtBatch;
import org.apache.rocketmq.store.MessageExtBrokerInner;

/**
 * The messages of a scenario, the same as bench/messages.py makes them.
 *
 * <p>Keys, unique keys and tags are strings made before the clock starts: the application has them.
 * What the clock sees is the way from those strings to the stored record.
 */
final class BenchMessages {
    static final String TOPIC = "BenchTopic";

    private static final int POOL_SIZE = 262144;
    private static final int PREPARED_POOL_SIZE = 1024;
    private static final int BATCH_POOL_SIZE = 256;
    private static final int BODY_POOL_SIZE = 64;
    private static final SocketAddress HOST = new InetSocketAddress("127.0.0.1", 10911);

    final int queues;
    private final String[] keys;
    private final String[] uniqueKeys;
    private final String[] tags = {"created", "paid", "sent", "done"};
    private final byte[][] bodies = new byte[BODY_POOL_SIZE][];
    private final String[] encodedProperties;
    private final byte[][] encodedBatches;
    private final int batchSize;

    BenchMessages(JSONObject spec) {
        queues = spec.getIntValue("queues");
        batchSize = Math.max(1, spec.getIntValue("batch"));
        int pool = Math.min(POOL_SIZE, spec.getIntValue("messages"));
        keys = new String[pool];
        uniqueKeys = new String[pool];
        for (int i = 0; i < pool; i++) {
            keys[i] = key(i);
            uniqueKeys[i] = String.format("7F0000012A9F%020X", i);
        }
        for (int i = 0; i < BODY_POOL_SIZE; i++) {
            bodies[i] = body(spec.getIntValue("bodySize"), i);
        }
        boolean encoded = spec.getBooleanValue("encoded");
        encodedProperties = encoded && batchSize == 1 ? encodeProperties() : null;
        encodedBatches = encoded && batchSize > 1 ? encodeBatches() : null;
    }

    /** How many keys differ; message {@code i} has key {@code i} modulo this. */
    int keyCount() {
        return keys.length;
    }

    static String key(int i) {
        return "order-" + i;
    }

    /** Letters that differ from body to body; no body is all zeros. */
    private static byte[] body(int size, int seed) {
        byte[] body = new byte[size];
        for (int i = 0; i < size; i++) {
            body[i] = (byte) ('a' + (i + seed) % 26);
        }
        return body;
    }

    /** Message {@code i} from its strings, or with properties that were encoded beforehand. */
    MessageExtBrokerInner inner(int i) {
        MessageExtBrokerInner message = new MessageExtBrokerInner();
        message.setTopic(TOPIC);
        message.setBody(bodies[i % BODY_POOL_SIZE]);
        if (encodedProperties != null) {
            message.setPropertiesString(encodedProperties[i % encodedProperties.length]);
        } else {
            Map<String, String> properties = properties(i);
            MessageAccessor.setProperties(message, properties);
            message.setPropertiesString(MessageDecoder.messageProperties2String(properties));
        }
        message.setQueueId(i % queues);
        fillEnvelope(message);
        return message;
    }

    /** Messages {@code first} and following as one batch, encoded here or beforehand. */
    MessageExtBatch batch(int first) {
        MessageExtBatch batch = new MessageExtBatch();
        batch.setTopic(TOPIC);
        int number = first / batchSize;
        batch.setQueueId(number % queues);
        batch.setBody(encodedBatches != null
            ? encodedBatches[number % encodedBatches.length] : encodeBatch(first));
        fillEnvelope(batch);
        return batch;
    }

    private static void fillEnvelope(org.apache.rocketmq.common.message.MessageExt message) {
        message.setBornTimestamp(System.currentTimeMillis());
        message.setBornHost(HOST);
        message.setStoreHost(HOST);
    }

    private Map<String, String> properties(int i) {
        Map<String, String> properties = new HashMap<>();
        properties.put(MessageConst.PROPERTY_KEYS, keys[i % keys.length]);
        properties.put(
            MessageConst.PROPERTY_UNIQ_CLIENT_MESSAGE_ID_KEYIDX, uniqueKeys[i % keys.length]);
        properties.put(MessageConst.PROPERTY_TAGS, tags[i % tags.length]);
        return properties;
    }

    private String[] encodeProperties() {
        String[] encoded = new String[Math.min(PREPARED_POOL_SIZE, keys.length)];
        for (int i = 0; i < encoded.length; i++) {
            encoded[i] = MessageDecoder.messageProperties2String(properties(i));
        }
        return encoded;
    }

    private byte[][] encodeBatches() {
        byte[][] encoded = new byte[Math.max(1, Math.min(BATCH_POOL_SIZE, keys.length / batchSize))][];
        for (int i = 0; i < encoded.length; i++) {
            encoded[i] = encodeBatch(i * batchSize);
        }
        return encoded;
    }

    private byte[] encodeBatch(int first) {
        List<Message> messages = new ArrayList<>(batchSize);
        for (int i = first; i < first + batchSize; i++) {
            Message message = new Message();
            message.setTopic(TOPIC);
            message.setBody(bodies[i % BODY_POOL_SIZE]);
            MessageAccessor.setProperties(message, properties(i));
            messages.add(message);
        }
        return MessageDecoder.encodeMessages(messages);
    }
}
