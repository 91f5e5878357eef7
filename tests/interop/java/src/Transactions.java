// SPDX-License-Identifier: Apache-2.0

import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * Ends a transaction with the state that the command names. Each check-back is answered with the next word of the
 * message's {@code answers} property.
 */
final class Transactions implements TransactionListener {
    private static final String ANSWERS = "answers";

    /** Transactions of the check-backs. */
    final Inbox asked = new Inbox();
    private final Map<String, Integer> questions = new ConcurrentHashMap<>();

    @Override
    public LocalTransactionState executeLocalTransaction(Message message, Object state) {
        return LocalTransactionState.valueOf((String) state);
    }

    @Override
    public LocalTransactionState checkLocalTransaction(MessageExt message) {
        asked.add(Seen.describe(message));
        int question = questions.merge(message.getTransactionId(), 1, Integer::sum);
        return LocalTransactionState.valueOf(message.getUserProperty(ANSWERS).split(" ")[question - 1]);
    }
}
