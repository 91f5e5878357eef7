// SPDX-License-Identifier: Apache-2.0

import com.google.gson.JsonObject;
import java.nio.charset.StandardCharsets;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.TreeSet;
import java.util.concurrent.Callable;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMachineRoomNearby;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.utils.MessageUtil;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** Push and lite pull consumers. Each keeps its received messages in an inbox. */
final class Consumers {
    private static final String RETRY_TOPIC = "%RETRY%";

    /** One running consumer, with the operations that both kinds share. */
    private record Running(Inbox inbox, Callable<Collection<MessageQueue>> queues, Runnable stop) {
    }

    /** Brokers are named room@name, and consumers have the client id ip@room@name. */
    private static final class Rooms implements AllocateMachineRoomNearby.MachineRoomResolver {
        @Override
        public String brokerDeployIn(MessageQueue queue) {
            return queue.getBrokerName().split("@")[0];
        }

        @Override
        public String consumerDeployIn(String clientId) {
            return clientId.split("@")[1];
        }
    }

    private final String nameServer;
    private final Map<String, Running> consumers = new HashMap<>();

    Consumers(String nameServer) {
        this.nameServer = nameServer;
    }

    Object startPush(JsonObject order) throws Exception {
        String id = Orders.text(order, "id");
        DefaultMQPushConsumer consumer = Signing.hook(order) != null
            ? new DefaultMQPushConsumer(
                Orders.text(order, "group"), Signing.hook(order), new AllocateMessageQueueAveragely())
            : new DefaultMQPushConsumer(Orders.text(order, "group"), Orders.is(order, "trace"), null);
        consumer.setNamesrvAddr(nameServer);
        consumer.setInstanceName(id);
        if (Orders.is(order, "nearby")) {
            consumer.setAllocateMessageQueueStrategy(
                new AllocateMachineRoomNearby(new AllocateMessageQueueAveragely(), new Rooms()));
        }
        consumer.setConsumeThreadMin(2);
        consumer.setConsumeThreadMax(2);
        consumer.setAwaitTerminationMillisWhenShutdown(5_000); // so that messages in the inbox are committed
        consumer.setConsumeFromWhere(fromWhere(order));
        // MessageModel is in another package in 5.x, so this code does not name it.
        consumer.setMessageModel(Enum.valueOf(consumer.getMessageModel().getDeclaringClass(),
            Orders.text(order, "model", "CLUSTERING")));
        if (Orders.has(order, "popInvisibleMs")) {
            // The broker assigns queues and selects pop or pull. 4.9 has no such API, so this code uses reflection.
            consumer.getClass().getMethod("setClientRebalance", boolean.class).invoke(consumer, false);
            consumer.getClass().getMethod("setPopInvisibleTime", long.class)
                .invoke(consumer, order.get("popInvisibleMs").getAsLong());
        }
        consumer.setMaxReconsumeTimes(Orders.number(order, "retriesMax", -1));
        if (Orders.has(order, "sql")) {
            consumer.subscribe(Orders.text(order, "topic"), MessageSelector.bySql(Orders.text(order, "sql")));
        } else {
            consumer.subscribe(Orders.text(order, "topic"), Orders.text(order, "expression", "*"));
        }
        DefaultMQProducer replies = Orders.is(order, "replies") ? replies(id) : null;
        Inbox inbox = new Inbox();
        int refusals = Orders.number(order, "refusals", 0);
        int refusalLevel = Orders.number(order, "refusalLevel", 0); // 0: the broker chooses the delay
        if (Orders.is(order, "orderly")) {
            consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
                messages.forEach(message -> inbox.add(Seen.describe(message)));
                return ConsumeOrderlyStatus.SUCCESS;
            });
        } else {
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                messages.forEach(message -> inbox.add(Seen.describe(message)));
                if (replies != null) {
                    reply(replies, messages);
                }
                context.setDelayLevelWhenNextConsume(refusalLevel);
                return messages.get(0).getReconsumeTimes() < refusals
                    ? ConsumeConcurrentlyStatus.RECONSUME_LATER
                    : ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            });
        }
        Runnable stop = () -> {
            consumer.shutdown();
            if (replies != null) {
                replies.shutdown();
            }
        };
        try {
            consumer.start();
        } catch (Exception e) { // if the broker refuses it, it runs nevertheless
            stop.run();
            throw e;
        }
        consumers.put(id, new Running(inbox,
            Orders.has(order, "popInvisibleMs")
                ? () -> popped(consumer)
                : () -> consumer.getDefaultMQPushConsumerImpl().getRebalanceImpl().getProcessQueueTable().keySet(),
            stop));
        return null;
    }

    private DefaultMQProducer replies(String id) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("replies");
        producer.setNamesrvAddr(nameServer);
        producer.setInstanceName(id + "-replies");
        producer.start();
        return producer;
    }

    /** Replies to each request with its text in capitals. */
    private static void reply(DefaultMQProducer producer, List<MessageExt> requests) {
        for (MessageExt request : requests) {
            byte[] body = new String(request.getBody(), StandardCharsets.UTF_8).toUpperCase(Locale.ROOT)
                .getBytes(StandardCharsets.UTF_8);
            try {
                producer.send(MessageUtil.createReplyMessage(request, body));
            } catch (Exception e) { // the test only notices the missing reply; this prints the cause
                e.printStackTrace();
            }
        }
    }

    @SuppressWarnings("unchecked")
    private static Collection<MessageQueue> popped(DefaultMQPushConsumer consumer) throws Exception {
        Object sharing = consumer.getDefaultMQPushConsumerImpl().getRebalanceImpl();
        return ((Map<MessageQueue, ?>) sharing.getClass().getMethod("getPopProcessQueueTable").invoke(sharing)).keySet();
    }

    private static ConsumeFromWhere fromWhere(JsonObject order) {
        return ConsumeFromWhere.valueOf(Orders.text(order, "from", "CONSUME_FROM_FIRST_OFFSET"));
    }

    /** Shares the queues of the group, or reads one queue from a given offset. */
    Object startLitePull(JsonObject order) throws Exception {
        String id = Orders.text(order, "id");
        String topic = Orders.text(order, "topic");
        DefaultLitePullConsumer consumer = new DefaultLitePullConsumer(Orders.text(order, "group"));
        consumer.setNamesrvAddr(nameServer);
        consumer.setInstanceName(id);
        consumer.setPullThreadNums(2);
        consumer.setConsumeFromWhere(fromWhere(order));
        if (Orders.has(order, "queueId")) {
            consumer.start();
            assign(consumer, topic, order.get("queueId").getAsInt(), order.get("offset").getAsLong());
        } else {
            consumer.subscribe(topic, Orders.text(order, "expression", "*"));
            consumer.start();
        }
        Inbox inbox = new Inbox();
        Thread polling = new Thread(() -> {
            while (consumer.isRunning()) {
                consumer.poll(100).forEach(message -> inbox.add(Seen.describe(message)));
            }
        }, "poll-" + id);
        polling.setDaemon(true);
        polling.start();
        consumers.put(id, new Running(inbox, consumer::assignment, consumer::shutdown));
        return null;
    }

    private static void assign(DefaultLitePullConsumer consumer, String topic, int queueId, long offset) throws Exception {
        for (MessageQueue queue : consumer.fetchMessageQueues(topic)) {
            if (queue.getQueueId() == queueId) {
                consumer.assign(List.of(queue));
                consumer.seek(queue, offset);
                return;
            }
        }
        throw new IllegalArgumentException("no such queue");
    }

    /** Stops the consumer and returns the remaining messages: for the broker they are consumed. */
    Object stop(JsonObject order) throws Exception {
        Running consumer = consumers.remove(Orders.text(order, "id"));
        consumer.stop().run();
        return consumer.inbox().drain(0, 0);
    }

    Object received(JsonObject order) throws Exception {
        return of(order).inbox().drain(Orders.number(order, "atLeast", 0), Orders.number(order, "timeoutMs", 0));
    }

    /** Returns the assigned queues; with a count, waits until there are as many or the time is over. */
    Object queuesOf(JsonObject order) throws Exception {
        long deadline = System.currentTimeMillis() + Orders.number(order, "timeoutMs", 0);
        int count = Orders.number(order, "count", -1);
        Collection<Integer> queues = queueIds(of(order));
        while (count >= 0 && queues.size() != count && System.currentTimeMillis() < deadline) {
            Thread.sleep(20);
            queues = queueIds(of(order));
        }
        return queues;
    }

    private static Collection<Integer> queueIds(Running consumer) throws Exception {
        Collection<Integer> ids = new TreeSet<>();
        for (MessageQueue queue : consumer.queues().call()) {
            if (!queue.getTopic().startsWith(RETRY_TOPIC)) { // every group also reads its own retry topic
                ids.add(queue.getQueueId());
            }
        }
        return ids;
    }

    private Running of(JsonObject order) {
        return consumers.get(Orders.text(order, "id"));
    }
}
