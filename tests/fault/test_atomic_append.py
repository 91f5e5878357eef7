"""An interrupted atomic append: recovery removes all of it, keeps earlier records, and the store accepts appends."""

from __future__ import annotations

import asyncio
import os
import random
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.fault import atomic_append_writer
from tests.fault.store_contents import read_served
from tests.integration.conformance import queue_records
from tests.support.drafts import make_draft
from tests.support.log_stores import (
    checkpoint,
    copy_as_crashed,
    corrupt_log,
    index_keys,
    overwrite,
    segment_path,
    small_settings,
)

from sparrow.model.errors import StoreFailed, StoreFull
from sparrow.model.queue import Queue, QueueBounds
from sparrow.model.topic import Topic
from sparrow.store.log import LogStore
from sparrow.store.log.commit_log.commit_log import CommitLog
from sparrow.store.log.commit_log.segment import Segment
from sparrow.store.log.state.updates import STATE_QUEUE
from sparrow.wire import record
from sparrow.wire.queue_batches import QueueBatch

ROOT = Path(__file__).resolve().parents[2]
Q0, Q1, OTHER = Queue("orders", 0), Queue("orders", 1), Queue("other", 0)
QUEUES = (Q0, Q1, OTHER)
SEGMENT_BYTES = 4096


def opened(path: Path, **changes: object) -> LogStore:
    return LogStore(path, small_settings(segment_bytes=SEGMENT_BYTES, **changes), disk_ratio=lambda _: 0.1)


def group() -> list[QueueBatch]:
    """Return queue batches over three queues and, with 4 KiB each, over four segments; one exceeds a segment."""
    return [
        queue_records(Q0, *(f"a{n}" for n in range(5)), keys="k"),
        queue_records(OTHER, *(f"x{n}" + "." * 350 for n in range(25)), tags="T"),
        queue_records(Q1, "c", keys="k"),
        queue_records(Q0, *(f"b{n}" * 9 for n in range(12))),
    ]


BODIES = {
    Q0: [b"before"] + [f"a{n}".encode() for n in range(5)] + [(f"b{n}" * 9).encode() for n in range(12)],
    Q1: [b"c"],
    OTHER: [b"before, too"] + [(f"x{n}" + "." * 350).encode() for n in range(25)],
}
BEFORE = {Q0: [b"before"], Q1: [], OTHER: [b"before, too"]}


async def begun_store(path: Path, **changes: object) -> LogStore:
    store = opened(path, **changes)
    for name in ("orders", "other"):
        await store.catalog.put_topic(Topic(name=name, write_queues=2, read_queues=2))
    await store.append(Q0, [make_draft("before")])
    await store.append(OTHER, [make_draft("before, too")])
    return store


async def contents(store: LogStore) -> dict[Queue, list[bytes]]:
    found = await read_served(store, QUEUES)
    return {
        queue: [record.decode(data).body for place, data in sorted(found.items()) if place.queue == queue]
        for queue in QUEUES
    }


def records_in(store: LogStore, start: int, end: int) -> Iterator[tuple[int, int]]:
    """Return the start and end of each record in the log."""
    at = start
    while at < end:
        size = store._log.size_at(at)
        data = store.raw(at, 8)
        if size is None or int.from_bytes(data[4:8], "big", signed=True) == record.MAGIC_BLANK:
            at += SEGMENT_BYTES - at % SEGMENT_BYTES
            continue
        yield at, at + size
        at += size


def cut_log(path: Path, end: int) -> None:
    """Overwrite the log with zeros from this position, as if nothing had been written there."""
    for file in sorted((path / "commitlog").iterdir()):
        base = int(file.name)
        keep = min(max(end - base, 0), SEGMENT_BYTES)
        overwrite(file, keep, bytes(SEGMENT_BYTES - keep))


