"""Requests of operators and of other replicas: status, hand-over, leaving, checksums. With `auth`, admins only."""

from __future__ import annotations

import asyncio
import logging
import time
from functools import partial
from typing import Protocol, TypeVar

from sparrow.model.errors import Refused, SparrowError
from sparrow.net.access.peer_access import PeerAccess
from sparrow.net.dispatcher import HandlerResponse, RequestContext, RequestHandler
from sparrow.replication.core.leader import Leader
from sparrow.replication.core.output import Output
from sparrow.replication.fetch.client import is_refused
from sparrow.replication.node import ReplicaNode
from sparrow.replication.replica_connection import ReplicaConnection
from sparrow.store.log import checksums
from sparrow.wire.bodies import FollowerLag, LogChecksums, ReplicaStatus, ViewChecksum, ViewChecksums
from sparrow.wire.codes import RequestCode
from sparrow.wire.headers import (
    ChecksumLog,
    ChecksumViews,
    LeaveInSyncSet,
    QueryReplica,
    TransferLeadership,
)

log = logging.getLogger(__name__)

CHECKSUM_BYTES_MAX = 64 << 20
"""How much of the log one request may cover: a second of reading."""
_PAGE_ENTRIES = 2000
_PAGE_KEY_PARTS = 4
"""The store cannot maintain itself while keys are compared: a gigabyte of the log at a time."""
_TRANSFER_MS = 2000
_LEAVING_S = 1.5
_B = TypeVar("_B")


class ReplicaHolder(Protocol):
    """A server with a replica."""

    node: ReplicaNode


# -- answers ----------------------------------------------------------------------------------------------------------


def status_of(node: ReplicaNode) -> ReplicaStatus:
    """Return what a replica is and has."""
    replica, position = node.replica, node.replica.log
    now_ms = time.monotonic_ns() // 1_000_000
    role = "leader" if replica.leader is not None else "follower" if replica.follower is not None else "candidate"
    if replica.is_stopped:
        role = "stopped"
    elif replica.is_removed:
        role = "removed"
    return ReplicaStatus(
        set_id=node.options.set_id,
        replica_id=node.options.replica_id,
        incarnation=replica.incarnation,
        role=role,
        epoch=replica.heard_epoch,
        first=position.first,
        end=position.end,
        safe_end=position.safe_end,
        high_watermark=position.high_watermark,
        followers=[] if replica.leader is None else _followers(replica.leader, now_ms),
    )


def _followers(leader: Leader, now_ms: int) -> list[FollowerLag]:
    return [
        FollowerLag(
            replica_id=member,
            safe_end=at.safe_end,
            lag_bytes=max(0, leader.log.end - at.safe_end),
            lag_ms=0 if at.safe_end >= leader.log.end else now_ms - at.caught_up_ms,
        )
        for member, at in sorted(leader.progress.items())
    ]


async def _answer_query(_request: QueryReplica, server: ReplicaHolder, _: RequestContext) -> HandlerResponse:
    return HandlerResponse.of(status_of(server.node))


async def transfer(node: ReplicaNode, successor: int | None = None, *, within_ms: int = _TRANSFER_MS) -> int:
    """Hand the leadership over, and return the successor. Raises `Refused` if the replica goes on to lead."""
    leader, refusals = node.replica.leader, []

    def begin(now_ms: int) -> Output:
        refusals.append(node.replica.begin_transfer(successor, now_ms + within_ms))
        return Output()  # carrying it out makes the store refuse sends

    await asyncio.to_thread(node.store.replica.flush_offsets)
    await node.step(begin)
    if leader is None or leader.transfer is None or refusals[0] is not None:
        raise Refused(f"the leadership is not transferred: {refusals[0]}")
    chosen = leader.transfer.successor
    await node.until(lambda: node.replica.leader is not leader or leader.transfer is None)
    if node.replica.leader is leader:
        raise Refused(f"the leadership is not transferred: replica {chosen} did not catch up within {within_ms} ms")
    return chosen


async def _transfer(request: TransferLeadership, server: ReplicaHolder, _: RequestContext) -> HandlerResponse:
    _check_set(request.set_id, server.node)
    return HandlerResponse(remark=str(await transfer(server.node, request.successor)))


