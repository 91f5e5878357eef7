"""Headers of requests between the replicas of a set."""

from __future__ import annotations

from typing import Literal

from sparrow.wire.codes import RequestCode
from sparrow.wire.headers.codec import Header, JavaBool, JavaInt, JavaLong

ReplicaView = Literal["queues", "keys", "state"]
FetchAnswerKind = Literal["chunk", "diverged", "outOfRange", "rejected"]


class FetchLog(Header, frozen=True):
    """A follower asks for bytes of the leader's log, and says what it has."""

    set_id: str
    replica_id: JavaInt
    incarnation: str
    epoch: JavaLong
    offset: JavaLong
    last_epoch: JavaLong
    safe_end: JavaLong
    high_watermark: JavaLong
    bytes_max: JavaInt
    wait_ms: JavaInt
    segment_bytes: JavaLong | None = None
    """The size of the replica's segments, which must be the leader's."""


class FetchLogResponse(Header, frozen=True):
    """The leader's answer; a chunk has its bytes in the body. Fields that a kind does not need are None."""

    kind: FetchAnswerKind
    epoch: JavaLong
    offset: JavaLong | None = None
    last_epoch: JavaLong | None = None
    chunk_epoch: JavaLong | None = None
    high_watermark: JavaLong | None = None
    first: JavaLong | None = None
    end: JavaLong | None = None
    common_epoch: JavaLong | None = None
    common_end: JavaLong | None = None
    reason: str | None = None
    is_busy: bool | None = None
    """The leader advises consumers to pull from its followers."""


class AcknowledgeFlush(Header, frozen=True):
    """A follower has flushed its log up to an offset. One-way."""

    set_id: str
    replica_id: JavaInt
    incarnation: str
    epoch: JavaLong
    safe_end: JavaLong


class AnnounceSlave(Header, frozen=True):
    """A slave tells its master which broker id it has, and where it takes requests."""

    set_id: str
    broker_id: JavaInt
    address: str
    replacing: str = ""
    """The address of a process that was announced with this id and is gone."""
    is_leaving: JavaBool = False
    """The slave stops: its address is to be forgotten."""


class AnnounceSlaveResponse(Header, frozen=True):
    """The address of another process that has this broker id; None: the id is the slave's."""

    holder: str | None = None


class QueryReplica(Header, frozen=True):
    """An operator, or another replica, asks for the status of a replica."""


class TransferLeadership(Header, frozen=True):
    """An operator asks the leader to hand over, to this replica or to the one that is the furthest."""

    set_id: str
    successor: JavaInt | None = None


class LeaveInSyncSet(Header, frozen=True):
    """A follower that is about to stop tells the leader not to wait for it."""

    set_id: str
    replica_id: JavaInt


class ChecksumLog(Header, frozen=True):
    """An operator asks for the checksums of blocks of the log. The first block begins at `start`."""

    set_id: str
    start: JavaLong
    end: JavaLong
    block_bytes: JavaInt


class ChecksumViews(Header, frozen=True):
    """An operator asks for the checksums of a view of the log between two offsets, from behind an entry on."""

    set_id: str
    view: ReplicaView
    start: JavaLong
    end: JavaLong
    after: str = ""


class PromoteFollower(Header, frozen=True):
    """An operator asks the follower of a RocketMQ master to take its place. The response is its status."""

    is_dry_run: JavaBool = False
    offset_wait_ms: JavaInt = 0


REQUEST_HEADERS: dict[RequestCode, type[Header]] = {
    RequestCode.FETCH_LOG: FetchLog,
    RequestCode.ACKNOWLEDGE_FLUSH: AcknowledgeFlush,
    RequestCode.ANNOUNCE_SLAVE: AnnounceSlave,
    RequestCode.QUERY_REPLICA: QueryReplica,
    RequestCode.TRANSFER_LEADERSHIP: TransferLeadership,
    RequestCode.LEAVE_IN_SYNC_SET: LeaveInSyncSet,
    RequestCode.CHECKSUM_LOG: ChecksumLog,
    RequestCode.CHECKSUM_VIEWS: ChecksumViews,
    RequestCode.PROMOTE_FOLLOWER: PromoteFollower,
}
RESPONSE_HEADERS: dict[RequestCode, type[Header]] = {
    RequestCode.FETCH_LOG: FetchLogResponse,
    RequestCode.ANNOUNCE_SLAVE: AnnounceSlaveResponse,
}
