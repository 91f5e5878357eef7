"""A backlog of gigabytes, in messages of 64 KB, that a push consumer of the official Java client reads from the start.

The server has just written it, so that the page cache has all of it where memory permits. A figure says how much the
server read from the disk nevertheless.
"""

from __future__ import annotations

from bench.versus.java_load import JavaLoad
from bench.versus.peers.peer import Peer
from bench.versus.rounds import Figures
from bench.versus.run import Run
from bench.versus.topics import make_topics
from bench.versus.workload import BYTES, CPU, DISK_READS, RATE
from bench.versus.workloads.push_consumer import new_group

TOPIC = "large-backlog"
QUEUES = 8
SENDERS = 64
BODY_BYTES = 64 << 10
QUEUE_MB = 8
"""What the consumer keeps of each queue. Its defaults (1,000 messages, 100 MB) are more than the heap of its JVM."""
TIMEOUT_S = 600


def large_backlog(load: JavaLoad, peer: Peer, *, backlog_bytes: int) -> Figures:
    """Fill the topic, then consume all of it."""
    make_topics(peer.address, TOPIC, queues=QUEUES)
    fill = {"senders": SENDERS, "bytes": BODY_BYTES, "messages": backlog_bytes // BODY_BYTES}
    messages = load.run("send", peer.address, TOPIC, **fill).messages
    cpu_s, disk_mb = peer.cpu_s, peer.disk_read_mb
    order = {"group": new_group(), "messages": messages, "queueMb": QUEUE_MB, "timeoutS": TIMEOUT_S}
    result = load.run("consume", peer.address, TOPIC, **order)
    rate = result.messages / result.seconds
    return {
        RATE: rate,
        BYTES: rate * BODY_BYTES / 1e6,
        CPU: (peer.cpu_s - cpu_s) / result.messages * 1e6,
        DISK_READS: round(peer.disk_read_mb - disk_mb),
    }


def separate_large_backlog(run: Run, load: JavaLoad, kind: type[Peer], *, backlog_bytes: int) -> Figures:
    """Do the same at a server that is started for it, and whose files are removed afterwards."""
    with run.started(kind()) as (server,):
        try:
            return large_backlog(load, server, backlog_bytes=backlog_bytes)
        finally:
            load.disconnect(server.address)
