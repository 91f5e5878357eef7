"""Transactions per second, end to end: half message, response, commit, and the message at a consumer, 64 in flight.

The broker runs in a separate process; this process is the load and sends plain frames. Commits are one-way, as all
clients send them. A transaction counts as in flight until a waiting consumer has its message.
"""

from __future__ import annotations

import re
import select
import socket
import time

import numpy as np

from _harness import Row, folder_on_disk, is_smoke, report
from broker import Load, broker, cpu_of
from sparrow.wire import headers
from sparrow.wire.codes import RequestCode
from sparrow.wire.connection import Connection
from sparrow.wire.frame import ONE_WAY_FLAG, RemotingCommand, encode
from sparrow.wire.headers import EndTransaction, PullMessage, PullMessageResponse, SendMessageV2
from sparrow.wire.headers.pull import SUBSCRIPTION_FLAG, SUSPEND_FLAG

BODY = b"x" * 100
IN_FLIGHT = 64
COMMIT = 8
_PLACE = re.compile(rb'"opaque":(\d+).*?"msgId":"[0-9A-F]{16}([0-9A-F]{16})".*?"queueOffset":"(\d+)"', re.DOTALL)


def half_frame(opaque: int) -> bytes:
    words = f"UNIQ_KEY\x017F0000010A2B18B4AAC2{opaque:012d}\x02TRAN_MSG\x01true\x02PGROUP\x01bench\x02"
    header = SendMessageV2("bench", "bench", "TBW102", 1, 0, 4, 1_700_000_000_000, 0, words)
    return encode(RemotingCommand(RequestCode.SEND_MESSAGE_V2, opaque, ext=headers.write(header), body=BODY))


def commit_frame(opaque: int, queue_offset: int, physical_offset: int) -> bytes:
    header = EndTransaction("bench", queue_offset, physical_offset, COMMIT, "id")
    return encode(RemotingCommand(RequestCode.END_TRANSACTION, opaque, ONE_WAY_FLAG, ext=headers.write(header)))


def pull_frame(opaque: int, offset: int) -> bytes:
    header = PullMessage(
        "bench", "bench", 0, offset, 1024, SUBSCRIPTION_FLAG | SUSPEND_FLAG, 0, 5_000, 0, "*", "TAG", accepts_many=True
    )
    return encode(RemotingCommand(RequestCode.PULL_MESSAGE, opaque, ext=headers.write(header)))


class Run:
    """One connection sends half messages and commits, another consumes. A transaction is in flight until its message
    arrives."""

    def __init__(self, port: int, frames: list[bytes]) -> None:
        self._producer, self._consumer = (socket.create_connection(("127.0.0.1", port)) for _ in range(2))
        for link in (self._producer, self._consumer):
            link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._frames = frames
        self._sent = self._came = self.in_flight_max = 0
        self._data, self._pulled = b"", Connection()
        self.begun, self.came = np.zeros(len(frames)), np.zeros(len(frames))

    def run(self) -> None:
        with self._producer, self._consumer:
            self._pull()
            self._begin()
            while self._came < len(self._frames):
                ready, _, _ = select.select((self._producer, self._consumer), (), (), 30)
                assert ready, f"{self._came} of {len(self._frames)} messages arrived, and no other for 30 s"
                if self._producer in ready:
                    self._commit(self._producer.recv(1 << 20))
                if self._consumer in ready:
                    self._take(self._consumer.recv(1 << 20))

    def _begin(self) -> None:
        """Send half messages up to the limit of transactions in flight."""
        stop = min(self._came + IN_FLIGHT, len(self._frames))
        if stop > self._sent:
            self.begun[self._sent : stop] = time.perf_counter()
            self._producer.sendall(b"".join(self._frames[self._sent : stop]))
            self._sent = stop
            self.in_flight_max = max(self.in_flight_max, self._sent - self._came)

    def _commit(self, answers: bytes) -> None:
        data, at, out = self._data + answers, 0, []
        while len(data) - at >= 4 and len(data) - at >= (size := 4 + int.from_bytes(data[at : at + 4], "big")):
            found = _PLACE.search(data, at, at + size)
            assert found is not None, data[at : at + size]
            opaque, physical, queue_offset = found.groups()
            out.append(commit_frame(1_000_000 + int(opaque), int(queue_offset), int(physical, 16)))
            at += size
        self._data = data[at:]
        self._producer.sendall(b"".join(out))

    def _pull(self) -> None:
        self._consumer.sendall(pull_frame(self._came, self._came))

    def _take(self, answer: bytes) -> None:
        for command in self._pulled.feed(answer):
            came = headers.read(PullMessageResponse, command.ext).next_offset
            self.came[self._came : came] = time.perf_counter()
            self._came = came
            self._begin()
            self._pull()


def main() -> None:
    count = 2_000 if is_smoke() else 60_000
    frames = [half_frame(number) for number in range(count)]
    with folder_on_disk() as folder, broker(folder) as (pid, port, _):
        Load(port).round([half_frame(count)])  # creates the topic, and is never committed
        work = Run(port, frames)
        cpu = cpu_of(pid)
        work.run()
        cpu = cpu_of(pid) - cpu
    assert work.in_flight_max == IN_FLIGHT, "the limit of transactions in flight must be reached"
    took_s = float(work.came[-1] - work.begun[0])
    # Transactions of one connection are committed in the order of their begin, so the nth message belongs to the nth
    # begin.
    latency_ms = (work.came - work.begun) * 1000
    in_flight = float((work.came - work.begun).sum()) / took_s
    assert in_flight <= IN_FLIGHT, "the average of transactions in flight must not exceed the limit"
    report(
        "transactions",
        [
            Row("transactions, 64 in flight", count / took_s, "a second", None if is_smoke() else 5_000),
            Row("in flight, on average", in_flight, "transactions"),
            Row("a transaction: broker CPU", cpu / count * 1e6, "µs"),
            Row("from half message to consumer: median", float(np.median(latency_ms)), "ms"),
            Row("from half message to consumer: p99", float(np.percentile(latency_ms, 99)), "ms"),
        ],
    )


if __name__ == "__main__":
    main()
