"""Staged appends that are atomic and idempotent: on a log store and a SQL store, and across restarts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.support.platform_driver import PlatformDriver, running_platform_driver
from tests.support.platforms import pull, running_platform
from tests.support.queue_batches import encode_queue_batches, make_queue_batch
from tests.support.sql_brokers import running_sql_brokers, running_sql_platform
from tests.support.wait import eventually

from sparrow.broker.server import BrokerServer
from sparrow.client.aio import Admin
from sparrow.client.aio.admin.queue_bounds import fetch_queue_bounds
from sparrow.client.aio.connection.session import ClientSession
from sparrow.client.aio.produce.staging import (
    SealedStage,
    append_once,
    commit_stages,
    drop_stages,
    query_ledger,
    seal_stage,
    stage_records,
)
from sparrow.model.access.token import Credentials
from sparrow.model.errors import Busy, Refused, UnknownTopic
from sparrow.model.protocol import PERM_READ
from sparrow.model.queue import Queue
from sparrow.model.topic import Topic
from sparrow.wire import bodies, queue_batches
from sparrow.wire.codes import RequestCode, ResponseCode
from sparrow.wire.headers import CommitStages, StageRecords

SCOPE = "query-1/sink"


@asynccontextmanager
async def running_driver(store: str, folder: Path, **settings: object) -> AsyncIterator[PlatformDriver]:
    """Run a platform with topic `t` of two queues."""
    if store == "log":
        async with running_platform_driver(folder, **settings) as driver:
            await driver.create_topic("t", queues=2)
            yield driver
    else:
        async with running_sql_platform(folder, f"sqlite:///{folder}/sparrow.db", **settings) as driver:
            await driver.create_topic("t", queues=2)
            yield driver


class StagingClient:
    """A client that stages records, commits them and reads them back."""

    def __init__(self, driver: PlatformDriver, session: ClientSession, store: str) -> None:
        self.driver, self.session, self.store = driver, session, store
        self.address = str(driver.platform.address)
        self.server: BrokerServer = driver.platform.broker
        self.broker = self.server.broker

    def queue_id(self, part: int) -> int:
        """Return the queue id for readers: in a SQL store every topic has lanes, and middle is the default."""
        return part if self.store == "log" else part * 3 + 1

    async def read(self, part: int = 0, topic: str = "t") -> list[bytes]:
        found: list[bytes] = []
        while True:
            answer = await pull(self.driver.channel, topic, self.queue_id(part), len(found), count=1000)
            if answer.code != ResponseCode.SUCCESS:
                return found
            assert [message.queue_offset for message in answer.messages] == list(
                range(len(found), len(found) + len(answer.messages))
            )
            found += answer.bodies

    async def stage(self, name: str, *blobs: bytes, fills: bool = False) -> SealedStage:
        for seq, each in enumerate(blobs):
            await stage_records(self.session, self.address, name, seq, each, fills_checksum=fills)
        return await seal_stage(self.session, self.address, name, len(blobs))

    async def commit(self, number: int, *names: str, scope: str = SCOPE) -> bool:
        return await commit_stages(self.session, self.address, scope, number, names)

    async def ledger(self, scope: str = SCOPE) -> int | None:
        return await query_ledger(self.session, self.address, scope)


@asynccontextmanager
async def running_staging_client(store: str, folder: Path, **settings: object) -> AsyncIterator[StagingClient]:
    async with running_driver(store, folder, **settings) as driver, ClientSession(driver.name_servers) as session:
        yield StagingClient(driver, session, store)


@pytest.fixture(params=["log", "sqlite"])
def store(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
async def client(store: str, tmp_path: Path) -> AsyncIterator[StagingClient]:
    async with running_staging_client(store, tmp_path) as client:
        yield client


# -- staging and committing -------------------------------------------------------------------------------------------


async def test_staged_records_become_visible_in_order_at_the_commit(client):
    first = await client.stage(
        "a", encode_queue_batches("t", {0: [b"0", b"1"], 1: [b"x"]}), encode_queue_batches("t", {0: [b"2"]})
    )
    second = await client.stage("b", encode_queue_batches("t", {1: [b"y"], 0: [b"3"]}))
    assert (first.rows, second.rows) == (4, 2)
    assert first.bytes > second.bytes > 0
    assert (await client.read(0), await client.read(1), await client.ledger()) == ([], [], None)
    assert await client.commit(7, "a", "b")
    assert await client.read(0) == [b"0", b"1", b"2", b"3"]
    assert await client.read(1) == [b"x", b"y"]
    assert await client.ledger() == 7
    assert len(client.broker.stages) == 0


async def test_stages_are_appended_in_the_order_of_the_commit(client):
    await client.stage("a", encode_queue_batches("t", {0: [b"a"]}))
    await client.stage("b", encode_queue_batches("t", {0: [b"b"]}))
    assert await client.commit(0, "b", "a")
    assert await client.read() == [b"b", b"a"]


async def test_a_number_of_a_scope_is_committed_once(client):
    await client.stage("a", encode_queue_batches("t", {0: [b"a"]}))
    assert await client.commit(3, "a")
    await client.stage("again", encode_queue_batches("t", {0: [b"a"]}))
    assert not await client.commit(3, "again")
    assert not await client.commit(3, "a"), "a repeated commit must accept missing stages"
    await client.stage("older", encode_queue_batches("t", {0: [b"z"]}))
    assert not await client.commit(2, "older")
    assert len(client.broker.stages) == 0, "stages must be dropped in either case"
    await client.stage("next", encode_queue_batches("t", {0: [b"b"]}))
    assert await client.commit(4, "next")
    await client.stage("other", encode_queue_batches("t", {0: [b"c"]}))
    assert await client.commit(0, "other", scope="query-2/sink"), "scopes must be independent"
    assert await client.read() == [b"a", b"b", b"c"]
    assert (await client.ledger(), await client.ledger("query-2/sink"), await client.ledger("query-3")) == (4, 0, None)


async def test_a_commit_without_stages_is_recorded_in_the_ledger(client):
    assert await client.commit(5)
    assert await client.ledger() == 5
    assert not await client.commit(5)


async def test_a_commit_response_contains_the_outcome_and_the_row_count(client):
    await client.stage("a", encode_queue_batches("t", {0: [b"a", b"b"], 1: [b"c"]}))
    for outcome, rows in (("committed", "3"), ("already", "0")):
        answer = await client.driver.channel.request(
            RequestCode.COMMIT_STAGES, CommitStages(SCOPE, 1), bodies.write(["a"]), timeout_ms=10_000
        )
        assert dict(answer.fields()) == {"outcome": outcome, "rows": rows}


async def test_concurrent_repeats_of_a_commit_are_done_once(client):
    await client.stage("a", encode_queue_batches("t", {0: [b"a"] * 100}))
    assert sorted(await asyncio.gather(*(client.commit(1, "a") for _ in range(4)))) == [False, False, False, True]
    assert len(await client.read()) == 100


async def test_the_broker_fills_missing_checksums_on_request(client):
    unchecked = encode_queue_batches("t", {0: [b"a", b"b" * 100]}, checksum=False)
    with pytest.raises(Refused, match="checksum"):
        await client.stage("a", unchecked)
    await client.stage("b", unchecked, fills=True)
    assert await client.commit(0, "b")
    assert await client.read() == [b"a", b"b" * 100], "pulled messages must match their checksums"


async def test_committed_messages_keep_body_flag_keys_tags_and_properties(client):
    part = make_queue_batch(
        "t", 0, [b"a"], keys=["k"], tags=["g"], msg_ids=["id-1"], properties=[{"p": "q"}], flag=5, born_ms=1234
    )
    await client.stage("a", queue_batches.encode([part]))
    await client.commit(0, "a")
    (message,) = (await pull(client.driver.channel, "t", client.queue_id(0), tags="g")).messages
    assert (message.body, message.topic, message.flag, message.born_ms) == (b"a", "t", 5, 1234)
    assert {**message.properties} | {"KEYS": "k", "TAGS": "g", "UNIQ_KEY": "id-1", "p": "q"} == {**message.properties}
    assert message.store_ms > 1_700_000_000_000
    (found,) = await client.broker.store.find_by_key("t", "k")
    assert b"id-1" in found


async def test_a_commit_wakes_parked_pulls(client):
    waiting = asyncio.create_task(pull(client.driver.channel, "t", client.queue_id(1), long_poll_ms=20_000))
    await eventually(lambda: client.broker.long_polls.count == 1)
    await client.stage("a", encode_queue_batches("t", {1: [b"a"]}))
    assert not waiting.done()
    await client.commit(0, "a")
    woken = await asyncio.wait_for(waiting, 12)
    # A SQL store may answer "retry immediately" (20): the records did not pass through the broker's memory.
    assert (woken.code, woken.bodies) in ((ResponseCode.SUCCESS, [b"a"]), (ResponseCode.PULL_RETRY_IMMEDIATELY, []))
    assert (woken.header.max_offset, await client.read(1)) == (1, [b"a"])


async def test_committed_rows_count_as_sent_messages(client):
    await client.stage("a", encode_queue_batches("t", {0: [b"a"] * 30, 1: [b"b"] * 12}))
    before = client.broker.counters.totals
    await client.commit(0, "a")
    await client.commit(0, "a")
    assert client.broker.counters.totals.messages_sent - before.messages_sent == 42


async def test_many_rows_in_many_requests_and_stages_are_stored_once(client):
    rows = [b"%06d" % number for number in range(20_000)]
    names = []
    for which in range(4):
        mine = rows[which * 5000 : (which + 1) * 5000]
        blobs = [
            encode_queue_batches("t", {0: mine[at : at + 500], 1: mine[at + 500 : at + 1000]})
            for at in range(0, 5000, 1000)
        ]
        names.append(f"stage-{which}")
        assert (await client.stage(names[-1], *blobs)).rows == 5000
    assert await client.commit(0, *names)
    assert sorted(await client.read(0) + await client.read(1)) == rows


async def test_stage_requests_may_be_repeated_and_pipelined(client):
    sends = [
        stage_records(
            client.session,
            client.address,
            "a",
            seq,
            encode_queue_batches("t", {0: [b"%d" % seq]}),
            fills_checksum=False,
        )
        for seq in (0, 1, 1, 2, 0, 3)
    ]
    await asyncio.gather(*sends)
    for _ in range(2):
        assert (await seal_stage(client.session, client.address, "a", 4)).rows == 4
    await client.commit(0, "a")
    assert await client.read() == [b"0", b"1", b"2", b"3"]


# -- refusals ---------------------------------------------------------------------------------------------------------


async def test_committing_an_unknown_stage_is_refused_and_commits_nothing(client):
    await client.stage("a", encode_queue_batches("t", {0: [b"a"]}))
    with pytest.raises(Refused, match="'gone' does not exist"):
        await client.commit(0, "a", "gone")
    assert (await client.read(), await client.ledger()) == ([], None)
    assert await client.commit(0, "a"), "other stages must remain"


async def test_committing_a_dropped_stage_is_refused(client):
    await client.stage("a", encode_queue_batches("t", {0: [b"a"]}))
    await drop_stages(client.session, client.address, ["a", "never"])
    with pytest.raises(Refused, match="'a' does not exist"):
        await client.commit(0, "a")
    assert await client.read() == []


@pytest.mark.parametrize("name", ["", "../escape", "a/b", "a.part", "x" * 129])
async def test_an_invalid_stage_name_is_refused_by_every_request(client, name, tmp_path):
    files = sorted(path for path in tmp_path.rglob("*") if "stage" in path.name or "escape" in path.name)
    for attempt in (
        client.stage(name, encode_queue_batches("t", {0: [b"a"]})),
        seal_stage(client.session, client.address, name, 0),
        client.commit(0, name),
        drop_stages(client.session, client.address, [name]),
    ):
        with pytest.raises(Refused):
            await attempt
    assert sorted(path for path in tmp_path.rglob("*") if "stage" in path.name or "escape" in path.name) == files
    assert await client.ledger() is None


async def test_invalid_records_are_refused_when_staged(client):
    good = encode_queue_batches("t", {0: [b"a"]})
    with pytest.raises(UnknownTopic):
        await client.stage("a", encode_queue_batches("nowhere", {0: [b"a"]}))
    with pytest.raises(Refused, match="no queue 9"):
        await client.stage("a", encode_queue_batches("t", {9: [b"a"]}))
    with pytest.raises(Refused, match="cannot be decoded"):
        await client.stage("a", good[:-1])
    with pytest.raises(Refused, match="no records"):
        await client.stage("a", queue_batches.encode([]))
    with pytest.raises(Refused, match="delivery time"):
        await client.stage("a", encode_queue_batches("t", {0: [b"a"]}, properties=[{"DELAY": "3"}]))
    limit = client.broker.store.message_bytes_max
    with pytest.raises(Refused, match=str(limit)):
        await client.stage("a", encode_queue_batches("t", {0: [bytes(limit + 1)]}))
    assert len(client.broker.stages) == 0
    await client.stage("a", good)
    assert await client.commit(0, "a")


async def test_malformed_staging_requests_are_refused_without_effect(client):
    channel = client.driver.channel
    for code in (
        RequestCode.STAGE_RECORDS,
        RequestCode.SEAL_STAGE,
        RequestCode.COMMIT_STAGES,
        RequestCode.QUERY_LEDGER,
        RequestCode.APPEND_ONCE,
    ):
        assert (await channel.request(code, None, b"\xff" * 50)).code != ResponseCode.SUCCESS
    for said in (b"", b"{}", b"[1,[]]", b"\xff"):
        assert (
            await channel.request(RequestCode.COMMIT_STAGES, CommitStages(SCOPE, 0), said)
        ).code != ResponseCode.SUCCESS
        assert (await channel.request(RequestCode.DROP_STAGES, None, said)).code != ResponseCode.SUCCESS
    negative = await channel.request(
        RequestCode.STAGE_RECORDS, StageRecords("a", -1), encode_queue_batches("t", {0: [b"a"]})
    )
    assert negative.code != ResponseCode.SUCCESS
    assert await client.ledger() is None
    for scope in ("", "x" * 1000, "a\nb"):
        with pytest.raises(Refused):
            await client.commit(0, scope=scope)
    with pytest.raises(Refused):
        await client.commit(-1)


async def test_a_commit_is_refused_completely_if_a_topic_was_deleted(client):
    await client.driver.create_topic("gone")
    await client.stage(
        "a", queue_batches.encode([make_queue_batch("t", 0, [b"a"]), make_queue_batch("gone", 0, [b"b"])])
    )
    async with Admin(client.driver.name_servers) as admin:
        await admin.delete_topic("gone")
    with pytest.raises(UnknownTopic):
        await client.commit(0, "a")
    assert (await client.read(), await client.ledger()) == ([], None)
    await client.driver.create_topic("gone")
    assert await client.commit(0, "a"), "the stage must remain"
    assert (await client.read(), await client.read(topic="gone")) == ([b"a"], [b"b"])


async def test_missing_write_permission_refuses_staging_and_commit(client):
    await client.stage("a", encode_queue_batches("t", {0: [b"a"]}))
    async with Admin(client.driver.name_servers) as admin:
        await admin.create_topic("t", 2, permission=PERM_READ)
    with pytest.raises(Refused, match="no write permission"):
        await client.stage("b", encode_queue_batches("t", {0: [b"b"]}))
    with pytest.raises(Refused, match="no write permission"):
        await client.commit(0, "a")
    assert await client.ledger() is None


async def test_stages_beyond_the_size_limit_are_refused_as_busy(store, tmp_path):
    async with running_staging_client(store, tmp_path, stage_bytes_max=5_000) as client:
        await client.stage("a", encode_queue_batches("t", {0: [b"a" * 3000]}))
        with pytest.raises(Busy, match="stage_bytes_max"):
            await client.stage("b", encode_queue_batches("t", {0: [b"b" * 3000]}))
        assert await client.commit(0, "a")
        await client.stage("b", encode_queue_batches("t", {0: [b"b" * 3000]}))
        assert await client.commit(1, "b")


async def test_uncommitted_stages_are_deleted_after_their_ttl(store, tmp_path):
    async with running_staging_client(store, tmp_path, stage_ttl_hours=0.1 / 3600) as client:
        await client.stage("a", encode_queue_batches("t", {0: [b"a"]}))
        await eventually(lambda: not len(client.broker.stages))
        with pytest.raises(Refused, match="does not exist"):
            await client.commit(0, "a")


# -- restarts ---------------------------------------------------------------------------------------------------------


async def test_a_sealed_stage_can_be_committed_after_a_restart(tmp_path):
    async with running_staging_client("log", tmp_path) as client:
        sealed = await client.stage("a", encode_queue_batches("t", {0: [b"a", b"b"]}))
        await stage_records(
            client.session, client.address, "half", 0, encode_queue_batches("t", {0: [b"x"]}), fills_checksum=False
        )
    async with running_staging_client("log", tmp_path) as client:
        assert await seal_stage(client.session, client.address, "a", 1) == sealed
        with pytest.raises(Refused, match="does not exist"):
            await seal_stage(client.session, client.address, "half", 1)
        assert await client.commit(0, "a")
        assert await client.read() == [b"a", b"b"]


async def test_a_commit_in_the_ledger_survives_a_restart(store, tmp_path):
    async with running_staging_client(store, tmp_path) as client:
        await client.stage("a", encode_queue_batches("t", {0: [b"a"]}))
        await client.commit(9, "a")
    async with running_staging_client(store, tmp_path) as client:
        assert await client.ledger() == 9
        assert not await client.commit(9, "a")
        assert await client.read() == [b"a"]


# -- without a stage --------------------------------------------------------------------------------------------------


async def test_records_are_appended_once_without_a_stage(client):
    once = encode_queue_batches("t", {0: [b"a", b"b"], 1: [b"c"]}, checksum=False)
    for expected in (True, False):
        assert await append_once(client.session, client.address, "q/p-0", 1, once, fills_checksum=True) is expected
    assert await append_once(client.session, client.address, "q/p-0", 2, once, fills_checksum=True)
    assert (await client.read(0), await client.read(1)) == ([b"a", b"b"] * 2, [b"c"] * 2)
    assert await client.ledger("q/p-0") == 2
    with pytest.raises(Refused, match="checksum"):
        await append_once(client.session, client.address, "q/p-0", 3, once, fills_checksum=False)
    assert await client.ledger("q/p-0") == 2


async def test_concurrent_repeats_of_append_once_are_done_once(client):
    once = encode_queue_batches("t", {0: [b"a"] * 50})
    asked = [append_once(client.session, client.address, "q", 1, once, fills_checksum=False) for _ in range(4)]
    assert sorted(await asyncio.gather(*asked)) == [False, False, False, True]
    assert len(await client.read()) == 50


# -- several brokers, tokens ------------------------------------------------------------------------------------------


async def test_a_broker_that_is_not_the_leader_serves_staging(tmp_path):
    """All brokers share the database, but a stage exists only at the broker that received it."""
    async with (
        running_sql_brokers(tmp_path, f"sqlite:///{tmp_path}/sparrow.db") as brokers,
        ClientSession(brokers.name_servers) as session,
    ):
        await brokers.brokers[0].broker.topics.put(Topic(name="t", read_queues=1, write_queues=1))
        first, second = (str(server.address) for server in brokers.brokers)
        await eventually(lambda: "t" in brokers.brokers[1].broker.topics)
        await stage_records(session, second, "a", 0, encode_queue_batches("t", {0: [b"a"]}), fills_checksum=False)
        await seal_stage(session, second, "a", 1)
        with pytest.raises(Refused, match="does not exist"):
            await commit_stages(session, first, SCOPE, 0, ["a"])
        assert await commit_stages(session, second, SCOPE, 0, ["a"])
        assert not await commit_stages(session, first, SCOPE, 0, ["a"])
        assert (await query_ledger(session, first, SCOPE), await query_ledger(session, second, SCOPE)) == (0, 0)
        found = await pull(brokers.channels[0], "t", 1, long_poll_ms=10_000)
        assert found.bodies == [b"a"]


async def test_producer_and_admin_tokens_may_stage_and_consumer_tokens_may_not(tmp_path):
    boss = Credentials("operator", "a long secret")
    options = {"auth": True, "admin_tokens": {boss.access_key: boss.secret_key}}
    async with running_platform(tmp_path, **options) as platform:
        async with Admin(platform.name_servers, credentials=boss) as admin:
            await admin.create_topic("t", 1)
            sender, reader = await admin.issue_token("sender", "p"), await admin.issue_token("reader", "c")
        address, one = str(platform.address), encode_queue_batches("t", {0: [b"a"]})
        for who in (boss, sender):
            async with ClientSession(platform.name_servers, credentials=who) as session:
                name = who.access_key
                await stage_records(session, address, name, 0, one, fills_checksum=False)
                await seal_stage(session, address, name, 1)
                assert await commit_stages(session, address, name, 0, [name])
                assert await query_ledger(session, address, name) == 0
                assert await append_once(session, address, name, 1, one, fills_checksum=False)
                await drop_stages(session, address, ["none"])
                with pytest.raises(Refused, match="batch count"):
                    await stage_records(session, address, name, 0, b"", fills_checksum=False)
        async with ClientSession(platform.name_servers, credentials=reader) as session:
            for attempt in (
                stage_records(session, address, "x", 0, one, fills_checksum=False),
                seal_stage(session, address, "x", 0),
                commit_stages(session, address, "x", 0, []),
                drop_stages(session, address, ["x"]),
                query_ledger(session, address, "x"),
                append_once(session, address, "x", 1, one, fills_checksum=False),
            ):
                with pytest.raises(Refused, match="a producer's token"):
                    await attempt
            found = await fetch_queue_bounds(session, ["t"])
            assert [head.end for head in found.values()] == [4], "both tokens may query queue bounds"
        async with ClientSession(platform.name_servers, credentials=sender) as session:
            with pytest.raises(Refused, match="only consumers may send to the topics of a group"):
                mixed = queue_batches.encode(
                    [make_queue_batch("t", 0, [b"a"]), make_queue_batch("%RETRY%g", 0, [b"b"])]
                )
                await stage_records(session, address, "x", 0, mixed, fills_checksum=False)


async def test_the_queue_id_of_a_staged_record_is_a_write_queue(client):
    said = [{"PRIORITY": "high"}, {}]
    await client.stage("a", encode_queue_batches("t", {1: [b"h", b"m"]}, properties=said))
    await client.commit(0, "a")
    store = client.broker.store
    ends = [(await store.bounds(Queue("t", queue_id))).end for queue_id in range(6)]
    assert ends == ([0, 2, 0, 0, 0, 0] if client.store == "log" else [0, 0, 0, 1, 1, 0])
