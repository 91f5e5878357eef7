"""Reset the offsets of a group, so that it reads stored messages again."""

import sparrow.testing
from sparrow import Admin, Consumer, Message, Producer

with sparrow.testing.run_platform() as platform:
    with Producer(platform.name_servers) as producer:
        for number in range(3):
            producer.send(Message("orders", f"order-{number}"))
    with Consumer(platform.name_servers, group="billing") as consumer:
        consumer.subscribe("orders")
        print("first:", sorted(next(consumer).body.decode() for _ in range(3)))
        consumer.commit()
    with Admin(platform.name_servers) as admin:
        admin.reset_offsets("billing", "orders", "first")
    with Consumer(platform.name_servers, group="billing") as consumer:
        consumer.subscribe("orders")
        print("again:", sorted(next(consumer).body.decode() for _ in range(3)))
