"""What an operator asks for: topics, groups, routes, how far groups are, and messages by key, id or time.

    async with Admin("127.0.0.1:9876") as admin:
        await admin.create_topic("orders", queues=16)
        print((await admin.progress("billing")).lag)

Questions about state are put to masters; a wish is a success once every broker it concerns has granted it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Collection, Iterable, Mapping
from datetime import datetime
from ipaddress import ip_address
from typing import TYPE_CHECKING, TypeVar

import msgspec

from sparrow.client.aio.admin.dead_letters import dead_letter_filter, read_dead_letters, redrive_dead_letters
from sparrow.client.aio.admin.message_query import query_by_key, query_by_unique_key, view_by_offset_id
from sparrow.client.aio.admin.resend import ResendResult, make_resend_request, resend_messages
from sparrow.client.aio.connection.session import ClientSession
from sparrow.client.aio.consume.rebalance import StartPosition
from sparrow.client.topic_route import TopicRoute
from sparrow.model.errors import Refused, SparrowError, Unavailable, UnknownTopic
from sparrow.model.message import StoredMessage
from sparrow.model.priority import LANE_COUNT, LANES_SYS_FLAG, Priority
from sparrow.model.protocol import (
    AUTO_CREATE_TOPIC,
    DLQ_TOPIC_PREFIX,
    MASTER_BROKER_ID,
    PERM_READ,
    PERM_WRITE,
    SUBSCRIBE_ALL,
)
from sparrow.model.queue import QueueBounds, QueueOffset, QueueRef
from sparrow.model.token import Credentials, TokenKind
from sparrow.model.topic import Group, validate_group_name, validate_topic_name
from sparrow.net.address import Address
from sparrow.wire import bodies, headers
from sparrow.wire.bodies import (
    ClusterTable,
    ConsumeDirectlyResult,
    IssueToken,
    RevokeToken,
    TokenDescription,
    TokenList,
)
from sparrow.wire.codes import RequestCode, ResponseCode
from sparrow.wire.error_codes import error_for_response
from sparrow.wire.headers import (
    CommitOffset,
    ConsumeMessageDirectly,
    DeleteGroup,
    DeleteTopic,
    GetConsumerConnections,
    GetConsumeStats,
    OffsetResponse,
    QueryOffset,
    QueueRequest,
    ResetOffset,
    SearchOffset,
    TopicRequest,
    UpdateTopic,
)
from sparrow.wire.message_ids import format_offset_id

if TYPE_CHECKING:
    import pyarrow as pa

NEWEST_MS = -1
"""For a time: the end of a queue."""
CONSUME_DIRECTLY_TIMEOUT_MS = 12_000
"""For a message to be handled directly: brokers wait 10 s for the consumer."""
_LOOK_S = 0.01
"""How often a route is looked at that should appear any moment."""

T = TypeVar("T")


class Cluster(msgspec.Struct, frozen=True):
    name: str
    brokers: Mapping[str, Mapping[int, str]]
    """Broker name to member number to `host:port`. Member 0 is the master."""

    @property
    def masters(self) -> dict[str, str]:
        return {
            name: members[MASTER_BROKER_ID] for name, members in self.brokers.items() if MASTER_BROKER_ID in members
        }


class QueueProgress(msgspec.Struct, frozen=True):
    committed: int
    """The offset the group reads next."""
    end: int
    """The offset the next message will have."""
    read_ms: int
    """When the last message the group has read was stored; 0 if that is not known."""

    @property
    def lag(self) -> int:
        return self.end - self.committed


class GroupProgress(msgspec.Struct, frozen=True):
    """How far a group is."""

    group: str
    queues: Mapping[QueueRef, QueueProgress]
    messages_per_s: float

    @property
    def lag(self) -> int:
        """Messages the group has still to read."""
        return sum(queue.lag for queue in self.queues.values())


class GroupMember(msgspec.Struct, frozen=True):
    """One consumer of a group that is online."""

    client_id: str
    address: str
    language: str
    version: int


class Admin:
    def __init__(
        self,
        name_servers: str = "127.0.0.1:9876",
        *,
        credentials: Credentials | None = None,
        session: ClientSession | None = None,
    ) -> None:
        self.session = session or ClientSession(name_servers, credentials=credentials)
        self._owns_session = session is None

    async def open(self) -> None:
        await self.session.open()

    async def close(self) -> None:
        if self._owns_session:
            await self.session.close()

    async def __aenter__(self) -> Admin:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # -- clusters and topics ------------------------------------------------------------------------------------------

    async def clusters(self) -> dict[str, Cluster]:
        answer = await self.session.invoke_name_server(RequestCode.GET_BROKER_CLUSTER_INFO)
        table = bodies.read(ClusterTable, answer.body)
        return {
            name: Cluster(
                name,
                {broker: table.broker_addr_table[broker].broker_addrs for broker in sorted(brokers)},
            )
            for name, brokers in sorted(table.cluster_addr_table.items())
        }

    async def topics(self) -> list[str]:
        """Every topic any broker has, the brokers' own among them."""
        answer = await self.session.invoke_name_server(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
        return sorted(bodies.read(bodies.TopicList, answer.body).topic_list)

    async def route(self, topic: str) -> TopicRoute:
        """Where the topic lives, asked now."""
        return await self.session.route(topic, is_fresh=True)

    async def create_topic(
        self,
        name: str,
        queues: int = 8,
        *,
        cluster: str | None = None,
        brokers: Iterable[str] | None = None,
        permission: int = PERM_READ | PERM_WRITE,
        has_lanes: bool = False,
    ) -> TopicRoute:
        """Make a topic, or change it, on the masters of a cluster or of the brokers named; on all without either.
        Producers and consumers find it when this returns. With lanes, messages have priorities: of each queue that
        producers know, readers see three."""
        validate_topic_name(name)
        masters = await self._masters(cluster, brokers)
        reads, flag = (queues * LANE_COUNT, LANES_SYS_FLAG) if has_lanes else (queues, 0)
        header = UpdateTopic(name, AUTO_CREATE_TOPIC, reads, queues, permission, "SINGLE_TAG", False, flag)
        await _all(
            self.session.invoke(address, RequestCode.UPDATE_AND_CREATE_TOPIC, header) for address in masters.values()
        )
        return await self._registered(name, masters)

    async def _registered(self, topic: str, masters: Mapping[str, str]) -> TopicRoute:
        """Brokers tell the name server on their own; this waits until it knows."""
        try:
            async with asyncio.timeout(self.session.timeout_ms / 1000):
                while True:
                    try:
                        route = await self.route(topic)
                        if masters.keys() <= route.masters.keys():
                            return route
                    except UnknownTopic:
                        pass
                    await asyncio.sleep(_LOOK_S)
        except TimeoutError as cause:
            raise Unavailable(
                f"topic {topic!r} was made, but the name server did not hear of it on all of {', '.join(masters)} "
                f"within {self.session.timeout_ms} ms"
            ) from cause

    async def delete_topic(self, name: str, *, cluster: str | None = None) -> None:
        """Messages and offsets go with it. Deleting what is not there is fine."""
        masters = await self._masters(cluster, None)
        await _all(
            self.session.invoke(address, RequestCode.DELETE_TOPIC_IN_BROKER, DeleteTopic(name))
            for address in masters.values()
        )
        header = DeleteTopic(name, cluster)
        await _all(
            self.session.invoke(address, RequestCode.DELETE_TOPIC_IN_NAMESRV, header)
            for address in self.session.name_servers
        )

    async def topic_bounds(self, topic: str) -> dict[QueueRef, QueueBounds]:
        """What each queue of the topic holds."""
        route = await self.route(topic)
        answers = await _all(
            self.session.invoke(address, RequestCode.GET_TOPIC_STATS_INFO, TopicRequest(topic))
            for address in _readable(route)
        )
        found: dict[QueueRef, QueueBounds] = {}
        for answer in answers:
            for queue, bounds in bodies.read(bodies.TopicStats, answer.body).offset_table.items():
                found[queue] = QueueBounds(QueueOffset(max(bounds.min_offset, 0)), QueueOffset(bounds.max_offset))
        return dict(sorted(found.items()))

    async def offset_at(self, queue: QueueRef, time_ms: int, *, upper: bool = False) -> int:
        """The first offset stored at or after that time; with `upper` the last one stored at or before it."""
        return await self._offset_at(await self._address_of(queue), queue, time_ms, upper=upper)

    async def _offset_at(self, address: str, queue: QueueRef, time_ms: int, *, upper: bool = False) -> int:
        if time_ms == NEWEST_MS:
            ask = QueueRequest(queue.topic, queue.queue_id, queue.broker_name)
            answer = await self.session.invoke(address, RequestCode.GET_MAX_OFFSET, ask)
        else:
            boundary = "UPPER" if upper else "LOWER"
            search = SearchOffset(queue.topic, queue.queue_id, time_ms, boundary, queue.broker_name)
            answer = await self.session.invoke(address, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, search)
        return headers.read(OffsetResponse, answer.ext).offset

    # -- groups -------------------------------------------------------------------------------------------------------

    async def groups(self) -> dict[str, Group]:
        """Every group any master knows."""
        masters = await self._masters(None, None)
        answers = await _all(
            self.session.invoke(address, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG) for address in masters.values()
        )
        tables = [bodies.read(bodies.GroupTable, answer.body).subscription_group_table for answer in answers]
        return {name: config.group() for table in tables for name, config in sorted(table.items())}

    async def create_group(self, group: Group, *, cluster: str | None = None) -> None:
        """Make a group, or change it."""
        validate_group_name(group.name)
        body = bodies.write(bodies.GroupConfig.of(group))
        masters = await self._masters(cluster, None)
        await _all(
            self.session.invoke(address, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, body)
            for address in masters.values()
        )

    async def delete_group(self, name: str, *, clean_offsets: bool = True) -> None:
        masters = await self._masters(None, None)
        header = DeleteGroup(name, clean_offsets, clean_offsets)
        await _all(
            self.session.invoke(address, RequestCode.DELETE_SUBSCRIPTIONGROUP, header) for address in masters.values()
        )

    async def progress(self, group: str, topic: str | None = None) -> GroupProgress:
        """How far the group is on a topic, or on all it reads."""
        masters = await self._masters(None, None)
        header = GetConsumeStats(group, topic)
        answers = await _all(
            self.session.invoke(address, RequestCode.GET_CONSUME_STATS, header) for address in masters.values()
        )
        found = [bodies.read(bodies.ConsumeStats, answer.body) for answer in answers]
        queues = {
            queue: QueueProgress(told.consumer_offset, told.broker_offset, told.last_timestamp)
            for stats in found
            for queue, told in stats.offset_table.items()
        }
        return GroupProgress(group, dict(sorted(queues.items())), sum(stats.consume_tps for stats in found))

    async def members(self, group: str) -> list[GroupMember]:
        """Who consumes for the group now, by client id; nobody is an answer too."""
        masters = await self._masters(None, None)
        parts = await _all(self._members_on(address, group) for address in masters.values())
        found = {member.client_id: member for part in parts for member in part}
        return [found[client_id] for client_id in sorted(found)]

    async def _members_on(self, address: str, group: str) -> list[GroupMember]:
        answer = await self.session.invoke_unchecked(
            address, RequestCode.GET_CONSUMER_CONNECTION_LIST, GetConsumerConnections(group)
        )
        if answer.code == ResponseCode.CONSUMER_NOT_ONLINE:
            return []
        if answer.code != ResponseCode.SUCCESS:
            raise error_for_response(answer.code, answer.remark)
        found = bodies.read(bodies.ConsumerConnections, answer.body).connection_set
        return [GroupMember(each.client_id, each.client_addr, each.language, each.version) for each in found]

    async def reset_offsets(
        self, group: str, topic: str, to: StartPosition | int, *, force: bool = True
    ) -> dict[QueueRef, int]:
        """Make the group read on from another place: `"first"`, `"last"`, or a time (a datetime, or ms since 1970; -1
        is the newest message). Where each queue goes on is the answer.

        Members that are online are told; for a group that is not, the offsets are committed here. Without `force`
        a group is only set back, never forward.
        """
        route = await self.route(topic)
        wish = ResetOffset(topic, group, _time_ms(to), force)
        parts = await _all(
            self._reset_on(broker_name, address, route, wish) for broker_name, address in route.masters.items()
        )
        return dict(sorted((queue, offset) for part in parts for queue, offset in part.items()))

    async def reset_queue(self, group: str, queue: QueueRef, offset: int) -> None:
        """The same for one queue, and to an offset in it."""
        route = await self.route(queue.topic)
        address = route.masters.get(queue.broker_name)
        if address is None or queue not in route.read_queues:
            raise Refused(f"topic {queue.topic!r} has no queue {queue.queue_id} on a master of {queue.broker_name!r}")
        ask = QueueRequest(queue.topic, queue.queue_id, queue.broker_name)
        first, end = [
            max(0, headers.read(OffsetResponse, answer.ext).offset)
            for answer in await _all(
                self.session.invoke(address, code, ask)
                for code in (RequestCode.GET_MIN_OFFSET, RequestCode.GET_MAX_OFFSET)
            )
        ]
        if not first <= offset <= end:
            raise Refused(f"{queue} holds offsets {first} to {end}: it cannot be read from {offset}")
        wish = ResetOffset(queue.topic, group, NEWEST_MS, True, queue.queue_id, offset)
        if await self._members_on(address, group):
            await self.session.invoke(address, RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, wish)
        else:
            commit = CommitOffset(group, queue.topic, queue.queue_id, offset, queue.broker_name)
            await self.session.invoke(address, RequestCode.UPDATE_CONSUMER_OFFSET, commit)

    async def _reset_on(
        self, broker_name: str, address: str, route: TopicRoute, wish: ResetOffset
    ) -> dict[QueueRef, int]:
        answer = await self.session.invoke_unchecked(address, RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, wish)
        if answer.code == ResponseCode.SUCCESS:
            return bodies.read(bodies.OffsetTable, answer.body).offset_table
        # A group that has never committed is an error to brokers, though all it lacks is what we are about to write.
        if answer.code != ResponseCode.CONSUMER_NOT_ONLINE and (
            answer.code != ResponseCode.SYSTEM_ERROR or await self._members_on(address, wish.group)
        ):
            raise error_for_response(answer.code, answer.remark)
        queues = [queue for queue in route.read_queues if queue.broker_name == broker_name]
        # One after the other: RocketMQ 4 loses a new group's commits when they come at the same time.
        return {queue: await self._recommit(address, queue, wish) for queue in queues}

    async def _recommit(self, address: str, queue: QueueRef, wish: ResetOffset) -> int:
        offset = await self._offset_at(address, queue, wish.time_ms)
        if not wish.is_forced:
            ask = QueryOffset(wish.group, queue.topic, queue.queue_id, False, queue.broker_name)
            answer = await self.session.invoke_unchecked(address, RequestCode.QUERY_CONSUMER_OFFSET, ask)
            if answer.code == ResponseCode.SUCCESS:
                offset = min(offset, headers.read(OffsetResponse, answer.ext).offset)
        commit = CommitOffset(wish.group, queue.topic, queue.queue_id, offset, queue.broker_name)
        await self.session.invoke(address, RequestCode.UPDATE_CONSUMER_OFFSET, commit)
        return offset

    # -- messages -----------------------------------------------------------------------------------------------------

    async def find_by_key(
        self, topic: str, key: str, *, limit: int = 32, begin_ms: int = 0, end_ms: int = (1 << 63) - 1
    ) -> list[StoredMessage]:
        """The newest messages of the topic that carry the key, oldest first."""
        route = await self.session.route(topic)
        return await query_by_key(self.session, route, key, limit=limit, begin_ms=begin_ms, end_ms=end_ms)

    async def find_by_id(self, message_id: str, *, topic: str | None = None) -> StoredMessage:
        """The message with that id. An offset id says itself where to look; a unique id, the one its sender gave it,
        is found only with its topic. `Refused` when there is none."""
        if topic is None:
            return await view_by_offset_id(self.session, message_id)
        found = await query_by_unique_key(self.session, await self.session.route(topic), message_id)
        if found is not None:
            return found
        addresses = {address for some in (await self.clusters()).values() for address in _addresses(some)}
        try:
            # Both kinds of id look alike: only one that names a broker we know is worth a connection.
            return await view_by_offset_id(self.session, message_id, only=addresses)
        except SparrowError as cause:
            raise Refused(f"topic {topic!r} has no message with the id {message_id!r}, or no longer") from cause

    async def consume_directly(
        self, group: str, message_id: str, *, topic: str | None = None, client_id: str | None = None
    ) -> ConsumeDirectlyResult:
        """Have a consumer of the group, or that one, handle a message now, whatever the group's progress. The id is an
        offset id; or a unique id, and its topic. The answer says what came of it."""
        message = await self.find_by_id(message_id, topic=topic)
        host = message.store_host
        address = str(Address(str(ip_address(host.ip)), host.port))
        if client_id is None:  # RocketMQ's brokers want a name
            members = await self._members_on(address, group)
            if not members:
                raise Refused(f"no consumer of group {group!r} is online")
            client_id = members[0].client_id
        offset_id = format_offset_id(host, message.physical_offset)
        header = ConsumeMessageDirectly(group, client_id, offset_id, topic=message.topic)
        answer = await self.session.invoke(
            address, RequestCode.CONSUME_MESSAGE_DIRECTLY, header, timeout_ms=CONSUME_DIRECTLY_TIMEOUT_MS
        )
        return bodies.read(ConsumeDirectlyResult, answer.body)

    async def dead_letters(self, group: str) -> list[StoredMessage]:
        """What the group gave up, oldest first on each broker; `topic` is the one a message was sent to."""
        return [letter async for letter in read_dead_letters(self.session, group)]

    async def dead_letter_table(self, group: str, *, columns: Iterable[str] | None = None) -> pa.Table:
        """The same as an Arrow table, for many. `Refused` when the group has never given one up."""
        from sparrow.client.aio.consume.table_reader import read_table

        topic = DLQ_TOPIC_PREFIX + group
        return await read_table(self.session, group, topic, "first", "last", expression=SUBSCRIBE_ALL, columns=columns)

    async def redrive(
        self,
        group: str,
        *,
        ids: Collection[str] | None = None,
        since: datetime | int | None = None,
        everything: bool = False,
        to_group_only: bool = False,
    ) -> int:
        """Send dead letters again: those with these ids, those that died since a time, or all; how many there were.

        They go to the topic they were sent to, under their own unique ids, so every group that reads it gets them once
        more; `to_group_only` sends them to this group's retry topic. They also stay among the dead letters.
        """
        return await redrive_dead_letters(
            self.session, group, dead_letter_filter(ids, since, everything=everything), to_group=to_group_only
        )

    async def resend(
        self,
        topic: str,
        *,
        group: str | None = None,
        begin: int | None = None,
        end: int | None = None,
        queue_id: int | None = None,
        priority: Priority | str | None = None,
        broker: str | None = None,
        keys: str | Iterable[str] | None = None,
        from_ms: int | None = None,
        to_ms: int | None = None,
        dry_run: bool = False,
        force: bool = False,
    ) -> ResendResult:
        """Deliver messages of a topic once more, to a group or to all that have committed an offset on it. They are not
        copied; they come as the group's retries do, with the property `RESENT`.

        Which messages: offsets `begin` to `end`, both included, of a queue or of a priority's queues; those with one of
        the `keys`; or those stored from `from_ms` on and before `to_ms`, which may also narrow down keys. A group that
        has not read them yet is refused them unless `force`. `dry_run` only counts.
        """
        wish = make_resend_request(
            topic,
            group,
            begin=begin,
            end=end,
            queue_id=queue_id,
            priority=priority,
            keys=keys,
            from_ms=from_ms,
            to_ms=to_ms,
            dry_run=dry_run,
            force=force,
        )
        return await resend_messages(self.session, await self.route(topic), wish, broker)

    # -- tokens -------------------------------------------------------------------------------------------------------

    async def issue_token(self, name: str, kind: TokenKind) -> Credentials:
        """What a producer (`p`) or a consumer (`c`) is to sign its requests with. Every broker gets the same token; a
        name issued before is given as it was, and one of another kind, or revoked, is refused."""
        masters = await self._masters(None, None)
        known = await _all(self._tokens_on(address) for address in masters.values())
        has_it = {address: name in tokens for address, tokens in zip(masters.values(), known, strict=True)}
        secret_key: str | None = None
        # Whoever has it goes first: the secret is its own, and the others take it over.
        for broker_name, address in sorted(masters.items(), key=lambda master: not has_it[master[1]]):
            body = bodies.write(IssueToken(name, kind, secret_key))
            answer = await self.session.invoke(address, RequestCode.ISSUE_TOKEN, None, body)
            given = bodies.read(TokenDescription, answer.body).secret_key
            if given is None or secret_key not in (None, given):
                raise Refused(
                    f"token {name!r} has another secret on broker {broker_name!r}: revoke it, and issue another name"
                )
            secret_key = given
        return Credentials(name, secret_key or "")

    async def tokens(self) -> list[TokenDescription]:
        """Every token of any master, by name, the revoked ones too. Secrets are not shown."""
        masters = await self._masters(None, None)
        found: dict[str, TokenDescription] = {}
        for tokens in await _all(self._tokens_on(address) for address in masters.values()):
            for name, token in tokens.items():
                if name not in found or token.revoked_ms is None:  # while one broker still takes it, it is not revoked
                    found[name] = token
        return [found[name] for name in sorted(found)]

    async def revoke_token(self, name: str) -> None:
        """For good, and from the next request on, on every master that has it."""
        masters = await self._masters(None, None)
        known = await _all(self._tokens_on(address) for address in masters.values())
        having = [address for address, tokens in zip(masters.values(), known, strict=True) if name in tokens]
        if not having:
            raise Refused(f"there is no token {name!r}")
        body = bodies.write(RevokeToken(name))
        await _all(self.session.invoke(address, RequestCode.REVOKE_TOKEN, None, body) for address in having)

    async def _tokens_on(self, address: str) -> dict[str, TokenDescription]:
        answer = await self.session.invoke(address, RequestCode.LIST_TOKENS)
        return {token.name: token for token in bodies.read(TokenList, answer.body).tokens}

    # -- brokers ------------------------------------------------------------------------------------------------------

    async def _masters(self, cluster: str | None, brokers: Iterable[str] | None) -> dict[str, str]:
        """Broker names and the addresses that take writes; at least one."""
        clusters = await self.clusters()
        if cluster is not None and cluster not in clusters:
            raise Refused(f"there is no cluster {cluster!r}, only {', '.join(map(repr, clusters)) or 'none'}")
        masters = {
            name: address
            for some in clusters.values()
            if cluster in (None, some.name)
            for name, address in some.masters.items()
        }
        if brokers is not None:
            wanted = list(brokers)
            missing = [name for name in wanted if name not in masters]
            if missing:
                known = ", ".join(map(repr, masters)) or "none"
                raise Refused(f"there is no master of {', '.join(map(repr, missing))}, only of {known}")
            masters = {name: masters[name] for name in wanted}
        if not masters:
            raise Unavailable("the name server knows no broker with a master: is one running, and registered there?")
        return masters

    async def _address_of(self, queue: QueueRef) -> str:
        route = await self.session.route(queue.topic)
        address = route.address_of(queue.broker_name)
        if address is None:
            raise Refused(f"topic {queue.topic!r} is not on broker {queue.broker_name!r}")
        return address


def _readable(route: TopicRoute) -> list[str]:
    """One member of each broker that has the topic."""
    found = (route.address_of(broker_name) for broker_name in route.addresses)
    return [address for address in found if address is not None]


def _addresses(cluster: Cluster) -> list[str]:
    return [address for members in cluster.brokers.values() for address in members.values()]


def _time_ms(place: StartPosition | int) -> int:
    """0 is before every message."""
    if isinstance(place, str):
        return 0 if place == "first" else NEWEST_MS
    return int(place.timestamp() * 1000) if isinstance(place, datetime) else place


async def _all(asked: Iterable[Awaitable[T]]) -> list[T]:
    return list(await asyncio.gather(*asked))
