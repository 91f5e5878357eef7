"""Streams and durable consumers of JetStream: find, create or extend them, never shrink them.

Our services change a stream one after the other (`stream_lock`). CAP's services do not, and write only their own
subjects, so users of a stream check it again from time to time. No event is lost meanwhile: JetStream refuses what no
stream accepts, and the sender retries.

The server's own JSON is edited instead of a copy in the client's types: unknown fields are kept.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import msgspec
from nats.aio.client import Client

from sparrow.bus.transports.nats.stream_lock import lock_stream
from sparrow.bus.transports.nats.subjects import covers, merge_subjects
from sparrow.model.errors import IllegalName

_STREAM_UNKNOWN, _CONSUMER_UNKNOWN, _SUBJECTS_TAKEN = 10059, 10014, 10065
NOT_IN_STREAM = 10093
_ACK_WAIT_NS = 30 * 1_000_000_000


class PushConsumer(NamedTuple):
    durable: str
    deliver_subject: str
    ack_wait_s: float


class JetStreamError(Exception):
    """The server's refusal of an administrative request."""

    def __init__(self, code: int, description: str) -> None:
        super().__init__(code, description)
        self.code, self.description = code, description

    def __str__(self) -> str:
        return f"{self.description} ({self.code})"


class JetStreamAdmin:
    def __init__(self, connection: Client, *, storage: str, timeout_s: float) -> None:
        self._connection, self._storage, self._timeout_s = connection, storage, timeout_s

    async def ensure_stream(self, name: str, subjects: Sequence[str]) -> str:
        """Return the stream that accepts these subjects: `name`, or another one that already does."""
        config = await self._stream_config(name)
        if config is None or merge_subjects(config.get("subjects", ()), subjects) != config.get("subjects"):
            async with lock_stream(self._connection, self._ask, name, timeout_s=self._timeout_s):
                return await self._extend_stream(name, subjects)
        return name

    async def _extend_stream(self, name: str, subjects: Sequence[str]) -> str:
        config = await self._stream_config(name)
        try:
            if config is None:
                new = {"name": name, "subjects": merge_subjects((), subjects), "storage": self._storage}
                await self._ask(f"STREAM.CREATE.{name}", new | {"retention": "limits", "num_replicas": 1})
            else:
                wanted = merge_subjects(config.get("subjects", ()), subjects)
                if wanted != config.get("subjects"):
                    await self._ask(f"STREAM.UPDATE.{name}", config | {"subjects": wanted})
        except JetStreamError as refusal:
            if refusal.code != _SUBJECTS_TAKEN or (other := await self._stream_of(subjects)) is None:
                raise
            return other
        return name

    async def ensure_consumer(
        self, stream: str, durable: str, *, subject: str | None, queue: str, since: str | None = None
    ) -> PushConsumer:
        """Return the durable consumer of a subject, or of all subjects, and create it if it is missing.

        It has the given name unless another subject uses that.
        """
        found = await self._consumer_as_is(stream, durable, subject=subject, queue=queue, since=since)
        if found.get("filter_subject", "") != (subject or ""):
            # CAP gives the consumers of `a.b_c` and `a.b.c`, and of `a.*` and `a.>`, the same name. The first one keeps
            # it.
            durable = f"{durable}-{zlib.crc32((subject or '').encode()):08x}"
            found = await self._consumer_as_is(stream, durable, subject=subject, queue=queue, since=since)
        if not found.get("deliver_subject") or found.get("deliver_group") != queue:
            raise IllegalName("group", queue, f"the NATS consumer {durable!r} exists and delivers to another group")
        return PushConsumer(durable, found["deliver_subject"], found.get("ack_wait", _ACK_WAIT_NS) / 1_000_000_000)

    async def _consumer_as_is(
        self, stream: str, durable: str, *, subject: str | None, queue: str, since: str | None
    ) -> dict[str, Any]:
        """Return the configuration of the consumer; create it if it is missing."""
        info = await self.consumer(stream, durable)
        if info is None:
            config = {
                "durable_name": durable,
                "deliver_policy": "new" if since is None else "by_start_time",
                "ack_policy": "explicit",
                "ack_wait": _ACK_WAIT_NS,
                "replay_policy": "instant",
                "deliver_group": queue,
                # The same for all members: with different subjects one could take the consumer from another unnoticed.
                "deliver_subject": f"_INBOX.sparrow.{stream}.{durable}",
            }
            config |= {} if subject is None else {"filter_subject": subject}
            config |= {} if since is None else {"opt_start_time": since}
            asked = {"stream_name": stream, "config": config}
            info = await self._ask(f"CONSUMER.DURABLE.CREATE.{stream}.{durable}", asked)
        found: dict[str, Any] = info["config"]
        return found

    async def consumer(self, stream: str, durable: str) -> dict[str, Any] | None:
        try:
            return await self._ask(f"CONSUMER.INFO.{stream}.{durable}")
        except JetStreamError as refusal:
            if refusal.code in (_CONSUMER_UNKNOWN, _STREAM_UNKNOWN):
                return None
            raise

    async def streams(self) -> dict[str, list[str]]:
        """Return every stream with its subjects."""
        found: dict[str, list[str]] = {}
        while True:
            page = await self._ask("STREAM.LIST", {"offset": len(found)})
            streams: Iterable[Any] = page.get("streams") or ()
            found |= {each["config"]["name"]: each["config"].get("subjects") or [] for each in streams}
            if not streams or len(found) >= page["total"]:
                return found

    async def _stream_config(self, name: str) -> dict[str, Any] | None:
        try:
            config: dict[str, Any] = (await self._ask(f"STREAM.INFO.{name}"))["config"]
        except JetStreamError as refusal:
            if refusal.code == _STREAM_UNKNOWN:
                return None
            raise
        return config

    async def _stream_of(self, subjects: Sequence[str]) -> str | None:
        for name, present in (await self.streams()).items():
            if all(any(covers(old, subject) for old in present) for subject in subjects):
                return name
        return None

    async def _ask(self, what: str, request: dict[str, Any] | None = None) -> dict[str, Any]:
        payload = b"" if request is None else msgspec.json.encode(request)
        answer = await self._connection.request(f"$JS.API.{what}", payload, timeout=self._timeout_s)
        found: dict[str, Any] = msgspec.json.decode(answer.data)
        if "error" in found:
            error = found["error"]
            raise JetStreamError(error.get("err_code", error.get("code", 0)), error.get("description", ""))
        return found
