import com.alibaba.fastjson.JSONArray;
import com.alibaba.fastjson.JSONObject;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.function.BooleanSupplier;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.PullStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.client.utils.MessageUtil;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * The genuine client behind a line protocol: one JSON object in, one JSON object out.
 *
 * <p>Producers and consumers are known by their groups. A message whose body begins with "fail" is
 * consumed at its second try; one that begins with "never", not at all. A request is answered with
 * "re " and its body. A transaction ends as the property "ends" says, at once or, after each "ask",
 * when the broker asks once more.
 *
 * <p>The source compiles against 4.9 and 5.x: classes that went to another package are not named.
 */
public final class Client {
    private final String nameServer;
    private final Map<String, DefaultMQProducer> producers = new HashMap<>();
    private final Map<String, Runnable> consumers = new HashMap<>(); // what stops each
    private final Map<String, DefaultMQPushConsumer> pushing = new HashMap<>();
    private final Map<String, LinkedBlockingQueue<JSONObject>> received = new ConcurrentHashMap<>();

    private Client(String nameServer) {
        this.nameServer = nameServer;
    }

    public static void main(String[] arguments) throws Exception {
        Lines.serve(() -> new Client(arguments[0])::run);
    }

    private void run(JSONObject command, JSONObject result) throws Exception {
        String name = command.getString("cmd");
        String group = command.getString("group");
        switch (name) {
            case "send":
                result.put("results", send(producer(group), command));
                break;
            case "sendBatch":
                result.put("result", outcome(producer(group).send(messages(command))));
                break;
            case "sendTransaction":
                JSONArray results = new JSONArray();
                for (Message message : messages(command)) {
                    results.add(outcome(transactions(group).sendMessageInTransaction(message, null)));
                }
                result.put("results", results);
                break;
            case "request":
                JSONArray replies = new JSONArray();
                for (Message message : messages(command)) {
                    replies.add(text(producer(group).request(message, 60_000)));
                }
                result.put("replies", replies);
                break;
            case "consume":
                consume(group, command);
                break;
            case "received":
                result.put("messages", take(group, command));
                break;
            case "queues":
                result.put("count", pushing.get(group).getDefaultMQPushConsumerImpl()
                    .getRebalanceImpl().getProcessQueueTable().keySet().stream()
                    .filter(one -> one.getTopic().equals(command.getString("topic"))).count());
                break;
            case "closeConsumer":
                consumers.remove(group).run();
                break;
            case "exit":
                producers.values().parallelStream().forEach(DefaultMQProducer::shutdown);
                consumers.values().parallelStream().forEach(Runnable::run);
                break;
            default:
                throw new IllegalArgumentException(name);
        }
    }

    // --- producers --------------------------------------------------------------------------------

    private synchronized DefaultMQProducer producer(String group) throws Exception {
        DefaultMQProducer known = producers.get(group);
        boolean isTraced = "traced".equals(group);
        return known != null ? known
            : started(group, new DefaultMQProducer(group, isTraced, null));
    }

    private TransactionMQProducer transactions(String group) throws Exception {
        DefaultMQProducer known = producers.get(group);
        if (known != null) {
            return (TransactionMQProducer) known;
        }
        TransactionMQProducer made = new TransactionMQProducer(group);
        made.setTransactionListener(new TransactionListener() {
            private final Map<String, Integer> asked = new ConcurrentHashMap<>();

            @Override
            public LocalTransactionState executeLocalTransaction(Message message, Object argument) {
                return state(message, 0);
            }

            @Override
            public LocalTransactionState checkLocalTransaction(MessageExt message) {
                // Not what the broker counts: it counts a check also while it knows no producer.
                return state(message, asked.merge(message.getTransactionId(), 1, Integer::sum));
            }
        });
        started(group, made);
        return made;
    }

    private static LocalTransactionState state(Message message, int timesAsked) {
        String ends = message.getUserProperty("ends");
        for (int time = 0; time < timesAsked && ends.startsWith("ask"); time++) {
            ends = ends.substring("ask".length()); // a slow one is asked before it has said its end
        }
        return ends.startsWith("ask") ? LocalTransactionState.UNKNOW : "commit".equals(ends)
            ? LocalTransactionState.COMMIT_MESSAGE : LocalTransactionState.ROLLBACK_MESSAGE;
    }

