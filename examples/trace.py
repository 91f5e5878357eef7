"""Message trace: who sent what, when, and who consumed it, in RocketMQ's own format."""

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
