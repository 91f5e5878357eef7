"""Broadcast: every consumer receives every message. Each consumer keeps its own offsets, here in a file."""

import tempfile
from pathlib import Path

import sparrow.testing
from sparrow import Consumer, Message, Producer

with sparrow.testing.run_platform() as platform, tempfile.TemporaryDirectory() as folder:
    with Producer(platform.name_servers) as producer:
        producer.send(Message("prices", "EUR 1.08"))
        producer.send(Message("prices", "GBP 1.27"))

    for name in ("left screen", "right screen"):
        path = Path(folder, name)
        with Consumer(platform.name_servers, group="screens", mode="broadcast", offsets_path=path) as consumer:
            consumer.subscribe("prices")
            print(f"{name}:", *sorted(next(consumer).body.decode() for _ in range(2)), sep="  ")
            consumer.commit()

        with Consumer(platform.name_servers, group="screens", mode="broadcast", offsets_path=path) as consumer:
            consumer.subscribe("prices")
            print(f"{name}, started again: {len(consumer.poll(timeout_ms=300))} new")
