"""The audit: one line for every change, in a topic and in the log.

A line says who made which change when, from where, to what, what was before and after, and how it ended. It is
written after the change; if the topic cannot be written, the log still has the line.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec
from fastapi import Request

from sparrow import clock
from sparrow.client.aio.admin.admin import Admin
from sparrow.client.aio.produce.producer import Producer
from sparrow.console.security import Identity
from sparrow.model.errors import SparrowError, UnknownTopic
from sparrow.model.message import Message

log = logging.getLogger("sparrow.audit")

AUDIT_GROUP = "sparrow_audit"
_AUDIT_QUEUES = 1
_AUDIT_BYTES_MAX = 64 * 1024


class AuditLine(msgspec.Struct, kw_only=True, omit_defaults=False):
    """A change."""

    time_ms: int
    who: str
    role: str
    source: str
    """Address of the client."""
    action: str
    """Such as `topic.delete`."""
    target: str
    """Name of what was changed."""
    cluster: str
    request: Any = None
    before: Any = None
    after: Any = None
    result: str = "done"
    """done, partial or failed."""
    error: str | None = None


class AuditTrail:
    """Writes audit lines of one cluster."""

    def __init__(self, cluster: str, admin: Admin, topic: str, *, on_change: Callable[[], None]) -> None:
        """Create the trail; `on_change` is called after every change."""
        self._cluster, self._admin, self.topic, self._on_change = cluster, admin, topic, on_change
        self._producer: Producer | None = None

    async def close(self) -> None:
        """Close the producer."""
        if self._producer is not None:
            await self._producer.close()

    @asynccontextmanager
    async def change(
        self, request: Request, action: str, target: str, *, asked: Any = None, before: Any = None
    ) -> AsyncIterator[AuditLine]:
        """Write a line after the block, also if it fails. The block sets `before`, `after` and `result`."""
        identity: Identity = request.state.identity
        line = AuditLine(
            time_ms=clock.now_ms(),
            who=identity.name,
            role=identity.role.label,
            source=request.client.host if request.client is not None else "",
            action=action,
            target=target,
            cluster=self._cluster,
            request=asked,
            before=before,
        )
        try:
            yield line
        except BaseException as error:
            line.result, line.error = "failed", str(error) or type(error).__name__
            raise
        finally:
            self._on_change()
            await self._write(line)

    async def _write(self, line: AuditLine) -> None:
        body = _encode(line)
        log.info("%(line)s", {"line": body.decode()})
        if not self.topic:
            return
        try:
            await self._send(Message(self.topic, body, tags=line.action, keys=[_key(line.target), _key(line.who)]))
        except SparrowError as error:
            log.warning(
                "cannot write to the audit topic %(topic)s, only to this log: %(error)s",
                {"topic": self.topic, "error": error},
            )

    async def _send(self, message: Message) -> None:
        if self._producer is None:
            try:
                await self._admin.route(self.topic)
            except UnknownTopic:
                await self._admin.create_topic(self.topic, _AUDIT_QUEUES)
            producer = Producer(group=AUDIT_GROUP, session=self._admin.session)
            await producer.open()
            self._producer = producer
        await self._producer.send(message)


def _key(text: str) -> str:
    """Return a text as one key: keys are separated by blanks."""
    return "_".join(text.split()) or "-"


def _encode(line: AuditLine) -> bytes:
    body = msgspec.json.encode(line, enc_hook=str)
    if len(body) > _AUDIT_BYTES_MAX:  # a list of thousands of results: their numbers are in the other fields
        line = msgspec.structs.replace(line, before=None, after=None, request=None)
        body = msgspec.json.encode(line, enc_hook=str)
    return body
