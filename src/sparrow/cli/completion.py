"""Completion of topic and group names in the shell. It is silent and quick when no platform answers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Annotated, Any

import typer

from sparrow.client.aio.admin.admin import Admin
from sparrow.client.aio.connection.session import ClientSession
from sparrow.model.errors import SparrowError
from sparrow.model.protocol import DLQ_TOPIC_PREFIX, RETRY_TOPIC_PREFIX

_TIMEOUT_MS = 500


def complete_topic(ctx: Any, incomplete: str) -> list[str]:
    """Return the topics that begin with the text."""
    names = _ask(ctx, lambda admin: admin.topics())
    return [
        name
        for name in names
        if name.startswith(incomplete) and (incomplete or not name.startswith((RETRY_TOPIC_PREFIX, DLQ_TOPIC_PREFIX)))
    ]


def complete_group(ctx: Any, incomplete: str) -> list[str]:
    """Return the consumer groups that begin with the text."""
    return [name for name in _ask(ctx, lambda admin: admin.groups()) if name.startswith(incomplete)]


def _ask(ctx: Any, question: Callable[[Admin], Awaitable[Iterable[str]]]) -> list[str]:
    async def ask() -> list[str]:
        async with ClientSession(ctx.params.get("name_servers") or None, timeout_ms=_TIMEOUT_MS) as session:
            return sorted(await question(Admin(session=session)))

    logging.disable()
    try:
        return asyncio.run(ask())
    except (SparrowError, OSError, TimeoutError):
        return []
    finally:
        logging.disable(logging.NOTSET)


TopicArgument = Annotated[str, typer.Argument(help="Topic.", autocompletion=complete_topic)]
GroupArgument = Annotated[str, typer.Argument(help="Consumer group.", autocompletion=complete_group)]
