"""Transactional message: deliver a message if, and only if, the database transaction commits."""

import sqlite3

import sparrow.testing
from sparrow import Consumer, Message, Producer, TransactionState
from sparrow.model import StoredMessage

database = sqlite3.connect("file::memory:?cache=shared", uri=True, check_same_thread=False)
database.execute("create table orders (id text primary key)")


def is_there(message: StoredMessage) -> TransactionState:
    """Answer a check-back: the broker asks for a transaction whose result it did not receive, e.g. after a crash."""
    found = database.execute("select 1 from orders where id = ?", message.keys).fetchone()
    return TransactionState.COMMIT if found else TransactionState.ROLLBACK


with (
    sparrow.testing.run_platform() as platform,
    # The broker sends check-backs to any producer of the group, so the group must belong to this application alone.
    Producer(platform.name_servers, group="shop", transaction_checker=is_there) as producer,
):
    with producer.transaction(Message("paid", "a book", keys="order-1")), database:
        database.execute("insert into orders values ('order-1')")

    try:
        with producer.transaction(Message("paid", "a second book", keys="order-1")), database:
            database.execute("insert into orders values ('order-1')")
    except sqlite3.IntegrityError as error:
        print("rolled back:", error)

    with Consumer(platform.name_servers, group="shipping") as consumer:
        consumer.subscribe("paid")
        message = next(consumer)
        print("to be shipped:", message.keys, message.body.decode())
