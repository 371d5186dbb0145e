package rocketstore.interop;

import com.alibaba.fastjson.JSONArray;
import com.alibaba.fastjson.JSONObject;
import io.netty.channel.ChannelHandlerContext;
import io.netty.channel.ChannelInboundHandlerAdapter;
import io.netty.channel.embedded.EmbeddedChannel;
import org.apache.rocketmq.broker.BrokerController;
import org.apache.rocketmq.broker.processor.EndTransactionProcessor;
import org.apache.rocketmq.broker.transaction.AbstractTransactionalMessageCheckListener;
import org.apache.rocketmq.broker.transaction.queue.TransactionalMessageBridge;
import org.apache.rocketmq.broker.transaction.queue.TransactionalMessageServiceImpl;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.protocol.RequestCode;
import org.apache.rocketmq.common.protocol.header.EndTransactionRequestHeader;
import org.apache.rocketmq.common.sysflag.MessageSysFlag;
import org.apache.rocketmq.remoting.netty.NettyClientConfig;
import org.apache.rocketmq.remoting.netty.NettyServerConfig;
import org.apache.rocketmq.remoting.protocol.RemotingCommand;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.PutMessageResult;

/**
 * A broker's own classes for transactions and the offsets of consumers, over the session's store.
 *
 * <p>They are of 4.9.7: Maven Central has no broker of 4.9.8. The broker is neither initialized nor
 * started: no port, no thread, only what these classes ask it for.
 */
final class Transactions {
    private final DefaultMessageStore store;
    private final BrokerController broker;
    private final TransactionalMessageServiceImpl service;
    private final EndTransactionProcessor ends;

    /** It is asked for the producer's address, for a line in the broker's log. */
    private final ChannelHandlerContext producer =
        new EmbeddedChannel(new ChannelInboundHandlerAdapter()).pipeline().firstContext();

    Transactions(DefaultMessageStore store) {
        this.store = store;
        broker = new BrokerController(
            new BrokerConfig(), new NettyServerConfig(), new NettyClientConfig(),
            store.getMessageStoreConfig());
        broker.setMessageStore(store);
        service = new TransactionalMessageServiceImpl(
            new TransactionalMessageBridge(broker, store));
        broker.setTransactionalMessageService(service);
        ends = new EndTransactionProcessor(broker);
        broker.getConsumerOffsetManager().load();
    }

    JSONArray begin(JSONArray messages) throws Exception {
        JSONArray results = new JSONArray();
        for (int i = 0; i < messages.size(); i++) {
            PutMessageResult put =
                service.prepareMessage(MessageJson.inner(messages.getJSONObject(i)));
            results.add(StoreSession.putResult(store, put));
        }
        return results;
    }

    /** The code of the answer that a producer would get, or null where it would get none. */
    Integer end(JSONObject command) throws Exception {
        EndTransactionRequestHeader header = new EndTransactionRequestHeader();
        header.setProducerGroup(command.getString("producerGroup"));
        header.setTranStateTableOffset(command.getLong("queueOffset"));
        header.setCommitLogOffset(command.getLong("physicalOffset"));
        header.setCommitOrRollback(command.getBooleanValue("commits")
            ? MessageSysFlag.TRANSACTION_COMMIT_TYPE : MessageSysFlag.TRANSACTION_ROLLBACK_TYPE);
        header.setFromTransactionCheck(false);
        header.setMsgId("-");
        header.setTransactionId("-");
        RemotingCommand request =
            RemotingCommand.createRequestCommand(RequestCode.END_TRANSACTION, header);
        request.makeCustomHeaderToNet();
        RemotingCommand response = ends.processRequest(producer, request);
        return response == null ? null : response.getCode();
    }

    /** One turn of the check; the half messages about which a producer would be asked. */
    JSONArray check(long timeoutMs) {
        JSONArray asked = new JSONArray();
        service.check(timeoutMs, 15, new AbstractTransactionalMessageCheckListener(broker) {
            @Override
            public void resolveHalfMsg(MessageExt half) {
                JSONObject json = new JSONObject(true);
                json.put("body", half.getBody());
                json.put("queueOffset", half.getQueueOffset());
                json.put("physicalOffset", half.getCommitLogOffset());
                asked.add(json);
            }

            @Override
            public void resolveDiscardMsg(MessageExt half) {
                throw new IllegalStateException("discarded: " + half);
            }
        });
        return asked;
    }

    /** Where a group goes on in a queue; -1 where it has no offset. */
    long offset(JSONObject command) {
        return broker.getConsumerOffsetManager().queryOffset(
            command.getString("group"), command.getString("topic"),
            command.getIntValue("queueId"));
    }

    /** Takes effect at once; it is in the file when the store is closed. */
    void commitOffset(JSONObject command) {
        broker.getConsumerOffsetManager().commitOffset(
            "-", command.getString("group"), command.getString("topic"),
            command.getIntValue("queueId"), command.getLongValue("offset"));
    }

    void close() {
        broker.getConsumerOffsetManager().persist();
    }
}