async def _let_leave(request: LeaveInSyncSet, server: ReplicaHolder, _: RequestContext) -> None:
    node = server.node
    _check_set(request.set_id, node)
    replica = node.replica
    await node.step(partial(replica.leaves, request.replica_id))
    async with asyncio.timeout(_LEAVING_S):
        await node.until(lambda: replica.leader is None or request.replica_id not in replica.leader.state.in_sync)


async def _checksum_log(request: ChecksumLog, server: ReplicaHolder, _: RequestContext) -> HandlerResponse:
    node = server.node
    _check_set(request.set_id, node)
    _check_range(request.start, request.end, node)
    if request.block_bytes < 1 or request.end - request.start > CHECKSUM_BYTES_MAX:
        raise Refused(f"one request covers up to {CHECKSUM_BYTES_MAX} bytes: ask for less")
    blocks = await asyncio.to_thread(
        checksums.log_checksums, node.store, request.start, request.end, request.block_bytes
    )
    return HandlerResponse.of(LogChecksums(blocks))


async def _checksum_views(request: ChecksumViews, server: ReplicaHolder, _: RequestContext) -> HandlerResponse:
    node = server.node
    _check_set(request.set_id, node)
    _check_range(request.start, request.end, node)
    if request.view == "state":
        limit = _PAGE_ENTRIES
        found = await asyncio.to_thread(checksums.state_checksums, node.store, request.after, limit)
    else:
        is_queues = request.view == "queues"
        limit = _PAGE_ENTRIES if is_queues else _PAGE_KEY_PARTS
        compute = checksums.queue_checksums if is_queues else checksums.key_checksums
        found = await asyncio.to_thread(compute, node.store, request.start, request.end, request.after, limit)
    page = [ViewChecksum(*entry) for entry in found]
    return HandlerResponse.of(ViewChecksums(page, is_last=len(page) < limit))


def _check_set(set_id: str, node: ReplicaNode) -> None:
    if set_id != node.options.set_id:
        raise Refused(f"this is a replica of set {node.options.set_id}, not of {set_id[:80]}")


def _check_range(start: int, end: int, node: ReplicaNode) -> None:
    position = node.replica.log
    if not position.first <= start <= end <= position.high_watermark:
        raise Refused(
            f"{start} to {end} is no range of the committed log, {position.first} to {position.high_watermark}"
        )


HANDLERS: dict[int, RequestHandler[ReplicaHolder]] = {
    RequestCode.QUERY_REPLICA: _answer_query,
    RequestCode.TRANSFER_LEADERSHIP: _transfer,
    RequestCode.LEAVE_IN_SYNC_SET: _let_leave,
    RequestCode.CHECKSUM_LOG: _checksum_log,
    RequestCode.CHECKSUM_VIEWS: _checksum_views,
}


# -- requests ---------------------------------------------------------------------------------------------------------


async def is_gone(set_id: str, replica_id: int, access: PeerAccess, address: str) -> bool:
    """Return whether no process at an address can be this replica; False if that is unknown.

    Raises `Refused` if the replica runs there.
    """
    try:
        async with ReplicaConnection(address, access, timeout_ms=1000) as replica:
            found = await replica.status()
    except SparrowError as error:
        return is_refused(error)
    if (found.set_id, found.replica_id) == (set_id, replica_id):
        raise Refused(
            f"replica {replica_id} runs already, at {address}: stop it, or choose another number with --replica, or "
            "--broker-id of a slave"
        )
    return True


async def prepare_stop(node: ReplicaNode, access: PeerAccess) -> None:
    """Hand over if the replica leads, and leave the in-sync set, so that nobody waits for a replica that stops."""
    replica = node.replica
    try:
        async with asyncio.timeout(_LEAVING_S):
            if replica.leader is not None:
                await transfer(node, within_ms=500)
                await node.until(lambda: replica.follower is not None)
            node.is_leaving = True  # fetches nothing more: a fetch would let it join again
            if replica.follower is not None:
                async with ReplicaConnection(replica.leader_address, access, timeout_ms=1000) as leader:
                    await leader.leave(node.options.set_id, node.options.replica_id)
    except (SparrowError, TimeoutError) as error:
        log.info("the replica stops without a hand-over: %(error)s", {"error": error})
