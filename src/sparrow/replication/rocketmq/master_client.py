"""Requests to an Apache RocketMQ master: its position, its configuration, and the metadata that its slaves copy."""

from __future__ import annotations

from typing import Any

import msgspec

from sparrow.model.access.token import Credentials
from sparrow.model.errors import ProtocolError, SparrowError
from sparrow.net.address import Address
from sparrow.net.channel import Channel
from sparrow.net.dialer import connect
from sparrow.wire import bodies
from sparrow.wire.bodies import KvTable, fastjson
from sparrow.wire.codes import RequestCode, ResponseCode
from sparrow.wire.error_codes import error_for_response
from sparrow.wire.frame import RemotingCommand
from sparrow.wire.headers import Header
from sparrow.wire.headers.codec import JavaInt
from sparrow.wire.signing import sign

_TIMEOUT_MS = 10_000
_PAGE_ITEMS = 2_000
"""Most topics or groups that 5.x sends at once."""


class MasterPosition(msgspec.Struct, frozen=True):
    """Where the master's log begins and ends."""

    first: int
    end: int


class _TopicPage(Header, frozen=True):
    """A page of topics. 4.9 ignores it and returns all."""

    topic_seq: JavaInt
    max_topic_num: JavaInt
    data_version: str


class _GroupPage(Header, frozen=True):
    """A page of groups. 4.9 ignores it and returns all."""

    group_seq: JavaInt
    max_group_num: JavaInt
    data_version: str


class RocketMQMasterClient:
    """A connection to the master's listen port, made when it is needed."""

    def __init__(
        self, address: Address, credentials: Credentials | None = None, *, page_items: int = _PAGE_ITEMS
    ) -> None:
        self.address = address
        self._credentials, self._page_items = credentials, page_items
        self._channel: Channel | None = None

    def close(self) -> None:
        """Close the connection."""
        if self._channel is not None:
            self._channel.close()

    async def request(self, code: RequestCode, header: Header | None = None, body: bytes = b"") -> RemotingCommand:
        """Send a request, and return the response. Any code but success is raised as an error."""
        if self._channel is None or not self._channel.is_open:
            self._channel = await connect(self.address, timeout_ms=_TIMEOUT_MS)
        signed = header if self._credentials is None else sign(header, body, self._credentials)
        response = await self._channel.request(code, signed, body, timeout_ms=_TIMEOUT_MS)
        if response.code != ResponseCode.SUCCESS:
            raise error_for_response(response.code, response.remark)
        return response

    async def position(self) -> MasterPosition:
        """Return where the master's log begins and ends."""
        table = bodies.read(KvTable, (await self.request(RequestCode.GET_BROKER_RUNTIME_INFO)).body).table
        try:
            # An empty log begins at -1.
            return MasterPosition(max(0, int(table["commitLogMinOffset"])), int(table["commitLogMaxOffset"]))
        except (KeyError, ValueError) as cause:
            raise ProtocolError(f"{self.address} does not tell where its log begins and ends: {cause}") from cause

    async def configuration(self) -> dict[str, str]:
        """Return the settings of the master, by RocketMQ's names."""
        body = bytes((await self.request(RequestCode.GET_BROKER_CONFIG)).body).decode()
        pairs = (line.split("=", 1) for line in body.splitlines() if "=" in line)
        return {name.strip(): value.strip() for name, value in pairs}

    async def configure(self, settings: dict[str, str]) -> None:
        """Change settings of the running master. It also writes them to its configuration file."""
        body = "".join(f"{name}={value}\n" for name, value in settings.items()).encode()
        await self.request(RequestCode.UPDATE_BROKER_CONFIG, body=body)

    async def metadata(self) -> dict[str, bytes]:
        """Return the metadata, as the content of the files in which RocketMQ keeps it."""
        found = {
            "topics.json": await self._pages(RequestCode.GET_ALL_TOPIC_CONFIG, "topicConfigTable"),
            "subscriptionGroup.json": await self._pages(
                RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, "subscriptionGroupTable"
            ),
        }
        for name, code in _WHOLE_FILES.items():
            try:
                found[name] = bytes((await self.request(code)).body)
            except SparrowError as error:
                # 4.9 does not know 60 and 402; 43 and 45 answer with an error if there is nothing.
                if getattr(error, "code", None) not in (
                    ResponseCode.SYSTEM_ERROR,
                    ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
                ):
                    raise
        return {name: content for name, content in found.items() if content}

    async def _pages(self, code: RequestCode, table: str) -> bytes:
        """Return a table that 5.x sends in pages, as one text.

        With another version than the table's, 5.x answers the first page again.
        """
        whole: dict[str, Any] = {}
        have, version = 0, ""
        while True:
            header: Header = (
                _TopicPage(have, self._page_items, version)
                if code == RequestCode.GET_ALL_TOPIC_CONFIG
                else _GroupPage(have, self._page_items, version)
            )
            response = await self.request(code, header)
            page = fastjson.parse(response.body)
            if not isinstance(page, dict) or not isinstance(page.get(table), dict):
                raise ProtocolError(f"{self.address} answered {code.name} without {table}")
            if page.get("dataVersion") != whole.get("dataVersion"):  # the first page, or the table has changed
                whole, have = page, 0
            else:
                for name, value in page.items():
                    if isinstance(value, dict) and name != "dataVersion":
                        whole.setdefault(name, {}).update(value)
            have += len(page[table])
            version = fastjson.emit(page.get("dataVersion")).decode()
            fields = response.fields()
            total = fields.get("totalTopicNum") or fields.get("totalGroupNum")
            if total is None or have >= int(total) or not page[table]:
                return fastjson.emit(whole)


_WHOLE_FILES = {
    "consumerOffset.json": RequestCode.GET_ALL_CONSUMER_OFFSET,
    "delayOffset.json": RequestCode.GET_ALL_DELAY_OFFSET,
    "messageRequestMode.json": RequestCode.GET_ALL_MESSAGE_REQUEST_MODE,
    "timercheck": RequestCode.GET_TIMER_CHECK_POINT,
}
"""Files of RocketMQ's `config` folder that one request returns whole."""
