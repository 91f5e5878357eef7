// SPDX-License-Identifier: Apache-2.0

import com.google.gson.JsonObject;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Random;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.ConcurrentSkipListSet;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * Many new groups on new topics: each queue of a topic gets its first message at a random moment of the start of the
 * topic's consumer, which reads from the end.
 */
final class FirstMessages {
    private final String nameServer;

    FirstMessages(String nameServer) {
        this.nameServer = nameServer;
    }

    /**
     * Returns the messages, as topic and queue, that did not arrive in time. The clients run until the JVM ends: to stop
     * them takes longer than the rest.
     */
    Object race(JsonObject order) throws Exception {
        int topics = Orders.number(order, "topics", 0);
        int spreadMs = Orders.number(order, "spreadMs", 0);
        String prefix = Orders.text(order, "prefix");
        Random random = new Random(Orders.number(order, "seed", 0));
        Set<String> missing = new ConcurrentSkipListSet<>();
        DefaultMQProducer producer = new DefaultMQProducer("first_messages");
        producer.setNamesrvAddr(nameServer);
        producer.setInstanceName(prefix);
        producer.setSendMsgTimeout(20_000);
        producer.start();
        ExecutorService starting = Executors.newFixedThreadPool(Orders.number(order, "atOnce", 1));
        ScheduledExecutorService sending = Executors.newScheduledThreadPool(4);
        List<Future<?>> starts = new ArrayList<>();
        List<Future<?>> sends = Collections.synchronizedList(new ArrayList<>());
        for (int n = 0; n < topics; n++) {
            String topic = prefix + "_" + n;
            int delayMs = random.nextInt(spreadMs);
            List<MessageQueue> queues = producer.fetchPublishMessageQueues(topic);
            queues.forEach(queue -> missing.add(topic + " " + queue.getQueueId()));
            DefaultMQPushConsumer consumer = consumer(topic, missing);
            starts.add(starting.submit(() -> {
                sends.add(sending.schedule(() -> send(producer, topic, queues), delayMs, TimeUnit.MILLISECONDS));
                consumer.start();
                return null;
            }));
        }
        for (Future<?> start : starts) {
            start.get();
        }
        for (Future<?> send : sends) {
            send.get();
        }
        long deadline = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(Orders.number(order, "timeoutMs", 0));
        while (!missing.isEmpty() && System.nanoTime() < deadline) {
            Thread.sleep(20);
        }
        return new TreeSet<>(missing);
    }

    private static Void send(DefaultMQProducer producer, String topic, List<MessageQueue> queues) throws Exception {
        for (MessageQueue queue : queues) {
            byte[] body = (topic + " " + queue.getQueueId()).getBytes(StandardCharsets.UTF_8);
            producer.send(new Message(topic, body), queue);
        }
        return null;
    }

    private DefaultMQPushConsumer consumer(String topic, Set<String> missing) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(topic + "_group");
        consumer.setNamesrvAddr(nameServer);
        consumer.setInstanceName(topic);
        // A rebalance changes the version of the subscription. Its heartbeat is left out if the one of the start is still
        // under way; then brokers refuse the pulls until the next heartbeat, by default for half a minute.
        consumer.setHeartbeatBrokerInterval(1_000);
        consumer.setConsumeThreadMin(1);
        consumer.setConsumeThreadMax(1);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt message : messages) {
                missing.remove(new String(message.getBody(), StandardCharsets.UTF_8));
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        return consumer;
    }
}
