package rocketstore.interop;

import com.alibaba.fastjson.JSONObject;
import java.lang.management.ManagementFactory;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.AtomicReference;
import java.util.function.BiConsumer;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageConst;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.topic.TopicValidator;
import org.apache.rocketmq.store.ConsumeQueue;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.GetMessageResult;
import org.apache.rocketmq.store.MessageExtBrokerInner;
import org.apache.rocketmq.store.PutMessageResult;
import org.apache.rocketmq.store.PutMessageStatus;
import org.apache.rocketmq.store.QueryMessageResult;
import org.apache.rocketmq.store.SelectMappedBufferResult;

/**
 * The genuine store's side of the scenarios of bench/: the counterpart of bench/worker.py, command
 * by command. Each times inside this process, on a store directory of its own, and counts
 * afterwards what the store holds; a wrong count is an error, not a figure.
 */
final class Bench {
    private static final String GROUP = "rocketstore-bench";
    private static final int PAGE = 32;
    private static final double NANOS = 1e9;
    private static final long POLL_MS = 2;

    private static BenchMessages preparedMessages;
    private static DefaultMessageStore preparedStore;
    private static DefaultMessageStore served;

    private Bench() {
    }

    static JSONObject run(JSONObject command) throws Exception {
        JSONObject spec = command.getJSONObject("spec");
        String path = command.getString("path");
        if (preparedStore == null) {
            // Between preparing and putting it would give memory back that the puts then get.
            System.gc();
        }
        switch (command.getString("cmd")) {
            case "bench_prepare_put":
                return preparePut(spec, path);
            case "bench_put":
                return put(spec);
            case "bench_get":
                return get(spec, path);
            case "bench_query":
                return query(spec, path);
            case "bench_fill":
                return fill(spec, path);
            case "bench_restart":
                return restart(spec, path);
            case "bench_delay":
                return delay(spec, path);
            case "bench_serve":
                return serve(spec, path);
            case "bench_serve_end":
                served.shutdown();
                return new JSONObject(true);
            case "bench_follow":
                return follow(spec, path);
            default:
                throw new IllegalArgumentException("unknown command " + command.get("cmd"));
        }
    }

    private static DefaultMessageStore open(JSONObject spec, String path) throws Exception {
        return GenuineStore.start(GenuineStore.config(path, spec.getJSONObject("config")));
    }

    /** Open a store and make what is to be put. */
    private static JSONObject preparePut(JSONObject spec, String path) throws Exception {
        preparedMessages = new BenchMessages(spec);
        preparedStore = open(spec, path);
        System.gc();
        return new JSONObject(true);
    }

    /** Put all messages; the clock stops after the last put, and again after its dispatch. */
    private static JSONObject put(JSONObject spec) throws Exception {
        BenchMessages messages = preparedMessages;
        DefaultMessageStore store = preparedStore;
        preparedStore = null;
        preparedMessages = null;
        long begin = System.nanoTime();
        putAll(store, messages, spec);
        long stored = System.nanoTime();
        GenuineStore.waitDispatched(store);
        long dispatched = System.nanoTime();
        checkCount(store, messages.queues, spec.getIntValue("messages"));
        if (spec.getIntValue("openBeforeSeconds") > 0 && store.getMinPhyOffset() == 0) {
            throw new IllegalStateException("retention has removed nothing");
        }
        store.shutdown();
        JSONObject answer = new JSONObject(true);
        answer.put("seconds", (stored - begin) / NANOS);
        answer.put("dispatchedSeconds", (dispatched - begin) / NANOS);
        return answer;
    }

    private static void putAll(DefaultMessageStore store, BenchMessages messages, JSONObject spec)
        throws Exception {
        int count = spec.getIntValue("messages");
        int batch = spec.getIntValue("batch");
        int threads = Math.max(1, spec.getIntValue("threads"));
        if (batch > 1) {
            for (int i = 0; i < count; i += batch) {
                check(store.putMessages(messages.batch(i)));
            }
        } else if (threads == 1) {
            for (int i = 0; i < count; i++) {
                check(store.putMessage(messages.inner(i)));
            }
        } else {
            putFromThreads(store, messages, count, threads);
        }
    }

    private static void putFromThreads(
        DefaultMessageStore store, BenchMessages messages, int count, int threads)
        throws Exception {
        CountDownLatch finished = new CountDownLatch(threads);
        AtomicReference<Throwable> failure = new AtomicReference<>();
        for (int t = 0; t < threads; t++) {
            int first = t;
            new Thread(() -> {
                try {
                    for (int i = first; i < count; i += threads) {
                        check(store.putMessage(messages.inner(i)));
                    }
                } catch (Throwable failed) {
                    failure.set(failed);
                } finally {
                    finished.countDown();
                }
            }).start();
        }
        finished.await();
        if (failure.get() != null) {
            throw new IllegalStateException(failure.get());
        }
    }

