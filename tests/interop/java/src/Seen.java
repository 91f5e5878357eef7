// SPDX-License-Identifier: Apache-2.0

import java.nio.charset.StandardCharsets;
import java.util.LinkedHashMap;
import java.util.Map;
import org.apache.rocketmq.common.message.MessageClientIDSetter;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExt;

/** A received message as JSON for the tests. */
final class Seen {
    private Seen() {
    }

    static Map<String, Object> describe(MessageExt message) {
        Map<String, Object> seen = new LinkedHashMap<>();
        seen.put("topic", message.getTopic());
        seen.put("queueId", message.getQueueId());
        seen.put("queueOffset", message.getQueueOffset());
        seen.put("msgId", MessageClientIDSetter.getUniqID(message));
        // Not getMsgId(): it returns the unique id if there is one.
        seen.put("offsetMsgId", MessageDecoder.createMessageId(message.getStoreHost(), message.getCommitLogOffset()));
        seen.put("body", new String(message.getBody(), StandardCharsets.UTF_8));
        seen.put("tags", message.getTags());
        seen.put("keys", message.getKeys());
        seen.put("storeTimestamp", message.getStoreTimestamp());
        seen.put("reconsumeTimes", message.getReconsumeTimes());
        seen.put("properties", message.getProperties());
        return seen;
    }
}
