"""The report about messages that are lost because a program ends, or forgets a producer, without closing it.

It is one line on stderr, because messages are lost whether or not a log is configured.
"""

from __future__ import annotations

import asyncio
import sys
import weakref
from collections.abc import Collection
from typing import Any

from sparrow.client.aio.produce.batches.batch_sender import BatchSender
from sparrow.client.aio.produce.memory_budget import MemoryBudget


def report_unsent(count: int, why: str) -> None:
    """Write the line, unless there is nothing to report."""
    if count and sys.stderr is not None:
        messages = "message is" if count == 1 else "messages are"
        print(
            f"sparrow: {count} {messages} not stored ({why}): close the producer, by `with Producer(...)` or close(), "
            "and look at the futures of send_soon",
            file=sys.stderr,
            flush=True,
        )


def report_when_forgotten(
    producer: object, budget: MemoryBudget, batches: BatchSender | None, tasks: Collection[asyncio.Task[Any]]
) -> weakref.finalize[..., Any]:
    """Report what an asyncio producer has not sent when it is garbage, or at the end of the program.

    Its event loop has ended by then, so nothing more can be sent. Detach the result when the producer is closed.
    """
    # Not the batches themselves: they refer to the producer, which would never be forgotten.
    accumulator = batches.accumulator if batches is not None else None

    def report() -> None:
        count = budget.lost_count + sum(not task.done() for task in tasks)
        if accumulator is not None:
            count += accumulator.unsettled_count
        report_unsent(count, "the event loop ended before they were sent")

    return weakref.finalize(producer, report)
