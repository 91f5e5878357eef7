"""Stages: records in files that become messages all at once, or never (Spark's two-phase writes).

A stage is `<name>.part` while it grows and `<name>.stage` once it is sealed. `stage_file` has the format.

1. A sealed stage survives a restart of the broker, a growing one does not. A damaged stage is ignored.
2. A chunk that is sent again changes nothing. Chunks arrive in order or are refused.
3. Files are accessed in threads only. Operations on one stage run in the order of their requests.
4. The total size of all stages is limited, and stages that are not used for some time are dropped.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import re
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import TypeVar
from weakref import WeakValueDictionary

from sparrow.broker.produce import stage_file
from sparrow.broker.produce.stage_file import StageChunk, StageSeal, read_queue_batches
from sparrow.log_intervals import LogIntervals
from sparrow.model.errors import Busy, Refused, SparrowError, StoreFull
from sparrow.model.errors.base import by_limit
from sparrow.wire.queue_batches import QueueBatch

log = logging.getLogger(__name__)

_Result = TypeVar("_Result")

STAGE_NAME_CHARS_MAX = 128
_NAME = re.compile(rf"[A-Za-z0-9_-]{{1,{STAGE_NAME_CHARS_MAX}}}")
_PART, _SEALED = ".part", ".stage"
_THREADS = 2
UNWRITTEN_BYTES_MAX = 256 << 20
"""The limit for chunks in memory, before they are validated and written."""
_EXPIRY_INTERVAL_S_MAX = 60.0


def checked_stage_name(name: str) -> str:
    """Return the name if it is valid for a stage, which uses it as a file name."""
    if not _NAME.fullmatch(name):
        raise Refused(
            f"{name[:STAGE_NAME_CHARS_MAX]!r} is not a stage name: use 1 to {STAGE_NAME_CHARS_MAX} of A-Z a-z 0-9 _ -"
        )
    return name


class Stage:
    """One stage. Changed on the event loop, under its lock."""

    def __init__(self, name: str, folder: Path, now_ms: int) -> None:
        self.name, self.path = name, folder / (name + _PART)
        self.chunks = self.rows = self.size_bytes = self.file_bytes = 0
        self.is_sealed = self.is_claimed = self.is_removed = False
        self.touched_ms = now_ms
        self.lock = asyncio.Lock()


class StageStore:
    """All stages of a broker."""

    def __init__(
        self,
        folder: Path,
        *,
        bytes_max: int,
        ttl_ms: float,
        now_ms: Callable[[], int],
        syncs: bool = False,
    ) -> None:
        """Create a store in a folder that no other broker uses.

        `syncs`: whether a sealed stage is flushed to disk before `seal` returns.
        """
        self._folder = folder
        self._bytes_max, self._ttl_ms, self._now_ms, self._syncs = bytes_max, ttl_ms, now_ms, syncs
        self._stages: dict[str, Stage] = {}
        self._threads = ThreadPoolExecutor(_THREADS, "sparrow-stages")
        self._timer: asyncio.TimerHandle | None = None
        self._expiring: asyncio.Task[None] | None = None
        self.stored_bytes = 0
        """The size of all files."""
        self._unwritten_bytes = 0
        self._commit_locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._failures = LogIntervals()

    async def start(self) -> None:
        """Load the sealed stages."""
        for stage in await self.run_in_thread(self._load_stages):
            self._stages[stage.name] = stage
            self.stored_bytes += stage.file_bytes
        self._schedule_expiry()

    async def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._expiring is not None:
            await asyncio.wait([self._expiring])
        await asyncio.to_thread(self._threads.shutdown)

    def __len__(self) -> int:
        return len(self._stages)

    def __contains__(self, name: str) -> bool:
        return name in self._stages

    # -- writing ------------------------------------------------------------------------------------------------------

    async def add(self, name: str, seq: int, size_bytes: int, make_chunk: Callable[[], StageChunk]) -> None:
        """Append the chunk that `make_chunk` returns in a thread. Does nothing if chunk `seq` is stored already."""
        stage = self._stages.get(checked_stage_name(name))
        if stage is not None and seq < stage.chunks and not stage.is_removed:
            return
        if self.stored_bytes + self._unwritten_bytes + size_bytes > self._bytes_max:
            raise by_limit(
                "stages",
                Busy(
                    f"stages take {self.stored_bytes} of {self._bytes_max} bytes (stage_bytes_max): commit or "
                    "drop some, or raise the limit"
                ),
            )
        if stage is None:
            if seq:
                raise _unknown(name)
            stage = self._stages[name] = Stage(name, self._folder, self._now_ms())
        try:
            with self.reserve_memory(size_bytes):
                async with stage.lock:
                    await self._add(stage, seq, make_chunk)
        finally:
            if not stage.chunks and not stage.is_sealed and not stage.lock.locked():
                await self._remove(stage)  # its first chunk was refused: the stage does not exist

    @contextmanager
    def reserve_memory(self, size_bytes: int) -> Iterator[None]:
        """Reserve memory for a chunk that is not written yet."""
        if self._unwritten_bytes + size_bytes > max(UNWRITTEN_BYTES_MAX, size_bytes):
            raise by_limit(
                "stages", Busy(f"{self._unwritten_bytes} bytes of other records wait to be validated: try again later")
            )
        self._unwritten_bytes += size_bytes
        try:
            yield
        finally:
            self._unwritten_bytes -= size_bytes

    async def _add(self, stage: Stage, seq: int, make_chunk: Callable[[], StageChunk]) -> None:
        if stage.is_removed:
            raise _unknown(stage.name)
        if seq < stage.chunks:
            return
        if stage.is_sealed:
            raise Refused(f"stage {stage.name!r} is sealed with {stage.chunks} chunks: chunk {seq} is too late")
        if seq > stage.chunks:
            raise Refused(f"stage {stage.name!r} expects chunk {stage.chunks}, not {seq}: send them in order")
        chunk, written = await self.run_in_thread(stage_file.append_chunk, stage.path, stage.file_bytes, make_chunk)
        stage.chunks += 1
        stage.rows += chunk.rows
        stage.size_bytes += chunk.size_bytes
        self._grew(stage, written)

    async def seal(self, name: str, chunks: int) -> Stage:
        """Seal a stage: it gets no more chunks."""
        stage = self._stages.get(checked_stage_name(name))
        if stage is None:
            if chunks:
                raise _unknown(name)
            stage = self._stages[name] = Stage(name, self._folder, self._now_ms())
        async with stage.lock:
            if stage.is_removed:
                raise _unknown(name)
            if stage.chunks != chunks:
                raise Refused(f"stage {name!r} has {stage.chunks} chunks, not {chunks}: send the others, or drop it")
            if not stage.is_sealed:
                path, seal = self._folder / (name + _SEALED), StageSeal(stage.chunks, stage.rows, stage.size_bytes)
                seal_file = functools.partial(stage_file.seal_file, stage.path, path, stage.file_bytes, seal)
                written = await self.run_in_thread(seal_file, syncs=self._syncs)
                stage.path, stage.is_sealed = path, True
                self._grew(stage, written)
        return stage

    def _grew(self, stage: Stage, written: int) -> None:
        stage.file_bytes += written
        stage.touched_ms = self._now_ms()
        self.stored_bytes += written

    # -- committing and dropping --------------------------------------------------------------------------------------

    @asynccontextmanager
    async def commit_lock(self, scope: str) -> AsyncIterator[None]:
        """Serialize the commits of a scope. A repeated commit waits, and then finds the first one done."""
        lock = self._commit_locks.get(scope)
        if lock is None:
            lock = self._commit_locks[scope] = asyncio.Lock()
        async with lock:
            yield

    @asynccontextmanager
    async def claim(self, names: Sequence[str]) -> AsyncIterator[list[QueueBatch]]:
        """Return the records of these stages, in this order. They cannot be claimed again meanwhile."""
        stages = [self._sealed(name) for name in names]
        if len(set(names)) != len(names):
            raise Refused("a stage is named twice: each can be appended once")
        for stage in stages:
            stage.is_claimed = True
        try:
            parts = await self.run_in_thread(
                lambda: [part for stage in stages for part in read_queue_batches(stage.path)]
            )
            yield parts
        finally:
            for stage in stages:
                stage.is_claimed = False

    def _sealed(self, name: str) -> Stage:
        stage = self._stages.get(checked_stage_name(name))
        if stage is None:
            raise _unknown(name)
        if not stage.is_sealed:
            raise Refused(f"stage {name!r} is not sealed: seal it first")
        if stage.is_claimed:
            raise Busy(f"stage {name!r} is being committed")
        return stage

    async def drop(self, names: Iterable[str]) -> None:
        """Drop stages. One that does not exist is no error."""
        for name in names:
            stage = self._stages.get(checked_stage_name(name))
            if stage is not None:
                async with stage.lock:
                    await self._remove(stage)

    async def _remove(self, stage: Stage) -> None:
        if stage.is_removed:
            return
        stage.is_removed = True
        self.stored_bytes -= stage.file_bytes
        # Listed until its file is deleted: else a new stage of that name would lose its own file.
        try:
            await self.run_in_thread(functools.partial(stage.path.unlink, missing_ok=True))
        finally:
            del self._stages[stage.name]

    async def expire(self) -> None:
        """Drop stages that have not been used for too long."""
        before_ms = self._now_ms() - self._ttl_ms
        old = [
            stage
            for stage in self._stages.values()
            if stage.touched_ms < before_ms and not stage.is_claimed and not stage.lock.locked()
        ]
        if old:
            log.warning(
                "%(stages)s stages, among them %(first)s, were not committed in time and are dropped;"
                " a write that needs longer needs a larger stage_ttl_hours",
                {"stages": len(old), "first": old[0].name},
            )
            await self.drop([stage.name for stage in old])

    async def _expire(self) -> None:
        try:
            await self.expire()
            self._failures.end("expire")
        except SparrowError as error:  # the next expiry tries again
            if self._failures.is_due("expire", type(error)):
                log.warning("old stages cannot be dropped: %(error)s; retrying", {"error": error})

    def _schedule_expiry(self) -> None:
        wait_s = min(_EXPIRY_INTERVAL_S_MAX, self._ttl_ms / 4000)
        self._timer = asyncio.get_running_loop().call_later(wait_s, self._start_expiry)

    def _start_expiry(self) -> None:
        self._expiring = asyncio.get_running_loop().create_task(self._expire())
        self._schedule_expiry()

    # -- files --------------------------------------------------------------------------------------------------------

    async def run_in_thread(self, work: Callable[..., _Result], *args: object, **named: object) -> _Result:
        """Run a function in one of the threads for stage files."""
        call = functools.partial(work, *args, **named)
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, call)
        except FileNotFoundError as cause:
            raise _unknown(Path(cause.filename or "").stem) from cause
        except OSError as cause:
            raise StoreFull(self._folder, str(cause)) from cause

    def _load_stages(self) -> list[Stage]:
        self._folder.mkdir(parents=True, exist_ok=True)
        found = []
        for path in sorted(self._folder.iterdir()):
            stage = self._read(path) if path.suffix == _SEALED and _NAME.fullmatch(path.stem) else None
            if stage is not None:
                found.append(stage)
            elif path.suffix in (_PART, _SEALED):
                path.unlink()
        return found

    def _read(self, path: Path) -> Stage | None:
        """Return a sealed stage, or None if its seal is damaged."""
        seal = stage_file.read_seal(path)
        if seal is None:
            log.warning("stage %(path)s is damaged and is deleted", {"path": path})
            return None
        found = path.stat()
        stage = Stage(path.stem, self._folder, int(found.st_mtime * 1000))
        stage.chunks, stage.rows, stage.size_bytes = seal
        stage.path, stage.file_bytes, stage.is_sealed = path, found.st_size, True
        return stage


def _unknown(name: str) -> Refused:
    return Refused(
        f"stage {name!r} does not exist: it was dropped, expired or never started, or the broker "
        "restarted before it was sealed; stage its records again"
    )
