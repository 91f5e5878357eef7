"""The copy of a master's log over an HA port: real sockets and files; the master is a broker of ours."""

import asyncio
import os
import random
import shutil
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.support.cutting_proxy import byte_cutting_proxy
from tests.support.ha_server import HaServer, ha_server
from tests.support.log_stores import small_settings
from tests.support.wait import eventually

from sparrow.broker.log_broker import LEADER_TERM_MARK
from sparrow.broker.server import BrokerServer
from sparrow.cli.server.rocketmq_follower import promoted_settings
from sparrow.model.errors import Refused
from sparrow.model.message import Draft
from sparrow.model.queue import Queue
from sparrow.model.topic import Topic
from sparrow.net.address import Address
from sparrow.replication.rocketmq.follower_state import (
    FollowerState,
    begin_following,
    load_follower_state,
    save_follower_state,
)
from sparrow.replication.rocketmq.log_copy import LogCopy
from sparrow.replication.rocketmq.master_client import RocketMQMasterClient
from sparrow.replication.rocketmq.promotion import finish_promotion
from sparrow.settings import BrokerSettings, LogSettings, Settings
from sparrow.spark.runtime.tar_archive import extract
from sparrow.store.log import LogStore
from sparrow.store.log.state.updates import STATE_QUEUE

SEED = int(os.environ.get("SPARROW_SEED", random.randrange(1 << 32)))
SETTINGS = small_settings(segment_bytes=64 << 10)
ROCKETMQ_STORE = Path(__file__).parents[1] / "fixtures" / "rocketmq_store"
ROCKETMQ_SEGMENT_BYTES = 16 << 10
QUEUE = Queue("orders", 0)


@asynccontextmanager
async def master(path: Path) -> AsyncIterator[tuple[BrokerServer, LogStore, HaServer]]:
    """Run a broker with a topic, and an HA port over its log."""
    async with BrokerServer(BrokerSettings(port=0), path, SETTINGS) as server:
        store = server.broker.store
        assert isinstance(store, LogStore)
        await store.catalog.put_topic(Topic(name="orders", read_queues=1, write_queues=1))
        async with ha_server(store) as ha:
            yield server, store, ha


@asynccontextmanager
async def copying(
    path: Path, server: BrokerServer, ha_port: int, *, flushes_first: bool = False
) -> AsyncIterator[tuple[LogStore, LogCopy]]:
    """Copy the master's log into a directory. `flushes_first`: the store flushes an append before the copy can."""
    store: LogStore

    def on_growth(*_: object) -> None:
        if flushes_first:
            store.replica.sync()

    store = await asyncio.to_thread(LogStore, path, SETTINGS, follows=True, on_growth=on_growth)
    client = RocketMQMasterClient(server.address)
    copy = LogCopy(store, client, Address("127.0.0.1", ha_port), retry_s=0.01)
    copy.start()
    try:
        yield store, copy
    finally:
        await copy.stop()
        client.close()
        await store.close()


def append(store: LogStore, count: int, size: int = 300) -> None:
    for _ in range(count):
        store.append_nowait(QUEUE, [Draft(body=os.urandom(size))])


async def reach(copy: LogCopy, store: LogStore) -> None:
    async with asyncio.timeout(60):
        await copy.reach(store.written)


def assert_same_log(copy: LogStore, original: LogStore) -> None:
    at, end = copy.first, original.written
    assert copy.written == end
    while at < end:
        data = original.raw(at, 1 << 20)
        assert copy.raw(at, len(data)) == data, f"the segments differ behind {at}"
        at += len(data)


@pytest.mark.thorough
async def test_the_copy_is_identical_although_connections_are_cut_at_any_byte(tmp_path: Path) -> None:
    print(f"seed {SEED} (SPARROW_SEED)")
    async with master(tmp_path / "master") as (server, store, ha):
        append(store, 500)  # three segments
        with byte_cutting_proxy(ha.port, SEED, cuts=40) as proxy:
            async with copying(tmp_path / "copy", server, proxy.port) as (copied, copy):
                await eventually(lambda: proxy.cuts <= 0 or copy.end >= store.written, within_s=60)
                append(store, 100)
                await reach(copy, store)
                assert_same_log(copied, store)
                assert copied.bounds_nowait(QUEUE) == store.bounds_nowait(QUEUE)
                assert copy.restarts == 0
        assert 0 not in ha.reports, "a report of 0 would mean the last segment"


