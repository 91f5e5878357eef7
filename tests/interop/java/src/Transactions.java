// SPDX-License-Identifier: Apache-2.0

import java.util.List;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/** Ends a transaction the way its sender was told to; a broker that asks is told what the message itself says. */
final class Transactions implements TransactionListener {
    static final String ANSWER = "answer";

    /** What the broker has asked about. */
    final Inbox asked = new Inbox();

    @Override
    public LocalTransactionState executeLocalTransaction(Message message, Object state) {
        return LocalTransactionState.valueOf((String) state);
    }

    @Override
    public LocalTransactionState checkLocalTransaction(MessageExt message) {
        asked.add(List.of(message));
        return LocalTransactionState.valueOf(message.getUserProperty(ANSWER));
    }
}
