"""Request and reply, both sent as messages."""

import asyncio

import sparrow.testing
from sparrow import Message, StoredMessage
from sparrow.aio import Consumer, Producer


async def main(name_servers: str) -> None:
    async with (
        Producer(name_servers, group="askers") as producer,
        Producer(name_servers, group="answers") as answers,
        Consumer(name_servers, group="calculators") as consumer,
    ):

        async def square(message: StoredMessage) -> None:
            await answers.reply(message, str(int(message.body) ** 2))

        await consumer.subscribe("squares")
        await consumer.start(square)

        asked = [producer.request(Message("squares", str(number)), timeout_ms=10_000) for number in range(5)]
        for number, reply in enumerate(await asyncio.gather(*asked)):
            print(f"{number} * {number} = {reply.body.decode()}")


if __name__ == "__main__":
    with sparrow.testing.run_platform() as platform:
        asyncio.run(main(platform.name_servers))
