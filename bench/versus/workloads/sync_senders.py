"""Threads of the official Java client that send single messages, each waiting for its answer."""

from __future__ import annotations

from bench.versus.java_load import JavaLoad
from bench.versus.peers.rocketmq import RocketMQ
from bench.versus.peers.sparrow import Sparrow
from bench.versus.rounds import Figures
from bench.versus.workload import CPU, P99, RATE

TOPIC = "senders"


def sync_senders(load: JavaLoad, peer: Sparrow | RocketMQ, *, senders: int, body_bytes: int, seconds: float) -> Figures:
    before = peer.cpu_s
    result = load.run("send", peer.address, TOPIC, senders=senders, bytes=body_bytes, millis=int(seconds * 1000))
    return {
        RATE: result.messages / result.seconds,
        CPU: (peer.cpu_s - before) / result.messages * 1e6,
        P99: result.p99_ms,
    }
