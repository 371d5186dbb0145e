import com.alibaba.fastjson.JSONArray;
import com.alibaba.fastjson.JSONObject;
import io.netty.channel.ChannelInboundHandlerAdapter;
import io.netty.channel.embedded.EmbeddedChannel;
import java.net.InetSocketAddress;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.Base64;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import org.apache.rocketmq.broker.BrokerController;
import org.apache.rocketmq.broker.processor.EndTransactionProcessor;
import org.apache.rocketmq.broker.transaction.queue.TransactionalMessageServiceImpl;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.MixAll;
import org.apache.rocketmq.common.PopAckConstants;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.compression.CompressionType;
import org.apache.rocketmq.common.compression.CompressorFactory;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageExtBrokerInner;
import org.apache.rocketmq.common.sysflag.MessageSysFlag;
import org.apache.rocketmq.remoting.netty.NettyClientConfig;
import org.apache.rocketmq.remoting.netty.NettyServerConfig;
import org.apache.rocketmq.remoting.protocol.EpochEntry;
import org.apache.rocketmq.remoting.protocol.RemotingCommand;
import org.apache.rocketmq.remoting.protocol.RequestCode;
import org.apache.rocketmq.remoting.protocol.header.EndTransactionRequestHeader;
import org.apache.rocketmq.remoting.protocol.statictopic.LogicQueueMappingItem;
import org.apache.rocketmq.remoting.protocol.statictopic.TopicQueueMappingDetail;
import org.apache.rocketmq.remoting.protocol.subscription.SubscriptionGroupConfig;
import org.apache.rocketmq.store.AppendMessageResult;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.GetMessageResult;
import org.apache.rocketmq.store.MessageStore;
import org.apache.rocketmq.store.PutMessageResult;
import org.apache.rocketmq.store.config.MessageStoreConfig;
import org.apache.rocketmq.store.ha.autoswitch.BrokerMetadata;
import org.apache.rocketmq.store.ha.autoswitch.EpochFileCache;
import org.apache.rocketmq.store.pop.PopCheckPoint;

/** Drives a genuine broker of 5.3, without its network: a JSON object in, a JSON object out. */
public final class NewerStores {
    private static final InetSocketAddress HOST = new InetSocketAddress("127.0.0.1", 10911);

    private final EmbeddedChannel client = new EmbeddedChannel(new ChannelInboundHandlerAdapter());
    private final List<Thread> closings = new ArrayList<>();
    private BrokerController broker;
    private MessageStore store;

    public static void main(String[] arguments) throws Exception {
        Lines.serve(() -> new NewerStores()::run);
    }

    private void run(JSONObject command, JSONObject answer) throws Exception {
        switch (command.getString("cmd")) {
            case "open":
                open(command);
                break;
            case "topic":
                topic(command);
                break;
            case "group":
                group(command);
                break;
            case "mapping":
                mapping(command);
                break;
            case "put":
                put(command, answer);
                break;
            case "begin":
                begin(command, answer);
                break;
            case "end":
                end(command, answer);
                break;
            case "writeOps":
                while (ops().getDeleteContext().values().stream()
                    .anyMatch(one -> one.getTotalSize().get() > 0)) {
                    Thread.sleep(10);
                }
                break;
            case "pop":
                pop(command);
                break;
            case "offset":
                offset(command, answer);
                break;
            case "read":
                read(command, answer);
                break;
            case "confirm":
                confirm(command);
                break;
            case "controller":
                controller(command);
                break;
            case "stopReviving":
                broker.getAckMessageProcessor().setPopReviveServiceStatus(false);
                break;
            case "close":
                close();
                break;
            default:
                close();
                for (Thread one : closings) {
                    one.join();
                }
                closings.clear();
        }
    }

    /** Mostly it sleeps: meanwhile another may be opened. */
    private void close() {
        if (broker != null) {
            closings.add(new Thread(broker::shutdown));
            closings.get(closings.size() - 1).start();
            broker = null;
        }
    }

