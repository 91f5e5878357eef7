"""The tools of the torture test do what they say: otherwise it would prove nothing."""

from __future__ import annotations

import asyncio
import errno
import os
import random
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.fault.store_contents import Place, assert_same_records, open_store, read_served
from tests.fault.torture import file_damage
from tests.fault.torture.fault_proxy import FaultProxy
from tests.fault.torture.memory_disk import memory_disk
from tests.fault.torture.wall_clock import WallClock
from tests.support.databases import _free_port
from tests.support.log_stores import checkpoint
from tests.support.wait import eventually

from sparrow.clock import now_ms
from sparrow.model.message import Draft
from sparrow.model.queue import Queue
from sparrow.model.topic import Topic
from sparrow.net import Address
from sparrow.store.log import LogStore

CLOCK_READER = """
import sys
from sparrow.clock import monotonic_ms, now_ms
for _ in sys.stdin:
    print(now_ms(), monotonic_ms(), flush=True)
"""
QUEUES = [Queue("orders", 0), Queue("orders", 1)]


def test_the_wall_clock_of_a_process_is_set_while_it_runs_and_its_monotonic_clock_is_not(tmp_path: Path) -> None:
    clock = WallClock(tmp_path / "clock")
    with subprocess.Popen(
        [sys.executable, "-c", CLOCK_READER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | clock.environment,
    ) as process:

        def read() -> tuple[int, int]:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write("\n")
            process.stdin.flush()
            wall, monotonic = process.stdout.readline().split()
            return int(wall) - now_ms(), int(monotonic)

        first, begun = read()
        assert abs(first) < 1_000
        for offset_ms in (3_600_000, -3_600_000, 0):
            clock.set(offset_ms)
            offset, monotonic = read()
            assert abs(offset - offset_ms) < 1_000
            assert 0 <= monotonic - begun < 60_000


def test_a_full_disk_refuses_writes_until_it_is_free_again(tmp_path: Path) -> None:
    with memory_disk(tmp_path / "disk") as disk:
        if disk is None:
            pytest.skip("no file system can be mounted here")
        (disk.path / "before").write_bytes(bytes(1 << 20))
        assert disk.fill() >= 1 << 20
        with pytest.raises(OSError) as refused:
            (disk.path / "more").write_bytes(bytes(1 << 20))
        assert refused.value.errno == errno.ENOSPC
        disk.free()
        (disk.path / "more").write_bytes(bytes(1 << 20))


# -- files ------------------------------------------------------------------------------------------------------------


async def fill(path: Path) -> tuple[int, dict[Place, bytes]]:
    """Leave a store as a kill does: copied while it is open. Return its end, and its records."""
    store = open_store(path / "living")
    await store.catalog.put_topic(Topic(name="orders"))
    for number in range(100):
        await store.append(QUEUES[number % 2], [Draft(body=b"%d" % number, properties=b"KEYS\x01k%d\x02" % number)])
        if number == 50:
            checkpoint(store)
    contents, end = await read_served(store, QUEUES), store.written
    shutil.copytree(path / "living", path / "killed")
    store.close_blocking()
    return end, contents


async def test_the_last_record_is_found_without_the_code_under_test(tmp_path: Path) -> None:
    end, _ = await fill(tmp_path)
    segment, last, found = file_damage.find_last_record(tmp_path / "killed")
    assert int(segment.name) + found == end
    assert last < found


async def test_the_damage_to_a_log_store_loses_nothing_and_hits_every_kind_of_file(tmp_path: Path) -> None:
    _, contents = await fill(tmp_path)
    done = []
    for seed in range(40):
        path = tmp_path / str(seed)
        shutil.copytree(tmp_path / "killed", path)
        done.append(file_damage.damage_log_store(path, random.Random(seed)))
        store: LogStore = open_store(path)
        try:
            assert_same_records(await read_served(store, QUEUES), contents)
        except AssertionError as cause:
            cause.add_note(f"seed {seed}: {done[-1]}")
            raise
        finally:
            store.close_blocking()
    for kind in ("consumequeue/", "orders/", "garbage after", "of a record after", "sparrow.", "index"):
        assert any(kind in text for text in done), (kind, done)


# -- connections ------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def echo_through_proxy() -> AsyncIterator[tuple[FaultProxy, Address, list[bytes]]]:
    """Run a server that answers with what it gets; yield the proxy before it, its address, and what the server got."""
    got: list[bytes] = []

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1 << 16):
            got.append(data)
            writer.write(data)
        writer.close()

    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    address = Address("127.0.0.1", _free_port())
    async with FaultProxy(address, Address(*server.sockets[0].getsockname()), random.Random(1)) as proxy:
        yield proxy, address, got
    server.close()


async def read_end(reader: asyncio.StreamReader) -> bytes:
    """Return what comes until the connection ends, in order or not."""
    try:
        return await reader.read()
    except ConnectionError:
        return b""


async def test_a_proxy_holds_delays_and_cuts_connections() -> None:
    async with echo_through_proxy() as (proxy, address, got):
        reader, writer = await asyncio.open_connection(*address)
        writer.write(b"one")
        assert await reader.readexactly(3) == b"one"
        assert proxy.connections == 1
        proxy.hold()
        writer.write(b"two")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(reader.readexactly(3), 0.05)
        assert got == [b"one"]
        proxy.release()
        assert await reader.readexactly(3) == b"two"
        proxy.delay_s = 0.05
        begun = asyncio.get_running_loop().time()
        writer.write(b"three")
        assert await reader.readexactly(5) == b"three"
        assert asyncio.get_running_loop().time() - begun >= 0.1
        assert proxy.cut(1.0) == 1
        assert await read_end(reader) == b""
        writer.close()
        await eventually(lambda: proxy.connections == 0)


async def test_a_proxy_loses_answers_to_requests_that_arrive() -> None:
    async with echo_through_proxy() as (proxy, address, got):
        reader, writer = await asyncio.open_connection(*address)
        proxy.loses_answers = True
        writer.write(b"request")
        await eventually(lambda: got == [b"request"])
        proxy.cut(1.0)
        assert await read_end(reader) == b""
        writer.close()


async def test_a_proxy_tears_a_frame() -> None:
    async with echo_through_proxy() as (proxy, address, got):
        reader, writer = await asyncio.open_connection(*address)
        proxy.tears = True
        writer.write(bytes(1_000))
        assert await read_end(reader) == b""
        writer.close()
        await eventually(lambda: proxy.connections == 0)
        assert 0 < len(b"".join(got)) < 1_000