    private DefaultMQProducer started(String group, DefaultMQProducer made) throws Exception {
        made.setNamesrvAddr(nameServer);
        made.setHeartbeatBrokerInterval(500); // a broker asks those that it heard of
        made.setVipChannelEnabled("vip".equals(group));
        made.setSendMsgTimeout(60_000); // the JVM may be slow to start
        made.start();
        producers.put(group, made);
        return made;
    }

    private static JSONArray send(DefaultMQProducer producer, JSONObject command)
        throws Exception {
        List<CompletableFuture<SendResult>> sent = new ArrayList<>();
        for (Message message : messages(command)) {
            CompletableFuture<SendResult> result = new CompletableFuture<>();
            switch (command.getString("how")) {
                case "async":
                    producer.send(message, completing(result));
                    sent.add(result);
                    break;
                case "oneway":
                    producer.sendOneway(message);
                    break;
                case "selector": // by the key, as who wants an order does
                    result.complete(producer.send(message, (queues, one, key) ->
                        queues.get(Integer.parseInt((String) key) % queues.size()),
                        message.getKeys()));
                    sent.add(result);
                    break;
                default:
                    result.complete(producer.send(message));
                    sent.add(result);
            }
        }
        JSONArray results = new JSONArray();
        for (CompletableFuture<SendResult> one : sent) {
            results.add(outcome(one.get()));
        }
        return results;
    }

    private static SendCallback completing(CompletableFuture<SendResult> result) {
        return new SendCallback() {
            @Override
            public void onSuccess(SendResult sent) {
                result.complete(sent);
            }

            @Override
            public void onException(Throwable failure) {
                result.completeExceptionally(failure);
            }
        };
    }

    private static List<Message> messages(JSONObject command) {
        List<Message> made = new ArrayList<>();
        for (Object each : command.getJSONArray("messages")) {
            JSONObject one = (JSONObject) each;
            Message message = new Message(
                command.getString("topic"), one.getString("tags"), one.getString("keys"),
                one.getString("body").getBytes(StandardCharsets.UTF_8));
            if (one.containsKey("delayLevel")) {
                message.setDelayTimeLevel(one.getIntValue("delayLevel"));
            }
            if (one.containsKey("ends")) {
                message.putUserProperty("ends", one.getString("ends"));
            }
            made.add(message);
        }
        return made;
    }

    private static JSONObject outcome(SendResult sent) {
        JSONObject result = new JSONObject();
        result.put("status", sent.getSendStatus().name());
        result.put("offsetMsgId", sent.getOffsetMsgId());
        result.put("msgId", sent.getMsgId());
        result.put("queueId", sent.getMessageQueue().getQueueId());
        result.put("queueOffset", sent.getQueueOffset());
        return result;
    }

    // --- consumers --------------------------------------------------------------------------------

    private void consume(String group, JSONObject command) throws Exception {
        LinkedBlockingQueue<JSONObject> taken = new LinkedBlockingQueue<>();
        received.put(group, taken);
        switch (command.getString("kind")) {
            case "pull":
                pull(group, command, taken);
                break;
            case "lite":
                pullLite(group, command, taken);
                break;
            default:
                push(group, command, taken);
        }
    }

    /** Reads each queue from where the group is, and waits at its end. */
    private void pull(
        String group, JSONObject command, LinkedBlockingQueue<JSONObject> taken) throws Exception {
        DefaultMQPullConsumer consumer = new DefaultMQPullConsumer(group);
        consumer.setNamesrvAddr(nameServer);
        consumer.setInstanceName(group + System.nanoTime());
        consumer.start();
        for (MessageQueue queue
            : consumer.fetchSubscribeMessageQueues(command.getString("topic"))) {
            reading(() -> true, () -> {
                long known = Math.max(0, consumer.fetchConsumeOffset(queue, false));
                PullResult page = consumer.pullBlockIfNotFound(
                    queue, command.getString("expression"), known, 32);
                consumer.updateConsumeOffset(queue, page.getNextBeginOffset());
                consumer.getOffsetStore().persist(queue);
                if (page.getPullStatus() == PullStatus.FOUND) {
                    page.getMsgFoundList().forEach(message -> taken.add(shown(message)));
                }
            });
        }
        consumers.put(group, consumer::shutdown); // which ends its readers
    }

