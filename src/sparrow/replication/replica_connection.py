"""A connection to a replica, for what operators and other replicas ask of it, and how they connect."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from sparrow.broker.routes import first_admin
from sparrow.model.access.token import Credentials
from sparrow.model.errors import Refused, SettingsError
from sparrow.model.tls import Tls
from sparrow.net.access.peer_access import PeerAccess
from sparrow.net.access.tls import server_tls
from sparrow.net.address import Address
from sparrow.net.channel import Channel
from sparrow.settings import BrokerSettings
from sparrow.wire import bodies
from sparrow.wire.bodies import LogChecksums, ReplicaStatus, ViewChecksum, ViewChecksums
from sparrow.wire.codes import RequestCode, ResponseCode
from sparrow.wire.error_codes import error_for_response
from sparrow.wire.headers import (
    ChecksumLog,
    ChecksumViews,
    Header,
    LeaveInSyncSet,
    QueryReplica,
    TransferLeadership,
)

_B = TypeVar("_B")


def replica_access(settings: BrokerSettings) -> PeerAccess:
    """Return how a replica connects to the others, whose settings are like its own."""
    net = settings.net
    if net.tls_certificate is not None and net.tls_required and net.tls_authorities is None:
        raise SettingsError(
            "broker.net.tls_authorities",
            None,
            "the settings",
            "the file with the authorities that have signed the certificates of the replicas",
            "replicas fetch from each other, and broker.net.tls_required is true",
        )
    # Without a certificate, the replicas accept no TLS: the authorities are those of the name servers.
    return PeerAccess(server_tls(net) if net.tls_certificate is not None else None, _credentials(settings))


def operator_access(settings: BrokerSettings, tls: Tls | None) -> PeerAccess:
    """Return how an operator connects to replicas: with the given TLS, or like a replica with these settings."""
    return replica_access(settings) if tls is None else PeerAccess(tls, _credentials(settings))


def _credentials(settings: BrokerSettings) -> Credentials | None:
    """Return what replicas sign their requests with: the first admin token, which all of them have."""
    if not settings.auth:
        return None
    credentials = first_admin(settings)
    if credentials is None:
        raise Refused("replicas sign their requests with an admin token if broker.auth is on: set broker.admin_tokens")
    return credentials


class ReplicaConnection:
    """A connection to one replica. `async with ReplicaConnection(address, access) as replica:`."""

    def __init__(self, address: str, access: PeerAccess, *, timeout_ms: int = 3000) -> None:
        self.address, self._access, self._timeout_ms = address, access, timeout_ms
        self._channel: Channel | None = None

    async def __aenter__(self) -> ReplicaConnection:
        self._channel = await self._access.connect(Address.parse(self.address), timeout_ms=self._timeout_ms)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._channel is not None:
            self._channel.close()

    async def status(self) -> ReplicaStatus:
        """Return what the replica is and has."""
        return await self._ask(RequestCode.QUERY_REPLICA, QueryReplica(), ReplicaStatus)

    async def transfer(self, set_id: str, successor: int | None) -> None:
        """Ask a leader to hand over; return when it has stepped down."""
        await self._request(RequestCode.TRANSFER_LEADERSHIP, TransferLeadership(set_id, successor))

    async def leave(self, set_id: str, replica_id: int) -> None:
        """Tell a leader that a follower is about to stop; return when it has left the in-sync set."""
        await self._request(RequestCode.LEAVE_IN_SYNC_SET, LeaveInSyncSet(set_id, replica_id))

    async def log_checksums(self, request: ChecksumLog) -> list[int]:
        """Return the checksums of blocks of the log."""
        return (await self._ask(RequestCode.CHECKSUM_LOG, request, LogChecksums)).blocks

    async def view_checksums(self, request: Callable[[str], ChecksumViews]) -> dict[str, ViewChecksum]:
        """Return the checksums of a view; `request` makes the request for the entries behind a name."""
        found: dict[str, ViewChecksum] = {}
        last = ""
        while True:
            answer = await self._ask(RequestCode.CHECKSUM_VIEWS, request(last), ViewChecksums)
            found |= {entry.name: entry for entry in answer.page}
            if answer.is_last or not answer.page:
                return found
            last = answer.page[-1].name

    async def _ask(self, code: RequestCode, header: Header, kind: type[_B]) -> _B:
        return bodies.read(kind, await self._request(code, header))

    async def _request(self, code: RequestCode, header: Header) -> bytes | memoryview:
        assert self._channel is not None, "the connection is open inside `async with`"
        response = await self._channel.request(code, header, timeout_ms=self._timeout_ms)
        if response.code != ResponseCode.SUCCESS:
            raise error_for_response(response.code, response.remark)
        return response.body
