"""The leader's side of fetches: keeps each until the state machine answers it, and sends the bytes of the log.

1. Each replica has one fetch at a time; a new one ends the one before.
2. A fetch is checked before it reaches the state machine: the set, the size of segments, and its limits.
3. Small chunks are read from the page cache at once. Large ones may have left it: a thread reads them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from sparrow.model.errors import NotPermitted, ProtocolError, Refused
from sparrow.net.channel import Channel
from sparrow.net.dispatcher import HandlerResponse, InlineHandler, encode_response
from sparrow.replication.core.fetch import Chunk, FetchAnswer, OutOfRange, Rejected
from sparrow.replication.core.options import CHUNK_BYTES_MAX
from sparrow.replication.core.replica import Replica
from sparrow.replication.fetch import codec as fetch_codec
from sparrow.replication.step_queue import StepQueue
from sparrow.store.log import LogStore
from sparrow.wire import headers
from sparrow.wire.codes import RequestCode
from sparrow.wire.frame import RemotingCommand, encode_without_body, response_to
from sparrow.wire.headers import AcknowledgeFlush, FetchLog

INLINE_BYTES = 1 << 18
"""Larger chunks are read, and written, in a thread."""
_WAIT_MS_MAX = 30_000


class FetchServer:
    """The fetches of other replicas that wait for an answer."""

    def __init__(self, store: LogStore, replica: Replica, steps: StepQueue) -> None:
        self._store, self._replica, self._steps = store, replica, steps
        self._waiting: dict[int, tuple[RemotingCommand, Channel]] = {}
        self._sending: set[asyncio.Task[None]] = set()
        self.is_busy: Callable[[], bool] = lambda: False
        """Returns whether this replica leads and has more pulls than it should serve. Followers are told."""

    @property
    def handlers(self) -> Mapping[int, InlineHandler]:
        """The handlers of the requests of followers."""
        return {RequestCode.FETCH_LOG: self.receive, RequestCode.ACKNOWLEDGE_FLUSH: self._receive_flush}

    def receive(self, command: RemotingCommand, channel: Channel) -> None:
        """Take the fetch of another replica; it is answered once there is something to tell."""
        request = headers.read(FetchLog, command.ext)
        fetch, own = fetch_codec.read_fetch(request), self._replica.options
        if not 0 < fetch.bytes_max <= CHUNK_BYTES_MAX or fetch.wait_ms > _WAIT_MS_MAX:
            raise ProtocolError(f"a fetch of {fetch.bytes_max} bytes within {fetch.wait_ms} ms is not possible")
        if fetch.set_id != own.set_id:  # before it can disturb the fetch of a replica with this number
            raise NotPermitted("the log", f"this broker is no replica of set {fetch.set_id!r}: check the settings")
        segment_bytes = self._store.settings.segment_bytes
        if request.segment_bytes not in (None, segment_bytes):
            raise Refused(
                f"replica {fetch.replica_id} has segments of {request.segment_bytes} bytes, and the leader, replica "
                f"{own.replica_id}, of {segment_bytes}: set log.segment_bytes of all replicas to the same value, and "
                "start the replica with an empty directory"
            )
        self.answer(fetch.replica_id, Rejected(epoch=self._replica.heard_epoch, reason="the replica fetches again"))
        self._waiting[fetch.replica_id] = command, channel
        self._steps.submit(lambda now_ms: self._replica.fetched(fetch, now_ms))

    def _receive_flush(self, command: RemotingCommand, _: Channel) -> None:
        word = fetch_codec.read_flush(headers.read(AcknowledgeFlush, command.ext))
        if word.set_id == self._replica.options.set_id:
            self._steps.submit(lambda _: self._replica.acknowledged(word))

    def answer(self, replica_id: int, answer: FetchAnswer) -> None:
        """Answer the fetch of a replica, if it waits for one."""
        waiting = self._waiting.pop(replica_id, None)
        if waiting is None:
            return
        if isinstance(answer, Chunk) and answer.length > INLINE_BYTES:
            sending = asyncio.get_running_loop().create_task(self._send_large(*waiting, answer))
            self._sending.add(sending)
            sending.add_done_callback(self._sending.discard)
        else:
            body = self._read(answer) if isinstance(answer, Chunk) and answer.length else b""
            self._send(*waiting, answer, body)

    def answer_all(self, why: str) -> None:
        """Reject the fetches that wait: this replica does not lead any more."""
        for replica_id in list(self._waiting):
            self.answer(replica_id, Rejected(epoch=self._replica.heard_epoch, reason=why))

    def _read(self, chunk: Chunk) -> bytes:
        return self._store.raw(chunk.offset, chunk.length)

    async def _send_large(self, command: RemotingCommand, channel: Channel, chunk: Chunk) -> None:
        self._send(command, channel, chunk, await asyncio.to_thread(self._read, chunk))

    def _send(self, command: RemotingCommand, channel: Channel, answer: FetchAnswer, body: bytes) -> None:
        if isinstance(answer, Chunk) and answer.length and not body:  # retention has just deleted it
            last_epoch = headers.read(FetchLog, command.ext).last_epoch
            first = int(self._store.first)
            answer = OutOfRange(epoch=answer.epoch, offset=answer.offset, last_epoch=last_epoch, first=first)
        header = fetch_codec.fetch_response(answer, is_busy=self.is_busy())
        if len(body) <= INLINE_BYTES:
            frame = encode_response(command, HandlerResponse(header, body))
            if frame is not None:
                channel.write(frame)
        else:  # apart: the bytes are not copied once more
            response = response_to(command, ext=headers.write(header))
            channel.write(encode_without_body(response, body_bytes=len(body)))
            channel.write(body)
