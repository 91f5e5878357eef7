// SPDX-License-Identifier: Apache-2.0

import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import java.io.Closeable;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.consumer.ConsumeResult;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.consumer.FilterExpressionType;
import org.apache.rocketmq.client.apis.consumer.SimpleConsumer;
import org.apache.rocketmq.client.apis.message.Message;
import org.apache.rocketmq.client.apis.message.MessageBuilder;
import org.apache.rocketmq.client.apis.message.MessageView;
import org.apache.rocketmq.client.apis.producer.Producer;
import org.apache.rocketmq.client.apis.producer.ProducerBuilder;
import org.apache.rocketmq.client.apis.producer.SendReceipt;
import org.apache.rocketmq.client.apis.producer.Transaction;
import org.apache.rocketmq.client.apis.producer.TransactionResolution;

/** The official gRPC client as a process that executes commands. */
public final class GrpcClient {
    /** A message with this property makes a check-back resolve its transaction so. */
    private static final String CHECK_PROPERTY = "check";

    private final ClientServiceProvider provider = ClientServiceProvider.loadService();
    private final ClientConfiguration configuration;
    private final Map<String, Closeable> clients = new HashMap<>();
    private final Map<String, Inbox> inboxes = new HashMap<>();
    private final Map<String, MessageView> views = new HashMap<>();

    private GrpcClient(String endpoints) {
        configuration = ClientConfiguration.newBuilder()
            .setEndpoints(endpoints)
            .enableSsl(false)
            .setRequestTimeout(Duration.ofSeconds(10))
            .build();
    }

    public static void main(String[] args) throws Exception {
        CommandLoop.run(() -> new GrpcClient(args[0]).commands());
    }

    private Map<String, CommandLoop.Command> commands() {
        Map<String, CommandLoop.Command> commands = new LinkedHashMap<>();
        commands.put("start_producer", this::startProducer);
        commands.put("send", this::send);
        commands.put("send_in_transaction", this::sendInTransaction);
        commands.put("recall", this::recall);
        commands.put("start_push_consumer", this::startPush);
        commands.put("start_simple_consumer", this::startSimple);
        commands.put("received", this::received);
        commands.put("receive", this::receive);
        commands.put("ack", this::ack);
        commands.put("change_invisible", this::changeInvisible);
        commands.put("stop", this::stop);
        return commands;
    }

    private Object startProducer(JsonObject order) throws Exception {
        ProducerBuilder builder = provider.newProducerBuilder()
            .setClientConfiguration(configuration)
            .setTopics(Orders.text(order, "topic"));
        if (Orders.is(order, "transactional")) {
            builder.setTransactionChecker(
                view -> TransactionResolution.valueOf(view.getProperties().getOrDefault(CHECK_PROPERTY, "UNKNOWN")));
        }
        clients.put(Orders.text(order, "id"), builder.build());
        return null;
    }

    private Object send(JsonObject order) throws Exception {
        Producer producer = (Producer) clients.get(Orders.text(order, "id"));
        List<Map<String, Object>> sent = new ArrayList<>();
        for (JsonElement each : order.getAsJsonArray("messages")) {
            sent.add(describe(producer.send(message(each.getAsJsonObject()))));
        }
        return sent;
    }

    private Object sendInTransaction(JsonObject order) throws Exception {
        Producer producer = (Producer) clients.get(Orders.text(order, "id"));
        Transaction transaction = producer.beginTransaction();
        SendReceipt receipt = producer.send(message(order.getAsJsonObject("message")), transaction);
        switch (Orders.text(order, "end")) {
            case "commit" -> transaction.commit();
            case "rollback" -> transaction.rollback();
            default -> { } // the broker checks back
        }
        return describe(receipt);
    }

    private Object recall(JsonObject order) throws Exception {
        Producer producer = (Producer) clients.get(Orders.text(order, "id"));
        return producer.recallMessage(Orders.text(order, "topic"), Orders.text(order, "handle"))
            .getMessageId().toString();
    }

    private Message message(JsonObject order) {
        MessageBuilder builder = provider.newMessageBuilder()
            .setTopic(Orders.text(order, "topic"))
            .setBody(Orders.text(order, "body").getBytes(StandardCharsets.UTF_8));
        if (Orders.has(order, "tag")) {
            builder.setTag(Orders.text(order, "tag"));
        }
        if (Orders.has(order, "key")) {
            builder.setKeys(Orders.text(order, "key"));
        }
        if (Orders.has(order, "group")) {
            builder.setMessageGroup(Orders.text(order, "group"));
        }
        if (Orders.has(order, "priority")) {
            builder.setPriority(order.get("priority").getAsInt());
        }
        if (Orders.has(order, "delayMs")) {
            builder.setDeliveryTimestamp(System.currentTimeMillis() + order.get("delayMs").getAsLong());
        }
        if (Orders.has(order, "properties")) {
            order.getAsJsonObject("properties").entrySet()
                .forEach(entry -> builder.addProperty(entry.getKey(), entry.getValue().getAsString()));
        }
        return builder.build();
    }

