"""The follower's connections: sends fetches and acknowledgements to the leader."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from sparrow.model.errors import ConnectionLost, SparrowError
from sparrow.net.access.peer_access import PeerAccess
from sparrow.net.address import Address
from sparrow.net.channel import Channel
from sparrow.replication.core.fetch import Fetch, FetchAnswer, SafeEnd
from sparrow.replication.fetch import codec as fetch_codec
from sparrow.wire import headers
from sparrow.wire.codes import RequestCode
from sparrow.wire.error_codes import error_for_response
from sparrow.wire.frame import RemotingCommand
from sparrow.wire.headers import FetchLogResponse

_PAUSE_S = 0.1
"""After a fetch that was lost, so that a leader that is gone is not asked all the time."""

AnswerReceiver = Callable[[FetchAnswer | SparrowError, bytes], None]
"""Takes the leader's answer, and the bytes of a chunk; or why there is no answer."""


class FetchClient:
    """One connection for each address that was a leader's."""

    def __init__(self, access: PeerAccess, *, timeout_ms: int, segment_bytes: int) -> None:
        """`timeout_ms`: how long a connection, and an answer beyond the wait that a fetch asks for, may take."""
        self._access, self._timeout_ms, self._segment_bytes = access, timeout_ms, segment_bytes
        self._channels: dict[str, Channel] = {}
        self._connecting: set[asyncio.Task[None]] = set()
        self._lost = ""
        """The address at which the last fetch was lost."""
        self.is_leader_busy = False
        """What the leader has said of itself."""

    def fetch(self, address: str, fetch: Fetch, receive: AnswerReceiver) -> None:
        """Send a fetch. `receive` is called once, later."""
        channel = self._channels.get(address)
        if channel is not None and channel.is_open and self._lost != address:
            self._send(channel, address, fetch, receive)
            return
        task = asyncio.get_running_loop().create_task(self._connect(address, fetch, receive))
        self._connecting.add(task)
        task.add_done_callback(self._connecting.discard)

    async def _connect(self, address: str, fetch: Fetch, receive: AnswerReceiver) -> None:
        if self._lost == address:
            await asyncio.sleep(_PAUSE_S)
        try:
            channel = self._channels.get(address)
            if channel is None or not channel.is_open:
                channel = await self._access.connect(Address.parse(address), timeout_ms=self._timeout_ms)
                self._channels[address] = channel
        except SparrowError as error:
            self._lost = address
            receive(error, b"")
            return
        self._send(channel, address, fetch, receive)

    def _send(self, channel: Channel, address: str, fetch: Fetch, receive: AnswerReceiver) -> None:
        header = fetch_codec.fetch_request(fetch, self._segment_bytes)
        answered = channel.request(RequestCode.FETCH_LOG, header, timeout_ms=fetch.wait_ms + self._timeout_ms)
        answered.add_done_callback(partial(self._answered, address, receive))

    def _answered(self, address: str, receive: AnswerReceiver, answered: asyncio.Future[RemotingCommand]) -> None:
        try:
            answer, body = self._read(answered.result())
        except asyncio.CancelledError:
            return
        except SparrowError as error:
            self._lost = address
            receive(error, b"")
            return
        self._lost = ""
        receive(answer, body)

    def _read(self, response: RemotingCommand) -> tuple[FetchAnswer, bytes]:
        if response.code != 0:
            raise error_for_response(response.code, response.remark)
        body, header = bytes(response.body), headers.read(FetchLogResponse, response.ext)
        self.is_leader_busy = bool(header.is_busy)
        return fetch_codec.read_answer(header, len(body)), body

    def acknowledge(self, address: str, word: SafeEnd) -> None:
        """Tell the leader of a finished flush, if it is connected."""
        channel = self._channels.get(address)
        if channel is not None and channel.is_open:
            channel.send_one_way(RequestCode.ACKNOWLEDGE_FLUSH, fetch_codec.flush_request(word))

    def close(self) -> None:
        """Close the connections, and give the fetches up that wait."""
        for task in self._connecting:
            task.cancel()
        for channel in self._channels.values():
            channel.close()


def is_refused(error: SparrowError) -> bool:
    """Return whether nobody listens at the address any more: the process is gone."""
    return isinstance(error, ConnectionLost) and isinstance(error.__cause__, ConnectionRefusedError)
