import com.alibaba.fastjson.JSONArray;
import com.alibaba.fastjson.JSONObject;
import java.net.InetSocketAddress;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.Base64;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.MixAll;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageConst;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageExtBatch;
import org.apache.rocketmq.common.sysflag.MessageSysFlag;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.GetMessageResult;
import org.apache.rocketmq.store.PutMessageResult;
import org.apache.rocketmq.store.config.MessageStoreConfig;
import org.apache.rocketmq.store.stats.BrokerStatsManager;

/** Drives the genuine store of 5.x on one batch topic: a JSON object in, a JSON object out. */
public final class BatchQueues {
    private static final String GROUP = "rocketstore-interop";

    private DefaultMessageStore store;
    private String topic;

    public static void main(String[] arguments) throws Exception {
        Lines.serve(() -> new BatchQueues()::run);
    }

    private void run(JSONObject command, JSONObject answer) throws Exception {
        switch (command.getString("cmd")) {
            case "open":
                open(command);
                break;
            case "put":
                put(command, answer);
                break;
            case "read":
                read(command, answer);
                break;
            default:
                store.shutdown();
        }
    }

    private void open(JSONObject command) throws Exception {
        MessageStoreConfig config = new MessageStoreConfig();
        config.setStorePathRootDir(command.getString("path"));
        config.setHaListenPort(0);
        Properties settings = new Properties();
        command.getJSONObject("config").forEach((key, value) ->
            settings.setProperty(key, String.valueOf(value)));
        MixAll.properties2Object(settings, config);
        topic = command.getString("topic");
        TopicConfig batches = new TopicConfig(topic);
        batches.setAttributes(Map.of("queue.type", "BatchCQ"));
        ConcurrentHashMap<String, TopicConfig> topics = new ConcurrentHashMap<>();
        topics.put(topic, batches);
        store = new DefaultMessageStore(
            config, new BrokerStatsManager(GROUP, false),
            (name, queueId, offset, tagsCode, storeTime, bitMap, properties) -> { },
            new BrokerConfig(), topics);
        if (!store.load()) {
            throw new IllegalStateException("load() refused " + command.getString("path"));
        }
        store.start();
        waitDispatched();
    }

    /** As SendMessageProcessor.sendBatchMessage does with a client's batch for a batch topic. */
    private void put(JSONObject command, JSONObject answer) throws Exception {
        List<Message> messages = new ArrayList<>();
        for (Object body : command.getJSONArray("bodies")) {
            messages.add(new Message(topic, Base64.getDecoder().decode((String) body)));
        }
        byte[] content = MessageDecoder.encodeMessages(messages);
        MessageExtBatch batch = new MessageExtBatch();
        batch.setTopic(topic);
        batch.setQueueId(command.getIntValue("queueId"));
        batch.setBody(content);
        batch.setSysFlag(MessageSysFlag.NEED_UNWRAP_FLAG | MessageSysFlag.INNER_BATCH_FLAG);
        batch.setInnerBatch(true);
        batch.setBornTimestamp(System.currentTimeMillis());
        batch.setBornHost(new InetSocketAddress("127.0.0.1", 10911));
        batch.setStoreHost(new InetSocketAddress("127.0.0.1", 10911));
        int count = MessageDecoder.countInnerMsgNum(ByteBuffer.wrap(content));
        MessageAccessor.putProperty(
            batch, MessageConst.PROPERTY_INNER_NUM, String.valueOf(count));
        batch.setPropertiesString(MessageDecoder.messageProperties2String(batch.getProperties()));
        PutMessageResult result = store.putMessage(batch);
        answer.put("status", result.getPutMessageStatus().name());
        answer.put("queueOffset", result.getAppendMessageResult().getLogicsOffset());
        waitDispatched();
    }

    /** As a consumer's client does, which takes the batches apart. */
    private void read(JSONObject command, JSONObject answer) throws Exception {
        int queueId = command.getIntValue("queueId");
        answer.put("minOffset", store.getMinOffsetInQueue(topic, queueId));
        answer.put("maxOffset", store.getMaxOffsetInQueue(topic, queueId));
        JSONArray found = new JSONArray();
        long offset = command.getLongValue("offset");
        GetMessageResult result = store.getMessage(
            GROUP, topic, queueId, offset, command.getIntValue("max"), null);
        for (ByteBuffer record : result.getMessageBufferList()) {
            List<MessageExt> messages = new ArrayList<>();
            MessageExt stored = MessageDecoder.decode(record);
            if (MessageSysFlag.check(stored.getSysFlag(), MessageSysFlag.INNER_BATCH_FLAG)
                && MessageSysFlag.check(stored.getSysFlag(), MessageSysFlag.NEED_UNWRAP_FLAG)) {
                MessageDecoder.decodeMessage(stored, messages);
            } else {
                messages.add(stored);
            }
            for (MessageExt message : messages) {
                if (message.getQueueOffset() >= offset) {
                    found.add(List.of(
                        message.getQueueOffset(),
                        Base64.getEncoder().encodeToString(message.getBody())));
                }
            }
        }
        result.release();
        answer.put("messages", found);
    }

    private void waitDispatched() throws InterruptedException {
        while (store.dispatchBehindBytes() > 0) {
            Thread.sleep(1);
        }
    }
}
