"""Pop messages with an invisible time: a message that is not acknowledged in this time is delivered again."""

import sparrow.testing
from sparrow import Message, PopConsumer, Producer

with sparrow.testing.run_platform() as platform:
    with Producer(platform.name_servers) as producer:
        producer.send(Message("orders", "order-7"))
    with PopConsumer(platform.name_servers, group="billing", invisible_ms=500) as consumer:
        (first,) = consumer.receive("orders")
        print("taken, and not dealt with:", first.message.body.decode())
        (again,) = consumer.receive("orders")  # waits until the invisible time is over
        print("again, for the", again.message.reconsume_times + 1, "time:", again.message.body.decode())
        consumer.ack(again)
