"""Repeating transactions that met a lock conflict, or whose connection failed."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import TypeVar

from sparrow.model.errors import Busy
from sparrow.store.sql.drivers.errors import DuplicateKey, LockConflict, StoreDatabaseUnreachable

TRIES_MAX = 20
_Result = TypeVar("_Result")


async def pause(least_s: float, most_s: float) -> None:
    """Wait for a random time, so that two that were in each other's way are not again."""
    await asyncio.sleep(random.uniform(least_s, most_s))


async def retry_conflicts(work: Callable[[], Awaitable[_Result]]) -> _Result:
    """Repeat a transaction while it meets lock conflicts; raise the last `LockConflict`."""
    for _ in range(TRIES_MAX):
        try:
            return await work()
        except LockConflict:
            await pause(0.005, 0.05)
    return await work()


async def retry_schema_change(work: Callable[[], Awaitable[None]]) -> None:
    """Repeat a change of tables that other processes may make at the same time; raise `Busy` in the end."""
    for tries in range(TRIES_MAX):
        try:
            return await work()
        except (LockConflict, DuplicateKey) as cause:
            if tries == TRIES_MAX - 1:
                raise Busy(f"other processes keep changing the schema of the database ({cause})") from cause
            await pause(0.01, 0.1)


async def retry_until_done(
    work: Callable[[], Awaitable[object]], was_done: Callable[[], Awaitable[bool]], *, wait_s: float
) -> None:
    """Do something once although the connection may fail meanwhile; raise after `wait_s`.

    After a failed connection the work may have been done: `was_done` says so.
    """
    deadline = asyncio.get_running_loop().time() + wait_s
    may_be_done = False
    while True:
        try:
            if may_be_done and await was_done():
                return
            await work()
            return
        except (LockConflict, StoreDatabaseUnreachable) as cause:
            may_be_done |= isinstance(cause, StoreDatabaseUnreachable)
            if asyncio.get_running_loop().time() > deadline:
                raise cause if isinstance(cause, StoreDatabaseUnreachable) else Busy(str(cause)) from cause
            await pause(0.01, 0.1)
