"""Messages at a fixed rate from the official Java client to its push consumer: the time from send to receipt."""

from __future__ import annotations

from bench.versus.java_load import JavaLoad
from bench.versus.peers.rocketmq import RocketMQ
from bench.versus.peers.sparrow import Sparrow
from bench.versus.rounds import Figures
from bench.versus.workload import CPU, P50, P99

TOPIC = "paced"
BODY_BYTES = 128
GROUP = "paced-consumer"
"""The same in all rounds: it continues at its end. A new group would read the rounds before, from the first offset."""


def paced_senders(load: JavaLoad, peer: Sparrow | RocketMQ, *, senders: int, rate: int, seconds: float) -> Figures:
    before = peer.cpu_s
    messages = max(senders, int(rate * seconds))
    order = {"senders": senders, "rate": rate, "messages": messages, "bytes": BODY_BYTES, "group": GROUP}
    result = load.run("latency", peer.address, TOPIC, **order)
    return {P50: result.p50_ms, P99: result.p99_ms, CPU: (peer.cpu_s - before) / result.messages * 1e6}