async def assert_never_was(path: Path, *, written: int | None = None, goes_on: bool = True) -> None:
    """Assert that no record of the atomic append is visible, that it can be appended now, and that a restart keeps
    this."""
    store = opened(path)
    try:
        assert await contents(store) == BEFORE
        assert await store.ledger("query") is None
        assert await store.find_by_key("orders", "k") == []
        assert store.damage == []
        if written is not None:
            assert store.written == written, "the log must be cut at the start of the append"
        if not goes_on:
            return
        assert await store.append_atomically("query", 0, group()) is True
        assert await contents(store) == BODIES
        assert len(await store.find_by_key("orders", "k")) == 6
    finally:
        store.close_blocking()
    store = opened(path)
    try:
        assert await contents(store) == BODIES
        assert await store.append_atomically("query", 0, group()) is False
    finally:
        store.close_blocking()


@pytest.fixture
async def interrupted(tmp_path: Path) -> tuple[Path, int, list[tuple[int, int]]]:
    """Return a store killed after an atomic append, the start of the append, and its records."""
    store = await begun_store(tmp_path / "store")
    begun = store.written
    assert await store.append_atomically("query", 0, group())
    assert store.written - begun > 3 * SEGMENT_BYTES
    records = list(records_in(store, begun, store.written))
    assert len(records) == 2 + sum(len(each.sizes) for each in group())
    with store._threads.maintenance.paused():  # queues and index may reach the disk before the end of the log
        store._maintenance.flush_queues()
        index_keys(store)
    path = copy_as_crashed(store, tmp_path / "crashed")
    store.close_blocking()
    return path, begun, records


@pytest.mark.timeout(300)
async def test_a_log_that_ends_inside_an_atomic_append_is_truncated_to_its_start(interrupted, tmp_path):
    path, begun, records = interrupted
    rng = random.Random(7)
    ends = [start for start, _ in records] + [end for _, end in records[:-1]]
    ends += [rng.randrange(start + 1, end) for start, end in records[::7]] + [records[-1][1] - 4]
    for number, end in enumerate(sorted(set(ends))):
        copy = tmp_path / "copy"
        shutil.copytree(path, copy)
        cut_log(copy, end)
        await assert_never_was(copy, written=begun, goes_on=number % 6 == 0)
        shutil.rmtree(copy)


@pytest.mark.thorough
@pytest.mark.timeout(300)
@pytest.mark.parametrize("lost", [("sparrow.checkpoint",), ("consumequeue", "index"), ("sparrow.checkpoint", "index")])
async def test_a_partial_atomic_append_is_truncated_without_views_or_checkpoint(interrupted, tmp_path, lost):
    path, begun, records = interrupted
    for _, end in records[:-1:5]:
        copy = tmp_path / "copy"
        shutil.copytree(path, copy)
        cut_log(copy, end)
        for name in lost:
            shutil.rmtree(copy / name) if (copy / name).is_dir() else (copy / name).unlink()
        await assert_never_was(copy, written=begun)
        shutil.rmtree(copy)


async def test_a_complete_atomic_append_survives_a_kill(interrupted):
    path, _, records = interrupted
    store = opened(path)
    try:
        assert await contents(store) == BODIES
        assert (await store.ledger("query"), store.written) == (0, records[-1][1])
    finally:
        store.close_blocking()


async def test_an_atomic_append_that_lost_a_record_before_its_flush_is_removed(interrupted, tmp_path):
    """After a power loss, pages may have reached the disk in any order: the end of an append may exist without a
    middle."""
    path, begun, records = interrupted
    for start, _ in (records[0], records[3], records[-2], records[-1]):
        copy = tmp_path / "copy"
        shutil.copytree(path, copy)
        corrupt_log(copy, start + 50, SEGMENT_BYTES, b"\xff" * 30)
        corrupt_log(copy, start + 89, SEGMENT_BYTES, b"\xff")
        await assert_never_was(copy, written=begun)
        shutil.rmtree(copy)


