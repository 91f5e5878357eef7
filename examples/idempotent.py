"""Idempotent producer: a send that is repeated after a lost response is stored once."""

import sparrow.testing
from sparrow import Admin, Message, Producer

with sparrow.testing.run_platform() as platform, Admin(platform.name_servers) as admin:
    with Producer(platform.name_servers, idempotent=True) as producer:
        sent = producer.send(Message("orders", "order-7"))
    stored = admin.find_by_id(sent.offset_id)
    print("the producer wrote on it:", stored.properties["__PID"], stored.properties["__SEQ"])

    # After a lost response, an idempotent producer sends the same bytes again. This producer simulates that repeat:
    with Producer(platform.name_servers) as repeater:
        again = repeater.send(Message(topic="orders", body=stored.body, properties=stored.properties))
    print("first: ", sent.queue_id, sent.queue_offset)
    print("repeat:", again.queue_id, again.queue_offset)
    print("messages:", sum(bounds.end for bounds in admin.topic_bounds("orders").values()))
