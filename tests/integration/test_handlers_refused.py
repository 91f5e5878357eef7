"""Handlers that would never run, or would block, are refused before a message is taken."""

import asyncio
import functools

import pytest
from tests.support.wait import wait_until

from sparrow import Consumer, Message, Producer, TransactionState, aio


async def coroutine_handler(message):
    raise AssertionError("the blocking client runs no coroutine")


class CoroutineHandler:
    async def __call__(self, message):
        raise AssertionError("the blocking client runs no coroutine")


@pytest.mark.parametrize("how", [{}, {"batch": 4}, {"orderly": True}], ids=str)
@pytest.mark.parametrize(
    "handler",
    [coroutine_handler, CoroutineHandler(), functools.partial(coroutine_handler)],
    ids=["def", "call", "partial"],
)
def test_a_coroutine_handler_is_refused_and_nothing_is_acknowledged(platform, handler, how):
    with Producer(platform.name_servers) as producer:
        producer.send(Message("orders", "a book"))
    with Consumer(platform.name_servers, group="readers") as consumer:
        consumer.subscribe("orders")
        with pytest.raises(TypeError, match=r"use the client of sparrow\.aio"):
            consumer.start(handler, **how)
        # It has not started, so it can be started with a handler that works.
        seen = []
        consumer.start(seen.append, **how)
        wait_until(lambda: seen)


def test_a_lambda_that_returns_a_coroutine_fails_and_the_message_is_delivered_again(platform, caplog):
    with Producer(platform.name_servers) as producer:
        producer.send(Message("orders", "a book"))
    calls = []

    def handler(message):
        calls.append(message)
        return coroutine_handler(message)

    with Consumer(platform.name_servers, group="readers", retries_max=0) as consumer:
        consumer.subscribe("orders")
        consumer.start(handler)
        wait_until(lambda: "which the blocking client does not await" in caplog.text)
    assert len(calls) == 1


@pytest.mark.parametrize("how", [{}, {"batch": 4}, {"orderly": True}], ids=str)
async def test_a_plain_handler_is_refused_by_the_asyncio_consumer(platform, how):
    async with aio.Consumer(platform.name_servers, group="readers") as consumer:
        await consumer.subscribe("orders")
        with pytest.raises(TypeError, match=r"write `async def`, or use sparrow\.Consumer"):
            await consumer.start(lambda message: None, **how)


@pytest.mark.parametrize("arguments", [{"workers": 0}, {"batch": 0}, {"workers": "4"}], ids=str)
async def test_a_consumer_needs_a_worker_and_a_batch_a_message(platform, arguments):
    async with aio.Consumer(platform.name_servers, group="readers") as consumer:
        await consumer.subscribe("orders")
        with pytest.raises(aio.SettingsError, match=r"use a whole number from 1"):
            await consumer.start(coroutine_handler, **arguments)
    blocking = Consumer(platform.name_servers, group="readers")
    with pytest.raises(aio.SettingsError, match=r"use a whole number from 1"):
        await asyncio.to_thread(_start_blocking, blocking, arguments)


def _start_blocking(consumer, arguments):
    with consumer:
        consumer.subscribe("orders")
        consumer.start(print, **arguments)


def test_coroutine_functions_are_refused_in_transactions(platform):
    async def checker(message):
        return TransactionState.COMMIT

    with pytest.raises(TypeError, match=r"the transaction checker .*checker is a coroutine function"):
        Producer(platform.name_servers, transaction_checker=checker)
    with Producer(platform.name_servers) as producer:
        with pytest.raises(TypeError, match=r"the work of the transaction .*checker is a coroutine function"):
            producer.send_in_transaction(Message("orders", "a book"), checker)
