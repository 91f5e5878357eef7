"""Publish an event in the application's own transaction and handle it exactly once.

Everything runs in this process: a SQLite file and an in-memory broker. Replace the two URLs with a real database
(`postgresql://…`, `mysql://…`) and a real broker (`sparrow://127.0.0.1:9876`); nothing else changes.
"""

import asyncio
import tempfile
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession

from sparrow.bus import Headers
from sparrow.bus.aio import EventBus


@dataclass
class Order:
    number: int
    euros: int


async def main(folder: Path) -> None:
    bus = EventBus(f"sqlite:///{folder / 'shop.db'}", "memory://", app="shop")

    @bus.subscribe("order.created")
    async def charge(order: Order, headers: Headers, session: AsyncSession) -> None:
        # The bus marks the event as handled in the transaction that inserts this row. A crash or a repeated delivery
        # therefore never charges an order twice.
        charge = {"order": order.number, "euros": order.euros}
        await session.execute(text("INSERT INTO charges VALUES (:order, :euros)"), charge)
        print(f"order {order.number}: charged {order.euros} euros (event {headers.id})")

    async with bus.database.async_engine.begin() as connection:
        await connection.execute(text("CREATE TABLE orders (number INTEGER, euros INTEGER)"))
        await connection.execute(text("CREATE TABLE charges (number INTEGER, euros INTEGER)"))

    async with bus:
        async with AsyncSession(bus.database.async_engine) as session, session.begin():
            await session.execute(text("INSERT INTO orders VALUES (1, 40)"))
            await bus.publish("order.created", Order(1, 40), session=session)

        try:
            async with AsyncSession(bus.database.async_engine) as session, session.begin():
                await session.execute(text("INSERT INTO orders VALUES (2, 50)"))
                await bus.publish("order.created", Order(2, 50), session=session)
                raise RuntimeError("the card was refused")
        except RuntimeError as error:
            print(f"order 2: {error}: neither the order nor its event ever was")

        await bus.drain()
        async with AsyncSession(bus.database.async_engine) as session:
            charges = (await session.execute(text("SELECT number, euros FROM charges"))).all()
        assert [tuple(row) for row in charges] == [(1, 40)]
        print("charges:", charges)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        asyncio.run(main(Path(made)))
