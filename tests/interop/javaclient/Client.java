import com.alibaba.fastjson.JSON;
import com.alibaba.fastjson.JSONArray;
import com.alibaba.fastjson.JSONObject;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.protocol.heartbeat.MessageModel;

/**
 * The genuine client behind a line protocol: one JSON object in, one JSON object out.
 *
 * <p>Producers and consumers are known by their groups. A message whose body begins with "fail" is
 * consumed at its second try; one that begins with "never", not at all. A transaction ends as the
 * property "ends" says, at once or, after "ask", when the broker asks.
 */
public final class Client {
    private final String nameServer;
    private final Map<String, DefaultMQProducer> producers = new HashMap<>();
    private final Map<String, DefaultMQPushConsumer> consumers = new HashMap<>();
    private final Map<String, LinkedBlockingQueue<JSONObject>> received = new ConcurrentHashMap<>();

    private Client(String nameServer) {
        this.nameServer = nameServer;
    }

    public static void main(String[] arguments) throws Exception {
        PrintStream answers = System.out;
        System.setOut(System.err); // the client's own lines must not mix with the answers
        Client client = new Client(arguments[0]);
        BufferedReader lines =
            new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        String line;
        while ((line = lines.readLine()) != null) {
            JSONObject command = JSON.parseObject(line);
            JSONObject result = new JSONObject();
            try {
                client.run(command.getString("cmd"), command, result);
                result.put("ok", true);
            } catch (Throwable failure) {
                failure.printStackTrace();
                result.put("ok", false);
                result.put("error", failure.toString());
            }
            answers.println(result.toJSONString());
            if ("exit".equals(command.getString("cmd"))) {
                break;
            }
        }
        System.exit(0);
    }

    private void run(String name, JSONObject command, JSONObject result) throws Exception {
        String group = command.getString("group");
        switch (name) {
            case "send":
                result.put("results", send(group, command));
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
            case "consume":
                consume(group, command);
                break;
            case "received":
                result.put("messages", take(group, command));
                break;
            case "closeConsumer":
                consumers.remove(group).shutdown();
                break;
            case "exit":
                producers.values().forEach(DefaultMQProducer::shutdown);
                consumers.values().forEach(DefaultMQPushConsumer::shutdown);
                break;
            default:
                throw new IllegalArgumentException(name);
        }
    }

    // --- producers --------------------------------------------------------------------------------

    private DefaultMQProducer producer(String group) throws Exception {
        DefaultMQProducer known = producers.get(group);
        return known != null ? known : started(group, new DefaultMQProducer(group));
    }

    private TransactionMQProducer transactions(String group) throws Exception {
        DefaultMQProducer known = producers.get(group);
        if (known != null) {
            return (TransactionMQProducer) known;
        }
        TransactionMQProducer made = new TransactionMQProducer(group);
        made.setTransactionListener(new TransactionListener() {
            @Override
            public LocalTransactionState executeLocalTransaction(Message message, Object argument) {
                String ends = message.getUserProperty("ends");
                return ends.startsWith("ask") ? LocalTransactionState.UNKNOW : state(ends);
            }

            @Override
            public LocalTransactionState checkLocalTransaction(MessageExt message) {
                return state(message.getUserProperty("ends").substring("ask".length()));
            }
        });
        started(group, made);
        return made;
    }

    private static LocalTransactionState state(String ends) {
        return "commit".equals(ends)
            ? LocalTransactionState.COMMIT_MESSAGE : LocalTransactionState.ROLLBACK_MESSAGE;
    }

    private DefaultMQProducer started(String group, DefaultMQProducer made) throws Exception {
        made.setNamesrvAddr(nameServer);
        made.setHeartbeatBrokerInterval(500); // a broker asks those that it heard of
        made.start();
        producers.put(group, made);
        return made;
    }

    private JSONArray send(String group, JSONObject command) throws Exception {
        JSONArray results = new JSONArray();
        for (Message message : messages(command)) {
            results.add(outcome(producer(group).send(message)));
        }
        return results;
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
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group);
        consumer.setNamesrvAddr(nameServer);
        consumer.setInstanceName(group + System.nanoTime());
        consumer.setHeartbeatBrokerInterval(500); // another broker in the same place is told soon
        // What it is consuming when it stops ends first, so that its offset is stored with the rest.
        consumer.setAwaitTerminationMillisWhenShutdown(10_000);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setMessageModel(MessageModel.valueOf(
            command.containsKey("model") ? command.getString("model") : "CLUSTERING"));
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
        consumers.put(group, consumer);
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
        one.put("tags", message.getTags());
        one.put("keys", message.getKeys());
        one.put("reconsumeTimes", message.getReconsumeTimes());
        one.put("body", new String(message.getBody(), StandardCharsets.UTF_8));
        return one;
    }
}
