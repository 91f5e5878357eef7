"""Resend the messages of a time range, or of a key, to a group. The group reads only these again."""

import time

import sparrow.testing
from sparrow import Admin, Consumer, Message, Producer


def now_ms():
    """Return a time that differs from the store times of all earlier and later messages."""
    time.sleep(0.01)
    now = time.time() * 1000
    time.sleep(0.01)
    return int(now)


def send(producer, *names):
    for name in names:
        producer.send(Message("orders", name, keys=name))


def read(platform, count):
    """Return the next messages that the group reads."""
    with Consumer(platform.name_servers, group="billing") as consumer:
        consumer.subscribe("orders")
        found = [next(consumer) for _ in range(count)]
        consumer.commit()
        return sorted(message.body.decode() for message in found)


with sparrow.testing.run_platform() as platform, Admin(platform.name_servers) as admin:
    with Producer(platform.name_servers) as producer:
        send(producer, "order-1", "order-2")
        from_ms = now_ms()
        send(producer, "order-3", "order-4", "order-5")
        to_ms = now_ms()
        send(producer, "order-6")
    print("read:", read(platform, 6))

    # Resend by time; the dry run only counts.
    print("dry run:", admin.resend("orders", group="billing", from_ms=from_ms, to_ms=to_ms, dry_run=True))
    resent = admin.resend("orders", group="billing", from_ms=from_ms, to_ms=to_ms)
    print("again:", read(platform, resent.count))

    # Resend by key, to every group that reads the topic.
    print("by key:", admin.resend("orders", keys="order-6"))
    print("again:", read(platform, 1))
