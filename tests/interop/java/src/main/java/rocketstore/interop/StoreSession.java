package rocketstore.interop;

import com.alibaba.fastjson.JSONArray;
import com.alibaba.fastjson.JSONObject;
import java.nio.ByteBuffer;
import java.util.List;
import java.util.TreeSet;
import org.apache.rocketmq.common.filter.FilterAPI;
import org.apache.rocketmq.common.message.MessageExtBatch;
import org.apache.rocketmq.store.AppendMessageResult;
import org.apache.rocketmq.store.ConsumeQueue;
import org.apache.rocketmq.store.DefaultMessageFilter;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.GetMessageResult;
import org.apache.rocketmq.store.PutMessageResult;
import org.apache.rocketmq.store.QueryMessageResult;
import org.apache.rocketmq.store.SelectMappedBufferResult;
import org.apache.rocketmq.store.config.MessageStoreConfig;

/** One store of the session, and the commands on it. */
final class StoreSession {
    private static final String GROUP = "rocketstore-interop";

    private DefaultMessageStore store;
    private boolean started;
    private Transactions transactions;

    JSONObject run(String name, JSONObject command) throws Exception {
        switch (name) {
            case "open":
                return open(command);
            case "put":
                return put(command.getJSONArray("messages"));
            case "putBatch":
                return putBatch(command);
            case "get":
                return get(command);
            case "find":
                return find(command);
            case "offsetAt":
                return single("offset", store.getOffsetInQueueByTime(
                    command.getString("topic"), command.getIntValue("queueId"),
                    command.getLongValue("timestamp")));
            case "byOffset":
                return byOffset(command.getLongValue("physicalOffset"));
            case "positions":
                return positions();
            case "queues":
                return queues();
            case "entries":
                return entries(command);
            case "begin":
                return single("results", transactions().begin(command.getJSONArray("messages")));
            case "endTransaction":
                return single("code", transactions().end(command));
            case "checkTransactions":
                return single("asked", transactions().check(command.getLongValue("timeoutMs")));
            case "consumerOffset":
                return single("offset", transactions().offset(command));
            case "commitOffset":
                transactions().commitOffset(command);
                return new JSONObject(true);
            case "waitDispatched":
                GenuineStore.waitDispatched(store);
                return new JSONObject(true);
            case "flush":
                store.flush();
                return new JSONObject(true);
            case "close":
            case "exit":
                close();
                return new JSONObject(true);
            default:
                throw new IllegalArgumentException("unknown command " + name);
        }
    }

    /** With {@code start} false the store is loaded and recovered, but not locked or started. */
    private JSONObject open(JSONObject command) throws Exception {
        if (store != null) {
            throw new IllegalStateException("a store is open already");
        }
        MessageStoreConfig config =
            GenuineStore.config(command.getString("path"), command.getJSONObject("config"));
        store = GenuineStore.make(config);
        boolean loaded = store.load();
        started = false;
        if (loaded && command.getBooleanValue("start")) {
            try {
                store.start();
                started = true;
            } catch (Exception refused) {
                store = null;
                throw refused;
            }
        } else if (loaded) {
            store.recoverTopicQueueTable();
        }
        JSONObject answer = positions();
        answer.put("loaded", loaded);
        answer.put("pid", ProcessHandle.current().pid());
        return answer;
    }

    private Transactions transactions() {
        if (transactions == null) {
            transactions = new Transactions(store);
        }
        return transactions;
    }

    /** Orderly shutdown; a store that was only loaded is left as it is. */
    void close() {
        if (transactions != null) {
            transactions.close();
        }
        if (store != null && started) {
            store.shutdown();
        }
        store = null;
        transactions = null;
        started = false;
    }

    private JSONObject put(JSONArray messages) throws Exception {
        JSONArray results = new JSONArray();
        for (int i = 0; i < messages.size(); i++) {
            results.add(putResult(store,
                store.putMessage(MessageJson.inner(messages.getJSONObject(i)))));
        }
        return single("results", results);
    }

    private JSONObject putBatch(JSONObject command) throws Exception {
        MessageExtBatch batch = MessageJson.batch(
            command.getJSONObject("envelope"), command.getJSONArray("messages"));
        return putResult(store, store.putMessages(batch));
    }

