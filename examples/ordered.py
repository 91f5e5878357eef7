"""Ordered messages: messages of one order share a queue, and the consumer handles each queue sequentially."""

import threading
from collections import defaultdict

import sparrow.testing
from sparrow import PROPERTY_SHARDING_KEY, Consumer, Message, Producer
from sparrow.model import StoredMessage

STEPS = ("created", "paid", "shipped")
steps: dict[str, list[str]] = defaultdict(list)
all_seen = threading.Event()


def handle(message: StoredMessage) -> None:
    steps[message.properties[PROPERTY_SHARDING_KEY]].append(message.body.decode())
    if sum(map(len, steps.values())) == 30:
        all_seen.set()


with sparrow.testing.run_platform() as platform:
    with Producer(platform.name_servers) as producer:
        for step in STEPS:
            for number in range(10):
                # Messages with the same sharding key go to the same queue.
                producer.send(Message("orders", step, properties={PROPERTY_SHARDING_KEY: f"order-{number}"}))

    with Consumer(platform.name_servers, group="billing") as consumer:
        consumer.subscribe("orders")
        consumer.start(handle, orderly=True)
        all_seen.wait()

for order, seen in sorted(steps.items()):
    print(order, "was", " → ".join(seen))
    assert tuple(seen) == STEPS