async def test_a_restart_continues_where_the_copy_was_and_acknowledges_what_is_durable(tmp_path: Path) -> None:
    async with master(tmp_path / "master") as (server, store, ha):
        append(store, 50)
        async with copying(tmp_path / "copy", server, ha.port) as (_, copy):
            await reach(copy, store)
            end = copy.end
            await eventually(lambda: ha.reports[-1] == end)
        seen = len(ha.reports)
        append(store, 400)
        async with copying(tmp_path / "copy", server, ha.port) as (copied, copy):
            await reach(copy, store)
            assert_same_log(copied, store)
            await eventually(lambda: ha.reports[-1] == store.written)
        assert 0 < end - ha.reports[seen] <= 4096, "the copy must not start again; its last bytes are compared"
        assert ha.reports[seen:] == sorted(ha.reports[seen:])


async def test_a_copy_whose_next_bytes_are_deleted_at_the_master_starts_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with master(tmp_path / "master") as (server, store, ha):
        append(store, 50)
        async with copying(tmp_path / "copy", server, ha.port) as (_, copy):
            await reach(copy, store)
        append(store, 1_000)
        first = 2 * SETTINGS.segment_bytes
        await asyncio.to_thread(store.replica.commit_to, store.written)
        await asyncio.to_thread(store.replica.delete_before, first)
        assert store.first == first
        async with copying(tmp_path / "copy", server, ha.port) as (copied, copy):
            await reach(copy, store)
            assert copied.first == first
            assert copy.restarts == 1
            assert_same_log(copied, store)
            assert copied.bounds_nowait(QUEUE).end == store.bounds_nowait(QUEUE).end
    assert "everything is copied again" in caplog.text


async def test_what_the_store_has_flushed_by_itself_is_reached_and_acknowledged(tmp_path: Path) -> None:
    async with (
        master(tmp_path / "master") as (server, store, ha),
        copying(tmp_path / "copy", server, ha.port, flushes_first=True) as (_, copy),
    ):
        append(store, 1)
        await reach(copy, store)
        await eventually(lambda: ha.reports[-1] == store.written)


async def test_a_master_with_less_or_other_bytes_than_we_have_is_refused_and_nothing_is_deleted(tmp_path: Path) -> None:
    async with master(tmp_path / "master") as (server, store, ha):
        append(store, 50)
        async with copying(tmp_path / "copy", server, ha.port) as (_, copy):
            await reach(copy, store)
            end = copy.end
    async with (
        master(tmp_path / "another") as (server, store, ha),
        copying(tmp_path / "copy", server, ha.port) as (copied, copy),
    ):
        await eventually(lambda: copy.error is not None)
        assert "it is another one" in (copy.error or "")
        append(store, 200)  # longer than ours, and different
        await eventually(lambda: copy.error is not None and "differs from ours" in copy.error)
        assert copied.written == end


async def test_bytes_that_are_no_records_are_not_appended(tmp_path: Path) -> None:
    async with master(tmp_path / "master") as (server, store, ha):
        append(store, 50)
        body_at = store.written - 20
        segment = store._log.segment_at(body_at)
        assert segment is not None
        segment.mapping[body_at - segment.base] ^= 0xFF
        async with copying(tmp_path / "copy", server, ha.port) as (copied, copy):
            await eventually(lambda: copy.error is not None and "checksum" in copy.error)
            assert 0 < copied.written < store.written


# -- the state of a directory -----------------------------------------------------------------------------------------


def following(**changes: object) -> FollowerState:
    known: dict[str, object] = {"master": "mq:10911", "broker_name": "broker-a", "cluster": "DefaultCluster"}
    return FollowerState(**known | changes)  # type: ignore[arg-type]


def test_a_directory_follows_one_master_only(tmp_path: Path) -> None:
    begin_following(tmp_path, following())
    assert begin_following(tmp_path, following(master="mq.example:10911")).master == "mq.example:10911"
    with pytest.raises(Refused, match="'broker-a' of cluster"):
        begin_following(tmp_path, following(broker_name="broker-b"))
    save_follower_state(tmp_path, following(phase="promoted"))
    with pytest.raises(Refused, match="promoted already"):
        begin_following(tmp_path, following())


def test_the_directory_of_a_broker_does_not_follow(tmp_path: Path) -> None:
    with LogStore(tmp_path, SETTINGS) as store:
        store.marks.put_nowait("written", 1)
    with pytest.raises(Refused, match="choose an empty directory"):
        begin_following(tmp_path, following())


def test_no_broker_opens_a_directory_that_follows(tmp_path: Path) -> None:
    save_follower_state(tmp_path, following())
    with pytest.raises(Refused, match="sparrow cluster promote"):
        finish_promotion(tmp_path, SETTINGS)


