"""Stages: records that wait in files to become messages, all of them at once or never.

A stage is `<name>.part` while it grows, `<name>.stage` once it is sealed; `stage_files` says what is in them.

1. A sealed stage outlives the broker, a growing one does not. One that is damaged is as good as none.
2. A body that comes again changes nothing; bodies come in order or are refused.
3. Files are touched in threads only. What one stage is asked is done in the order in which it was asked.
4. All stages together hold so many bytes and no more; one that nobody touches for so long goes.
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
from sparrow.broker.produce.stage_file import StageChunk, StageSeal, read_portions
from sparrow.model.errors import Busy, Refused, SparrowError, StoreFull
from sparrow.wire.queue_batches import QueueBatch

log = logging.getLogger(__name__)

_Result = TypeVar("_Result")

STAGE_NAME_CHARS_MAX = 128
_NAME = re.compile(rf"[A-Za-z0-9_-]{{1,{STAGE_NAME_CHARS_MAX}}}")
_PART, _SEALED = ".part", ".stage"
_THREADS = 2
UNWRITTEN_BYTES_MAX = 256 << 20
"""Bodies that wait for their turn to be checked and written: they are in memory until then."""
_EXPIRY_INTERVAL_S_MAX = 60.0


def checked_stage_name(name: str) -> str:
    """The name itself, if it may be a stage's: it becomes the name of a file."""
    if not _NAME.fullmatch(name):
        raise Refused(
            f"{name[:STAGE_NAME_CHARS_MAX]!r} is no name of a stage: use 1 to {STAGE_NAME_CHARS_MAX} of A-Z a-z 0-9 _ -"
        )
    return name


