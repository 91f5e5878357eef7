"""Send messages and receive them. The broker runs in this process; `sparrow up` starts a permanent one."""

import sparrow.testing
from sparrow import Consumer, Message, Producer

with sparrow.testing.run_platform() as platform:
    with Producer(platform.name_servers) as producer:
        for number in range(3):
            sent = producer.send(Message("orders", f"order {number}", tags="paid", keys=f"order-{number}"))
            print(f"stored in queue {sent.queue_id} at {sent.queue_offset}")

    with Consumer(platform.name_servers, group="billing") as consumer:
        consumer.subscribe("orders", "paid || shipped")
        for count, message in enumerate(consumer, start=1):
            print(message.keys, message.body.decode())
            if count == 3:
                consumer.commit()
                break
