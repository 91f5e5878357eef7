"""Append messages to a log store and read them, one by one and as Arrow columns. No broker is needed."""

import asyncio
import tempfile

from sparrow.model import Draft, Queue, Topic
from sparrow.store.log import LogStore
from sparrow.store.spi import Slice
from sparrow.wire import columns, properties, record


async def main(directory: str) -> None:
    queue = Queue("orders", 0)
    async with LogStore(directory) as store:
        await store.catalog.put_topic(Topic(name="orders", read_queues=1, write_queues=1))
        for number in range(3):
            tags = properties.encode({"TAGS": "paid", "KEYS": f"order-{number}"})
            await store.append(queue, [Draft(body=b"%d euros" % number, properties=tags)])

        found = await store.read(queue, 0)
        assert isinstance(found, Slice)
        for message in record.decode_all(found.tobytes()):
            print(message.queue_offset, message.tags, message.keys, message.body)

        table = columns.decode(found.tobytes(), sizes=found.sizes, columns=["queue_offset", "keys", "body"])
        print(table.to_pydict())

        (by_key,) = await store.find_by_key("orders", "order-1")
        print("order-1 is", record.decode(by_key).body)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(main(directory))
