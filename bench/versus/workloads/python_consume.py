"""A backlog consumed from Python, each round as a new group: one message at a time, in batches, and as a table."""

from __future__ import annotations

import itertools

from bench.versus.clients.client import PythonClient
from bench.versus.rounds import Figures
from bench.versus.workloads.python_send import BODY, rate_and_cpu

_numbers = itertools.count(1)


def new_group() -> str:
    return f"python-{next(_numbers)}"


def fill(client: PythonClient, topic: str, count: int) -> None:
    client.make_topic(topic)
    if client.offers("send_list"):
        client.send_list(topic, [BODY] * count, [str(number) for number in range(count)])
    else:
        client.send_each(topic, BODY, count)


def consume_each(client: PythonClient, topic: str, count: int) -> Figures:
    return rate_and_cpu(client, count, lambda: client.consume_each(topic, new_group(), count))


def consume_batches(client: PythonClient, topic: str, count: int) -> Figures:
    return rate_and_cpu(client, count, lambda: client.consume_batches(topic, new_group(), count))


def read_table(client: PythonClient, topic: str, count: int) -> Figures:
    return rate_and_cpu(client, count, lambda: client.read_table(topic, count))
