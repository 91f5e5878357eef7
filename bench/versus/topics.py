"""Topics of brokers that speak RocketMQ's protocol."""

from __future__ import annotations

import time

from sparrow.client import Admin
from sparrow.model.errors import RequestTimeout

TIMEOUT_S = 60.0
"""A JVM that was just started answers its first requests slowly."""


def make_topics(name_servers: str, *topics: str, queues: int) -> None:
    """Create topics; a request that timed out is repeated, which changes nothing if the broker carried it out."""
    deadline = time.monotonic() + TIMEOUT_S
    with Admin(name_servers) as admin:
        for topic in topics:
            while True:
                try:
                    admin.create_topic(topic, queues=queues)
                    break
                except RequestTimeout:
                    if time.monotonic() > deadline:
                        raise
