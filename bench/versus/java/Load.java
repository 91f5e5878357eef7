// SPDX-License-Identifier: Apache-2.0

import static java.util.concurrent.TimeUnit.SECONDS;

import com.google.gson.JsonObject;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.atomic.AtomicReference;
import java.util.concurrent.locks.LockSupport;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * Load by the official Java client. Every command names the name server, so that one warm JVM serves all brokers of a
 * comparison in turn.
 */
public final class Load {
    private static final int SEND_TIMEOUT_MS = 10_000;
    private static final int API_TIMEOUT_MS = 30_000; // of other requests; 3 s by default, which a busy machine exceeds
    private static final int CONSUME_TIMEOUT_S = 50;
    private static final long POLL_MS = 10;

    private final Map<String, DefaultMQProducer> producers = new LinkedHashMap<>();
    private final AtomicInteger names = new AtomicInteger();

    private interface Send {
        /** Sends once and returns how many messages that were. */
        int run() throws Exception;
    }

    public static void main(String[] args) throws Exception {
        Load load = new Load();
        CommandLoop.run(() -> Map.of(
                "send", load::send, "batches", load::batches, "consume", load::consume, "latency", load::latency,
                "disconnect", load::disconnect));
    }

    /**
     * Sends single messages with `senders` threads, each of which waits for the answer before its next message. With
     * `topics`, they take turns among so many topics: TOPIC-0, TOPIC-1 and so on.
     */
    private Object send(JsonObject order) throws Exception {
        DefaultMQProducer producer = producer(Orders.text(order, "address"));
        String topic = Orders.text(order, "topic");
        String[] topics = new String[Orders.number(order, "topics", 1)];
        for (int i = 0; i < topics.length; i++) {
            topics[i] = Orders.has(order, "topics") ? topic + "-" + i : topic;
        }
        AtomicInteger turn = new AtomicInteger();
        byte[] body = body(order);
        return repeat(order, () -> {
            String next = topics.length == 1 ? topics[0] : topics[Math.floorMod(turn.getAndIncrement(), topics.length)];
            check(producer.send(new Message(next, "tag", body)));
            return 1;
        });
    }

    /** Sends lists of `batch` messages with `senders` threads. */
    private Object batches(JsonObject order) throws Exception {
        DefaultMQProducer producer = producer(Orders.text(order, "address"));
        String topic = Orders.text(order, "topic");
        byte[] body = body(order);
        int size = Orders.number(order, "batch", 100);
        return repeat(order, () -> {
            List<Message> messages = new ArrayList<>(size);
            for (int i = 0; i < size; i++) {
                messages.add(new Message(topic, "tag", body));
            }
            check(producer.send(messages));
            return size;
        });
    }

    /** Refuses what is stored, but not as safely as the server is configured: not flushed, or not replicated, in time. */
    private static void check(SendResult result) {
        if (result.getSendStatus() != SendStatus.SEND_OK) {
            throw new IllegalStateException("the server answered " + result.getSendStatus());
        }
    }

    /** Sends once on every thread, and again until `millis` are over, or with `messages` until so many are sent. */
    private Object repeat(JsonObject order, Send send) throws Exception {
        int senders = Orders.number(order, "senders", 1);
        long millis = Orders.number(order, "millis", Integer.MAX_VALUE);
        AtomicLong remaining = new AtomicLong(Orders.number(order, "messages", Integer.MAX_VALUE));
        AtomicLong sent = new AtomicLong();
        AtomicReference<Exception> failure = new AtomicReference<>();
        long[][] latencies = new long[senders][];
        long begun = System.nanoTime();
        long end = begun + millis * 1_000_000;
        List<Thread> threads = new ArrayList<>();
        for (int i = 0; i < senders; i++) {
            int sender = i;
            Thread thread = new Thread(() -> {
                long[] mine = new long[1024];
                int count = 0;
                long now = System.nanoTime();
                do {
                    try {
                        int messages = send.run();
                        remaining.addAndGet(-messages);
                        sent.addAndGet(messages);
                    } catch (Exception e) {
                        failure.compareAndSet(null, e);
                    }
                    long after = System.nanoTime();
                    if (count == mine.length) {
                        mine = Arrays.copyOf(mine, 2 * count);
                    }
                    mine[count++] = after - now;
                    now = after;
                } while (now < end && remaining.get() > 0 && failure.get() == null);
                latencies[sender] = Arrays.copyOf(mine, count);
            });
            threads.add(thread);
            thread.start();
        }
        await(threads, failure);
        return result(sent.get(), System.nanoTime() - begun, latencies);
    }

