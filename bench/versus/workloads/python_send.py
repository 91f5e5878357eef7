"""Messages sent from Python: asynchronously with linger, as a list, and as an Arrow table."""

from __future__ import annotations

import time
from collections.abc import Callable

import pyarrow as pa
from bench.versus.clients.client import PythonClient
from bench.versus.rounds import Figures
from bench.versus.workload import CLIENT_CPU, CPU, RATE

BODY = b"x" * 100


def send_each(client: PythonClient, topic: str, count: int) -> Figures:
    return rate_and_cpu(client, count, lambda: client.send_each(topic, BODY, count))


def send_list(client: PythonClient, topic: str, count: int) -> Figures:
    bodies, keys = [BODY] * count, [str(number) for number in range(count)]
    return rate_and_cpu(client, count, lambda: client.send_list(topic, bodies, keys))


def send_table(client: PythonClient, topic: str, count: int) -> Figures:
    table = table_of(count)
    return rate_and_cpu(client, count, lambda: client.send_table(topic, table))


def table_of(count: int) -> pa.Table:
    keys = pa.array(range(count)).cast(pa.string())
    return pa.table({"body": pa.array([BODY] * count, pa.binary()), "keys": keys})


def rate_and_cpu(client: PythonClient, count: int, work: Callable[[], float]) -> Figures:
    """Return messages per second, and the CPU time of the server and of this process for each message."""
    server, own = client.peer.cpu_s, time.process_time()
    seconds = work()
    own, server = time.process_time() - own, client.peer.cpu_s - server
    return {RATE: count / seconds, CPU: server / count * 1e6, CLIENT_CPU: own / count * 1e6}