def copied_rocketmq_store(path: Path) -> tuple[LogSettings, list[bytes]]:
    """Copy the log of a directory that RocketMQ wrote, as a follower would; return its settings and its segments."""
    original = path.with_name("original")
    extract(ROCKETMQ_STORE / "clean.tar.xz", original)
    settings = SETTINGS.model_copy(update={"segment_bytes": ROCKETMQ_SEGMENT_BYTES})
    with LogStore(original, settings, follows=True) as source, LogStore(path, settings, follows=True) as store:
        while data := source.raw(store.replica.end, ROCKETMQ_SEGMENT_BYTES):
            store.replica.append(store.replica.end, data)
    shutil.copytree(original / "config", path / "config")
    return settings, segments_of(path)


def segments_of(path: Path) -> list[bytes]:
    return [segment.read_bytes() for segment in sorted((path / "commitlog").iterdir())]


@pytest.mark.parametrize("is_interrupted", [False, True])
async def test_a_promotion_imports_the_metadata_once_however_often_it_is_interrupted(
    tmp_path: Path, is_interrupted: bool
) -> None:
    path = tmp_path / "store"
    settings, copied = copied_rocketmq_store(path)
    with LogStore(path, settings, follows=True) as store:
        end = store.written
    promoting = following(phase="promoting", end=end)
    save_follower_state(path, promoting)
    if is_interrupted:
        finish_promotion(path, settings)
        with LogStore(path, settings) as store:
            imported = store.bounds_nowait(STATE_QUEUE).end
            first = store._queues.get(STATE_QUEUE)
            assert first is not None
            store.replica.truncate(first.physical_offset_at(first.first + 1) or 0)  # after the first of its records
            assert 0 < store.bounds_nowait(STATE_QUEUE).end < imported
        save_follower_state(path, promoting)
    state = finish_promotion(path, settings)
    assert state.phase == "promoted"
    assert load_follower_state(path) == state
    with LogStore(path, settings) as store:
        assert {"TopicTest", "Orders"} <= (await store.catalog.list_topics()).keys()
        assert await store.offsets.all()
        assert await store.marks.get(LEADER_TERM_MARK) == 1
    assert b"".join(segments_of(path))[:end] == b"".join(copied)[:end]
    assert finish_promotion(path, settings) == state


def test_a_promoted_directory_that_has_lost_bytes_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "store"
    settings, _ = copied_rocketmq_store(path)
    save_follower_state(path, following(phase="promoting", end=1 << 20))
    with pytest.raises(Refused, match="has lost bytes"):
        finish_promotion(path, settings)


async def test_a_follower_whose_master_is_gone_is_promoted_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "data" / "store"
    path.parent.mkdir()
    copied_rocketmq_store(path)
    save_follower_state(path, following(name_servers="127.0.0.1:1"))
    words = ["cluster", "promote", "--without-master", "--yes", "--data", str(path.parent)]
    assert "broker-a is promoted" in await sparrow(*words)
    state = load_follower_state(path)
    assert state is not None
    assert state.phase == "promoting"
    settings = await asyncio.to_thread(promoted_settings, Settings(), path.parent)
    assert (settings.broker.name, settings.broker.cluster) == ("broker-a", "DefaultCluster")
    assert (settings.broker.name_servers, settings.log.segment_bytes) == ("127.0.0.1:1", ROCKETMQ_SEGMENT_BYTES)
    async with BrokerServer(settings.broker.model_copy(update={"port": 0}), path, settings.log) as server:
        assert "TopicTest" in server.broker.topics
        assert server.broker.topics.version.state_version == 1
    assert "does not follow" in await sparrow(*words, fails=True)


async def test_errors_of_the_commands_say_what_to_do(tmp_path: Path) -> None:
    async with BrokerServer(BrokerSettings(port=0), tmp_path / "broker", SETTINGS) as server:
        said = await sparrow("cluster", "promote", "--broker", str(server.address), "--dry-run", fails=True)
        assert "is no follower of a RocketMQ master" in said
    following_nobody = [
        "broker",
        "--follow-rocketmq",
        str(server.address),
        "--port",
        "0",
        "--data",
        str(tmp_path / "d"),
    ]
    assert "start the server, or check the address" in await sparrow(*following_nobody, fails=True)


async def sparrow(*words: str, fails: bool = False) -> str:
    """Run a command, and return what it prints."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "sparrow", *words), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    printed, _ = await process.communicate()
    assert (process.returncode != 0) == fails, printed.decode()
    return " ".join(printed.decode().split())
