// SPDX-License-Identifier: Apache-2.0

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.atomic.AtomicLong;

/** The received messages of a consumer, in order, until the test fetches them. */
final class Inbox {
    private static final AtomicLong ARRIVALS = new AtomicLong();

    private final List<Map<String, Object>> waiting = new ArrayList<>();

    /** Adds a message as JSON for the tests. */
    synchronized void add(Map<String, Object> message) {
        message.put("nth", ARRIVALS.incrementAndGet()); // orders the arrivals at several consumers
        waiting.add(message);
        notifyAll();
    }

    /** Waits until there are at least {@code atLeast} messages or the time is over, then removes and returns all. */
    synchronized List<Map<String, Object>> drain(int atLeast, long timeoutMs) throws InterruptedException {
        long deadline = System.currentTimeMillis() + timeoutMs;
        for (long left = timeoutMs; waiting.size() < atLeast && left > 0; left = deadline - System.currentTimeMillis()) {
            wait(left);
        }
        List<Map<String, Object>> drained = new ArrayList<>(waiting);
        waiting.clear();
        return drained;
    }
}
