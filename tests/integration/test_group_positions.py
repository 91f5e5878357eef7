"""How far messages were handed out to a group, and resets of groups of RocketMQ 5, on both stores."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.support.platform_driver import PlatformDriver, running_platform_driver
from tests.support.sql_brokers import running_sql_platform
from tests.support.wait import eventually

from sparrow.broker.context import Broker
from sparrow.model.queue import Queue
from sparrow.net import Channel, connect
from sparrow.wire import bodies, headers, record
from sparrow.wire.codes import ADVERTISED_VERSION, Language, RequestCode, ResponseCode, RocketMQVersion
from sparrow.wire.frame import ONE_WAY_FLAG, RemotingCommand, encode

V5 = int(RocketMQVersion.V5_3_3)


class GroupMember:
    """A consumer of group g, which reads the queue of topic t that messages without a priority go to."""

    def __init__(self, driver: PlatformDriver, queue: Queue) -> None:
        self.broker: Broker = driver.platform.broker.broker
        self._address, self.queue = driver.platform.address, queue
        self.channel: Channel
        self.requests: list[int] = []

    async def connect(self) -> GroupMember:
        self.channel = await connect(self._address, lambda command, _: self.requests.append(command.code))
        return self

    async def join(self, version: int, client_id: str = "one", *, model: str = "CLUSTERING") -> None:
        """Send a heartbeat as a Java client of this version."""
        subscription = bodies.SubscriptionData("t", sub_version=1)
        consumer = bodies.ConsumerData("g", message_model=model, subscription_data_set=[subscription])
        body = bodies.write(bodies.HeartbeatData(client_id, consumer_data_set=[consumer]))
        code = RequestCode.HEART_BEAT
        self.channel.write(encode(RemotingCommand(code, 1, ONE_WAY_FLAG, Language.JAVA, version, None, None, body)))
        await eventually(lambda: self.broker.clients.find_consumer("g", client_id))

    async def ask(self, code: RequestCode, header: headers.Header) -> RemotingCommand:
        answer = await self.channel.request(code, header)
        assert answer.code == ResponseCode.SUCCESS, answer.remark
        return answer

    async def pull(self, offset: int, *, long_poll_ms: int = 0) -> tuple[int, int]:
        """Return the response code and the next offset."""
        flags = headers.pull.SUSPEND_FLAG if long_poll_ms else 0
        topic, queue_id = self.queue
        request = headers.PullMessage("g", topic, queue_id, offset, 32, flags, 0, long_poll_ms, 0)
        answer = await self.channel.request(RequestCode.PULL_MESSAGE, request)
        return answer.code, headers.read(headers.PullMessageResponse, answer.ext).next_offset

    async def pop(self, count: int) -> RemotingCommand:
        return await self.ask(RequestCode.POP_MESSAGE, headers.PopMessage("g", "t", -1, count, 600_000, 0))

    async def commit(self, offset: int) -> None:
        await self.ask(RequestCode.UPDATE_CONSUMER_OFFSET, headers.CommitOffset("g", *self.queue, offset))

    async def committed(self) -> int | None:
        return await self.broker.store.offsets.committed("g", self.queue)

    async def reset_to_first(self) -> dict[int, int]:
        answer = await self.ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, headers.ResetOffset("t", "g", 0, True))
        offsets = bodies.read(bodies.OffsetTable, bytes(answer.body)).offset_table
        return {queue.queue_id: offset for queue, offset in offsets.items()}

    async def progress(self) -> tuple[int, int]:
        """Return the committed offset and the pull offset that tools show."""
        answer = await self.ask(RequestCode.GET_CONSUME_STATS, headers.GetConsumeStats("g", "t"))
        table = bodies.read(bodies.ConsumeStats, bytes(answer.body)).offset_table
        (found,) = [stats for queue, stats in table.items() if queue.queue_id == self.queue.id]
        return found.consumer_offset, found.pull_offset


@pytest.fixture(params=["log", "sqlite"])
async def member(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[GroupMember]:
    """A client that has sent five messages."""
    is_log = request.param == "log"
    running = running_platform_driver if is_log else running_sql_platform
    arguments = (tmp_path,) if is_log else (tmp_path, f"sqlite:///{tmp_path}/sparrow.db")
    async with running(*arguments) as driver:  # type: ignore[operator]
        if is_log:
            await driver.create_topic("t")
        await driver.send("t", list("abcde"))
        member = await GroupMember(driver, Queue("t", 0 if is_log else 1)).connect()
        yield member
        member.channel.close()


# -- pull offsets -----------------------------------------------------------------------------------------------------


async def test_progress_shows_what_was_pulled_and_is_not_committed_yet(member: GroupMember) -> None:
    await member.join(V5)
    await member.commit(0)
    assert await member.progress() == (0, 0)
    assert await member.pull(0) == (ResponseCode.SUCCESS, 5)
    assert await member.progress() == (0, 5)
    await member.commit(3)
    assert await member.progress() == (3, 5)


async def test_progress_shows_what_a_woken_pull_got(member: GroupMember) -> None:
    await member.join(V5)
    await member.commit(5)
    waiting = asyncio.create_task(member.pull(5, long_poll_ms=20_000))
    await eventually(lambda: member.broker.long_polls.count == 1)
    channel = await connect(member.broker.address)
    request = headers.SendMessageV2("p", "t", "TBW102", 4, 0, 0, 1, 0, "")
    assert (await channel.request(RequestCode.SEND_MESSAGE_V2, request, b"f")).code == ResponseCode.SUCCESS
    channel.close()
    assert await waiting == (ResponseCode.SUCCESS, 6)
    assert await member.progress() == (5, 6)


async def test_progress_shows_what_was_popped(member: GroupMember) -> None:
    await member.pop(2)
    _, pull_offset = await member.progress()
    assert pull_offset == 2


# -- resets -----------------------------------------------------------------------------------------------------------


async def test_a_reset_of_a_rocketmq_5_group_answers_its_next_pull(member: GroupMember) -> None:
    await member.join(V5)
    await member.pull(0)
    await member.commit(4)
    assert (await member.reset_to_first())[member.queue.id] == 0
    assert await member.committed() == 0
    await member.commit(5)  # of a member that does not know the reset yet
    assert await member.committed() == 0
    assert await member.progress() == (0, 0)
    assert await member.pull(5) == (ResponseCode.PULL_OFFSET_MOVED, 0)
    assert await member.pull(0) == (ResponseCode.SUCCESS, 5)
    await member.commit(5)
    assert await member.committed() == 5
    assert RequestCode.RESET_CONSUMER_CLIENT_OFFSET not in member.requests


async def test_a_reset_answers_a_pull_that_waits_for_messages(member: GroupMember) -> None:
    await member.join(V5)
    waiting = asyncio.create_task(member.pull(5, long_poll_ms=20_000))
    await eventually(lambda: member.broker.long_polls.count == 1)
    await member.reset_to_first()
    async with asyncio.timeout(30):
        assert await waiting == (ResponseCode.PULL_OFFSET_MOVED, 0)


@pytest.mark.parametrize(("version", "model"), [(ADVERTISED_VERSION, "CLUSTERING"), (V5, "BROADCASTING")])
async def test_older_members_and_members_of_a_broadcasting_group_are_told_of_a_reset(
    member: GroupMember, version: int, model: str
) -> None:
    await member.join(version, model=model)
    await member.join(V5, "two", model=model)
    await member.commit(4)
    assert (await member.reset_to_first())[member.queue.id] == 0
    await eventually(lambda: member.requests.count(RequestCode.RESET_CONSUMER_CLIENT_OFFSET) == 2)
    assert await member.committed() == 4  # the members commit
    assert await member.pull(4) == (ResponseCode.SUCCESS, 5)


async def test_a_pop_ends_a_reset_of_its_group(member: GroupMember) -> None:
    await member.join(V5)
    await member.commit(4)
    await member.reset_to_first()
    found = await member.pop(2)
    assert [message.body for message in record.decode_all(bytes(found.body))] == [b"a", b"b"]
    await member.commit(5)
    assert await member.committed() == 5
    assert await member.pull(5) == (ResponseCode.PULL_NOT_FOUND, 5)