    /** As BrokerStartup does. */
    private void open(JSONObject command) throws Exception {
        Properties settings = new Properties();
        command.getJSONObject("config").forEach((key, value) ->
            settings.setProperty(key, String.valueOf(value)));
        BrokerConfig brokerConfig = new BrokerConfig();
        brokerConfig.setBrokerIP1("127.0.0.1");
        brokerConfig.setEnableControllerMode(false);
        MixAll.properties2Object(settings, brokerConfig);
        MessageStoreConfig storeConfig = new MessageStoreConfig();
        storeConfig.setStorePathRootDir(command.getString("path"));
        storeConfig.setHaListenPort(0);
        MixAll.properties2Object(settings, storeConfig);
        NettyServerConfig server = new NettyServerConfig();
        server.setListenPort(command.getIntValue("port"));
        broker = new BrokerController(brokerConfig, server, new NettyClientConfig(), storeConfig);
        if (!broker.initialize()) {
            throw new IllegalStateException("initialize() refused " + command.getString("path"));
        }
        broker.start();
        store = broker.getMessageStore();
    }

    private void topic(JSONObject command) {
        TopicConfig topic = new TopicConfig(command.getString("topic"), 4, 4);
        Map<String, String> attributes = new HashMap<>();
        command.getJSONObject("attributes").forEach((key, value) ->
            attributes.put(key, String.valueOf(value)));
        topic.setAttributes(attributes);
        broker.getTopicConfigManager().updateTopicConfig(topic);
    }

    private void group(JSONObject command) {
        SubscriptionGroupConfig group = new SubscriptionGroupConfig();
        group.setGroupName(command.getString("group"));
        group.setAttributes(new HashMap<>(Map.of("+test.key", "value")));
        group.setConsumeMessageOrderly(true);
        try {
            broker.getSubscriptionGroupManager().updateSubscriptionGroupConfig(group);
        } catch (RuntimeException unknownAttribute) {
            group.setAttributes(new HashMap<>());
            broker.getSubscriptionGroupManager().updateSubscriptionGroupConfig(group);
        }
    }

    private void mapping(JSONObject command) throws Exception {
        String name = broker.getBrokerConfig().getBrokerName();
        TopicQueueMappingDetail detail =
            new TopicQueueMappingDetail(command.getString("topic"), 1, name, 1);
        TopicQueueMappingDetail.putMappingInfo(detail, 0, new ArrayList<>(
            List.of(new LogicQueueMappingItem(0, 0, name, 100, 0, -1, -1, -1))));
        broker.getTopicQueueMappingManager().updateTopicQueueMapping(detail, true, false, true);
    }

    private MessageExtBrokerInner message(JSONObject command) throws Exception {
        MessageExtBrokerInner message = new MessageExtBrokerInner();
        message.setTopic(command.getString("topic"));
        message.setQueueId(command.getIntValue("queueId"));
        byte[] body = Base64.getDecoder().decode(command.getString("body"));
        String codec = command.getString("codec");
        if (codec != null) {
            CompressionType type = CompressionType.of(codec);
            body = CompressorFactory.getCompressor(type).compress(body, 5);
            message.setSysFlag(MessageSysFlag.COMPRESSED_FLAG | type.getCompressionFlag());
        }
        message.setBody(body);
        command.getJSONObject("properties").forEach((key, value) ->
            MessageAccessor.putProperty(message, key, String.valueOf(value)));
        message.setTagsCode(MessageExtBrokerInner.tagsString2tagsCode(message.getTags()));
        message.setPropertiesString(
            MessageDecoder.messageProperties2String(message.getProperties()));
        message.setBornTimestamp(System.currentTimeMillis());
        message.setBornHost(HOST);
        message.setStoreHost(HOST);
        return message;
    }

    private void put(JSONObject command, JSONObject answer) throws Exception {
        tell(store.putMessage(message(command)), answer);
    }

    private void tell(PutMessageResult result, JSONObject answer) throws Exception {
        answer.put("status", result.getPutMessageStatus().name());
        AppendMessageResult appended = result.getAppendMessageResult();
        if (appended != null) {
            answer.put("queueOffset", appended.getLogicsOffset());
            answer.put("physicalOffset", appended.getWroteOffset());
        }
        while (store.dispatchBehindBytes() > 0) {
            Thread.sleep(1);
        }
    }

    /** As SendMessageProcessor does with a message that has TRAN_MSG. */
    private void begin(JSONObject command, JSONObject answer) throws Exception {
        MessageExtBrokerInner message = message(command);
        message.setSysFlag(MessageSysFlag.TRANSACTION_PREPARED_TYPE);
        tell(broker.getTransactionalMessageService().prepareMessage(message), answer);
    }

