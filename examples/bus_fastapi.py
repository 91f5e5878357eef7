"""Event bus with FastAPI: store an order and publish its event in one transaction. The broker runs in this process."""

import asyncio
import tempfile
from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import Depends, FastAPI, HTTPException
from httpx import ASGITransport, AsyncClient
from pydantic import BaseModel
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

import sparrow.testing
from sparrow.bus.aio import EventBus, Publisher


class Base(DeclarativeBase):
    pass


class OrderRow(Base):
    __tablename__ = "orders"
    number: Mapped[int] = mapped_column(primary_key=True)


class BillRow(Base):
    __tablename__ = "bills"
    order_number: Mapped[int] = mapped_column(primary_key=True)


class Order(BaseModel):
    number: int
    book: str


def shop(bus: EventBus, billed: asyncio.Event) -> FastAPI:
    app = FastAPI()
    bus.install(app)  # the bus starts and stops with the application

    async def get_session() -> AsyncIterator[AsyncSession]:
        async with AsyncSession(bus.database.async_engine) as session, session.begin():
            yield session

    Events = Annotated[Publisher, Depends(bus.publisher_for(get_session))]

    @app.post("/orders")
    async def create(order: Order, session: Annotated[AsyncSession, Depends(get_session)], events: Events) -> None:
        session.add(OrderRow(number=order.number))
        await events.publish("order.created", order)
        if order.book == "out of print":
            raise HTTPException(409, "neither the order nor its event is kept")

    @bus.subscribe("order.created", group="billing")
    async def bill(order: Order, session: AsyncSession) -> None:
        session.add(BillRow(order_number=order.number))  # commits with the completion of the event
        print("billing:", order)
        billed.set()

    return app


async def main(folder: str, name_servers: str) -> None:
    bus = EventBus(f"sqlite:///{folder}/shop.db", f"sparrow://{name_servers}", app="shop")
    billed = asyncio.Event()
    app = shop(bus, billed)
    await bus.database.run(Base.metadata.create_all)
    async with (
        app.router.lifespan_context(app),  # a server runs the lifespan around the requests
        AsyncClient(transport=ASGITransport(app), base_url="http://shop") as client,
    ):
        for order in (Order(number=1, book="out of print"), Order(number=2, book="Walden")):
            answer = await client.post("/orders", json=order.model_dump())
            print("shop:", order.book, answer.status_code)
        await asyncio.wait_for(billed.wait(), 30)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder, sparrow.testing.run_platform() as platform:
        asyncio.run(main(folder, platform.name_servers))
