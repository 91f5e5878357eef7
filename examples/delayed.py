"""Delayed messages: after a duration, at a time, by a RocketMQ delay level; and recall one before its delivery."""

import time
from datetime import UTC, datetime, timedelta

import sparrow.testing
from sparrow import Consumer, Message, Producer

with sparrow.testing.run_platform() as platform, Producer(platform.name_servers) as producer:
    begun = time.monotonic()
    producer.send(Message("reminders", "after half a second"), deliver_after_ms=500)
    producer.send(Message("reminders", "at a time"), deliver_at=datetime.now(UTC) + timedelta(seconds=0.75))
    producer.send(Message("reminders", "level 1"), delay_level=1)

    mistake = producer.send(Message("reminders", "never mind"), deliver_after_ms=600)
    producer.recall(mistake)

    with Consumer(platform.name_servers, group="readers") as consumer:
        consumer.subscribe("reminders")
        for message in consumer:
            print(f"{time.monotonic() - begun:.1f} s  {message.body.decode()}")
            if message.body == b"level 1":
                break