    private static void await(List<Thread> threads, AtomicReference<Exception> failure) throws Exception {
        for (Thread thread : threads) {
            thread.join();
        }
        if (failure.get() != null) {
            throw failure.get();
        }
    }

    /**
     * Consumes a topic from its first offset with `groups` new groups at once, until each has `messages`. The listeners wait
     * until every group has its first message; the clock starts there.
     */
    private Object consume(JsonObject order) throws Exception {
        long expected = Orders.number(order, "messages", 0);
        int groups = Orders.number(order, "groups", 1);
        long timeout = Orders.number(order, "timeoutS", CONSUME_TIMEOUT_S);
        AtomicLong received = new AtomicLong();
        AtomicLong begun = new AtomicLong();
        CountDownLatch reached = new CountDownLatch(groups);
        CountDownLatch done = new CountDownLatch(groups);
        List<DefaultMQPushConsumer> consumers = new ArrayList<>();
        try {
            for (int i = 0; i < groups; i++) {
                AtomicBoolean isReached = new AtomicBoolean();
                AtomicLong mine = new AtomicLong();
                String group = Orders.text(order, "group") + (groups > 1 ? "-" + i : "");
                consumers.add(consumer(order, group, ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET, (messages, context) -> {
                    if (isReached.compareAndSet(false, true)) {
                        reached.countDown();
                    }
                    if (!opens(reached, timeout)) {
                        return ConsumeConcurrentlyStatus.RECONSUME_LATER;
                    }
                    begun.compareAndSet(0, System.nanoTime());
                    received.addAndGet(messages.size());
                    long before = mine.getAndAdd(messages.size());
                    if (before < expected && before + messages.size() >= expected) {
                        done.countDown();
                    }
                    return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
                }));
            }
            for (DefaultMQPushConsumer consumer : consumers) {
                consumer.start();
            }
            if (!done.await(timeout, SECONDS)) {
                throw new IllegalStateException(received + " of " + expected * groups + " messages in " + timeout + " s");
            }
            return result(received.get(), System.nanoTime() - begun.get(), new long[0][]);
        } finally {
            shutDown(consumers);
        }
    }

    /** Shuts down all at once: each of them waits up to three seconds for a thread of its connections. */
    private static void shutDown(List<DefaultMQPushConsumer> consumers) throws InterruptedException {
        List<Thread> threads = new ArrayList<>();
        for (DefaultMQPushConsumer consumer : consumers) {
            Thread thread = new Thread(consumer::shutdown);
            threads.add(thread);
            thread.start();
        }
        for (Thread thread : threads) {
            thread.join();
        }
    }

    private static boolean opens(CountDownLatch latch, long timeout) {
        try {
            return latch.await(timeout, SECONDS);
        } catch (InterruptedException e) {
            return false; // the consumer is shut down
        }
    }

