// SPDX-License-Identifier: Apache-2.0

import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.message.Message;

/**
 * Sends numbered messages, each until it is acknowledged, and prints what the official client says: {@code tried}, then
 * {@code acknowledged QUEUE OFFSET BODY} or {@code failed WHY}. Arguments: name server, topic, name of the sender. Ends
 * with its input.
 */
public final class NumberedSends {
    private static final int RETRY_MS = 20;
    private static volatile boolean isOver;

    private NumberedSends() {
    }

    public static void main(String[] args) throws Exception {
        // The client may print, too: its lines must not be taken for the history.
        PrintStream history = new PrintStream(System.out, true, "UTF-8");
        System.setOut(System.err);
        String topic = args[1];
        String sender = args[2];
        DefaultMQProducer producer = new DefaultMQProducer(sender + "_group");
        producer.setNamesrvAddr(args[0]);
        producer.setInstanceName(sender);
        // By default a client looks for a new leader every half minute, which is most of the time of the faults.
        producer.setPollNameServerInterval(1_000);
        producer.setSendMsgTimeout(3_000);
        // Each repeated send must be in the history.
        producer.setRetryTimesWhenSendFailed(0);
        producer.start();
        Thread ending = new Thread(NumberedSends::awaitEnd);
        ending.setDaemon(true);
        ending.start();
        for (int number = 0; !isOver; ) {
            String body = sender + "-" + number;
            history.println("tried");
            try {
                SendResult sent = producer.send(new Message(topic, body.getBytes(StandardCharsets.UTF_8)));
                if (sent.getSendStatus() == SendStatus.SEND_OK) {
                    history.println("acknowledged " + sent.getMessageQueue().getQueueId() + " " + sent.getQueueOffset() + " " + body);
                    number++;
                } else {
                    history.println("failed " + sent.getSendStatus());
                }
            } catch (Exception error) {
                history.println("failed " + String.valueOf(error.getMessage()).replaceAll("\\s+", " "));
                Thread.sleep(RETRY_MS);
            }
        }
        history.println("over");
        producer.shutdown();
    }

    private static void awaitEnd() {
        try {
            while (System.in.read() >= 0) {
                continue;
            }
        } catch (java.io.IOException error) {
            // As good as the end.
        }
        isOver = true;
    }
}
