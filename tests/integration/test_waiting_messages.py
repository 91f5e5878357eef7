"""Delayed messages and half messages, listed, recalled and ended by an operator, on the log store and on a database."""

import json
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from sparrow.broker.delay import timer_list
from sparrow.broker.delay.recall import recall_handle
from sparrow.client.aio import Admin, Producer
from sparrow.client.aio.admin.topic_messages import read_topic
from sparrow.model.access.token import Credentials
from sparrow.model.errors import Refused
from sparrow.model.message import Message
from sparrow.model.transaction import TransactionState
from sparrow.operations.errors import PlanChanged
from sparrow.operations.waiting_messages.actions import IDS_MAX, WaitingAction, WaitingState
from sparrow.operations.waiting_messages.delayed_messages import list_delayed, plan_recall, recall_delayed
from sparrow.operations.waiting_messages.half_messages import end_half_messages, list_half_messages, plan_end
from sparrow.testing import run_platform
from sparrow.wire.bodies import ListDelayed, write
from sparrow.wire.codes import RequestCode

HOUR_MS = 3_600_000
STORES = ("log", "sqlite")


class Shop:
    """A platform, with a client for each side."""

    def __init__(self, admin: Admin, producer: Producer) -> None:
        self.admin, self.producer = admin, producer

    async def bodies(self, topic: str) -> list[bytes]:
        """Return what consumers of a topic can read."""
        return [message.body async for message in read_topic(self.admin.session, topic, group="readers")]


@pytest.fixture(params=STORES)
async def shop(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Shop]:
    store = None if request.param == "log" else f"sqlite:///{tmp_path / 'messages.db'}"
    with run_platform(tmp_path / "data", store=store) as platform:
        async with (
            Admin(platform.name_servers) as admin,
            Producer(
                platform.name_servers, group="shop", transaction_checker=lambda _: TransactionState.UNKNOWN
            ) as producer,
        ):
            await admin.create_topic("orders", 1)
            await admin.create_topic("reminders", 1)
            yield Shop(admin, producer)