    /**
     * Sends `rate` messages a second with `senders` threads to a push consumer. A latency counts from the
     * time at which the message was due, so that a late sender hides nothing, to the call of the listener.
     */
    private Object latency(JsonObject order) throws Exception {
        DefaultMQProducer producer = producer(Orders.text(order, "address"));
        String topic = Orders.text(order, "topic");
        int senders = Orders.number(order, "senders", 1);
        int count = Orders.number(order, "messages", 1) / senders * senders;
        long interval = (long) (1e9 / Orders.number(order, "rate", 1));
        long[] latencies = new long[count];
        AtomicInteger received = new AtomicInteger();
        CountDownLatch done = new CountDownLatch(count);
        long started = System.nanoTime();
        Set<Integer> reached = ConcurrentHashMap.newKeySet();
        String group = Orders.text(order, "group");
        DefaultMQPushConsumer consumer = consumer(order, group, ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET, (messages, context) -> {
            long now = System.nanoTime();
            for (MessageExt message : messages) {
                long due = ByteBuffer.wrap(message.getBody()).getLong();
                if (due == started) {
                    reached.add(message.getQueueId());
                }
                if (due <= started) {
                    continue; // a probe, or of an earlier round
                }
                int at = received.getAndIncrement();
                if (at < count) { // a message may come twice
                    latencies[at] = now - due;
                }
                done.countDown();
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        try {
            // A probe in each queue shows that the consumer pulls from it: its first pull comes long after its assignment.
            List<MessageQueue> queues = producer.fetchPublishMessageQueues(topic);
            for (MessageQueue queue : queues) {
                producer.send(new Message(topic, "tag", ByteBuffer.allocate(8).putLong(started).array()), queue);
            }
            for (long end = System.nanoTime() + SECONDS.toNanos(CONSUME_TIMEOUT_S); reached.size() < queues.size();) {
                if (System.nanoTime() > end) {
                    throw new IllegalStateException("the consumer reached " + reached.size() + " of " + queues.size() + " queues");
                }
                Thread.sleep(POLL_MS);
            }
            int bytes = Orders.number(order, "bytes", 128);
            long begun = System.nanoTime();
            List<Thread> threads = new ArrayList<>();
            AtomicReference<Exception> failure = new AtomicReference<>();
            for (int i = 0; i < senders; i++) {
                int first = i;
                Thread thread = new Thread(() -> {
                    for (int number = first; number < count && failure.get() == null; number += senders) {
                        long due = begun + number * interval;
                        for (long rest = due - System.nanoTime(); rest > 0; rest = due - System.nanoTime()) {
                            LockSupport.parkNanos(rest);
                        }
                        try {
                            producer.send(new Message(topic, "tag", ByteBuffer.allocate(bytes).putLong(due).array()));
                        } catch (Exception e) {
                            failure.compareAndSet(null, e);
                        }
                    }
                });
                threads.add(thread);
                thread.start();
            }
            await(threads, failure);
            if (!done.await(CONSUME_TIMEOUT_S, SECONDS)) {
                throw new IllegalStateException(received + " of " + count + " messages in " + CONSUME_TIMEOUT_S + " s");
            }
            return result(count, System.nanoTime() - begun, new long[][] {latencies});
        } finally {
            consumer.shutdown();
        }
    }

    /** Makes a consumer, which keeps at most `queueMb` of messages of a queue in memory. */
    private DefaultMQPushConsumer consumer(
            JsonObject order, String group, ConsumeFromWhere start, MessageListenerConcurrently listener) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group);
        consumer.setNamesrvAddr(Orders.text(order, "address"));
        consumer.setInstanceName("load-" + names.incrementAndGet());
        consumer.setMqClientApiTimeout(API_TIMEOUT_MS);
        consumer.setConsumeFromWhere(start);
        consumer.setPullThresholdSizeForQueue(Orders.number(order, "queueMb", consumer.getPullThresholdSizeForQueue()));
        consumer.subscribe(Orders.text(order, "topic"), "*");
        consumer.registerMessageListener(listener);
        return consumer;
    }

    private DefaultMQProducer producer(String address) throws Exception {
        DefaultMQProducer known = producers.get(address);
        if (known != null) {
            return known;
        }
        DefaultMQProducer made = new DefaultMQProducer("load");
        made.setNamesrvAddr(address);
        made.setInstanceName("load-" + names.incrementAndGet());
        made.setSendMsgTimeout(SEND_TIMEOUT_MS);
        made.setMqClientApiTimeout(API_TIMEOUT_MS);
        made.setCompressMsgBodyOverHowmuch(Integer.MAX_VALUE);
        made.start();
        producers.put(address, made);
        return made;
    }

    /** Shuts down the producer of a server that is about to stop; it would ask for routes for as long as the JVM runs. */
    private Object disconnect(JsonObject order) {
        DefaultMQProducer known = producers.remove(Orders.text(order, "address"));
        if (known != null) {
            known.shutdown();
        }
        return result(0, 0, new long[0][]);
    }

    private static byte[] body(JsonObject order) {
        byte[] body = new byte[Orders.number(order, "bytes", 128)];
        Arrays.fill(body, (byte) 'x');
        return body;
    }

    private static Map<String, Object> result(long messages, long nanos, long[][] latencies) {
        long[] sorted = Arrays.stream(latencies).flatMapToLong(Arrays::stream).sorted().toArray();
        Map<String, Object> result = new LinkedHashMap<>();
        result.put("messages", messages);
        result.put("seconds", nanos / 1e9);
        if (sorted.length > 0) {
            result.put("p50Ms", sorted[sorted.length / 2] / 1e6);
            result.put("p99Ms", sorted[(int) (sorted.length * 0.99)] / 1e6);
        }
        return result;
    }
}