async def test_damage_in_a_flushed_atomic_append_loses_only_the_damaged_record(tmp_path):
    store = await begun_store(tmp_path / "store")
    begun = store.written
    await store.append_atomically("query", 0, group())
    records = list(records_in(store, begun, store.written))
    await store.append(Q1, [make_draft("behind")])
    store.close_blocking()  # with a checkpoint after the atomic append
    for start, _ in (records[3], records[-1]):
        corrupt_log(tmp_path / "store", start + 89, SEGMENT_BYTES)
    (tmp_path / "store" / "sparrow.state").unlink()
    shutil.rmtree(tmp_path / "store" / "consumequeue")  # forces a full scan
    store = opened(tmp_path / "store")
    try:
        wanted = {**BODIES, Q1: [b"c", b"behind"], Q0: [body for body in BODIES[Q0] if body != b"a2"]}
        assert await contents(store) == wanted
    finally:
        store.close_blocking()


async def test_a_log_that_lost_its_end_inside_a_flushed_atomic_append_is_truncated_to_the_appends_start(tmp_path):
    store = await begun_store(tmp_path / "store")
    begun = store.written
    await store.append_atomically("query", 0, group())
    records = list(records_in(store, begun, store.written))
    store.close_blocking()
    cut_log(tmp_path / "store", records[-3][0])
    last = segment_path(tmp_path / "store", records[-3][0] - records[-3][0] % SEGMENT_BYTES)
    assert int(last.name) > begun, "reading must start inside the atomic append"
    os.truncate(last, records[-3][0] % SEGMENT_BYTES)
    store = opened(tmp_path / "store")
    try:
        assert (await contents(store), await store.ledger("query")) == (BEFORE, None)
        assert store.written == begun
    finally:
        store.close_blocking()


async def test_a_scan_may_start_inside_a_complete_atomic_append(tmp_path):
    """Retention removed its first segment, and the views are lost."""
    store = await begun_store(tmp_path / "store")
    begun = store.written
    await store.append_atomically("query", 0, group())
    await store.append(Q0, [make_draft("behind")])
    store.close_blocking()
    for base in range(0, begun + SEGMENT_BYTES, SEGMENT_BYTES):
        segment_path(tmp_path / "store", base).unlink()
    for name in ("sparrow.checkpoint", "sparrow.state"):
        (tmp_path / "store" / name).unlink()
    store = opened(tmp_path / "store")
    try:
        assert await store.ledger("query") == 0
        assert (await contents(store))[Q0][-1] == b"behind"
        assert store.damage == []
    finally:
        store.close_blocking()


async def test_a_topic_deleted_after_an_incomplete_atomic_append_is_restored_with_its_messages(tmp_path):
    store = await begun_store(tmp_path / "store")
    with store._threads.maintenance.paused():
        checkpoint(store)
    shutil.copy(tmp_path / "store" / "sparrow.checkpoint", tmp_path)
    begun = store.written
    await store.append_atomically("query", 0, group())
    await store.catalog.delete_topic("other")
    path = copy_as_crashed(store, tmp_path / "crashed")
    store.close_blocking()
    shutil.copy(tmp_path / "sparrow.checkpoint", path)  # as if the kill had come before the next record
    corrupt_log(path, begun + 89, SEGMENT_BYTES)
    await assert_never_was(path, written=begun)


@pytest.mark.parametrize("inside", [1, 5, -2, -1])
async def test_truncation_inside_an_atomic_append_removes_the_whole_append(tmp_path, inside):
    store = await begun_store(tmp_path / "store")
    try:
        begun = store.written
        await store.append_atomically("query", 0, group())
        end = store.written
        await store.append(Q1, [make_draft("behind")])
        records = list(records_in(store, begun, end))
        store.replica.truncate(records[inside][0])
        assert (await contents(store), store.written) == (BEFORE, begun)
        assert await store.append_atomically("query", 0, group()) is True
        store.replica.truncate(store.written)
        assert await contents(store) == BODIES
    finally:
        store.close_blocking()


# -- failures during an atomic append ---------------------------------------------------------------------------------