    /** Read pages of 32 from every queue in turn, each copied into one buffer as for a pull. */
    private static JSONObject get(JSONObject spec, String path) throws Exception {
        BenchMessages messages = new BenchMessages(spec);
        DefaultMessageStore store = open(spec, path);
        int count = spec.getIntValue("messages");
        putAll(store, messages, spec);
        GenuineStore.waitDispatched(store);
        checkCount(store, messages.queues, count);
        int pagesPerQueue = count / messages.queues / PAGE;
        readPages(store, messages.queues, pagesPerQueue, spec.getIntValue("warmUpPages"));
        long begin = System.nanoTime();
        long read =
            readPages(store, messages.queues, pagesPerQueue, spec.getIntValue("pages"));
        long end = System.nanoTime();
        if (read != (long) spec.getIntValue("pages") * PAGE) {
            throw new IllegalStateException("read " + read + " messages");
        }
        store.shutdown();
        JSONObject answer = new JSONObject(true);
        answer.put("seconds", (end - begin) / NANOS);
        return answer;
    }

    private static long readPages(
        DefaultMessageStore store, int queues, int pagesPerQueue, int pages) {
        long read = 0;
        for (int i = 0; i < pages; i++) {
            long offset = (long) (i / queues % pagesPerQueue) * PAGE;
            GetMessageResult page =
                store.getMessage(GROUP, BenchMessages.TOPIC, i % queues, offset, PAGE, null);
            ByteBuffer copy = ByteBuffer.allocate(page.getBufferTotalSize());
            List<ByteBuffer> records = page.getMessageBufferList();
            for (ByteBuffer record : records) {
                copy.put(record);
            }
            page.release();
            if (copy.hasRemaining()) {
                throw new IllegalStateException("page of another size than announced");
            }
            read += records.size();
        }
        return read;
    }

    /** Query one key at a time, at random; every key has at least one message. */
    private static JSONObject query(JSONObject spec, String path) throws Exception {
        BenchMessages messages = new BenchMessages(spec);
        DefaultMessageStore store = open(spec, path);
        putAll(store, messages, spec);
        GenuineStore.waitDispatched(store);
        queryKeys(store, new Random(1), messages.keyCount(), spec.getIntValue("warmUpQueries"));
        long[] nanos =
            queryKeys(store, new Random(2), messages.keyCount(), spec.getIntValue("queries"));
        Arrays.sort(nanos);
        store.shutdown();
        JSONObject answer = new JSONObject(true);
        answer.put("p50Microseconds", nanos[nanos.length / 2] / 1e3);
        answer.put("p99Microseconds", nanos[nanos.length * 99 / 100] / 1e3);
        return answer;
    }

    private static long[] queryKeys(DefaultMessageStore store, Random random, int keys, int queries) {
        long[] nanos = new long[queries];
        for (int i = 0; i < queries; i++) {
            String key = BenchMessages.key(random.nextInt(keys));
            long begin = System.nanoTime();
            QueryMessageResult result =
                store.queryMessage(BenchMessages.TOPIC, key, PAGE, 0, Long.MAX_VALUE);
            nanos[i] = System.nanoTime() - begin;
            if (result.getMessageBufferList().isEmpty()) {
                throw new IllegalStateException("nothing found for " + key);
            }
            result.release();
        }
        return nanos;
    }

    /** Fill a store for a restart: closed in order, or left as it is for {@code halt}. */
    private static JSONObject fill(JSONObject spec, String path) throws Exception {
        BenchMessages messages = new BenchMessages(spec);
        DefaultMessageStore store = open(spec, path);
        putAll(store, messages, spec);
        GenuineStore.waitDispatched(store);
        checkCount(store, messages.queues, spec.getIntValue("messages"));
        if (spec.getBooleanValue("clean")) {
            store.shutdown();
        }
        return new JSONObject(true);
    }

    /** Open what {@code bench_fill} left; the clock stops when every message can be read. */
    private static JSONObject restart(JSONObject spec, String path) throws Exception {
        long begin = System.nanoTime();
        DefaultMessageStore store = open(spec, path);
        GenuineStore.waitDispatched(store);
        long end = System.nanoTime();
        checkCount(store, spec.getIntValue("queues"), spec.getIntValue("messages"));
        store.shutdown();
        JSONObject answer = new JSONObject(true);
        answer.put("seconds", (end - begin) / NANOS);
        return answer;
    }

