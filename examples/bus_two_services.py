"""Two services with one database each and one broker: every order is paid exactly once.

    orders:   INSERT order    + publish order.placed  ── one commit ──►  broker
    billing:  INSERT payment  + publish payment.done  ── one commit ──►  broker
    orders:   UPDATE order                            ── one commit

Each service writes only to its own database. Kill a service at any point and restart it: committed events are still
delivered, and handled events are not handled again.

    python bus_two_services.py
    python bus_two_services.py --orders mysql://… --billing postgresql://… --broker sparrow://127.0.0.1:9876
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import Column, Integer, MetaData, Table, func, insert, select, update
from sqlalchemy.ext.asyncio import AsyncSession

import sparrow.testing
from sparrow.bus.aio import EventBus
from sparrow.bus.transports.spi import Transport


@dataclass
class Order:
    number: int
    cents: int


orders_schema, billing_schema = MetaData(), MetaData()
orders_table = Table(
    "orders",
    orders_schema,
    Column("number", Integer, primary_key=True),
    Column("cents", Integer, nullable=False),
    Column("paid_cents", Integer, nullable=False, default=0),
    Column("payments", Integer, nullable=False, default=0),
)
payments_table = Table(
    "payments",
    billing_schema,
    Column("id", Integer, primary_key=True),
    # Not unique on purpose: only the bus prevents a second payment of an order.
    Column("order_number", Integer, nullable=False),
    Column("cents", Integer, nullable=False),
)


# -- orders -----------------------------------------------------------------------------------------------------------


def orders_service(database: str, broker: str | Transport) -> EventBus:
    bus = EventBus(database, broker, app="orders")

    @bus.subscribe("payment.done")
    async def note_payment(paid: Order, session: AsyncSession) -> None:
        await session.execute(
            update(orders_table)
            .where(orders_table.c.number == paid.number)
            .values(paid_cents=orders_table.c.paid_cents + paid.cents, payments=orders_table.c.payments + 1)
        )

    return bus


async def place_order(bus: EventBus, order: Order) -> None:
    """Store the order and publish its event in one transaction."""
    async with AsyncSession(bus.database.async_engine) as session, session.begin():
        await session.execute(insert(orders_table).values(number=order.number, cents=order.cents))
        await bus.publish("order.placed", order, session=session)


# -- billing ----------------------------------------------------------------------------------------------------------


def billing_service(database: str, broker: str | Transport) -> EventBus:
    bus = EventBus(database, broker, app="billing")

    @bus.subscribe("order.placed")
    async def take_money(order: Order, session: AsyncSession) -> None:
        # The bus commits this session together with the completion of the event.
        await session.execute(insert(payments_table).values(order_number=order.number, cents=order.cents))
        await bus.publish("payment.done", order, session=session)

    return bus


# -- both -------------------------------------------------------------------------------------------------------------


async def create_tables(bus: EventBus, schema: MetaData) -> None:
    async with bus.database.async_engine.begin() as connection:
        await connection.run_sync(schema.create_all)


@dataclass
class Books:
    """Totals of both databases."""

    orders: int
    ordered_cents: int
    orders_paid: int
    paid_cents: int
    payments_max: int
    """The highest number of payments that the orders service counted for one order."""
    payments: int
    payment_cents: int

    @property
    def is_settled(self) -> bool:
        return self.orders_paid == self.orders

    def check(self) -> None:
        assert self.payments == self.orders_paid == self.orders, self
        assert self.payment_cents == self.paid_cents == self.ordered_cents, self
        assert self.payments_max <= 1, self


async def read_books(orders: EventBus, billing: EventBus) -> Books:
    order, payment = orders_table.c, payments_table.c
    async with AsyncSession(orders.database.async_engine) as session:
        count, ordered, paid_count, paid, most = (
            await session.execute(
                select(
                    func.count(),
                    func.sum(order.cents),
                    func.sum((order.payments > 0).cast(Integer)),
                    func.sum(order.paid_cents),
                    func.max(order.payments),
                )
            )
        ).one()
    async with AsyncSession(billing.database.async_engine) as session:
        payments, taken = (await session.execute(select(func.count(payment.id), func.sum(payment.cents)))).one()
    return Books(*(int(value or 0) for value in (count, ordered, paid_count, paid, most, payments, taken)))


async def settled(orders: EventBus, billing: EventBus) -> Books:
    while True:
        books = await read_books(orders, billing)
        if books.is_settled:
            return books
        await asyncio.sleep(0.05)


async def main(orders_url: str, billing_url: str, broker: str, count: int) -> None:
    orders, billing = orders_service(orders_url, broker), billing_service(billing_url, broker)
    await create_tables(orders, orders_schema)
    await create_tables(billing, billing_schema)
    async with orders, billing:
        for number in range(1, count + 1):
            await place_order(orders, Order(number, cents=100 * number + 99))
        async with asyncio.timeout(30):
            books = await settled(orders, billing)
    books.check()
    print(f"{books.orders} orders of {books.ordered_cents / 100:.2f}, {books.payments} payments")
    print("sum of payments = sum of orders, no order paid twice")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Two services that share a broker and nothing else.")
    parser.add_argument("--orders", help="URL of the orders' database; a file of its own by default")
    parser.add_argument("--billing", help="URL of the billing's database; a file of its own by default")
    parser.add_argument("--broker", help="URL of the broker; one of its own by default")
    parser.add_argument("--count", type=int, default=20, help="how many orders")
    said = parser.parse_args()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        if said.broker is None:
            platform = stack.enter_context(sparrow.testing.run_platform())
            said.broker = f"sparrow://{platform.name_servers}"
        asyncio.run(
            main(
                said.orders or f"sqlite:///{folder}/orders.db",
                said.billing or f"sqlite:///{folder}/billing.db",
                said.broker,
                said.count,
            )
        )