async def test_a_full_disk_refuses_an_atomic_append_before_its_first_record(tmp_path, monkeypatch):
    store = await begun_store(tmp_path / "store")
    try:
        create, made, begun = Segment.create, [], store.written

        def third_fails(directory: Path, base: int, size: int, reserve_bytes: int) -> Segment:
            if len(made) == 2:
                raise OSError(28, "no space")
            made.append(base)
            return create(directory, base, size, reserve_bytes)

        monkeypatch.setattr(Segment, "create", third_fails)
        with pytest.raises(StoreFull):
            await store.append_atomically("query", 0, group())
        assert (await contents(store), store.written) == (BEFORE, begun)
        monkeypatch.setattr(Segment, "create", create)
        store._log._refuse_until = 0
        assert await store.append_atomically("query", 0, group()) is True
        assert await contents(store) == BODIES
    finally:
        store.close_blocking()


async def test_a_store_that_fails_inside_an_atomic_append_refuses_writes_until_a_restart_truncates_it(
    tmp_path, monkeypatch
):
    store = await begun_store(tmp_path / "store", checkpoint_interval_ms=1)
    begun, advance, count = store.written, CommitLog.advance, []

    def third_fails(self: CommitLog, size: int) -> None:
        count.append(size)
        if len(count) == 3:
            raise OSError(5, "input/output error")
        advance(self, size)

    monkeypatch.setattr(CommitLog, "advance", third_fails)
    with pytest.raises(StoreFailed):
        await store.append_atomically("query", 0, group())
    monkeypatch.undo()
    assert await contents(store) == BEFORE
    with pytest.raises(StoreFailed):
        await store.append(Q0, [make_draft("more")])
    assert await store.record_at(begun) is None
    with store._threads.maintenance.paused():
        checkpoint(store)
        store._maintenance.flush_queues()
    store.close_blocking()
    await assert_never_was(tmp_path / "store")


# -- the ledger -------------------------------------------------------------------------------------------------------


async def test_the_ledger_outlives_the_segments_of_its_records_until_it_expires(tmp_path):
    now_ms = 1_700_000_000_000
    day_ms = 86_400_000

    def opened_later(*, days: float) -> LogStore:
        nonlocal now_ms
        now_ms += int(days * day_ms)
        settings = small_settings(segment_bytes=SEGMENT_BYTES, retention_hours=1, ledger_retention_days=10)
        return LogStore(tmp_path / "store", settings, now_ms=lambda: now_ms, disk_ratio=lambda _: 0.1)

    async def filled_and_trimmed(store: LogStore) -> None:
        for _ in range(4):
            await store.append(Q0, [make_draft(bytes(1500))])
        nonlocal now_ms
        now_ms += 2 * 3_600_000
        for _ in range(4):
            await store.append(Q0, [make_draft(bytes(1500))])
        assert await store.trim() > 0

    store = opened_later(days=0)
    await store.catalog.put_topic(Topic(name="orders"))
    await store.append_atomically("idle", 4, [queue_records(Q0, "x")])
    await store.append_atomically("busy", 1, [queue_records(Q0, "x")])
    await filled_and_trimmed(store)
    store.close_blocking()
    (tmp_path / "store" / "sparrow.state").unlink()
    store = opened_later(days=9)
    assert (await store.ledger("idle"), await store.ledger("busy")) == (4, 1)
    await store.append_atomically("busy", 2, [queue_records(Q0, "x")])
    await filled_and_trimmed(store)
    assert await store.ledger("idle") == 4
    store.close_blocking()
    store = opened_later(days=2)
    await filled_and_trimmed(store)
    assert (await store.ledger("idle"), await store.ledger("busy")) == (None, 2)
    store.close_blocking()
    store = opened_later(days=0)
    assert (await store.ledger("idle"), await store.ledger("busy")) == (None, 2)
    assert (await store.catalog.list_topics()).keys() == {"orders"}
    store.close_blocking()


