"""Topics of brokers that speak RocketMQ's protocol."""

from __future__ import annotations

import time

from sparrow.client import Admin
from sparrow.model.errors import RequestTimeout

TIMEOUT_S = 60.0
"""A JVM that was just started answers its first requests slowly."""


def make_topics(name_servers: str, *topics: str, queues: int, timeout_s: float = TIMEOUT_S) -> None:
    """Create topics; a request that timed out is repeated, which changes nothing if the broker carried it out."""
    deadline = time.monotonic() + timeout_s
    with Admin(name_servers) as admin:
        for number, topic in enumerate(topics):
            if time.monotonic() > deadline:
                raise TimeoutError(f"{number} of {len(topics)} topics were created in {timeout_s:.0f} s")
            while True:
                try:
                    admin.create_topic(topic, queues=queues)
                    break
                except RequestTimeout:
                    if time.monotonic() > deadline:
                        raise
