"""Members of one group that differ: the broker and both consumers warn, with both subscriptions."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from tests.support.platform_driver import PlatformDriver, running_platform_driver
from tests.support.recording_handlers import RecordingHandler
from tests.support.wait import eventually

from sparrow.client.aio.connection.session import ClientSession
from sparrow.client.aio.consume.consumer import Consumer

BROKER = "sparrow.broker.clients.heartbeats"
CLIENT = "sparrow.client.aio.connection.group_conflicts"


@pytest.fixture
async def driver(tmp_path: Path, caplog) -> AsyncIterator[PlatformDriver]:
    caplog.set_level(logging.INFO)
    async with running_platform_driver(tmp_path) as running:
        await running.create_topic("orders")
        await running.create_topic("bills")
        yield running


async def member(
    stack: AsyncExitStack, driver: PlatformDriver, *subscriptions: tuple[str, str], **options: str
) -> Consumer:
    session = await stack.enter_async_context(ClientSession(driver.name_servers, maintenance_interval_ms=50))
    consumer = await stack.enter_async_context(Consumer(session=session, group="billing", **options))
    for topic, expression in subscriptions:
        await consumer.subscribe(topic, expression)
    await consumer.start(RecordingHandler())
    return consumer


def said(caplog, logger: str, level: int = logging.WARNING) -> list[logging.LogRecord]:
    return [record for record in caplog.records if record.name == logger and record.levelno == level]


async def test_two_members_with_different_subscriptions_are_both_warned_once(driver, caplog):
    async with AsyncExitStack() as stack:
        one = await member(stack, driver, ("orders", "paid || new"))
        assert not said(caplog, BROKER)
        two = await member(stack, driver, ("orders", "paid"), ("bills", "*"))
        await eventually(lambda: len(said(caplog, CLIENT)) == 2)
        reports = {
            one.session.client_id: "clustering orders (new || paid)",
            two.session.client_id: "clustering bills (*), orders (paid)",
        }
        [of_broker] = said(caplog, BROKER)
        for text in ("billing", *reports, *reports.values(), "same subscriptions"):
            assert text in of_broker.getMessage()
        for record in said(caplog, CLIENT):
            assert record.args["report"] != record.args["other_report"]
            assert record.args["other_report"] == reports[record.args["other_client"]]
            for text in ("group billing", *reports.values()):
                assert text in record.getMessage()

        await one.subscribe("orders", "paid")
        await one.subscribe("bills")
        await eventually(lambda: len(said(caplog, CLIENT, logging.INFO)) == 2)
        assert len(said(caplog, BROKER, logging.INFO)) == 1
        # The broker warned once for each pair of subscriptions that it saw, and not at every heartbeat.
        assert len(said(caplog, BROKER)) <= 2


async def test_members_with_the_same_subscriptions_in_another_order_are_not_warned(driver, caplog):
    async with AsyncExitStack() as stack:
        one = await member(stack, driver, ("orders", "paid || new"), ("bills", "*"))
        two = await member(stack, driver, ("bills", ""), ("orders", "new||paid"))
        await one.wait_for_assignment()
        await two.wait_for_assignment()
        for each in (one, two):
            await each.session.heartbeat()
        assert not said(caplog, BROKER) + said(caplog, CLIENT)


async def test_a_broadcasting_member_in_a_group_that_shares_queues_is_reported(driver, caplog):
    async with AsyncExitStack() as stack:
        await member(stack, driver, ("orders", "*"))
        await member(stack, driver, ("orders", "*"), mode="broadcast")
        await eventually(lambda: len(said(caplog, CLIENT)) == 2)
        [of_broker] = said(caplog, BROKER)
        assert "clustering orders (*)" in of_broker.getMessage()
        assert "broadcasting orders (*)" in of_broker.getMessage()


async def test_the_conflict_ends_when_the_other_member_leaves(driver, caplog):
    async with AsyncExitStack() as stack:
        await member(stack, driver, ("orders", "paid"))
        async with AsyncExitStack() as other:
            await member(other, driver, ("orders", "new"))
            await eventually(lambda: len(said(caplog, CLIENT)) == 2)
        await eventually(lambda: said(caplog, CLIENT, logging.INFO))
        assert len(said(caplog, BROKER, logging.INFO)) == 1
