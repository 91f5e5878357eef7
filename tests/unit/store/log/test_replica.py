"""A log store as a replica: raw bytes of a leader's log, the high watermark, and interrupted truncations."""

import asyncio
import errno
import itertools
import os
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.support.drafts import decode_bodies, make_draft
from tests.support.log_stores import SMALL_SETTINGS, checkpoint, copy_as_crashed, small_settings
from tests.support.queue_batches import make_queue_batch

from sparrow.model.errors import CorruptRecord, NotLeader, Refused
from sparrow.model.protocol import SCHEDULE_TOPIC
from sparrow.model.queue import Queue, QueueBounds
from sparrow.model.topic import Topic
from sparrow.store.log import LogStore, checksums
from sparrow.store.log.append import raw_append
from sparrow.store.log.recovery import checkpoint as files
from sparrow.store.spi import AtEnd, Slice
from sparrow.wire.record import TRANSACTION_PREPARED

A, B = Queue("A", 0), Queue("B", 1)
DELAYED = Queue(SCHEDULE_TOPIC, 2)
REPLICATED = small_settings(visible_after="replicated")


@asynccontextmanager
async def opened(path: Path, settings: Any = SMALL_SETTINGS, **options: Any) -> AsyncIterator[LogStore]:
    store = await asyncio.to_thread(LogStore, path, settings, **options)
    try:
        yield store
    finally:
        await store.close()


async def fill(store: LogStore, seed: int) -> None:
    """Write what a log may hold.

    That is batches, keys, tags, delayed and half messages, full segments, atomic appends, offsets, a deleted topic.
    """
    rng = random.Random(seed)
    for name in ("A", "B", "gone", SCHEDULE_TOPIC):
        await store.catalog.put_topic(Topic(name=name, read_queues=4, write_queues=4))
    for number in range(60):
        queue = rng.choice((A, B, DELAYED, Queue("gone", 2)))
        drafts = [
            make_draft("x" * rng.randrange(900), keys=f"k{number}", tags=rng.choice(("", "paid", "bezahlt für")))
            for _ in range(rng.choice((1, 1, 3)))
        ]
        store.append_nowait(queue, drafts)
        if rng.random() < 0.2:
            store.append_nowait(B, [make_draft("half", sys_flag=TRANSACTION_PREPARED)])
        if rng.random() < 0.1:
            await store.append_atomically("job", number + 1, [make_queue_batch("A", 0, [b"one", b"two"])])
        if rng.random() < 0.1:
            await store.offsets.commit("group", A, number)
    await store.catalog.delete_topic("gone")
    await asyncio.to_thread(store._state.flush_offsets)


def copy(leader: LogStore, follower: LogStore, rng: random.Random) -> None:
    """Fetch until the follower has everything, in pieces of any size."""
    while follower.replica.end < leader.written:
        data = leader.raw(follower.replica.end, rng.choice((1, 7, 100, 5000, 1 << 20)))
        follower.replica.append(follower.replica.end, data)


async def contents(store: LogStore) -> dict[str, Any]:
    """Return what readers see of a store, and its state."""
    tables = store._state.tables
    found: dict[str, Any] = {
        "log": b"".join(
            store.raw(at, 1 << 30) for at in range(store.first, store.written, store.settings.segment_bytes)
        ),
        "topics": dict(tables.topics),
        "offsets": dict(tables.offsets),
        "ledger": {scope: noted.number for scope, noted in tables.ledger.items()},
        "key": await store.find_by_key("A", "k3"),
        "keys": await asyncio.to_thread(checksums.key_checksums, store, store.first, store.written, "", 100),
        "state": [
            one
            for one in await asyncio.to_thread(checksums.state_checksums, store, "", 100)
            if one.name != "epochs"  # a log may get its first one later
        ],
    }
    assert sum(part.entries for part in found["keys"]) > 0
    for queue in (A, B, DELAYED, Queue("gone", 2)):
        known = store._queues.get(queue)
        found[f"entries of {queue}"] = known.entries(0, known.end) if known is not None else b""
        read = await store.read(queue, 0, count_max=1000)
        found[str(queue)] = store.bounds_nowait(queue), decode_bodies(read) if isinstance(read, Slice) else []
    return found


