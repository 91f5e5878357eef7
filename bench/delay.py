"""Delayed messages: their lateness when many are due while a million others wait, and the cost of waiting ones.

The broker runs in a separate process. Lateness is measured at a consumer that waits for the messages.
"""

from __future__ import annotations

import random
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow.compute as pc

from _harness import Row, folder_on_disk, is_smoke, report
from broker import Load, broker, cpu_of
from sparrow.wire import columns, headers
from sparrow.wire.codes import RequestCode
from sparrow.wire.columns.properties import ParsedProperties
from sparrow.wire.connection import Connection
from sparrow.wire.frame import RemotingCommand, encode
from sparrow.wire.headers import PullMessage, PullMessageResponse, SendMessageV2
from sparrow.wire.headers.pull import SUBSCRIPTION_FLAG, SUSPEND_FLAG

BODY = b"x" * 100
IN_FLIGHT = 128
DAY_MS = 86_400_000


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def timer_frame(opaque: int, topic: str, due_ms: int) -> bytes:
    words = f"UNIQ_KEY\x017F0000010A2B18B4AAC2{opaque:012d}\x02TIMER_DELIVER_MS\x01{due_ms}\x02"
    header = SendMessageV2("bench", topic, "TBW102", 1, 0, 0, 1_700_000_000_000, 0, words)
    return encode(RemotingCommand(RequestCode.SEND_MESSAGE_V2, opaque, ext=headers.write(header), body=BODY))


def send(load: Load, topic: str, due_ms: list[int]) -> None:
    for start in range(0, len(due_ms), IN_FLIGHT):
        some = due_ms[start : start + IN_FLIGHT]
        load.round([timer_frame(start + number, topic, due) for number, due in enumerate(some)])


def arrivals(port: int, topic: str, count: int, *, within_s: float) -> Iterator[tuple[int, list[int]]]:
    """Return the arrival time of each response to a waiting consumer, with the due times of its messages."""
    connection, opaque, offset, seen = Connection(), 0, 0, 0
    deadline = time.monotonic() + within_s
    with socket.create_connection(("127.0.0.1", port)) as link:
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while seen < count:
            assert time.monotonic() < deadline, f"{seen} of {count} messages arrived within {within_s} s"
            opaque += 1
            flag = SUBSCRIPTION_FLAG | SUSPEND_FLAG
            header = PullMessage("bench", topic, 0, offset, 1024, flag, 0, 5_000, 0, "*", "TAG", accepts_many=True)
            link.sendall(encode(RemotingCommand(RequestCode.PULL_MESSAGE, opaque, ext=headers.write(header))))
            answers: list[RemotingCommand] = []
            while not answers:
                answers = list(connection.feed(link.recv(1 << 20)))
            came_ms = now_ms()
            offset = headers.read(PullMessageResponse, answers[0].ext).next_offset
            if answers[0].body:
                raw = columns.decode(bytes(answers[0].body), columns=["properties_raw"]).column(0)
                due = pc.cast(pc.cast(ParsedProperties(raw).get("TIMER_OUT_MS"), "string"), "int64").to_pylist()
                seen += len(due)
                yield came_ms, due


def lateness(port: int, topic: str, count: int, *, within_s: float) -> np.ndarray:
    late = [came_ms - due_ms for came_ms, dues in arrivals(port, topic, count, within_s=within_s) for due_ms in dues]
    assert len(late) == count, "every message must arrive exactly once"
    assert min(late) >= 0, "no message may arrive before it is due"
    return np.array(late)


def cost_us(pid: int, load: Load, count: int) -> float:
    """Return the broker's CPU time for a timer that is due much later, in the fastest of several rounds."""
    best = float("inf")
    for _ in range(3):
        frames = [timer_frame(number, "cost", now_ms() + 2 * DAY_MS) for number in range(count)]
        begun = cpu_of(pid)
        for start in range(0, count, IN_FLIGHT):
            load.round(frames[start : start + IN_FLIGHT])
        best = min(best, (cpu_of(pid) - begun) / count * 1e6)
    return best


def anon_mb(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) / 1024
    raise AssertionError("/proc has no RssAnon; this bench needs Linux")


def main() -> None:
    smoke = is_smoke()
    waiting, due_soon, window_ms = (5_000, 1_000, 1_000) if smoke else (1_000_000, 200_000, 60_000)
    rng = random.Random(1)
    with folder_on_disk() as folder:
        with broker(folder) as (pid, port, _):
            load = Load(port)
            for topic in ("far", "cost", "minute", "instant", "cold"):
                send(load, topic, [now_ms() + 2 * DAY_MS])
            alone_us = cost_us(pid, load, due_soon // 10)
            before_mb = anon_mb(pid)
            begun_ms = now_ms()
            send(load, "far", [begun_ms + DAY_MS + rng.randrange(DAY_MS) for _ in range(waiting)])
            held_mb = anon_mb(pid) - before_mb
            among_us = cost_us(pid, load, due_soon // 10)

            burst = due_soon // 10
            due_ms = now_ms() + 1_000 + burst // 8
            send(load, "instant", [due_ms] * burst)
            late_of_burst = lateness(port, "instant", burst, within_s=60)

            # In random order, and all stored before the first is due. Sending is twice as fast as this rate.
            begin_ms = now_ms() + (1_000 if smoke else due_soon // 8)
            send(load, "minute", [begin_ms + rng.randrange(window_ms) for _ in range(due_soon)])
            assert now_ms() < begin_ms, "sending took too long: some messages were due before all were stored"
            late = lateness(port, "minute", due_soon, within_s=window_ms / 1000 + 60)
            # Sent before the restart and due after it: the new process has none of them in memory.
            cold_ms = now_ms() + (8_000 if smoke else 20_000) + burst // 8
            send(load, "cold", [cold_ms] * burst)
        begun = time.perf_counter()
        with broker(folder) as (pid, port, _):
            opening_s = time.perf_counter() - begun
            after_mb = anon_mb(pid)
            assert now_ms() < cold_ms, "the restart took too long: messages were due before it ended"
            late_when_cold = lateness(port, "cold", burst, within_s=120)

    def at_most(name: str, value: float, unit: str, goal: float) -> Row:
        return Row(name, value, unit, None if smoke else goal, at_most=True)

    due = f"{due_soon} timers due in {window_ms // 1000} s"
    report(
        "delay",
        [
            at_most(f"{due}: p99 lateness", float(np.percentile(late, 99)), "ms", 200),
            at_most(f"{due}: median lateness", float(np.median(late)), "ms", 100),
            Row(f"{burst} timers due at once: the last one's lateness", float(late_of_burst.max()), "ms"),
            Row(
                f"{burst} timers due at once after a restart: the last one's lateness",
                float(late_when_cold.max()),
                "ms",
            ),
            at_most(f"{waiting} timers waiting: memory", held_mb, "MB", 150),
            Row(f"{waiting} timers waiting: memory of the whole broker after a restart", after_mb, "MB"),
            Row(f"{waiting} timers waiting: time to start again", opening_s, "s"),
            Row("a timer sent with none waiting: broker CPU", alone_us, "µs"),
            Row(f"a timer sent with {waiting} waiting: broker CPU", among_us, "µs"),
            at_most("slowdown by those waiting", among_us / alone_us, "times", 1.25),
        ],
    )


if __name__ == "__main__":
    main()