async def test_delayed_messages_are_listed_by_delivery_time(shop: Shop) -> None:
    assert await list_delayed(shop.admin) == await list_delayed(shop.admin, topic="orders")
    step_ms = 50 * 60_000  # the level, of two hours, is between the second and the third
    for number in (3, 1, 2):
        await shop.producer.send(
            Message("reminders", f"{number}", keys=[f"key-{number}", "all"], tags="call"),
            deliver_after_ms=number * step_ms,
        )
    await shop.producer.send(Message("orders", "level"), delay_level=18)
    page = await list_delayed(shop.admin)
    assert [message.topic for message in page.messages] == ["reminders", "reminders", "orders", "reminders"]
    assert (page.complete, page.scanned) == (True, 4)
    first = page.messages[0]
    assert (first.keys, first.tags, first.body_bytes) == (("key-1", "all"), "call", 1)
    assert first.due_ms - first.store_ms == pytest.approx(step_ms, abs=60_000)
    only = await list_delayed(shop.admin, topic="orders")
    assert [message.due_ms - message.store_ms for message in only.messages] == [pytest.approx(2 * HOUR_MS, abs=60_000)]
    early = await list_delayed(shop.admin, until_ms=first.due_ms + step_ms // 2)
    assert [message.message_id for message in early.messages] == [first.message_id]
    late = await list_delayed(shop.admin, from_ms=first.due_ms + 1)
    assert first.message_id not in [message.message_id for message in late.messages]
    assert len(late.messages) == 3


async def test_pages_of_delayed_messages_show_each_once(shop: Shop) -> None:
    due_ms = int(time.time() * 1000) + HOUR_MS
    for number in range(7):  # all in the same millisecond
        await shop.producer.send(Message("reminders", f"{number}"), deliver_at=due_ms)
    seen, cursor = [], None
    while True:
        page = await list_delayed(shop.admin, limit=3, after=cursor)
        assert len(page.messages) <= 3
        seen += [message.message_id for message in page.messages]
        if page.next is None:
            break
        cursor = json.loads(json.dumps(page.next))
        cursor = {broker: None if position is None else tuple(position) for broker, position in cursor.items()}
    assert len(seen) == len(set(seen)) == 7


async def test_delayed_messages_are_recalled_as_planned(shop: Shop) -> None:
    kept = await shop.producer.send(Message("reminders", "kept"), deliver_after_ms=HOUR_MS)
    dropped = await shop.producer.send(Message("reminders", "dropped"), deliver_after_ms=HOUR_MS)
    await shop.producer.send(Message("orders", "by level"), delay_level=18)
    (level,) = (await list_delayed(shop.admin, topic="orders")).messages
    handles = [dropped.recall_handle or "", level.handle or ""]
    plan = await plan_recall(shop.admin, [*handles, "nonsense"])
    assert [item.state for item in plan.items] == [WaitingState.WAITING, WaitingState.WAITING, WaitingState.FAILED]
    assert len((await list_delayed(shop.admin)).messages) == 3, "a plan changes nothing"
    with pytest.raises(PlanChanged):
        await recall_delayed(shop.admin, handles, plan="other")
    done = await recall_delayed(shop.admin, handles, plan=(await plan_recall(shop.admin, handles)).hash)
    assert (done.done, done.result) == (2, "done")
    assert [message.message_id for message in (await list_delayed(shop.admin)).messages] == [kept.message_id]
    again = await recall_delayed(shop.admin, handles, plan=None, force=True)
    assert [item.state for item in again.items] == [WaitingState.NOT_FOUND] * 2
    assert again.result == "failed"


async def test_half_messages_are_listed_and_ended_by_force(shop: Shop) -> None:
    sent = [await shop.producer.begin_transaction(Message("orders", f"{n}", keys=f"order-{n}")) for n in range(4)]
    await shop.producer.begin_transaction(Message("reminders", "other"))
    page = await list_half_messages(shop.admin, topic="orders")
    assert [half.message_id for half in page.messages] == [each.message_id for each in sent]
    assert {(half.producer_group, half.checks, half.body_bytes) for half in page.messages} == {("shop", 0, 1)}
    assert page.messages[0].keys == ("order-0",)
    ids = [half.id for half in page.messages]
    plan = await plan_end(shop.admin, ids[:2], WaitingAction.COMMIT)
    assert (plan.count, await shop.bodies("orders")) == (2, [])
    done = await end_half_messages(shop.admin, ids[:2], WaitingAction.COMMIT, plan=plan.hash)
    assert [item.state for item in done.items] == [WaitingState.COMMITTED] * 2
    assert await shop.bodies("orders") == [b"0", b"1"]
    rolled = await end_half_messages(shop.admin, [ids[2]], WaitingAction.ROLLBACK, plan=None, force=True)
    assert [item.state for item in rolled.items] == [WaitingState.ROLLED_BACK]
    await shop.producer.end_transaction(sent[2], TransactionState.COMMIT)  # too late
    mixed = await end_half_messages(
        shop.admin, [ids[0], ids[2], ids[3], "sparrow@x", "nobody@1"], WaitingAction.COMMIT, plan=None, force=True
    )
    assert [item.state for item in mixed.items] == [
        WaitingState.NOT_FOUND,
        WaitingState.NOT_FOUND,
        WaitingState.COMMITTED,
        WaitingState.FAILED,
        WaitingState.FAILED,
    ]
    assert (mixed.result, await shop.bodies("orders")) == ("partial", [b"0", b"1", b"3"])
    rest = await list_half_messages(shop.admin)
    assert [half.topic for half in rest.messages] == ["reminders"]


async def test_pages_of_half_messages_show_each_once(shop: Shop) -> None:
    for number in range(7):
        await shop.producer.begin_transaction(Message("orders", f"{number}"))
    seen, cursor = [], None
    while True:
        page = await list_half_messages(shop.admin, limit=3, after=cursor)
        seen += [half.message_id for half in page.messages]
        cursor = page.next
        if cursor is None:
            break
    assert len(seen) == len(set(seen)) == 7


async def test_an_action_names_some_messages_but_not_too_many(shop: Shop) -> None:
    for ids in ([], [f"sparrow@{number}" for number in range(IDS_MAX + 1)]):
        with pytest.raises(Refused, match="name 1 to"):
            await plan_end(shop.admin, ids, WaitingAction.ROLLBACK)
        with pytest.raises(Refused, match="name 1 to"):
            await plan_recall(shop.admin, ids)


async def test_a_list_reads_a_bounded_number_and_continues(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timer_list, "SCANNED_MAX", 5)
    with run_platform(tmp_path) as platform:
        async with Admin(platform.name_servers) as admin, Producer(platform.name_servers) as producer:
            for number in range(12):
                topic = "rare" if number == 11 else "common"
                await producer.send(Message(topic, "x"), deliver_after_ms=HOUR_MS + number)
            pages, cursor = [], None
            while True:
                page = await list_delayed(admin, topic="rare", after=cursor)
                pages.append((len(page.messages), page.scanned))
                if page.next is None:
                    break
                cursor = page.next
            assert pages == [(0, 5), (0, 5), (1, 2)]


async def test_recalls_outlive_a_restart_of_the_broker(tmp_path: Path) -> None:
    """Also those of messages with a level, which wait in another queue than the cancellation."""
    with run_platform(tmp_path) as platform:
        async with Admin(platform.name_servers) as admin, Producer(platform.name_servers) as producer:
            for number in range(4):
                await producer.send(Message("orders", f"level {number}"), delay_level=18)
                await producer.send(Message("orders", f"time {number}"), deliver_after_ms=3 * HOUR_MS)
            waiting = (await list_delayed(admin)).messages
            handles = [waiting[index].handle or "" for index in (0, 1, 4)]
            assert (await recall_delayed(admin, handles, plan=None, force=True)).done == 3
    with run_platform(tmp_path) as platform:
        async with Admin(platform.name_servers) as admin:
            rest = (await list_delayed(admin)).messages
            assert [message.message_id for message in rest] == [
                message.message_id for message in waiting if message.handle not in handles
            ]


async def test_lists_need_an_admin_token_where_tokens_are_required(tmp_path: Path) -> None:
    secret = "s" * 16
    with run_platform(tmp_path, broker={"auth": True, "admin_tokens": {"root": secret}}) as platform:
        async with Admin(platform.name_servers, credentials=Credentials("root", secret)) as admin:
            producer = await admin.issue_token("shop", "p")
            assert (await list_delayed(admin)).complete
            assert (await list_half_messages(admin)).complete
        async with Admin(platform.name_servers, credentials=producer) as stranger:
            with pytest.raises(Refused, match="needs one of the broker's admin tokens"):
                await list_delayed(stranger)
            with pytest.raises(Refused, match="needs one of the broker's admin tokens"):
                await list_half_messages(stranger)


async def test_impossible_ids_fail_alone(shop: Shop) -> None:
    impossible = recall_handle("orders", "sparrow", 10**30, "k")
    (item,) = (await plan_recall(shop.admin, [impossible])).items
    assert (item.state, bool(item.error)) == (WaitingState.FAILED, True)
    (item,) = (await plan_end(shop.admin, [f"sparrow@{10**30}"], WaitingAction.COMMIT)).items
    assert (item.state, bool(item.error)) == (WaitingState.FAILED, True)


async def test_a_list_of_too_many_is_refused(shop: Shop) -> None:
    masters = [cluster.masters for cluster in (await shop.admin.clusters()).values()]
    address = next(iter(masters[0].values()))
    for limit in (0, 257):
        with pytest.raises(Refused, match="ask for 1 to 256"):
            await shop.admin.session.invoke(
                address, RequestCode.LIST_DELAYED_MESSAGES, None, write(ListDelayed(limit=limit))
            )
