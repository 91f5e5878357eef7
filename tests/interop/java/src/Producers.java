// SPDX-License-Identifier: Apache-2.0

import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import java.lang.reflect.Method;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.client.producer.selector.SelectMessageQueueByHash;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** Sending, and the queries of every official client: offsets of a queue, messages by key and by id. */
final class Producers {
    private final String nameServer;
    private final Map<String, DefaultMQProducer> producers = new HashMap<>();
    private final Map<String, Transactions> transactions = new HashMap<>();

    Producers(String nameServer) {
        this.nameServer = nameServer;
    }

    Object start(JsonObject order) throws Exception {
        String id = Orders.text(order, "id");
        DefaultMQProducer producer = make(order, Orders.text(order, "group"));
        producer.setNamesrvAddr(nameServer);
        producer.setInstanceName(id);
        producer.setSendMsgTimeout(10_000); // for slow machines; a lost response is still detected
        producer.start();
        producers.put(id, producer);
        return null;
    }

    private DefaultMQProducer make(JsonObject order, String group) {
        if (Orders.is(order, "transactional")) {
            TransactionMQProducer producer = new TransactionMQProducer(group, Signing.hook(order));
            Transactions listener = new Transactions();
            producer.setTransactionListener(listener);
            transactions.put(Orders.text(order, "id"), listener);
            return producer;
        }
        if (Signing.hook(order) != null) {
            return new DefaultMQProducer(group, Signing.hook(order));
        }
        return new DefaultMQProducer(group, Orders.is(order, "trace"), null);
    }

    Object stop(JsonObject order) {
        transactions.remove(Orders.text(order, "id"));
        producers.remove(Orders.text(order, "id")).shutdown();
        return null;
    }

    private DefaultMQProducer of(JsonObject order) {
        return producers.get(Orders.text(order, "id"));
    }

    Object send(JsonObject order) throws Exception {
        DefaultMQProducer producer = of(order);
        List<Message> messages = new ArrayList<>();
        List<String> hashes = new ArrayList<>(); // null: the client rotates over the queues
        for (JsonElement element : order.getAsJsonArray("messages")) {
            JsonObject each = element.getAsJsonObject();
            messages.add(message(Orders.text(order, "topic"), each));
            hashes.add(Orders.text(each, "hash", null));
        }
        switch (Orders.text(order, "mode", "sync")) {
            case "sync":
                return sendSync(producer, messages, hashes);
            case "async":
                return sendAsync(producer, messages, hashes);
            case "oneway":
                for (Message message : messages) {
                    producer.sendOneway(message);
                }
                return List.of();
            case "batch":
                return List.of(result(producer.send(messages)));
            default:
                throw new IllegalArgumentException("no such mode");
        }
    }

    /** Sends one half message and ends its transaction with {@code state}. */
    Object sendInTransaction(JsonObject order) throws Exception {
        Message message = message(Orders.text(order, "topic"), order.getAsJsonObject("message"));
        TransactionMQProducer producer = (TransactionMQProducer) of(order);
        return result(producer.sendMessageInTransaction(message, Orders.text(order, "state")));
    }

    /** Returns the transactions of check-backs since the last call. */
    Object asked(JsonObject order) throws Exception {
        return transactions.get(Orders.text(order, "id")).asked
            .drain(Orders.number(order, "atLeast", 0), Orders.number(order, "timeoutMs", 0));
    }

    /** Sends one message and waits for its reply. */
    Object request(JsonObject order) throws Exception {
        Message message = message(Orders.text(order, "topic"), order.getAsJsonObject("message"));
        Message reply = of(order).request(message, order.get("timeoutMs").getAsLong());
        return new String(reply.getBody(), StandardCharsets.UTF_8);
    }

    private static Message message(String topic, JsonObject each) throws ReflectiveOperationException {
        byte[] body = Orders.text(each, "body").getBytes(StandardCharsets.UTF_8);
        Message message = new Message(topic, Orders.text(each, "tags", null), Orders.text(each, "keys", null), body);
        if (Orders.has(each, "properties")) {
            for (Map.Entry<String, JsonElement> property : each.getAsJsonObject("properties").entrySet()) {
                message.putUserProperty(property.getKey(), property.getValue().getAsString());
            }
        }
        if (Orders.has(each, "delayLevel")) {
            message.setDelayTimeLevel(each.get("delayLevel").getAsInt());
        }
        for (String time : List.of("delayTimeMs", "deliverTimeMs")) {
            if (Orders.has(each, time)) { // 4.9 has no such API, so this code uses reflection
                String setter = "set" + Character.toUpperCase(time.charAt(0)) + time.substring(1);
                Message.class.getMethod(setter, long.class).invoke(message, each.get(time).getAsLong());
            }
        }
        return message;
    }

