"""How the broker's cost of a request grows with queues, connections, groups, the log and shards.

Each curve grows one thing in a running broker and measures the CPU time of the broker's processes after each step, so
that the load on the machine matters little. The goal of a curve is that its last step costs at most 20 % more than its
first. `bench/sql_store.py` measures the backlog of a database, `bench/delay.py` waiting timers.
"""

from __future__ import annotations

import os
import re
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import psutil

from _harness import Row, folder_on_disk, is_smoke, report
from broker import IN_FLIGHT, Load, broker, cost_us, cpu_of, end_of, pull_frame, send_frame
from sparrow.wire import headers
from sparrow.wire.codes import RequestCode
from sparrow.wire.frame import RemotingCommand, encode
from sparrow.wire.headers import CommitOffset, SendMessageV2, UpdateTopic

FLAT = 1.2
"""The most that the last step may cost, of the first."""
QUEUES_A_TOPIC = 1_000
FILLER_BYTES = 3 << 20
MIB = 1 << 20
BAR = 40

COUNT = 2_000 if is_smoke() else 20_000
ROUNDS = 1 if is_smoke() else 5
QUEUES = [4, 200] if is_smoke() else [4, 200, 2_000, 20_000]
CONNECTIONS = [1, 50] if is_smoke() else [1, 100, 1_000, 9_000]
GROUPS = [1, 50] if is_smoke() else [1, 100, 1_000, 5_000]
LOG_MIB = [0, 16] if is_smoke() else [0, 512, 4_096, 16_384]
SHARDS = [2, 3] if is_smoke() else [2, 4, 8]
"""From two on: one shard is a broker in the process of the name server."""

Curve = list[tuple[int, float]]
"""Steps: how many, and the cost of a request in µs."""


# -- requests ---------------------------------------------------------------------------------------------------------


def request_frame(code: int, header: headers.Header, body: bytes = b"") -> bytes:
    return encode(RemotingCommand(code, 1, ext=headers.write(header), body=body))


def topic_frame(name: str, queues: int) -> bytes:
    topic = UpdateTopic(name, "TBW102", queues, queues, 6, "SINGLE_TAG", False)
    return request_frame(RequestCode.UPDATE_AND_CREATE_TOPIC, topic)


def spread_frame(number: int, queues: int) -> bytes:
    """Return a send to one of all queues; neighbours go to queues far apart."""
    queue = number * 7_919 % queues
    header = SendMessageV2(
        "bench", f"growth-{queue // QUEUES_A_TOPIC}", "TBW102", 4, queue % QUEUES_A_TOPIC, 0, 1_700_000_000_000, 0
    )
    return request_frame(RequestCode.SEND_MESSAGE_V2, header, b"x" * 100)


def commit_frame(group: int, offset: int) -> bytes:
    return request_frame(RequestCode.UPDATE_CONSUMER_OFFSET, CommitOffset(f"group-{group}", "bench", 0, offset))


def send_cost(pid: int, load: Load) -> float:
    """Return the cost of a send to the four queues that every broker here has."""
    return cost_us(pid, load, [send_frame(number) for number in range(COUNT)], IN_FLIGHT, ROUNDS)