    private Object startPush(JsonObject order) throws Exception {
        Inbox inbox = new Inbox();
        inboxes.put(Orders.text(order, "id"), inbox);
        int failures = Orders.number(order, "failures", 0);
        clients.put(Orders.text(order, "id"), provider.newPushConsumerBuilder()
            .setClientConfiguration(configuration)
            .setConsumerGroup(Orders.text(order, "group"))
            .setSubscriptionExpressions(subscription(order))
            .setConsumptionThreadCount(4)
            .setMessageListener(view -> {
                inbox.add(describe(view));
                return view.getDeliveryAttempt() <= failures ? ConsumeResult.FAILURE : ConsumeResult.SUCCESS;
            })
            .build());
        return null;
    }

    private Object startSimple(JsonObject order) throws Exception {
        clients.put(Orders.text(order, "id"), provider.newSimpleConsumerBuilder()
            .setClientConfiguration(configuration)
            .setConsumerGroup(Orders.text(order, "group"))
            .setSubscriptionExpressions(subscription(order))
            .setAwaitDuration(Duration.ofMillis(Orders.number(order, "awaitMs", 5_000)))
            .build());
        return null;
    }

    private static Map<String, FilterExpression> subscription(JsonObject order) {
        FilterExpression expression = Orders.has(order, "sql")
            ? new FilterExpression(Orders.text(order, "sql"), FilterExpressionType.SQL92)
            : new FilterExpression(Orders.text(order, "expression", "*"), FilterExpressionType.TAG);
        return Collections.singletonMap(Orders.text(order, "topic"), expression);
    }

    private Object received(JsonObject order) throws Exception {
        return inboxes.get(Orders.text(order, "id"))
            .drain(Orders.number(order, "atLeast", 0), Orders.number(order, "timeoutMs", 0));
    }

    private Object receive(JsonObject order) throws Exception {
        SimpleConsumer consumer = (SimpleConsumer) clients.get(Orders.text(order, "id"));
        Duration invisible = Duration.ofMillis(order.get("invisibleMs").getAsLong());
        List<Map<String, Object>> found = new ArrayList<>();
        for (MessageView view : consumer.receive(Orders.number(order, "max", 32), invisible)) {
            views.put(view.getMessageId().toString(), view);
            found.add(describe(view));
        }
        return found;
    }

    private Object ack(JsonObject order) throws Exception {
        SimpleConsumer consumer = (SimpleConsumer) clients.get(Orders.text(order, "id"));
        consumer.ack(views.get(Orders.text(order, "messageId")));
        return null;
    }

    private Object changeInvisible(JsonObject order) throws Exception {
        SimpleConsumer consumer = (SimpleConsumer) clients.get(Orders.text(order, "id"));
        Duration invisible = Duration.ofMillis(order.get("invisibleMs").getAsLong());
        consumer.changeInvisibleDuration(views.get(Orders.text(order, "messageId")), invisible);
        return null;
    }

    private Object stop(JsonObject order) throws Exception {
        clients.remove(Orders.text(order, "id")).close();
        return null;
    }

    private static Map<String, Object> describe(SendReceipt receipt) {
        Map<String, Object> fields = new LinkedHashMap<>();
        fields.put("messageId", receipt.getMessageId().toString());
        fields.put("recallHandle", receipt.getRecallHandle());
        return fields;
    }

    private static Map<String, Object> describe(MessageView view) {
        Map<String, Object> fields = new LinkedHashMap<>();
        fields.put("messageId", view.getMessageId().toString());
        fields.put("topic", view.getTopic());
        fields.put("body", StandardCharsets.UTF_8.decode(view.getBody()).toString());
        fields.put("tag", view.getTag().orElse(null));
        fields.put("keys", view.getKeys());
        fields.put("group", view.getMessageGroup().orElse(null));
        fields.put("priority", view.getPriority().orElse(null));
        fields.put("properties", view.getProperties());
        fields.put("attempt", view.getDeliveryAttempt());
        fields.put("bornMs", view.getBornTimestamp());
        fields.put("receivedMs", System.currentTimeMillis());
        return fields;
    }
}
