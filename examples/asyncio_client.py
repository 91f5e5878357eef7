"""Send and consume with asyncio: the producer sends messages in batches, the consumer calls an async handler."""

import asyncio

import sparrow.testing
from sparrow import Message, StoredMessage
from sparrow.aio import Consumer, Producer


async def main(name_servers: str) -> None:
    async with Producer(name_servers, linger_ms=1) as producer:
        sent = await asyncio.gather(*(producer.send(Message("orders", f"order {n}")) for n in range(1000)))
        print(sum(result.is_ok for result in sent), "stored")

    seen: set[bytes] = set()
    all_seen = asyncio.Event()

    async def handle(message: StoredMessage) -> None:
        seen.add(message.body)
        if len(seen) == len(sent):
            all_seen.set()

    async with Consumer(name_servers, group="billing") as consumer:
        await consumer.subscribe("orders")
        await consumer.start(handle, workers=4)
        await all_seen.wait()
    print(len(seen), "received")


if __name__ == "__main__":
    with sparrow.testing.run_platform() as platform:
        asyncio.run(main(platform.name_servers))