def pull_cost(pid: int, load: Load) -> float:
    """Return the cost of a pull of 32 messages near the end of a queue."""
    load.round([send_frame(number) for number in range(2_000)])
    ends = [end_of(load, queue) for queue in range(4)]
    pulls = [pull_frame(number, ends[number % 4] - 400 + number % 300) for number in range(COUNT // 10)]
    return cost_us(pid, load, pulls, 16, ROUNDS)


@contextmanager
def loaded_broker(folder: Path) -> Iterator[tuple[int, int, Load]]:
    """Run a broker that has the topic `bench` and is warm; yield its pid, its port and a connection."""
    with broker(folder) as (pid, port, _):
        load = Load(port)
        for _ in range(3):
            load.round([send_frame(number) for number in range(1_000)])
        yield pid, port, load


# -- curves -----------------------------------------------------------------------------------------------------------


def grow_queues(folder: Path) -> dict[str, Curve]:
    spread: Curve = []
    pulled: Curve = []
    with loaded_broker(folder) as (pid, _, load):
        made = 0
        for queues in QUEUES:
            for first in range(made, queues, QUEUES_A_TOPIC):
                load.round([topic_frame(f"growth-{first // QUEUES_A_TOPIC}", min(queues - first, QUEUES_A_TOPIC))])
            made = queues - queues % QUEUES_A_TOPIC
            frames = [spread_frame(number, queues) for number in range(max(COUNT, queues))]
            for start in range(0, len(frames), IN_FLIGHT):  # the first message of a queue makes its files
                load.round(frames[start : start + IN_FLIGHT])
            spread.append((queues, cost_us(pid, load, frames, IN_FLIGHT, ROUNDS)))
            pulled.append((queues, pull_cost(pid, load)))
    return {"queues: a send to any of them": spread, "queues: a pull from one of them": pulled}


def grow_connections(folder: Path) -> dict[str, Curve]:
    sent: Curve = []
    idle: Curve = []
    with loaded_broker(folder) as (pid, port, load):
        others: list[socket.socket] = []
        for count in CONNECTIONS:
            while len(others) < count - 1:
                others.append(socket.create_connection(("127.0.0.1", port)))
            time.sleep(0.5)  # until all are accepted
            sent.append((count, send_cost(pid, load)))
            begun_s, begun_cpu_s = time.monotonic(), cpu_of(pid)
            time.sleep(0.5 if is_smoke() else 3.0)
            idle.append((count, (cpu_of(pid) - begun_cpu_s) / (time.monotonic() - begun_s) * 1e6))
        for other in others:
            other.close()
    return {"connections: a send on one of them": sent, "connections: a second without requests": idle}


def grow_groups(folder: Path) -> dict[str, Curve]:
    sent: Curve = []
    pulled: Curve = []
    committed: Curve = []
    with loaded_broker(folder) as (pid, _, load):
        for count in GROUPS:
            for start in range(0, count, IN_FLIGHT):
                load.round([commit_frame(group, 1) for group in range(start, min(count, start + IN_FLIGHT))])
            commits = [commit_frame(number % count, number) for number in range(COUNT)]
            committed.append((count, cost_us(pid, load, commits, IN_FLIGHT, ROUNDS)))
            sent.append((count, send_cost(pid, load)))
            pulled.append((count, pull_cost(pid, load)))
    return {"groups: a commit of any of them": committed, "groups: a send": sent, "groups: a pull": pulled}


def grow_log(folder: Path) -> dict[str, Curve]:
    sent: Curve = []
    pulled: Curve = []
    with loaded_broker(folder) as (pid, _, load):
        header = SendMessageV2("bench", "filler", "TBW102", 4, 0, 0, 1_700_000_000_000, 0)
        filler = request_frame(RequestCode.SEND_MESSAGE_V2, header, os.urandom(FILLER_BYTES))
        written = 0
        for mib in LOG_MIB:
            while written < mib * MIB:
                load.round([filler] * 4)
                written += 4 * FILLER_BYTES
            sent.append((mib, send_cost(pid, load)))
            pulled.append((mib, pull_cost(pid, load)))
    return {"MiB of log: a send": sent, "MiB of log: a pull": pulled}


def grow_shards(folder: Path) -> dict[str, Curve]:
    sent: Curve = []
    for count in SHARDS:
        with shards(folder / str(count), count) as (pids, ports):
            loads = [Load(port) for port in ports]
            frames = [send_frame(number) for number in range(COUNT)]
            for load in loads:
                load.round(frames[:1_000])
            best = float("inf")
            for _ in range(ROUNDS):
                begun = sum(map(cpu_of, pids))
                for start in range(0, len(frames), IN_FLIGHT):
                    loads[start // IN_FLIGHT % count].round(frames[start : start + IN_FLIGHT])
                best = min(best, (sum(map(cpu_of, pids)) - begun) / len(frames) * 1e6)
            sent.append((count, best))
    return {"shards: a send to any of them": sent}


@contextmanager
def shards(folder: Path, count: int) -> Iterator[tuple[list[int], list[int]]]:
    """Run a name server and brokers in processes of their own; yield the pids of all, and the brokers' ports."""
    words = ["up", "--no-console", "--shards", str(count), "--data", str(folder), "--port", "0"]
    process = subprocess.Popen(
        [sys.executable, "-m", "sparrow", *words, "--name-server-port", "0"], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        ports = []
        for line in process.stdout:
            if found := re.search(r"broker \S+ \S+:(\d+)", line):
                ports.append(int(found.group(1)))
            if line.startswith("ready"):
                break
        yield [process.pid, *(child.pid for child in psutil.Process(process.pid).children())], ports
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(30)


# -- the report -------------------------------------------------------------------------------------------------------


def draw(name: str, curve: Curve) -> None:
    """Print a curve as bars."""
    print(name)
    largest = max(cost for _, cost in curve) or 1.0
    for size, cost in curve:
        print(f"  {size:>8,}  {cost:>10,.2f} µs  {'▇' * max(1, round(cost / largest * BAR))}")


def rows_of(name: str, curve: Curve) -> list[Row]:
    steps = [Row(f"{name}, {size:,}", cost, "µs of CPU") for size, cost in curve]
    (first, first_cost), (last, last_cost) = curve[0], curve[-1]
    if "without requests" in name:  # one connection costs nearly nothing, so a ratio says nothing
        share = Row(f"{name}, {last:,}", last_cost / 1e4, "% of a core", None if is_smoke() else 1.0, at_most=True)
        return [*steps[:-1], share]
    goal = None if is_smoke() else FLAT
    return [*steps, Row(f"{name}, {last:,} / {first:,}", last_cost / first_cost, "times", goal, at_most=True)]


CURVES: Sequence[Callable[[Path], dict[str, Curve]]] = (
    grow_queues,
    grow_connections,
    grow_groups,
    grow_log,
    grow_shards,
)


def main() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # the broker inherits it
    rows: list[Row] = []
    for measure in CURVES:
        with folder_on_disk() as folder:
            for name, curve in measure(folder).items():
                draw(name, curve)
                rows += rows_of(name, curve)
    report("growth", rows)


if __name__ == "__main__":
    main()