    private void pullLite(
        String group, JSONObject command, LinkedBlockingQueue<JSONObject> taken) throws Exception {
        DefaultLitePullConsumer consumer = new DefaultLitePullConsumer(group);
        consumer.setNamesrvAddr(nameServer);
        consumer.setInstanceName(group + System.nanoTime());
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(command.getString("topic"), command.getString("expression"));
        consumer.start();
        AtomicBoolean isWanted = new AtomicBoolean(true);
        Thread reader = reading(isWanted::get, () -> {
            consumer.poll(100).forEach(message -> taken.add(shown(message)));
            consumer.commitSync();
        });
        consumers.put(group, () -> {
            isWanted.set(false);
            try {
                reader.join();
            } catch (InterruptedException never) {
                throw new IllegalStateException(never);
            }
            consumer.shutdown();
        });
    }

    private interface Turn {
        void run() throws Exception;
    }

    private static Thread reading(BooleanSupplier isWanted, Turn turn) {
        Thread reader = new Thread(() -> {
            try {
                while (isWanted.getAsBoolean()) {
                    turn.run();
                }
            } catch (Exception failure) {
                failure.printStackTrace(); // its consumer was stopped, or the test sees nothing
            }
        });
        reader.setDaemon(true);
        reader.start();
        return reader;
    }

    private void push(
        String group, JSONObject command, LinkedBlockingQueue<JSONObject> taken) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group);
        consumer.setNamesrvAddr(nameServer);
        consumer.setInstanceName(group + System.nanoTime());
        consumer.setHeartbeatBrokerInterval(500); // another broker in the same place is told soon
        // What it is consuming when it stops ends first, so that its offset is stored with the rest.
        consumer.setAwaitTerminationMillisWhenShutdown(10_000);
        consumer.setHeartbeatBrokerInterval(500); // a broker that was restarted knows it soon
        consumer.setPollNameServerInterval(500); // and it soon knows the topic of its retries
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        if (command.getBooleanValue("broadcast")) {
            consumer.setMessageModel(
                Enum.valueOf(consumer.getMessageModel().getDeclaringClass(), "BROADCASTING"));
        }
        consumer.subscribe(command.getString("topic"), command.getString("expression"));
        if (command.getBooleanValue("orderly")) {
            consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
                messages.forEach(message -> taken.add(shown(message)));
                return ConsumeOrderlyStatus.SUCCESS;
            });
        } else {
            // The first pause of a retry: 1 s by 4.9's levels, where 0 would be 10 s.
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                context.setDelayLevelWhenNextConsume(1);
                boolean isDone = true;
                for (MessageExt message : messages) {
                    JSONObject one = shown(message);
                    String body = one.getString("body");
                    taken.add(one);
                    answer(message);
                    isDone &= !body.startsWith("never")
                        && !(body.startsWith("fail") && message.getReconsumeTimes() == 0);
                }
                return isDone ? ConsumeConcurrentlyStatus.CONSUME_SUCCESS
                    : ConsumeConcurrentlyStatus.RECONSUME_LATER;
            });
            if (command.containsKey("maxReconsumeTimes")) {
                consumer.setMaxReconsumeTimes(command.getIntValue("maxReconsumeTimes"));
            }
        }
        consumer.start();
        pushing.put(group, consumer);
        consumers.put(group, consumer::shutdown);
    }

    /** Replies to a message whose producer waits for that. */
    private void answer(MessageExt message) {
        if (message.getProperty("REPLY_TO_CLIENT") != null) {
            byte[] body = ("re " + text(message)).getBytes(StandardCharsets.UTF_8);
            try {
                producer("answering").send(MessageUtil.createReplyMessage(message, body));
            } catch (Exception failure) {
                throw new IllegalStateException(failure); // and the message comes again
            }
        }
    }

    private static String text(Message message) {
        return new String(message.getBody(), StandardCharsets.UTF_8);
    }

    private JSONArray take(String group, JSONObject command) throws Exception {
        JSONArray messages = new JSONArray();
        long until = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(command.getLong("timeoutMs"));
        while (messages.size() < command.getIntValue("count")) {
            JSONObject one =
                received.get(group).poll(until - System.nanoTime(), TimeUnit.NANOSECONDS);
            if (one == null) {
                break;
            }
            messages.add(one);
        }
        return messages;
    }

    private static JSONObject shown(MessageExt message) {
        JSONObject one = new JSONObject();
        one.put("topic", message.getTopic());
        one.put("queueId", message.getQueueId());
        one.put("queueOffset", message.getQueueOffset());
        one.put("sysFlag", message.getSysFlag());
        one.put("tags", message.getTags());
        one.put("keys", message.getKeys());
        one.put("reconsumeTimes", message.getReconsumeTimes());
        one.put("body", text(message));
        return one;
    }
}