    private void end(JSONObject command, JSONObject answer) throws Exception {
        EndTransactionRequestHeader header = new EndTransactionRequestHeader();
        header.setTopic("");
        header.setProducerGroup(command.getString("producerGroup"));
        header.setTranStateTableOffset(command.getLong("queueOffset"));
        header.setCommitLogOffset(command.getLong("physicalOffset"));
        header.setCommitOrRollback(command.getBooleanValue("commits")
            ? MessageSysFlag.TRANSACTION_COMMIT_TYPE : MessageSysFlag.TRANSACTION_ROLLBACK_TYPE);
        header.setFromTransactionCheck(false);
        header.setMsgId("");
        RemotingCommand request =
            RemotingCommand.createRequestCommand(RequestCode.END_TRANSACTION, header);
        request.makeCustomHeaderToNet();
        RemotingCommand response = new EndTransactionProcessor(broker)
            .processRequest(client.pipeline().firstContext(), request);
        answer.put("code", response.getCode());
    }

    private TransactionalMessageServiceImpl ops() {
        return (TransactionalMessageServiceImpl) broker.getTransactionalMessageService();
    }

    /** As PopMessageProcessor.appendCheckPoint does, and what a pop does to the group's offset. */
    private void pop(JSONObject command) throws Exception {
        String topic = command.getString("topic");
        String group = command.getString("group");
        int count = command.getIntValue("count");
        PopCheckPoint point = new PopCheckPoint();
        point.setBitMap(0);
        point.setNum((byte) count);
        point.setPopTime(System.currentTimeMillis());
        point.setInvisibleTime(command.getLongValue("invisibleMs"));
        point.setStartOffset(0);
        point.setCId(group);
        point.setTopic(topic);
        point.setQueueId(0);
        point.setBrokerName(broker.getBrokerConfig().getBrokerName());
        for (int one = 0; one < count; one++) {
            point.addDiff(one);
        }
        PutMessageResult result =
            store.putMessage(broker.getPopMessageProcessor().buildCkMsg(point, 0));
        if (!result.isOk()) {
            throw new IllegalStateException(result.toString());
        }
        broker.getConsumerOffsetManager().commitOffset("", group, topic, 0, count);
    }

    private void offset(JSONObject command, JSONObject answer) throws Exception {
        String topic = command.getString("topic");
        String group = command.getString("group");
        if (command.containsKey("offset")) {
            broker.getConsumerOffsetManager()
                .commitOffset("", group, topic, 0, command.getLongValue("offset"));
        }
        answer.put("offset", broker.getConsumerOffsetManager().queryOffset(group, topic, 0));
        answer.put("maxOffset", store.getMaxOffsetInQueue(topic, 0));
        answer.put("reviveTopic", PopAckConstants.buildClusterReviveTopic(
            broker.getBrokerConfig().getBrokerClusterName()));
    }

    /** Bodies of a queue, as a consumer's client decodes them. */
    private void read(JSONObject command, JSONObject answer) throws Exception {
        String topic = command.getString("topic");
        int queueId = command.getIntValue("queueId");
        JSONArray bodies = new JSONArray();
        long offset = command.getLongValue("offset");
        GetMessageResult result = store.getMessage("interop", topic, queueId, offset, 32, null);
        for (ByteBuffer record : result.getMessageBufferList()) {
            MessageExt message = MessageDecoder.decode(record);
            bodies.add(Base64.getEncoder().encodeToString(message.getBody()));
        }
        result.release();
        answer.put("bodies", bodies);
        answer.put("maxOffset", store.getMaxOffsetInQueue(topic, queueId));
    }

    /** The two numbers of the checkpoint that 4.9 does not have. */
    private void confirm(JSONObject command) {
        DefaultMessageStore own = (DefaultMessageStore) store;
        own.getStoreCheckpoint().setConfirmPhyOffset(command.getLongValue("confirmed"));
        own.getStoreCheckpoint().setMasterFlushedOffset(command.getLongValue("flushed"));
        own.getStoreCheckpoint().flush();
    }

    /** The two files of a broker that a controller gives its role to. */
    private void controller(JSONObject command) throws Exception {
        MessageStoreConfig config = new MessageStoreConfig();
        config.setStorePathRootDir(command.getString("path"));
        EpochFileCache epochs = new EpochFileCache(config.getStorePathEpochFile());
        epochs.appendEntry(new EpochEntry(1, 0));
        epochs.appendEntry(new EpochEntry(2, 1000));
        new BrokerMetadata(config.getStorePathBrokerIdentity())
            .updateAndPersist("DefaultCluster", "broker-a", 2L);
    }
}
