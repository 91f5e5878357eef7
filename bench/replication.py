"""Replica sets of three: fail-over, hand-over, cost per message, latency, catch-up and idle cost, against one broker.

etcd, replicas and the single broker are separate processes on this machine; this process is the load. Costs are CPU
time of the processes, so that the load on the machine matters little.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import statistics
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import uvloop

from _harness import Row, folder_on_disk, is_smoke, report
from _replica_set import CLUSTER, ReplicaProcesses, replica_processes
from broker import BODY, IN_FLIGHT, Load, broker, cpu_of, send_frame
from sparrow import Message, aio
from sparrow.model.errors import SparrowError
from sparrow.net.access.peer_access import PeerAccess
from sparrow.replication.core.options import ReplicaOptions
from sparrow.replication.etcd.coordinator import EtcdCoordinator
from sparrow.replication.etcd.gateway import EtcdGateway
from sparrow.replication.identity import load_identity
from sparrow.replication.node import ReplicaNode
from sparrow.settings import LogSettings
from sparrow.store.log import LogStore

MESSAGES = 2_000 if is_smoke() else 40_000
ROUNDS = 1 if is_smoke() else 5
KILLS = 1 if is_smoke() else 10
COPIED_BYTES = (16 if is_smoke() else 1024) << 20
SEGMENT_BYTES = 1 << 28
STEADY = {"log__segment_bytes": SEGMENT_BYTES, "replication__lease_s": 20, "replication__lag_ms": 10_000}
"""A busy machine must not end the lease of a leader whose costs are measured."""
IDLE_S = 1 if is_smoke() else 20
PACED_S = 1 if is_smoke() else 10


def goal(value: float) -> float | None:
    return None if is_smoke() else value


# -- cost -------------------------------------------------------------------------------------------------------------


def cost_us(pids: list[int], load: Load, frames: list[bytes]) -> list[float]:
    """Return the CPU time of each process per frame, in the round that costs the first one least."""
    found = []
    for _ in range(ROUNDS):
        begun = [cpu_of(pid) for pid in pids]
        for start in range(0, len(frames), IN_FLIGHT):
            load.round(frames[start : start + IN_FLIGHT])
        found.append([(cpu_of(pid) - at) / len(frames) * 1e6 for pid, at in zip(pids, begun, strict=True)])
    return min(found)


def costs(processes: ReplicaProcesses, folder: Path) -> list[Row]:
    """Compare the CPU time per message of a leader and its followers with that of a single broker."""
    frames = [send_frame(number) for number in range(MESSAGES)]
    with broker(folder / "single") as (pid, port, _):
        load = connect_load(port)
        (single,) = cost_us([pid], load, frames)
        leader = processes.leader()
        followers = [one for one in processes.replicas.values() if one is not leader]
        load = connect_load(leader.port)
        of_leader, *of_followers = cost_us([leader.pid, *(one.pid for one in followers)], load, frames)
    follower = max(of_followers)
    return [
        Row("send to a single broker: CPU", single, "µs"),
        Row("send to a leader of three: CPU", of_leader, "µs"),
        Row("send to a leader of three: CPU of a follower", follower, "µs"),
        Row("leader CPU / single broker", of_leader / single, "×", goal(1.5), at_most=True),
        Row("follower CPU / single broker", follower / single, "×", goal(0.6), at_most=True),
    ]


def connect_load(port: int) -> Load:
    """Return a connection whose topic exists."""
    load = Load(port)
    until = time.monotonic() + 60
    while True:
        try:
            load.round([send_frame(0)])
            load.round([send_frame(number) for number in range(500)])
            return load
        except AssertionError:
            if time.monotonic() > until:
                raise
            load = Load(port)
            time.sleep(0.05)


# -- latency ----------------------------------------------------------------------------------------------------------


def paced_latency_ms(port: int, per_second: int) -> list[float]:
    """Send at a steady rate on one connection, and return the time that each answer took."""
    load = socket.create_connection(("127.0.0.1", port))
    load.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    load.setblocking(False)
    sent_at: list[float] = []
    found: list[float] = []
    data, total = b"", per_second * PACED_S
    begun = time.perf_counter()
    while len(found) < total:
        now = time.perf_counter()
        due = min(int((now - begun) * per_second), total)
        if len(sent_at) < due:
            frames = b"".join(send_frame(number) for number in range(len(sent_at), due))
            load.setblocking(True)
            load.sendall(frames)
            load.setblocking(False)
            sent_at += [now] * (due - len(sent_at))
        try:
            data += load.recv(1 << 20)
        except BlockingIOError:
            time.sleep(0.0002)
            continue
        now, at = time.perf_counter(), 0
        while len(data) - at >= 4 and len(data) - at >= (size := 4 + int.from_bytes(data[at : at + 4], "big")):
            found.append((now - sent_at[len(found)]) * 1000)
            at += size
        data = data[at:]
    load.close()
    return found


def latencies(processes: ReplicaProcesses, folder: Path) -> list[Row]:
    """Compare the latency at half load of a quorum in memory with that of one broker that flushes each message."""
    environment = os.environ.copy()
    os.environ["SPARROW_LOG__FLUSH"] = "sync"
    try:
        with broker(folder / "sync") as (_, port, _):
            load = connect_load(port)
            frames = [send_frame(number) for number in range(MESSAGES // 4)]
            begun = time.perf_counter()
            for start in range(0, len(frames), IN_FLIGHT):
                load.round(frames[start : start + IN_FLIGHT])
            half = max(100, int(len(frames) / (time.perf_counter() - begun) / 2))
            half = min(half, 2000)
            single = paced_latency_ms(port, half)
    finally:
        os.environ.clear()
        os.environ.update(environment)
    connect_load(processes.leader().port)
    quorum = paced_latency_ms(processes.leader().port, half)
    rows = [
        Row("load of the latencies below", half, "messages/s"),
        Row("single broker, sync flush: p99", p99(single), "ms"),
        Row("quorum of three: p50", statistics.median(quorum), "ms"),
        Row("quorum of three: p99", p99(quorum), "ms"),
        Row("quorum p99 / sync flush p99", p99(quorum) / p99(single), "×", goal(1.5), at_most=True),
    ]
    if set_scheduling(processes, os.SCHED_RR, 1):
        first = paced_latency_ms(processes.leader().port, half)
        set_scheduling(processes, os.SCHED_OTHER, 0)
        rows.append(Row("quorum of three, scheduled before other processes: p50", statistics.median(first), "ms"))
        rows.append(Row("quorum of three, scheduled before other processes: p99", p99(first), "ms"))
    return rows


def p99(found: list[float]) -> float:
    return statistics.quantiles(found, n=100)[98]


def set_scheduling(processes: ReplicaProcesses, policy: int, priority: int) -> bool:
    """Set how the kernel schedules the replicas; return whether that is permitted."""
    try:
        for replica in processes.replicas.values():
            for thread in Path(f"/proc/{replica.pid}/task").iterdir():
                os.sched_setscheduler(int(thread.name), policy, os.sched_param(priority))
    except PermissionError:
        return False
    return True


# -- idle -------------------------------------------------------------------------------------------------------------


def idle(processes: ReplicaProcesses) -> list[Row]:
    """Return the CPU share of each replica without any load."""
    processes.wait_in_sync()
    time.sleep(1)
    pids = [one.pid for one in processes.replicas.values()]
    begun, at = [cpu_of(pid) for pid in pids], time.monotonic()
    time.sleep(IDLE_S)
    wall = time.monotonic() - at
    shares = [(cpu_of(pid) - cpu) / wall * 100 for pid, cpu in zip(pids, begun, strict=True)]
    return [Row("idle: CPU of the busiest replica", max(shares), "% of a core", goal(1), at_most=True)]


# -- fail-over --------------------------------------------------------------------------------------------------------


async def outage_s(processes: ReplicaProcesses, fault: Callable[[], None]) -> float:
    """Return how long after a fault a send of a client is accepted again that sends all the time.

    A send that has begun before waits for its own time-out.
    """
    async with aio.Producer(processes.name_servers, timeout_ms=1000) as producer:
        accepted = asyncio.get_running_loop().create_future()

        async def send() -> None:
            with suppress(SparrowError):
                await producer.send(Message("outage", BODY))
                if not accepted.done():
                    accepted.set_result(time.monotonic())

        while not accepted.done():
            await send()
        accepted = asyncio.get_running_loop().create_future()
        begun, sends = time.monotonic(), []
        fault()
        while not accepted.done():
            sends.append(asyncio.create_task(send()))
            await asyncio.wait([accepted], timeout=0.01)
        for sending in sends:
            sending.cancel()
        await asyncio.gather(*sends, return_exceptions=True)
        return float(accepted.result()) - begun


def fail_overs(processes: ReplicaProcesses) -> list[Row]:
    """Kill leaders, stop leaders, and end leaders in order; measure until a send is accepted again."""
    killed, stopped, ended = [], [], []
    for number in range(3 * KILLS):
        processes.wait_in_sync()
        leader = processes.leader()
        fault = (signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM)[number % 3]
        found = (killed, stopped, ended)[number % 3]
        found.append(asyncio.run(outage_s(processes, lambda leader=leader, fault=fault: leader.signal(fault))))
        if fault is signal.SIGSTOP:
            leader.signal(signal.SIGCONT)
        else:
            assert leader.process is not None
            leader.process.wait()
            leader.start()
    return [
        Row("leader killed, connection refused: median", statistics.median(killed), "s", goal(1), at_most=True),
        Row("leader killed, connection refused: max", max(killed), "s"),
        Row("leader silent, TTL 2 s: median", statistics.median(stopped), "s", goal(2.3), at_most=True),
        Row("leader silent, TTL 2 s: max", max(stopped), "s", goal(3), at_most=True),
        Row("leader ended in order: median without writes", statistics.median(ended), "s", goal(0.2), at_most=True),
    ]


# -- catch-up ---------------------------------------------------------------------------------------------------------


async def copy_rate(processes: ReplicaProcesses, folder: Path, replica_id: int) -> tuple[float, float]:
    """Follow the leader with an empty replica in this process; return MB/s by the clock and by CPU time."""
    identity = load_identity(folder, processes.set_id, replica_id, flushes=False)
    settings = LogSettings(segment_bytes=SEGMENT_BYTES).model_copy(update={"visible_after": "replicated"})
    store = await asyncio.to_thread(LogStore, folder, settings, follows=True)
    gateway = EtcdGateway([processes.etcd_url])
    coordinator = EtcdCoordinator(gateway, CLUSTER, processes.name, replica_id, address="127.0.0.1:1")
    node = ReplicaNode(
        store, identity, ReplicaOptions(set_id=processes.set_id, replica_id=replica_id), coordinator, PeerAccess()
    )
    leader = processes.leader()
    await node.start()
    try:
        begun, cpu, leader_cpu = time.monotonic(), time.process_time(), cpu_of(leader.pid)
        while store.written < COPIED_BYTES:
            await asyncio.sleep(0.002)
        copied = store.written / 1e6
        wall = time.monotonic() - begun
        busiest = max(time.process_time() - cpu, cpu_of(leader.pid) - leader_cpu)
        return copied / wall, copied / busiest
    finally:
        await node.stop()
        await store.close()
        await gateway.close()


def catch_up(processes: ReplicaProcesses, folder: Path) -> list[Row]:
    """Fill the log, replace a follower by an empty one, and measure how fast it copies."""
    leader = processes.leader()
    frames = [send_frame(number, b"x" * 4096) for number in range(128)]
    load = connect_load(leader.port)
    for _ in range(COPIED_BYTES // (len(frames) * 4300) + 1):
        load.round(frames)
    victim = next(one for one in processes.replicas.values() if one is not leader)
    victim.kill()
    wall, cpu = uvloop.run(copy_rate(processes, folder / "empty", victim.replica_id))
    return [
        Row("catch-up of an empty replica", wall, "MB/s", goal(300)),
        Row("catch-up of an empty replica, by CPU time of the busier side", cpu, "MB/s"),
    ]


def main() -> None:
    rows: list[Row] = []
    with folder_on_disk() as folder:
        with replica_processes(folder, "steady", **STEADY) as processes:
            rows += idle(processes)
            rows += costs(processes, folder)
            rows += latencies(processes, folder)
            rows += catch_up(processes, folder)
        with replica_processes(folder, "failing") as processes:
            rows += fail_overs(processes)
    report("replication", rows)


if __name__ == "__main__":
    main()