@pytest.mark.parametrize("seed", range(6))
async def test_a_copy_of_the_bytes_has_the_same_queues_keys_and_state(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(raw_append, "_PLAIN_BYTES_MAX", 1000 * seed)  # else hardly any chunk is appended by columns
    async with opened(tmp_path / "leader") as leader, opened(tmp_path / "follower", follows=True) as follower:
        await fill(leader, seed)
        await asyncio.to_thread(copy, leader, follower, random.Random(seed))
        expected = await contents(leader)
        assert await contents(follower) == expected
    async with opened(tmp_path / "follower", follows=True) as reopened:
        assert await contents(reopened) == expected
    async with opened(tmp_path / "follower") as promoted:
        (appended,) = promoted.append_nowait(A, [make_draft("mine")]).physical_offsets
        end, segment_bytes = len(expected["log"]), SMALL_SETTINGS.segment_bytes
        assert appended in (end, end + -end % segment_bytes), "behind the copy, or in the next segment"


async def test_a_follower_writes_nothing_of_its_own(tmp_path: Path) -> None:
    async with opened(tmp_path / "leader") as leader:
        await fill(leader, 1)
        async with opened(tmp_path / "follower", follows=True) as follower:
            await asyncio.to_thread(copy, leader, follower, random.Random(1))
            with pytest.raises(NotLeader):
                follower.append_nowait(A, [make_draft("mine")])
            with pytest.raises(NotLeader):
                await follower.catalog.put_topic(Topic(name="mine"))
            assert await follower.trim() == 0
            await asyncio.to_thread(checkpoint, follower)
            assert follower.written == leader.written
            await asyncio.to_thread(follower.replica.lead)
            follower.append_nowait(A, [make_draft("mine")])
        async with opened(tmp_path / "follower", follows=True) as reopened:
            assert reopened.written > leader.written


async def test_bytes_of_another_place_or_with_a_wrong_bit_are_refused(tmp_path: Path) -> None:
    async with opened(tmp_path / "leader") as leader, opened(tmp_path / "follower", follows=True) as follower:
        await leader.catalog.put_topic(Topic(name="A"))
        end = leader.append_nowait(A, [make_draft("hello")]).end
        data = leader.raw(0, end)
        with pytest.raises(Refused, match="continues at 0, not at 8"):
            follower.replica.append(8, data[8:])
        with pytest.raises(CorruptRecord):
            follower.replica.append(0, data[100:])
        damaged = bytearray(data)
        damaged[data.index(b"hello")] ^= 1
        with pytest.raises(CorruptRecord):
            follower.replica.append(0, bytes(damaged))
        good = follower.written
        assert good < end, "the record before the damaged one is kept"
        follower.replica.append(good, data[good:])
        assert decode_bodies(await follower.read(A, 0)) == [b"hello"]


async def test_an_atomic_append_without_its_end_is_cut_when_the_follower_leads(tmp_path: Path) -> None:
    async with (
        opened(tmp_path / "leader") as leader,
        opened(tmp_path / "follower", REPLICATED, follows=True) as follower,
    ):
        await leader.catalog.put_topic(Topic(name="A"))
        begun = leader.written
        await leader.append_atomically("job", 1, [make_queue_batch("A", 0, [b"one", b"two"])])
        follower.replica.append(0, leader.raw(0, leader.written - 10))
        assert begun < follower.written < leader.written
        await asyncio.to_thread(follower.replica.lead)
        assert follower.written == begun
        follower.replica.commit_to(follower.written)
        assert follower.bounds_nowait(A) == QueueBounds(0, 0)
        assert await follower.append_atomically("job", 1, [make_queue_batch("A", 0, [b"one", b"two"])])


async def test_the_high_watermark_survives_a_restart_and_hides_what_is_beyond_it(tmp_path: Path) -> None:
    async with opened(tmp_path / "s", REPLICATED) as store:
        await store.catalog.put_topic(Topic(name="A"))
        first = store.append_nowait(A, [make_draft("committed")])
        store.append_nowait(A, [make_draft("not committed")])
        store.replica.commit_to(first.end)
    async with opened(tmp_path / "s", REPLICATED) as store:
        assert store.bounds_nowait(A) == QueueBounds(0, 1)
        assert isinstance(store.read_nowait(A, 1), AtEnd)
        assert isinstance(store.read_nowait(A, 2), AtEnd), "a consumer that saw more at the last leader must wait"
        assert store.append_nowait(A, [make_draft("next")]).offset == 2
        store.replica.commit_to(store.written)
        assert decode_bodies(await store.read(A, 0)) == [b"committed", b"not committed", b"next"]


@pytest.mark.parametrize("seed", range(4))
async def test_a_truncated_tail_never_returns_whatever_the_crash_left_of_it(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    async with opened(tmp_path / "leader") as leader:
        await fill(leader, seed)
        expected = await contents(leader)
        end = leader.written
        async with opened(tmp_path / "old", follows=True) as old:
            await asyncio.to_thread(copy, leader, old, rng)
            await asyncio.to_thread(old.replica.lead)
            for number in range(30):
                old.append_nowait(rng.choice((A, B)), [make_draft("y" * rng.randrange(900), keys=f"old{number}")])
            crashed = copy_as_crashed(old, tmp_path / "crashed")
            await asyncio.to_thread(old.replica.truncate, end)
            assert await contents(old) == expected
        # The crash came after the note of the truncation, and before any byte of the log was changed.
        files.save(crashed / files.TRUNCATION_FILE, files.Truncation(end))
        async with opened(crashed, follows=True) as restarted:
            assert await contents(restarted) == expected
        assert not (crashed / files.TRUNCATION_FILE).exists()


@pytest.mark.parametrize("fails_at", range(7))
async def test_a_truncation_that_fails_is_repeated_and_cuts_nothing_that_comes_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails_at: int
) -> None:
    """The note of a truncation that found the disk full must not stay: a start would cut there once more."""
    rng = random.Random(fails_at)
    async with opened(tmp_path / "leader") as leader, opened(tmp_path / "old", follows=True) as old:
        await fill(leader, 1)
        end = leader.written
        await asyncio.to_thread(copy, leader, old, rng)
        await asyncio.to_thread(old.replica.lead)
        await old.catalog.delete_topic("B")
        old.append_nowait(A, [make_draft("cut off", keys="cut")])
        old.replica.follow()

        calls = itertools.count()

        def failing(work: Callable[..., None]) -> Callable[..., None]:
            def call(*args: Any) -> None:
                if next(calls) == fails_at:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                work(*args)

            return call

        with monkeypatch.context() as patched:
            for name in ("replace_file", "remove_file"):
                patched.setattr(files, name, failing(getattr(files, name)))
            with pytest.raises(OSError, match="No space"):
                await asyncio.to_thread(old.replica.truncate, end)
        with pytest.raises(Refused, match="not cut yet"):
            old.replica.append(old.replica.end, b"")
        await asyncio.to_thread(old.replica.truncate, end)
        assert not (tmp_path / "old" / files.TRUNCATION_FILE).exists()
        leader.append_nowait(B, [make_draft("later", keys="later")])
        await asyncio.to_thread(copy, leader, old, rng)
        expected = await contents(leader)
        assert await contents(old) == expected
        crashed = copy_as_crashed(old, tmp_path / "crashed")
        async with opened(crashed, follows=True) as restarted:
            assert await contents(restarted) == expected


async def test_retention_waits_until_the_state_it_appended_again_is_committed(tmp_path: Path) -> None:
    now = [1_000_000_000_000]
    async with opened(tmp_path / "s", REPLICATED, now_ms=lambda: now[0]) as store:
        await store.catalog.put_topic(Topic(name="A"))
        for _ in range(20):
            store.append_nowait(A, [make_draft("x" * 900)])
        store.replica.commit_to(store.written)
        now[0] += 30 * 86_400_000
        store.append_nowait(A, [make_draft("new")])
        assert await store.trim() == 0
        assert await store.trim() == 0, "the state is not appended twice"
        written = store.written
        store.replica.commit_to(written)
        assert await store.trim() > 0
        assert store.written == written
    async with opened(tmp_path / "s", REPLICATED) as store:
        assert "A" in store._state.tables.topics


async def test_a_log_without_epochs_becomes_epoch_1_once_and_keeps_its_messages(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        await fill(store, seed=1)
        before = await contents(store)
    async with opened(tmp_path, follows=True) as store:
        assert store.replica.epochs == []
        await asyncio.to_thread(store.replica.begin_history)
        written = store.written
        assert store.replica.epochs == [(1, store.first)]
        after = await contents(store)
        assert after.pop("log").startswith(before.pop("log"))
        assert after == before
        assert store.replica.is_following
        await asyncio.to_thread(store.replica.begin_history)
        assert store.written == written


async def test_a_replica_that_shows_what_is_written_keeps_its_high_watermark(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        await fill(store, seed=1)
        end = store.written
    async with opened(tmp_path, follows=True) as store:
        assert store.watermark("replicated") == 0, "nothing is known to be committed"
        store.replica.commit_to(end // 2)
        shown = await store.bounds(A)
    async with opened(tmp_path, follows=True) as store:
        assert store.watermark("replicated") == end // 2
        assert await store.bounds(A) == shown, "readers see all that is written"


async def test_a_leader_that_is_deposed_forgets_offsets_that_it_has_not_written(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened(tmp_path) as store:
        await store.catalog.put_topic(Topic(name="A", read_queues=4, write_queues=4))
        await store.offsets.commit("written", A, 5)
        await store.offsets.commit("other", A, 1)
        await asyncio.to_thread(store.replica.flush_offsets)
        end = store.written
        await store.offsets.commit("written", A, 9)
        await store.offsets.commit("new", A, 3)
        store.replica.follow()
        assert [await store.offsets.committed(group, A) for group in ("written", "other", "new")] == [5, 1, None]
        await store.offsets.commit("written", A, 9)  # by a request that was in progress
        await asyncio.to_thread(store.replica.flush_offsets)
        assert await store.offsets.committed("written", A) == 5
        await store.offsets.commit("written", A, 9)
    assert "not closed cleanly" not in caplog.text
    async with opened(tmp_path, follows=True) as store:
        assert await store.offsets.committed("written", A) == 5
        assert store.written == end
