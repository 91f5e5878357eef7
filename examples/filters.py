"""Filter messages at the broker: by tags, or by a SQL92 condition on properties."""

import sparrow.testing
from sparrow import Consumer, Message, Producer

with sparrow.testing.run_platform() as platform:
    with Producer(platform.name_servers) as producer:
        for number, city in enumerate(("Oslo", "Lima", "Lagos", "Oslo")):
            producer.send(Message("orders", f"order-{number}", tags=city, properties={"euros": str(number * 10)}))
    with Consumer(platform.name_servers, group="by-tag") as consumer:
        consumer.subscribe("orders", "Oslo || Lima")
        print("by tag:", sorted(next(consumer).body.decode() for _ in range(3)))
    with Consumer(platform.name_servers, group="by-price") as consumer:
        consumer.subscribe("orders", "euros BETWEEN 15 AND 100", expression_type="SQL92")
        print("by price:", sorted(next(consumer).body.decode() for _ in range(2)))
