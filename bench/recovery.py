"""Time and memory that a killed store needs to open again.

A child process fills a log with 1 KB messages and is killed: once right after a checkpoint, and once as far after one
as the settings allow. Then another child opens it, first with the existing views, then with all views deleted, so that
every record is read, verified and indexed again. (The page cache is warm: an ordinary user cannot drop it. From a cold
disk, add the time to read the log after the checkpoint, or all of it.)
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

from _harness import Row, folder_on_disk, is_smoke, report, rss_anon_mb
from sparrow.model.queue import Queue
from sparrow.model.topic import Topic
from sparrow.settings import GIB, MIB, LogSettings
from sparrow.store.log import LogStore

QUEUES = [Queue("bench", n) for n in range(8)]
VIEWS = ("consumequeue", "index", "sparrow.checkpoint", "sparrow.state")
_SAMPLE_S = 0.01


class OpenResult(NamedTuple):
    seconds: float
    log_mb: float
    messages: int
    grown_mb: float
    """The largest growth of memory while the store was being opened."""


# -- child processes --------------------------------------------------------------------------------------------------


def build(path: Path, total_bytes: int, tail_bytes: int) -> None:
    """Fill a log, write a checkpoint, append the tail, print a line, and wait for the kill."""
    import asyncio

    from sparrow.wire import columns

    pa.set_cpu_count(1)
    never_ms = 3_600_000
    settings = LogSettings(checkpoint_interval_ms=never_ms, checkpoint_bytes=1 << 60)
    store = LogStore(path, settings, disk_ratio=lambda _: 0.1)
    asyncio.run(store.catalog.put_topic(Topic(name="bench", read_queues=len(QUEUES), write_queues=len(QUEUES))))
    rows = 1024
    ids = [f"C0A8000100002A9F{row:016d}" for row in range(rows)]
    keys = [f"order-{row}" for row in range(rows)]
    batch = columns.encode(
        pa.array([os.urandom(1024) for _ in range(rows)], pa.binary()),
        topic="bench",
        keys=keys,
        tags=["TagA"] * rows,
        msg_ids=ids,
    )
    number = 0

    def fill(end: int) -> None:
        nonlocal number
        while store.written < end:
            store.append_encoded_nowait(QUEUES[number % len(QUEUES)], batch.data, batch.sizes, verify_crc=False)
            number += 1

    fill(total_bytes - tail_bytes)
    with store._threads.maintenance.paused():
        store._maintenance.checkpoint()
    fill(total_bytes)
    print("built", flush=True)
    signal.pause()


def open_again(path: Path) -> None:
    """Open the store, and print time and memory."""
    pa.set_cpu_count(1)
    highest, done = [rss_anon_mb()], threading.Event()
    before = highest[0]

    def watch() -> None:
        while not done.wait(_SAMPLE_S):
            highest[0] = max(highest[0], rss_anon_mb())

    watcher = threading.Thread(target=watch)
    watcher.start()
    begun = time.perf_counter()
    store = LogStore(path, disk_ratio=lambda _: 0.1)
    seconds = time.perf_counter() - begun
    done.set()
    watcher.join()

    assert store.damage == []
    messages = sum(bounds.end - bounds.first for bounds in map(store.bounds_nowait, QUEUES))
    found = OpenResult(seconds, (store.written - store.first) / 1e6, messages, max(highest) - before)
    print(json.dumps(found._asdict()), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)  # leave the folder as a crash would


# -- measurement ------------------------------------------------------------------------------------------------------


def start(*args: object) -> subprocess.Popen[str]:
    command = [sys.executable, __file__, *map(str, args)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def build_and_kill(path: Path, total_bytes: int, tail_bytes: int) -> None:
    with start("build", path, total_bytes, tail_bytes) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "built\n", "the log could not be built"
        child.kill()


def measure_open(path: Path) -> OpenResult:
    with start("open", path) as child:
        assert child.stdout is not None
        return OpenResult(**json.loads(child.stdout.read()))


def measure(total_bytes: int, tail_bytes: int, *, has_goals: bool) -> list[Row]:
    size = f"{total_bytes / GIB:g} GiB"
    with folder_on_disk() as path:
        build_and_kill(path, total_bytes, tail_bytes=0)
        settled = measure_open(path)
        for view in VIEWS:
            shutil.rmtree(path / view) if (path / view).is_dir() else (path / view).unlink()
        rebuilt = measure_open(path)
        assert rebuilt.messages == settled.messages > 0, "rebuilt views must hold the same number of messages"
    with folder_on_disk() as path:
        build_and_kill(path, total_bytes, tail_bytes)
        behind = measure_open(path)
        assert behind.messages == settled.messages
    rate = rebuilt.log_mb / rebuilt.seconds
    seconds_max, rate_min = (2.0, 200.0) if has_goals else (None, None)
    return [
        Row(f"open {size} after a kill", settled.seconds, "s", seconds_max, at_most=True),
        Row(
            f"open {size} after a kill, {tail_bytes / MIB:g} MiB not checkpointed",
            behind.seconds,
            "s",
            seconds_max,
            at_most=True,
        ),
        Row(f"open {size} without views, log read", rate, "MB/s", rate_min),
        Row(f"open {size}, memory at the highest", settled.grown_mb, "MB"),
        Row(f"open {size} without views, memory at the highest", rebuilt.grown_mb, "MB"),
    ]


def main() -> None:
    match sys.argv[1:]:
        case ["build", path, total_bytes, tail_bytes]:
            build(Path(path), int(total_bytes), int(tail_bytes))
        case ["open", path]:
            open_again(Path(path))
        case _ if is_smoke():
            report("recovery", measure(64 * MIB, 16 * MIB, has_goals=False))
        case _:
            tail_bytes = LogSettings().checkpoint_bytes
            small = measure(GIB, tail_bytes, has_goals=False)
            large = measure(4 * GIB, tail_bytes, has_goals=True)
            rebuilding = large[-1].value / small[-1].value
            flat = Row("memory to read 4 GiB again, against 1 GiB", rebuilding, "x", 1.25, at_most=True)
            report("recovery", [*small, *large, flat])


if __name__ == "__main__":
    main()