    private static Object sendSync(DefaultMQProducer producer, List<Message> messages, List<String> hashes) throws Exception {
        List<Object> results = new ArrayList<>();
        for (int i = 0; i < messages.size(); i++) {
            results.add(result(hashes.get(i) == null
                ? producer.send(messages.get(i))
                : producer.send(messages.get(i), new SelectMessageQueueByHash(), hashes.get(i))));
        }
        return results;
    }

    private static Object sendAsync(DefaultMQProducer producer, List<Message> messages, List<String> hashes) throws Exception {
        List<CompletableFuture<SendResult>> sent = new ArrayList<>();
        for (int i = 0; i < messages.size(); i++) {
            CompletableFuture<SendResult> future = new CompletableFuture<>();
            SendCallback callback = new SendCallback() {
                @Override
                public void onSuccess(SendResult result) {
                    future.complete(result);
                }

                @Override
                public void onException(Throwable e) {
                    future.completeExceptionally(e);
                }
            };
            if (hashes.get(i) == null) {
                producer.send(messages.get(i), callback);
            } else {
                producer.send(messages.get(i), new SelectMessageQueueByHash(), hashes.get(i), callback);
            }
            sent.add(future);
        }
        List<Object> results = new ArrayList<>();
        for (CompletableFuture<SendResult> future : sent) {
            results.add(result(future.get(20, TimeUnit.SECONDS)));
        }
        return results;
    }

    private static Map<String, Object> result(SendResult sent) {
        Map<String, Object> result = new LinkedHashMap<>();
        result.put("status", sent.getSendStatus().name());
        result.put("msgId", sent.getMsgId()); // for a batch: all ids, joined by commas; so is the next field
        result.put("offsetMsgId", sent.getOffsetMsgId());
        result.put("queueId", sent.getMessageQueue().getQueueId());
        result.put("queueOffset", sent.getQueueOffset());
        result.put("broker", sent.getMessageQueue().getBrokerName());
        return result;
    }

    /** Creates a topic on the brokers of {@code key}: a cluster's name, or the template topic. */
    Object createTopic(JsonObject order) throws Exception {
        DefaultMQProducer producer = of(order);
        String key = Orders.text(order, "key");
        String topic = Orders.text(order, "topic");
        int queues = Orders.number(order, "queues", 4);
        int flags = Orders.number(order, "flags", 0);
        Class<?> type = DefaultMQProducer.class;
        try {
            Method of4 = type.getMethod("createTopic", String.class, String.class, int.class, int.class);
            of4.invoke(producer, key, topic, queues, flags);
        } catch (NoSuchMethodException e) { // 5.x requires attributes as well
            Method of5 = type.getMethod("createTopic", String.class, String.class, int.class, int.class, Map.class);
            of5.invoke(producer, key, topic, queues, flags, new HashMap<String, String>());
        }
        return null;
    }

    Object queryByKey(JsonObject order) throws Exception {
        List<Object> found = new ArrayList<>();
        for (MessageExt message : of(order).queryMessage(Orders.text(order, "topic"), Orders.text(order, "key"), 32, 0,
            Long.MAX_VALUE).getMessageList()) {
            found.add(Seen.describe(message));
        }
        return found;
    }

    /** Finds a message by either id: the producer's unique id, or the broker's offset id. */
    Object viewById(JsonObject order) throws Exception {
        return Seen.describe(of(order).viewMessage(Orders.text(order, "topic"), Orders.text(order, "msgId")));
    }

    /** Returns the bounds of each queue of a topic and, with a timestamp, the offset of that time. */
    Object offsets(JsonObject order) throws Exception {
        DefaultMQProducer producer = of(order);
        List<Object> queues = new ArrayList<>();
        for (MessageQueue queue : producer.fetchPublishMessageQueues(Orders.text(order, "topic"))) {
            Map<String, Object> offsets = new LinkedHashMap<>();
            offsets.put("queueId", queue.getQueueId());
            offsets.put("min", producer.minOffset(queue));
            offsets.put("max", producer.maxOffset(queue));
            offsets.put("earliestStoreTime", producer.earliestMsgStoreTime(queue));
            if (Orders.has(order, "timestamp")) {
                offsets.put("atTime", producer.searchOffset(queue, order.get("timestamp").getAsLong()));
            }
            queues.add(offsets);
        }
        return queues;
    }
}