    /** Put delayed messages at a rate, wait, and see how late each is delivered. */
    private static JSONObject delay(JSONObject spec, String path) throws Exception {
        BenchMessages messages = new BenchMessages(spec);
        DefaultMessageStore store = open(spec, path);
        int count = spec.getIntValue("messages");
        long begin = System.nanoTime();
        for (int i = 0; i < count; i++) {
            MessageExtBrokerInner message = messages.inner(i);
            MessageAccessor.putProperty(message, MessageConst.PROPERTY_KEYS, BenchMessages.key(i));
            message.setDelayTimeLevel(1);
            check(store.putMessage(message));
            if (i % 100 == 0) {
                double ahead = i / spec.getDoubleValue("rate") - (System.nanoTime() - begin) / NANOS;
                Thread.sleep(Math.max(0, Math.round(ahead * 1000)));
            }
        }
        GenuineStore.waitDispatched(store);
        Thread.sleep(1000);
        if (store.getMaxOffsetInQueue(BenchMessages.TOPIC, 0) > 0) {
            throw new IllegalStateException("a message was due before all were put");
        }
        double idle = spec.getDoubleValue("idleSeconds");
        long cpuBefore = cpuNanos();
        Thread.sleep(Math.round(idle * 1000));
        double idleMs = (cpuNanos() - cpuBefore) / 1e6 / idle;
        for (int queue = 0; queue < messages.queues; queue++) {
            while (store.getMaxOffsetInQueue(BenchMessages.TOPIC, queue) < count / messages.queues) {
                Thread.sleep(POLL_MS);
            }
        }
        long[] late = lateness(store, messages.queues, count);
        store.shutdown();
        JSONObject answer = new JSONObject(true);
        answer.put("p50Milliseconds", late[late.length / 2]);
        answer.put("p99Milliseconds", late[late.length * 99 / 100]);
        answer.put("idleMilliseconds", idleMs);
        return answer;
    }

    private static long cpuNanos() {
        return ((com.sun.management.OperatingSystemMXBean)
            ManagementFactory.getOperatingSystemMXBean()).getProcessCpuTime();
    }

    /** How long after it was due each message was stored again, in order. */
    private static long[] lateness(DefaultMessageStore store, int queues, int count) {
        Map<String, Long> due = new HashMap<>();
        forEachEntry(store, TopicValidator.RMQ_SYS_SCHEDULE_TOPIC, 0,
            (message, tagsCode) -> due.put(message.getKeys(), tagsCode));
        List<Long> late = new ArrayList<>(count);
        for (int queue = 0; queue < queues; queue++) {
            forEachEntry(store, BenchMessages.TOPIC, queue, (message, tagsCode) ->
                late.add(message.getStoreTimestamp() - due.get(message.getKeys())));
        }
        if (late.size() != count) {
            throw new IllegalStateException(late.size() + " deliveries of " + count);
        }
        return late.stream().mapToLong(Long::longValue).sorted().toArray();
    }

    private static void forEachEntry(
        DefaultMessageStore store, String topic, int queueId, BiConsumer<MessageExt, Long> visitor) {
        ConsumeQueue queue = store.findConsumeQueue(topic, queueId);
        long offset = queue.getMinOffsetInQueue();
        while (offset < queue.getMaxOffsetInQueue()) {
            SelectMappedBufferResult slice = queue.getIndexBuffer(offset);
            ByteBuffer bytes = slice.getByteBuffer();
            for (int at = 0; at < slice.getSize(); at += ConsumeQueue.CQ_STORE_UNIT_SIZE) {
                long physicalOffset = bytes.getLong();
                bytes.getInt();
                visitor.accept(store.lookMessageByOffset(physicalOffset), bytes.getLong());
                offset++;
            }
            slice.release();
        }
    }

    /** Open a store for a slave, until {@code bench_serve_end}; say where its log ends. */
    private static JSONObject serve(JSONObject spec, String path) throws Exception {
        served = open(spec, path);
        JSONObject answer = new JSONObject(true);
        answer.put("end", served.getMaxPhyOffset());
        return answer;
    }

    /** Follow a master; the clock runs from the first bytes until every message can be read. */
    private static JSONObject follow(JSONObject spec, String path) throws Exception {
        DefaultMessageStore store = open(spec, path);
        long end = spec.getLongValue("end");
        long first = store.getMaxPhyOffset();
        long start = first;
        while (start == first) {
            Thread.sleep(POLL_MS);
            start = store.getMaxPhyOffset();
        }
        long begin = System.nanoTime();
        while (store.getMaxPhyOffset() < end) {
            Thread.sleep(POLL_MS);
        }
        GenuineStore.waitDispatched(store);
        double seconds = (System.nanoTime() - begin) / NANOS;
        checkCount(store, spec.getIntValue("queues"), spec.getIntValue("messages"));
        store.shutdown();
        JSONObject answer = new JSONObject(true);
        answer.put("megabytesPerSecond", (end - start) / seconds / 1e6);
        return answer;
    }

    private static void check(PutMessageResult result) {
        if (result.getPutMessageStatus() != PutMessageStatus.PUT_OK) {
            throw new IllegalStateException("put gave " + result.getPutMessageStatus());
        }
    }

    private static void checkCount(DefaultMessageStore store, int queues, long expected) {
        long count = 0;
        for (int queueId = 0; queueId < queues; queueId++) {
            count += store.getMaxOffsetInQueue(BenchMessages.TOPIC, queueId);
        }
        if (count != expected) {
            throw new IllegalStateException(
                "the store holds " + count + " messages, expected " + expected);
        }
    }
}
