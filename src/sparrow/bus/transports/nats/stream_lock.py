"""A lock for changes of a stream.

JetStream has no compare-and-set for streams, and its server (seen with 2.9) mishandles two changes at the same time: a
stream then lists subjects that it does not accept, or a removed one goes on acknowledging. The lock is a message on a
subject of its own that can be stored only while there is none. Its owner deletes it; if the owner has crashed, it
expires.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec
from nats import errors as fails
from nats.aio.client import Client

from sparrow.model.errors import Busy

LOCK_STREAM = "SPARROW_LOCKS"
LOCK_SUBJECT = "$SPARROW.lock"
LOCK_MAX_AGE_S = 10
"""Much longer than reading and writing the configuration of a stream takes."""
_PAUSE_MAX_S = 0.05
_ONLY_IF_NONE = {"Nats-Expected-Last-Subject-Sequence": "0"}

AdminRequest = Callable[[str, dict[str, Any] | None], Awaitable[dict[str, Any]]]
"""Calls JetStream's administration."""


@asynccontextmanager
async def lock_stream(connection: Client, ask: AdminRequest, stream: str, *, timeout_s: float) -> AsyncIterator[None]:
    sequence = await _take(connection, ask, stream, timeout_s)
    try:
        yield
    finally:
        await ask(f"STREAM.MSG.DELETE.{LOCK_STREAM}", {"seq": sequence, "no_erase": True})


async def _take(connection: Client, ask: AdminRequest, stream: str, timeout_s: float) -> int:
    deadline = asyncio.get_running_loop().time() + LOCK_MAX_AGE_S + timeout_s
    while asyncio.get_running_loop().time() < deadline:
        try:
            reply = await connection.request(f"{LOCK_SUBJECT}.{stream}", timeout=timeout_s, headers=_ONLY_IF_NONE)
        except fails.NoRespondersError:
            await ask(f"STREAM.CREATE.{LOCK_STREAM}", _stream_of_locks())
            continue
        answer: dict[str, Any] = msgspec.json.decode(reply.data)
        if "error" not in answer:
            sequence: int = answer["seq"]
            return sequence
        await asyncio.sleep(random.uniform(0, _PAUSE_MAX_S))
    raise Busy(f"the NATS stream {stream!r} is locked by other services")


def _stream_of_locks() -> dict[str, Any]:
    return {
        "name": LOCK_STREAM,
        "subjects": [f"{LOCK_SUBJECT}.*"],
        "storage": "memory",  # after a restart of the server there is nothing to protect
        "retention": "limits",
        "num_replicas": 1,
        "max_age": LOCK_MAX_AGE_S * 1_000_000_000,
        "max_msgs_per_subject": 1,
        "duplicate_window": 1_000_000_000,
    }
