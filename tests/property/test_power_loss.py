"""Power loss, by seed: what was acknowledged as durable is there afterwards, and what was removed does not return.

A store works on a disk that may lose everything that was not synced (`tests.support.power_loss`). At moments that the
seed chooses, also inside a sync, an image is taken as a power loss at that moment may leave the disk. Recovery of each
image must give every acknowledged record, and nothing that was never appended or was cut off. Planted mistakes show
that the simulation notices a missing sync.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, NamedTuple

import pytest
from tests.support.drafts import decode_messages, make_draft
from tests.support.log_stores import checkpoint, small_settings
from tests.support.power_loss import PowerLossDisk
from tests.support.queue_batches import make_queue_batch

from sparrow.model.queue import Queue
from sparrow.model.topic import Topic
from sparrow.settings import LogSettings
from sparrow.store.log import LogStore
from sparrow.store.log.commit_log import mapped_pages, segment
from sparrow.store.log.recovery import checkpoint as files
from sparrow.store.spi import AtEnd, Moved, Slice

QUEUES = [Queue("A", 0), Queue("A", 1), Queue("B", 0)]
IMAGES_A_RUN = 12
Policy = Literal["sync", "async"]


class Violation(AssertionError):
    """Recovery broke a promise."""


class Promise(NamedTuple):
    """What recovery of an image must give, and what it may."""

    durable: dict[tuple[Queue, int], bytes]
    gone: set[bytes]
    """Bodies that were cut off for good."""


class Workload:
    """Random work on one store, and the promises that the store has given."""

    def __init__(self, folder: Path, seed: int, policy: Policy) -> None:
        self.rng, self.folder = random.Random(seed), folder
        self.settings = settings_of(policy)
        self.appended: dict[tuple[Queue, int], tuple[bytes, int]] = {}
        """Place -> body and end in the log."""
        self.acknowledged: dict[tuple[Queue, int], bytes] = {}
        self.attempted: set[bytes] = set()
        self.gone: set[bytes] = set()
        self.images: list[tuple[Path, Promise]] = []
        self._image_rng, self._images_left = random.Random(seed + 1), IMAGES_A_RUN
        (folder / "disk").mkdir()
        self.disk = PowerLossDisk(folder / "disk")
        self.store: LogStore | None = None
        self._is_cutting = False
        self._numbers = itertools.count()

    async def run(self, steps: int) -> None:
        with self.disk.replacing_syncs():
            self.disk.on_sync = self._maybe_lose_power
            self._open()
            try:
                for topic in ("A", "B"):
                    await self._store.catalog.put_topic(Topic(name=topic, read_queues=2, write_queues=2))
                for _ in range(steps):
                    await self._step()
                    self._maybe_lose_power()
            finally:
                await asyncio.to_thread(self._store.close_blocking)
            self._lose_power()

    @property
    def _store(self) -> LogStore:
        assert self.store is not None
        return self.store

    def _open(self) -> None:
        self.store = LogStore(self.folder / "disk" / "store", self.settings, disk_ratio=lambda _: 0.1)

    async def _step(self) -> None:
        what = self.rng.random()
        if what < 0.75:
            await self._append()
        elif what < 0.85:
            await self._append_atomically()
        elif what < 0.9:
            await asyncio.to_thread(checkpoint, self._store)
        elif what < 0.95:
            await asyncio.to_thread(self._cut)
        else:
            await asyncio.to_thread(self._store.close_blocking)
            await asyncio.to_thread(self._open)

    async def _append(self) -> None:
        queue = self.rng.choice(QUEUES)
        bodies = [self._body() for _ in range(self.rng.choice((1, 1, 3)))]
        drafts = [make_draft(body, keys="k") for body in bodies]
        found = self._store.append_nowait(queue, drafts)
        for number, body in enumerate(bodies):
            self.appended[queue, int(found.offset) + number] = body, int(found.end)
        if self.settings.flush == "sync":
            waited = self._store.when_durable(found.end)
            if waited is not None:
                await waited
            for number, body in enumerate(bodies):
                self.acknowledged[queue, int(found.offset) + number] = body

    async def _append_atomically(self) -> None:
        bodies = [self._body() for _ in range(2)]
        queue = self.rng.choice(QUEUES)
        first = int(self._store.bounds_nowait(queue).end)
        batch = make_queue_batch(queue.topic, queue.id, bodies)
        await self._store.append_atomically("scope", len(self.attempted), [batch])
        for number, body in enumerate(bodies):
            self.appended[queue, first + number] = body, int(self._store.written)
            if self.settings.flush == "sync":
                self.acknowledged[queue, first + number] = body

    def _cut(self) -> None:
        """Cut some records off, as a follower does."""
        ends = sorted({end for _, end in self.appended.values()})[-4:]
        if not ends:
            return
        self._is_cutting = True  # meanwhile, either is right
        self._store.replica.truncate(self.rng.choice(ends))
        end = self._store.written
        for place, (body, body_end) in list(self.appended.items()):
            if body_end > end:
                del self.appended[place]
                self.acknowledged.pop(place, None)
                self.gone.add(body)
        self._is_cutting = False

    def _body(self) -> bytes:
        body = b"%d:" % len(self.attempted) + self.rng.randbytes(self.rng.choice((0, 20, 300, 900)))
        self.attempted.add(body)
        return body

    def _maybe_lose_power(self) -> None:
        if self._images_left and self._image_rng.random() < 0.05:
            self._images_left -= 1
            self._lose_power()

    def _lose_power(self) -> None:
        if self._is_cutting or self.store is None:
            return
        durable = dict(self.acknowledged)
        watermark = self.store.watermark("durable")
        durable |= {place: body for place, (body, end) in list(self.appended.items()) if end <= watermark}
        promise = Promise(durable, set(self.gone))
        path = self.folder / f"image-{next(self._numbers)}"
        self.disk.image(path, self._image_rng)
        if not self._is_cutting:
            self.images.append((path, promise))

    # -- recovery -----------------------------------------------------------------------------------------------------

    async def check(self, image: Path, promise: Promise) -> None:
        store = await asyncio.to_thread(LogStore, image / "store", self.settings, disk_ratio=lambda _: 0.1)
        try:
            found = await self._contents(store)
            for place, body in promise.durable.items():
                if found.get(place) != body:
                    raise Violation(f"{place} was acknowledged and has {found.get(place)!r:.40} now")
            for place, body in found.items():
                if body not in self.attempted:
                    raise Violation(f"{place} has a record that was never appended: {body!r:.40}")
                if body in promise.gone:
                    raise Violation(f"{place} has a record that was cut off: {body!r:.40}")
            await store.catalog.put_topic(Topic(name="A", read_queues=2, write_queues=2))
            await store.append(QUEUES[0], [make_draft(b"after")])
        finally:
            await store.close()

    @staticmethod
    async def _contents(store: LogStore) -> dict[tuple[Queue, int], bytes]:
        found = {}
        for queue in QUEUES:
            offset = 0
            while not isinstance(result := await store.read(queue, offset, count_max=100), AtEnd):
                if isinstance(result, Moved):
                    offset = result.to
                    continue
                assert isinstance(result, Slice)
                found |= {(queue, message.queue_offset): message.body for message in decode_messages(result)}
                offset = result.next_offset
        return found


def settings_of(policy: Policy) -> LogSettings:
    return small_settings(flush=policy, flush_interval_ms=2, segment_bytes=8192)


def simulate(seed: int, policy: Policy, steps: int = 60) -> int:
    """Run a workload and check its images; return how many there were."""
    memory = Path("/dev/shm")
    folder = Path(tempfile.mkdtemp(prefix="sparrow-power-", dir=memory if memory.is_dir() else None))
    try:
        work = Workload(folder, seed, policy)
        with asyncio.Runner() as runner:
            runner.run(work.run(steps))
            for path, promise in work.images:
                try:
                    runner.run(work.check(path, promise))
                except Exception as cause:
                    cause.add_note(f"seed {seed}, flush {policy}, {path.name}")
                    raise
        return len(work.images)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("policy", ["sync", "async"])
def test_what_is_durable_survives_a_power_loss(policy: Policy) -> None:
    seeds = range(60 if os.environ.get("HYPOTHESIS_PROFILE") == "thorough" else 3)
    assert sum(simulate(seed, policy) for seed in seeds) > 10


def _sync_nothing(_self_or_path: object) -> None:
    pass


@contextmanager
def planted(mistake: str) -> Iterator[None]:
    """Leave out a sync, as a mistake in the store would."""
    with pytest.MonkeyPatch.context() as patch:
        if mistake == "a new segment's name is not synced":
            patch.setattr(mapped_pages, "sync_directory", _sync_nothing)
        elif mistake == "the log is not synced":
            patch.setattr(segment.Segment, "sync", _sync_nothing)
        else:
            assert mistake == "the note of a truncation, once deleted, is not synced"
            patch.setattr(files, "remove_file", lambda path: path.unlink(missing_ok=True))
        yield


@pytest.mark.parametrize(
    "mistake",
    [
        "a new segment's name is not synced",
        "the log is not synced",
        "the note of a truncation, once deleted, is not synced",
    ],
)
def test_a_planted_mistake_is_found(mistake: str) -> None:
    with planted(mistake):
        for seed in range(40):
            try:
                simulate(seed, "sync")
            except Violation:
                return
    pytest.fail(f"no seed shows that {mistake}")
