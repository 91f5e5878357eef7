// SPDX-License-Identifier: Apache-2.0

import java.nio.charset.StandardCharsets;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;

/**
 * Sends a message for later and takes it back, twice; 4.9 has none of this, so it stands by itself.
 *
 * <p>Arguments: name server, topic, body. Prints the time of delivery, the message's id, the id of what was taken back,
 * and what the broker says to the second try, a line each.
 */
public final class Recall {
    public static void main(String[] args) throws Exception {
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
        System.exit(0); // shutting down takes seconds
    }
}
