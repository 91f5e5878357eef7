"""Message trace: record when a message was sent and consumed, and by which clients, in RocketMQ's format."""

import sparrow.testing
from sparrow import Consumer, Message, Producer
from sparrow.client.trace_records import decode

with sparrow.testing.run_platform() as platform:
    with Producer(platform.name_servers, trace=True) as producer:
        sent = producer.send(Message("orders", "order-7"))
    with Consumer(platform.name_servers, group="tracing") as consumer:
        consumer.subscribe("RMQ_SYS_TRACE_TOPIC")
        for record in decode(next(consumer).body):
            print(record)