    static JSONObject putResult(DefaultMessageStore store, PutMessageResult result) {
        JSONObject json = new JSONObject(true);
        json.put("status", result.getPutMessageStatus().name());
        AppendMessageResult appended = result.getAppendMessageResult();
        if (appended != null) {
            json.put("physicalOffset", appended.getWroteOffset());
            json.put("size", appended.getWroteBytes());
            json.put("queueOffset", appended.getLogicsOffset());
            json.put("storeTimestamp", appended.getStoreTimestamp());
            json.put("messageCount", appended.getMsgNum());
            json.put("msgId", appended.getMsgId());
        } else {
            json.put("runningFlags", store.getRunningFlags().getFlagBits());
        }
        return json;
    }

    private JSONObject get(JSONObject command) throws Exception {
        String topic = command.getString("topic");
        String tags = command.getString("tags");
        DefaultMessageFilter filter = tags == null
            ? null : new DefaultMessageFilter(FilterAPI.buildSubscriptionData(topic, tags));
        GetMessageResult result = store.getMessage(
            GROUP, topic, command.getIntValue("queueId"), command.getLongValue("offset"),
            command.getIntValue("max"), filter);
        try {
            JSONObject json = new JSONObject(true);
            json.put("status", result.getStatus().name());
            json.put("nextOffset", result.getNextBeginOffset());
            json.put("minOffset", result.getMinOffset());
            json.put("maxOffset", result.getMaxOffset());
            json.put("messages", decoded(result.getMessageBufferList()));
            return json;
        } finally {
            result.release();
        }
    }

    private JSONObject find(JSONObject command) {
        QueryMessageResult result = store.queryMessage(
            command.getString("topic"), command.getString("key"), command.getIntValue("max"),
            command.getLongValue("begin"), command.getLongValue("end"));
        try {
            return single("messages", decoded(result.getMessageBufferList()));
        } finally {
            result.release();
        }
    }

    private JSONObject byOffset(long physicalOffset) {
        SelectMappedBufferResult record = store.selectOneMessageByOffset(physicalOffset);
        if (record == null) {
            return single("message", null);
        }
        try {
            return single("message", MessageJson.decoded(record.getByteBuffer()));
        } finally {
            record.release();
        }
    }

    private JSONObject positions() {
        JSONObject json = new JSONObject(true);
        json.put("minPhysicalOffset", store.getMinPhyOffset());
        json.put("maxPhysicalOffset", store.getMaxPhyOffset());
        return json;
    }

    private JSONObject queues() {
        JSONArray queues = new JSONArray();
        for (String topic : new TreeSet<>(store.getConsumeQueueTable().keySet())) {
            for (int queueId : new TreeSet<>(store.getConsumeQueueTable().get(topic).keySet())) {
                JSONObject queue = new JSONObject(true);
                queue.put("topic", topic);
                queue.put("queueId", queueId);
                queue.put("minOffset", store.getMinOffsetInQueue(topic, queueId));
                queue.put("maxOffset", store.getMaxOffsetInQueue(topic, queueId));
                queues.add(queue);
            }
        }
        return single("queues", queues);
    }

    /** Every entry from the queue's minimum offset on, as [physical offset, size, tags code]. */
    private JSONObject entries(JSONObject command) {
        ConsumeQueue queue = store.findConsumeQueue(
            command.getString("topic"), command.getIntValue("queueId"));
        JSONArray entries = new JSONArray();
        long offset = queue.getMinOffsetInQueue();
        while (offset < queue.getMaxOffsetInQueue()) {
            SelectMappedBufferResult slice = queue.getIndexBuffer(offset);
            if (slice == null) {
                throw new IllegalStateException("no entries at queue offset " + offset);
            }
            try {
                ByteBuffer bytes = slice.getByteBuffer();
                for (int at = 0; at < slice.getSize(); at += ConsumeQueue.CQ_STORE_UNIT_SIZE) {
                    JSONArray entry = new JSONArray();
                    entry.add(bytes.getLong());
                    entry.add(bytes.getInt());
                    entry.add(bytes.getLong());
                    entries.add(entry);
                    offset++;
                }
            } finally {
                slice.release();
            }
        }
        return single("entries", entries);
    }

    private static JSONArray decoded(List<ByteBuffer> records) {
        JSONArray messages = new JSONArray();
        for (ByteBuffer record : records) {
            messages.add(MessageJson.decoded(record));
        }
        return messages;
    }

    private static JSONObject single(String name, Object value) {
        JSONObject json = new JSONObject(true);
        json.put(name, value);
        return json;
    }
}