class Stage:
    """One stage. Changed on the event loop, under its lock."""

    def __init__(self, name: str, folder: Path, now_ms: int) -> None:
        self.name, self.path = name, folder / (name + _PART)
        self.chunks = self.rows = self.size_bytes = self.file_bytes = 0
        self.is_sealed = self.is_claimed = self.is_gone = False
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
        """The folder is this broker's alone. `syncs`: what is sealed is on disk when that is seal."""
        self._folder = folder
        self._bytes_max, self._ttl_ms, self._now_ms, self._syncs = bytes_max, ttl_ms, now_ms, syncs
        self._stages: dict[str, Stage] = {}
        self._threads = ThreadPoolExecutor(_THREADS, "sparrow-stages")
        self._timer: asyncio.TimerHandle | None = None
        self._expiring: asyncio.Task[None] | None = None
        self.stored_bytes = 0
        """In all files."""
        self._unwritten_bytes = 0
        self._commit_locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def start(self) -> None:
        """Find what was sealed before."""
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

    # -- growing ------------------------------------------------------------------------------------------------------

    async def add(self, name: str, seq: int, size_bytes: int, make_chunk: Callable[[], StageChunk]) -> None:
        """Keep what `made` makes, in a thread, of a body of this size; nothing if that number has come before."""
        stage = self._stages.get(checked_stage_name(name))
        if stage is not None and seq < stage.chunks and not stage.is_gone:
            return
        if self.stored_bytes + self._unwritten_bytes + size_bytes > self._bytes_max:
            raise Busy(
                f"stages hold {self.stored_bytes} bytes of the {self._bytes_max} that they may (stage_bytes_max): "
                "commit or drop some, or raise the limit"
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
                await self._remove(stage)  # its first body was refused: as if it had never come

    @contextmanager
    def reserve_memory(self, size_bytes: int) -> Iterator[None]:
        """While a body waits for its turn."""
        if self._unwritten_bytes + size_bytes > max(UNWRITTEN_BYTES_MAX, size_bytes):
            raise Busy(f"{self._unwritten_bytes} bytes of other records wait to be checked")
        self._unwritten_bytes += size_bytes
        try:
            yield
        finally:
            self._unwritten_bytes -= size_bytes

    async def _add(self, stage: Stage, seq: int, make_chunk: Callable[[], StageChunk]) -> None:
        if stage.is_gone:
            raise _unknown(stage.name)
        if seq < stage.chunks:
            return
        if stage.is_sealed:
            raise Refused(f"stage {stage.name!r} is sealed: it has {stage.chunks} bodies, and body {seq} is too late")
        if seq > stage.chunks:
            raise Refused(f"stage {stage.name!r} waits for body {stage.chunks}, not {seq}: send them in order")
        chunk, written = await self.run_in_thread(stage_file.append_chunk, stage.path, stage.file_bytes, make_chunk)
        stage.chunks += 1
        stage.rows += chunk.rows
        stage.size_bytes += chunk.size_bytes
        self._grew(stage, written)

    async def seal(self, name: str, chunks: int) -> Stage:
        """The stage has all it will ever have."""
        stage = self._stages.get(checked_stage_name(name))
        if stage is None:
            if chunks:
                raise _unknown(name)
            stage = self._stages[name] = Stage(name, self._folder, self._now_ms())
        async with stage.lock:
            if stage.is_gone:
                raise _unknown(name)
            if stage.chunks != chunks:
                raise Refused(f"stage {name!r} has {stage.chunks} bodies, not {chunks}: send the others, or drop it")
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

    # -- being used up ------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def commit_lock(self, scope: str) -> AsyncIterator[None]:
        """One commit of a scope at a time: one that is asked again meanwhile waits, and then hears that it is done."""
        lock = self._commit_locks.get(scope)
        if lock is None:
            lock = self._commit_locks[scope] = asyncio.Lock()
        async with lock:
            yield

    @asynccontextmanager
    async def claim(self, names: Sequence[str]) -> AsyncIterator[list[QueueBatch]]:
        """What these stages hold, in this order; nobody else gets it meanwhile."""
        stages = [self._sealed(name) for name in names]
        if len(set(names)) != len(names):
            raise Refused("a stage is named twice: it can be appended once")
        for stage in stages:
            stage.is_claimed = True
        try:
            parts = await self.run_in_thread(lambda: [part for stage in stages for part in read_portions(stage.path)])
            yield parts
        finally:
            for stage in stages:
                stage.is_claimed = False

    def _sealed(self, name: str) -> Stage:
        stage = self._stages.get(checked_stage_name(name))
        if stage is None:
            raise _unknown(name)
        if not stage.is_sealed:
            raise Refused(f"stage {name!r} is not sealed: more may come for it")
        if stage.is_claimed:
            raise Busy(f"stage {name!r} is just being committed")
        return stage

    async def drop(self, names: Iterable[str]) -> None:
        """They are gone. What is not there is gone already."""
        for name in names:
            stage = self._stages.get(checked_stage_name(name))
            if stage is not None:
                async with stage.lock:
                    await self._remove(stage)

    async def _remove(self, stage: Stage) -> None:
        if stage.is_gone:
            return
        stage.is_gone = True
        self.stored_bytes -= stage.file_bytes
        # Known until the file is gone: else the next stage of that name would lose its own.
        try:
            await self.run_in_thread(functools.partial(stage.path.unlink, missing_ok=True))
        finally:
            del self._stages[stage.name]

    async def expire(self) -> None:
        """Drop what nobody has touched for too long."""
        before_ms = self._now_ms() - self._ttl_ms
        old = [
            stage
            for stage in self._stages.values()
            if stage.touched_ms < before_ms and not stage.is_claimed and not stage.lock.locked()
        ]
        if old:
            log.warning("stages were never committed", extra={"stages": len(old), "first": old[0].name})
            await self.drop([stage.name for stage in old])

    async def _expire(self) -> None:
        try:
            await self.expire()
        except SparrowError as error:  # the next look tries again
            log.warning("stages could not be dropped", extra={"why": str(error)})

    def _schedule_expiry(self) -> None:
        wait_s = min(_EXPIRY_INTERVAL_S_MAX, self._ttl_ms / 4000)
        self._timer = asyncio.get_running_loop().call_later(wait_s, self._start_expiry)

    def _start_expiry(self) -> None:
        self._expiring = asyncio.get_running_loop().create_task(self._expire())
        self._schedule_expiry()

    # -- files --------------------------------------------------------------------------------------------------------

    async def run_in_thread(self, work: Callable[..., _Result], *args: object, **named: object) -> _Result:
        """Do something in one of the few threads there are for such work."""
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
        """A sealed stage, or None if its end is not that of one."""
        seal = stage_file.read_seal(path)
        if seal is None:
            log.warning("a stage is damaged", extra={"path": str(path)})
            return None
        found = path.stat()
        stage = Stage(path.stem, self._folder, int(found.st_mtime * 1000))
        stage.chunks, stage.rows, stage.size_bytes = seal
        stage.path, stage.file_bytes, stage.is_sealed = path, found.st_size, True
        return stage


def _unknown(name: str) -> Refused:
    return Refused(
        f"stage {name!r} is not here: it was dropped, timed out or never begun, or the broker was started again "
        "before it was sealed; stage its records again"
    )
