// SPDX-License-Identifier: Apache-2.0

import java.nio.charset.StandardCharsets;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;

/**
 * Sends a delayed message and recalls it twice. A separate program, because 4.9 has no recall.
 *
 * <p>Arguments: name server, topic, body. Prints one line each: the delivery time, the message's id, the id of the
 * recalled message, and the broker's response to the second recall.
 */
public final class Recall {
    public static void main(String[] args) {
        try {
            recallTwice(args);
            System.exit(0); // shutting down takes seconds
        } catch (Exception e) {
            e.printStackTrace();
            System.exit(1); // threads of the producer would keep the process alive
        }
    }

    private static void recallTwice(String[] args) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("recalling");
        producer.setNamesrvAddr(args[0]);
        producer.setSendMsgTimeout(10_000);
        producer.start();
        Message message = new Message(args[1], args[2].getBytes(StandardCharsets.UTF_8));
        message.setDeliverTimeMs(System.currentTimeMillis() + 3_000);
        SendResult sent = producer.send(message);
        System.out.println(message.getDeliverTimeMs());
        System.out.println(sent.getMsgId());
        System.out.println(producer.recallMessage(args[1], sent.getRecallHandle()));
        try {
            System.out.println(producer.recallMessage(args[1], sent.getRecallHandle()));
        } catch (MQBrokerException e) {
            System.out.println(e.getErrorMessage());
        }
    }
}
