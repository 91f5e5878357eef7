"""The metrics of the running process: CPU, memory, files, garbage collection and the delay of the event loop."""

from __future__ import annotations

import asyncio
import gc
import os
import platform
import resource
import threading
import time
from collections.abc import Iterator
from typing import Any

from sparrow.telemetry.histogram import DurationHistogram
from sparrow.telemetry.metric import Family, single
from sparrow.telemetry.metrics import process as metrics
from sparrow.telemetry.version import sparrow_version

_PROBE_INTERVAL_S = 0.1
_PAGE_BYTES = resource.getpagesize()


class ProcessMetrics:
    """The metrics of this process. `start` measures its event loop and its garbage collector until `stop`."""

    def __init__(self) -> None:
        self._loop_delay, self._gc_pause = DurationHistogram(), DurationHistogram()
        self._timer: asyncio.TimerHandle | None = None
        self._collection_began_s = 0.0

    def start(self) -> None:
        """Start to measure the running event loop."""
        if self._on_collection not in gc.callbacks:
            gc.callbacks.append(self._on_collection)
        self._schedule(asyncio.get_running_loop())

    def stop(self) -> None:
        """Stop to measure."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._on_collection in gc.callbacks:
            gc.callbacks.remove(self._on_collection)

    def _schedule(self, loop: asyncio.AbstractEventLoop) -> None:
        due_s = loop.time() + _PROBE_INTERVAL_S
        self._timer = loop.call_at(due_s, self._observe, loop, due_s)

    def _observe(self, loop: asyncio.AbstractEventLoop, due_s: float) -> None:
        self._loop_delay.add(max(0.0, loop.time() - due_s))
        self._schedule(loop)

    def _on_collection(self, phase: str, _info: dict[str, Any]) -> None:
        if phase == "start":
            self._collection_began_s = time.perf_counter()
        else:
            self._gc_pause.add(time.perf_counter() - self._collection_began_s)

    def families(self) -> Iterator[Family]:
        """Yield the metrics. Memory and files are read from `/proc`, and left out on other systems."""
        yield Family(metrics.BUILD, [((sparrow_version(), platform.python_version()), 1)])
        yield single(metrics.CPU_SECONDS, time.process_time())
        if (resident := _resident_bytes()) is not None:
            yield single(metrics.RESIDENT_BYTES, resident)
        yield single(metrics.START_TIME, _STARTED_S)
        if (open_files := _open_files()) is not None:
            yield single(metrics.OPEN_FILES, open_files)
        yield single(metrics.MAX_FILES, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
        yield single(metrics.THREADS, threading.active_count())
        yield single(metrics.LOOP_DELAY, self._loop_delay.value)
        generations = gc.get_stats()
        yield Family(
            metrics.GC_COLLECTIONS, [((str(number),), each["collections"]) for number, each in enumerate(generations)]
        )
        yield Family(
            metrics.GC_COLLECTED, [((str(number),), each["collected"]) for number, each in enumerate(generations)]
        )
        yield single(metrics.GC_PAUSE, self._gc_pause.value)


def _resident_bytes() -> int | None:
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * _PAGE_BYTES
    except OSError:
        return None


def _open_files() -> int | None:
    try:
        return len(os.listdir("/proc/self/fd"))
    except OSError:
        return None


def _process_start_s() -> float:
    """Return the start of the process in Unix time; where that is unknown, the time of the import."""
    try:
        with open("/proc/self/stat", "rb") as file:
            ticks = int(file.read().rpartition(b")")[2].split()[19])
        return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, AttributeError):
        return time.time()


_STARTED_S = _process_start_s()