async def test_an_atomic_append_becomes_visible_as_a_whole_when_the_visibility_policy_allows(tmp_path):
    store = await begun_store(tmp_path / "store", visible_after="replicated")
    try:
        begun = store.written
        await store.append_atomically("query", 0, group())
        assert await contents(store) == {queue: [] for queue in QUEUES}
        store.replica.commit_to(begun)
        assert await contents(store) == BEFORE
        store.replica.commit_to(store.written - 1)
        assert await contents(store) == BEFORE, "an atomic append must be visible completely or not at all"
        store.replica.commit_to(store.written)
        assert await contents(store) == BODIES
    finally:
        store.close_blocking()


# -- kills ------------------------------------------------------------------------------------------------------------


def run_and_kill(path: Path, rng: random.Random, *, appends_min: int) -> int:
    """Kill a writer at a random moment after it has opened the store and acknowledged some atomic appends.

    Return the number of its last acknowledged atomic append.
    """
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
    command = [sys.executable, str(Path(atomic_append_writer.__file__)), str(path), str(rng.getrandbits(32))]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment, bufsize=0)
    assert child.stdout is not None
    said, deadline, has_begun = b"", time.monotonic() + 60, False
    try:
        while time.monotonic() < deadline and child.poll() is None:
            ready, _, _ = select.select([child.stdout], [], [], max(0.0, deadline - time.monotonic()))
            if ready:
                said += os.read(child.stdout.fileno(), 1 << 16)
                if not has_begun and said.count(b"\n") > appends_min:  # the first line says that it is open
                    has_begun, deadline = True, time.monotonic() + rng.uniform(0.02, 0.4)
        died = child.poll()
        child.kill()
        rest, complaint = child.communicate()
        assert died is None, f"the writer ended unexpectedly:\n{complaint.decode()}"
    finally:
        child.kill()
        child.wait()
    numbers = [int(line) for line in (said + rest).decode().splitlines() if line.isdecimal()]
    return max(numbers, default=-1)


async def assert_whole(path: Path, told: int) -> int:
    """Assert that exactly the atomic appends up to the ledger's number are stored, once each; return the number."""
    store = LogStore(path, atomic_append_writer.settings())
    try:
        assert store.damage == []
        noted = await store.ledger("query")
        number = -1 if noted is None else noted
        assert number >= told, "every acknowledged append must be visible"
        found: dict[Queue, list[bytes]] = {queue: [] for queue in atomic_append_writer.QUEUES}
        for place, data in sorted((await read_served(store, atomic_append_writer.QUEUES)).items()):
            found[place.queue].append(record.decode(data).body)
        wanted: dict[Queue, list[bytes]] = {queue: [] for queue in atomic_append_writer.QUEUES}
        for each in range(number + 1):
            for queue, sent in atomic_append_writer.bodies_of(each):
                wanted[queue] += sent
        for queue in atomic_append_writer.QUEUES:
            in_groups = [body for body in found[queue] if not body.startswith(b"single")]
            assert in_groups == wanted[queue]
            assert await store.bounds(queue) == QueueBounds(0, len(found[queue]))
        assert store.bounds_nowait(STATE_QUEUE).end > 0
    finally:
        store.close_blocking()
    return number


@pytest.mark.thorough
@pytest.mark.timeout(1800)
def test_a_killed_writer_leaves_only_complete_atomic_appends(tmp_path: Path, scale: str) -> None:
    seed = int(os.environ.get("SPARROW_SEED") or random.SystemRandom().getrandbits(32))
    rng, told = random.Random(seed), -1
    rounds = 6 if scale == "smoke" else 100
    for number in range(rounds):
        path = tmp_path / str(number // 20)
        if number % 20 == 0:
            told = -1
        try:
            told = max(told, run_and_kill(path, rng, appends_min=number % 2))
            if number % 3 or number == rounds - 1:
                told = asyncio.run(assert_whole(path, told))
        except BaseException as cause:
            cause.add_note(f"round {number}; to do it again: SPARROW_SEED={seed}")
            raise
    assert told > 0, "the writers must have appended something"
    print(f"{rounds} kills, {told + 1} groups in the last store (SPARROW_SEED={seed})")
