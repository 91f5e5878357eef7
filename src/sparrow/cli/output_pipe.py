"""The end of a pipe at stdout: a command ends quietly when the reader of its output has enough, as `head` does."""

from __future__ import annotations

import asyncio
import errno
import os
import select
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

_CHECK_INTERVAL_S = 0.2


def is_output_closed() -> bool:
    """Return whether nobody can read stdout any more."""
    try:
        descriptor = sys.stdout.fileno()
    except (OSError, ValueError):  # it is no file
        return False
    poll = select.poll()
    poll.register(descriptor, 0)  # errors and hang-ups are reported always
    return bool(poll.poll(0))


@asynccontextmanager
async def watched_output() -> AsyncIterator[None]:
    """Raise `BrokenPipeError` in the block once the output is closed: a write would tell it only with the next line."""
    task, is_closed = asyncio.current_task(), False
    assert task is not None, "a coroutine runs in a task"

    async def watch() -> None:
        nonlocal is_closed
        while not is_output_closed():  # noqa: ASYNC110 - event loops do not tell of the end of a pipe for writing
            await asyncio.sleep(_CHECK_INTERVAL_S)
        is_closed = True
        task.cancel()

    watcher = asyncio.create_task(watch())
    try:
        yield
    except asyncio.CancelledError:
        if not is_closed or task.uncancel():  # Ctrl-C
            raise
        raise BrokenPipeError(errno.EPIPE, "the output is closed") from None
    finally:
        watcher.cancel()


def discard_output() -> None:
    """Write what is still buffered nowhere, so that the end of the process does not fail because of it."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
