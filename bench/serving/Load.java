import com.alibaba.fastjson.JSON;
import com.alibaba.fastjson.JSONObject;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * Load for a broker, by the genuine client: one JSON object in, one JSON object out.
 *
 * <p>One process serves every broker of a comparison, so that its compiler has seen the same for
 * each; a broker is known by its name server.
 */
public final class Load {
    private static final int PAGE = 32;
    private static final int QUEUES = 8;

    private final Map<String, DefaultMQProducer> producers = new HashMap<>();
    private int consumers;

    public static void main(String[] arguments) throws Exception {
        PrintStream answers = System.out;
        System.setOut(System.err); // the client's own lines must not mix with the answers
        Load load = new Load();
        BufferedReader lines =
            new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            JSONObject ask = JSON.parseObject(line);
            JSONObject answer = new JSONObject();
            try {
                load.run(ask, answer);
                answer.put("ok", true);
            } catch (Throwable failure) {
                failure.printStackTrace();
                answer.put("ok", false);
                answer.put("error", failure.toString());
            }
            answers.println(answer.toJSONString());
        }
        System.exit(0);
    }

    private void run(JSONObject ask, JSONObject answer) throws Exception {
        switch (ask.getString("cmd")) {
            case "fill": fill(ask); break;
            case "send": new Sending(ask).run(answer); break;
            case "consume": consume(ask, answer); break;
            case "both": both(ask, answer); break;
            case "exit": break;
            default: throw new IllegalArgumentException(ask.getString("cmd"));
        }
    }

    private DefaultMQProducer producer(String nameServer) throws Exception {
        DefaultMQProducer known = producers.get(nameServer);
        if (known == null) {
            known = new DefaultMQProducer("load");
            known.setNamesrvAddr(nameServer);
            known.setInstanceName("producer-" + producers.size()); // a connection of its own
            known.setSendMsgTimeout(10_000);
            known.setRetryTimesWhenSendFailed(0);
            known.setDefaultTopicQueueNums(QUEUES);
            known.start();
            producers.put(nameServer, known);
        }
        return known;
    }

    private static Message message(String topic, byte[] body) {
        return new Message(topic, "tag", "key", body);
    }

    /** Sends when the name server knows the broker; afterwards the topic is there, with a route. */
    private static void sendFirst(DefaultMQProducer producer, String topic, byte[] body)
        throws Exception {
        for (long until = System.nanoTime() + TimeUnit.SECONDS.toNanos(60); ; Thread.sleep(100)) {
            try {
                check(producer.send(message(topic, body)));
                return;
            } catch (MQClientException unknown) {
                if (System.nanoTime() > until) {
                    throw unknown;
                }
            }
        }
    }

    private static void check(SendResult result) {
        if (result.getSendStatus() != SendStatus.SEND_OK) {
            throw new IllegalStateException(result.toString());
        }
    }

    // --- producers --------------------------------------------------------------------------------

    /** Sends from a number of threads, each of which waits for its reply, until the time is over. */
    private final class Sending {
        private final DefaultMQProducer producer;
        private final String topic;
        private final byte[] body;
        private final int batch;
        private final int threads;
        private final long nanos;
        private final ConcurrentLinkedQueue<long[]> times = new ConcurrentLinkedQueue<>();
        private final ConcurrentLinkedQueue<Throwable> failures = new ConcurrentLinkedQueue<>();

        Sending(JSONObject ask) throws Exception {
            producer = producer(ask.getString("nameServer"));
            topic = ask.getString("topic");
            body = new byte[ask.getIntValue("bodySize")];
            Arrays.fill(body, (byte) 'x');
            batch = ask.getIntValue("batch");
            threads = ask.getIntValue("threads");
            nanos = TimeUnit.MILLISECONDS.toNanos(ask.getLong("millis"));
        }

        long run(JSONObject answer) throws Exception {
            sendFirst(producer, topic, body);
            CountDownLatch ready = new CountDownLatch(threads);
            CountDownLatch go = new CountDownLatch(1);
            List<Thread> running = new ArrayList<>();
            for (int i = 0; i < threads; i++) {
                Thread thread = new Thread(() -> send(ready, go));
                thread.start();
                running.add(thread);
            }
            ready.await();
            long began = System.nanoTime();
            go.countDown();
            for (Thread thread : running) {
                thread.join();
            }
            double seconds = (System.nanoTime() - began) / 1e9;
            if (!failures.isEmpty()) {
                throw new IllegalStateException("a send failed", failures.peek());
            }
            long[] all = times.stream().flatMapToLong(Arrays::stream).sorted().toArray();
            answer.put("requests", all.length);
            answer.put("requestsPerSecond", all.length / seconds);
            answer.put("messagesPerSecond", (long) all.length * batch / seconds);
            answer.put("p50Microseconds", all[all.length / 2] / 1e3);
            answer.put("p99Microseconds", all[(int) (all.length * 0.99)] / 1e3);
            return (long) all.length * batch + 1;
        }

        private void send(CountDownLatch ready, CountDownLatch go) {
            long[] took = new long[1024];
            int count = 0;
            try {
                ready.countDown();
                go.await();
                long until = System.nanoTime() + nanos;
                for (long now = System.nanoTime(); now < until; ) {
                    if (batch == 1) {
                        check(producer.send(message(topic, body)));
                    } else {
                        check(producer.send(messages(topic, body, batch)));
                    }
                    long then = System.nanoTime();
                    if (count == took.length) {
                        took = Arrays.copyOf(took, 2 * count);
                    }
                    took[count++] = then - now;
                    now = then;
                }
            } catch (Throwable failure) {
                failures.add(failure);
            }
            times.add(Arrays.copyOf(took, count));
        }
    }

    private static List<Message> messages(String topic, byte[] body, int count) {
        List<Message> made = new ArrayList<>(count);
        for (int i = 0; i < count; i++) {
            made.add(message(topic, body));
        }
        return made;
    }

    private void fill(JSONObject ask) throws Exception {
        DefaultMQProducer producer = producer(ask.getString("nameServer"));
        byte[] body = new byte[ask.getIntValue("bodySize")];
        sendFirst(producer, "first", body);
        for (int left = ask.getIntValue("messages"); left > 0; left -= PAGE) {
            check(producer.send(messages(ask.getString("topic"), body, Math.min(left, PAGE))));
        }
    }

    // --- consumers --------------------------------------------------------------------------------

    private DefaultMQPushConsumer consumer(JSONObject ask, MessageListenerConcurrently listener)
        throws Exception {
        DefaultMQPushConsumer made = new DefaultMQPushConsumer("consumer-" + consumers);
        made.setNamesrvAddr(ask.getString("nameServer"));
        made.setInstanceName("consumer-" + consumers++);
        made.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        made.setPullBatchSize(PAGE);
        made.setConsumeMessageBatchMaxSize(PAGE);
        made.subscribe(ask.getString("topic"), "*");
        made.registerMessageListener(listener);
        made.start();
        return made;
    }

    /**
     * A new group reads all there is; the clock runs from when every queue has given something.
     *
     * <p>Earlier it would measure the client: of a new group, the pulls that overtake the heartbeat
     * with its latest subscription are refused by either broker, and asked again after a second.
     */
    private void consume(JSONObject ask, JSONObject answer) throws Exception {
        long wanted = ask.getLong("messages");
        AtomicLong count = new AtomicLong();
        AtomicLong early = new AtomicLong();
        AtomicLong began = new AtomicLong();
        Set<Integer> queues = ConcurrentHashMap.newKeySet();
        CountDownLatch done = new CountDownLatch(1);
        DefaultMQPushConsumer consumer = consumer(ask, (messages, context) -> {
            long before = count.getAndAdd(messages.size());
            if (began.get() == 0) {
                queues.add(messages.get(0).getQueueId());
                if (queues.size() == QUEUES && began.compareAndSet(0, System.nanoTime())) {
                    early.set(before);
                }
            }
            if (before + messages.size() >= wanted) {
                done.countDown();
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        boolean isWhole = done.await(120, TimeUnit.SECONDS);
        double seconds = (System.nanoTime() - began.get()) / 1e9;
        consumer.shutdown();
        if (!isWhole) {
            throw new IllegalStateException(count + " of " + wanted + " messages came");
        }
        answer.put("requests", count.get());
        answer.put("messagesPerSecond", (count.get() - early.get()) / seconds);
    }

    /** Sends while a consumer takes what was sent; ends when it has everything. */
    private void both(JSONObject ask, JSONObject answer) throws Exception {
        AtomicInteger count = new AtomicInteger();
        AtomicInteger[] late = new AtomicInteger[10_001];
        Arrays.setAll(late, i -> new AtomicInteger());
        Sending sending = new Sending(ask);
        sendFirst(sending.producer, sending.topic, sending.body);
        DefaultMQPushConsumer consumer = consumer(ask, (messages, context) -> {
            long now = System.currentTimeMillis();
            for (MessageExt one : messages) {
                long waited = Math.max(0, now - one.getBornTimestamp());
                late[(int) Math.min(waited, late.length - 1)].incrementAndGet();
            }
            count.addAndGet(messages.size());
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        waitFor(count, 1);
        Arrays.stream(late).forEach(one -> one.set(0));
        long sent = sending.run(answer) + 1;
        waitFor(count, sent);
        consumer.shutdown();
        answer.put("deliveredP50Milliseconds", percentile(late, 0.5));
        answer.put("deliveredP99Milliseconds", percentile(late, 0.99));
    }

    private static void waitFor(AtomicInteger count, long wanted) throws Exception {
        long until = System.nanoTime() + TimeUnit.SECONDS.toNanos(120);
        while (count.get() < wanted) {
            if (System.nanoTime() > until) {
                throw new IllegalStateException(count + " of " + wanted + " messages came");
            }
            Thread.sleep(1);
        }
    }

    private static int percentile(AtomicInteger[] late, double part) {
        long left = (long) (Arrays.stream(late).mapToLong(AtomicInteger::get).sum() * part);
        int milliseconds = 0;
        while ((left -= late[milliseconds].get()) > 0) {
            milliseconds++;
        }
        return milliseconds;
    }
}
