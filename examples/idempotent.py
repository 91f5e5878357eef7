"""A send whose answer got lost is tried again, and stored once."""

import sparrow.testing
from sparrow.client import Admin, Message, Producer

with sparrow.testing.running() as platform:
    with Producer(platform.name_servers, idempotent=True) as producer:
        sent = producer.send(Message.of("orders", "order-7"))
        print("stored as", sent.message_id)
        message = Message.of("orders", "order-8")
        producer.send(message)
    with Admin(platform.name_servers) as admin:
        print("messages:", sum(bounds.end for bounds in admin.topic_bounds("orders").values()))
