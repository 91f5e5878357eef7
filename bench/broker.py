"""The broker's cost per message, in CPU time of its process, so that the load on the machine matters little.

The broker runs in a separate process; this process is the load. Frames are built beforehand and responses only counted.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from _harness import Row, folder_on_disk, is_smoke, report
from sparrow.wire import headers
from sparrow.wire.codes import RequestCode
from sparrow.wire.frame import RemotingCommand, decode, encode
from sparrow.wire.headers import OffsetResponse, PullMessage, QueueRequest, SendMessageV2
from sparrow.wire.headers.pull import SUBSCRIPTION_FLAG

BODY = b"x" * 100
PROPERTIES = "UNIQ_KEY\x017F0000010A2B18B4AAC20000000{:05d}\x02TAGS\x01paid\x02KEYS\x01order-{}\x02WAIT\x01true\x02"
IN_FLIGHT = 128


SENDERS = 64
"""Sends at a time that wait for the disk."""


@contextmanager
def broker(folder: Path, flush: str = "async", **log_settings: int) -> Iterator[tuple[int, int, str]]:
    """Run a broker in a separate process; yield its pid, its port and the address of its name server."""
    changed = {f"SPARROW_LOG__{name.upper()}": f"{value}" for name, value in log_settings.items()}
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "sparrow",
            "up",
            "--no-console",
            "--data",
            str(folder),
            "--port",
            "0",
            "--name-server-port",
            "0",
        ],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "SPARROW_LOG__FLUSH": flush, **changed},
    )
    try:
        assert process.stdout is not None
        port, name_servers = 0, ""
        for line in process.stdout:
            if found := re.match(r"broker \S+ \S+:(\d+)", line):
                port = int(found.group(1))
            if found := re.match(r"name server (\S+)", line):
                name_servers = found.group(1)
            if line.startswith("ready"):
                break
        yield process.pid, port, name_servers
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(20)


def cpu_of(pid: int) -> float:
    """Return the CPU time of all threads in seconds, as the scheduler counts it."""
    total = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            total += int((task / "schedstat").read_text().split()[0])
        except (FileNotFoundError, ProcessLookupError):
            continue
    return total / 1e9


def send_frame(opaque: int, body: bytes = BODY) -> bytes:
    header = SendMessageV2(
        "bench", "bench", "TBW102", 4, opaque % 4, 0, 1_700_000_000_000, 0, PROPERTIES.format(opaque % 99_999, opaque)
    )
    return encode(RemotingCommand(RequestCode.SEND_MESSAGE_V2, opaque, ext=headers.write(header), body=body))


def pull_frame(opaque: int, offset: int) -> bytes:
    header = PullMessage("bench", "bench", opaque % 4, offset, 32, SUBSCRIPTION_FLAG, 0, 0, 0, "*", "TAG")
    return encode(RemotingCommand(RequestCode.PULL_MESSAGE, opaque, ext=headers.write(header)))


class Load:
    """A connection that sends frames and counts the responses."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._rest = b""

    def round(self, frames: list[bytes]) -> bytes:
        """Send all frames at once and wait for as many responses; return the last one."""
        self._socket.sendall(b"".join(frames))
        data, missing = self._rest, len(frames)
        while missing:
            data += self._socket.recv(1 << 20)
            at = 0
            while len(data) - at >= 4 and len(data) - at >= (size := 4 + int.from_bytes(data[at : at + 4], "big")):
                last, at, missing = data[at : at + size], at + size, missing - 1
            data = data[at:]
        self._rest = data
        assert b'"code":0' in last[:200], last[:300]
        return last


def cost_us(pid: int, load: Load, frames: list[bytes], in_flight: int, rounds: int) -> float:
    """Return the broker's CPU time per frame, in the fastest of several rounds."""
    best = float("inf")
    for _ in range(rounds):
        begun = cpu_of(pid)
        for start in range(0, len(frames), in_flight):
            load.round(frames[start : start + in_flight])
        best = min(best, (cpu_of(pid) - begun) / len(frames) * 1e6)
    return best


def end_of(load: Load, queue_id: int) -> int:
    """Return the end offset of a queue."""
    last = load.round(
        [encode(RemotingCommand(RequestCode.GET_MAX_OFFSET, 1, ext=headers.write(QueueRequest("bench", queue_id))))]
    )
    return int(headers.read(OffsetResponse, decode(last).ext).offset)


def cost(name: str, value: float, goal: float | None = None) -> Row:
    return Row(f"{name}: broker CPU", value, "µs", None if is_smoke() else goal, at_most=True)


def main() -> None:
    count = 2_000 if is_smoke() else 40_000
    rounds = 1 if is_smoke() else 5
    with folder_on_disk() as folder, broker(folder) as (pid, port, _):
        load = Load(port)
        sends = [send_frame(number) for number in range(count)]
        load.round(sends[:1])  # creates the topic
        load.round(sends[:1000])
        pipelined = cost_us(pid, load, sends, IN_FLIGHT, rounds)
        alone = cost_us(pid, load, sends[: count // 4], 1, rounds)
        load.round(sends)  # a consumer near the end of the queue reads new messages
        ends = [end_of(load, queue) for queue in range(4)]
        pulls = [pull_frame(number, ends[number % 4] - 400 + number % 300) for number in range(count // 10)]
        assert len(load.round(pulls[:1])) > 32 * 200, "the pull must return 32 messages"
        pulled_alone = cost_us(pid, load, pulls, 1, rounds)
        pulled = cost_us(pid, load, pulls, 16, rounds)
    with folder_on_disk() as folder, broker(folder, "sync") as (pid, port, _):
        load = Load(port)
        load.round(sends[:1000])
        synced = cost_us(pid, load, sends[: count // 4], SENDERS, rounds)
    with folder_on_disk() as folder, broker(folder, hot_bytes=0) as (pid, port, _):
        load = Load(port)
        load.round(sends[:1000])
        old = [pull_frame(number, number % 200) for number in range(count // 10)]
        assert len(load.round(old[:1])) > 32 * 200, "the pull must return 32 messages"
        pulled_old = cost_us(pid, load, old, 1, rounds)
    report(
        "broker",
        [
            cost("send, pipelined", pipelined, 15),
            cost("send, one at a time", alone, 50),
            cost(f"send, {SENDERS} at a time, synchronous flush", synced),
            cost("pull of 32 near the end, one at a time", pulled_alone, 60),
            cost("pull of 32 near the end, pipelined", pulled, 60),
            cost("pull of 32 old ones from the page cache, one at a time", pulled_old),
        ],
    )


if __name__ == "__main__":
    main()
