"""The asyncio admin client: topics, groups, routes, offsets, tokens, and messages by key, id or time.

    async with Admin("127.0.0.1:9876") as admin:
        await admin.create_topic("orders", queues=16)
        print((await admin.progress("billing")).lag)

Queries go to masters. A change succeeds once every broker that it concerns has made it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from datetime import datetime
from ipaddress import ip_address
from typing import TYPE_CHECKING

from sparrow.client.aio.admin import groups, offset_reset, tokens, topics
from sparrow.client.aio.admin.clusters import Cluster, fetch_clusters
from sparrow.client.aio.admin.dead_letters import dead_letter_filter, read_dead_letters, redrive_dead_letters
from sparrow.client.aio.admin.groups import GroupMember, GroupProgress
from sparrow.client.aio.admin.message_query import query_by_key, query_by_unique_key, view_by_offset_id
from sparrow.client.aio.admin.resend import ResendResult, make_resend_request, resend_messages
from sparrow.client.aio.admin.topic_messages import read_given_up_transactions
from sparrow.client.aio.connection.session import ClientSession
from sparrow.client.options import StartPosition
from sparrow.client.topic_route import TopicRoute
from sparrow.extras import require
from sparrow.model.access.token import Credentials, TokenKind
from sparrow.model.errors import Refused, SparrowError
from sparrow.model.message import StoredMessage
from sparrow.model.priority import Priority
from sparrow.model.protocol import DLQ_TOPIC_PREFIX, PERM_READ, PERM_WRITE, SUBSCRIBE_ALL
from sparrow.model.queue import QueueBounds, QueueRef
from sparrow.model.tls import Tls
from sparrow.model.topic import Group
from sparrow.net.address import Address
from sparrow.wire import bodies
from sparrow.wire.bodies import ConsumeDirectlyResult, TokenDescription
from sparrow.wire.codes import RequestCode
from sparrow.wire.headers import ConsumeMessageDirectly
from sparrow.wire.message_ids import format_offset_id

if TYPE_CHECKING:
    import pyarrow as pa

CONSUME_DIRECTLY_TIMEOUT_MS = 12_000
"""For a message that a consumer handles directly: brokers wait 10 s for the consumer."""


class Admin:
    """Administers topics, groups, offsets and tokens, and finds messages."""

    def __init__(
        self,
        name_servers: str | None = None,
        *,
        credentials: Credentials | None = None,
        tls: Tls | None = None,
        session: ClientSession | None = None,
    ) -> None:
        """Create an admin client.

        `credentials` sign every request, `tls` encrypts the connections (None: as `SPARROW_TLS_AUTHORITIES` says).
        `session`: use the connections and credentials of another client.
        """
        self.session = session or ClientSession(name_servers, credentials=credentials, tls=tls)
        self._owns_session = session is None

    async def open(self) -> None:
        """Open the session. `async with` does it."""
        await self.session.open()

    async def close(self) -> None:
        """Close the connections, unless the session belongs to another client."""
        if self._owns_session:
            await self.session.close()

    async def __aenter__(self) -> Admin:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # -- clusters and topics ------------------------------------------------------------------------------------------

    async def clusters(self) -> dict[str, Cluster]:
        """Return every cluster by name, with the addresses of its brokers."""
        return await fetch_clusters(self.session)

    async def topics(self) -> list[str]:
        """Return the names of all topics of all brokers, system topics included."""
        return await topics.fetch_topics(self.session)

    async def route(self, topic: str) -> TopicRoute:
        """Return the brokers and queues of a topic, as the name server reports them now."""
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
        """Create or change a topic on the masters of a cluster, of the named brokers, or of all brokers.

        Producers and consumers find it when this returns. `has_lanes`: messages have priorities; each queue that
        producers write has three read queues.
        """
        return await topics.create_topic(
            self.session,
            name,
            queues,
            cluster=cluster,
            brokers=brokers,
            permission=permission,
            has_lanes=has_lanes,
        )

    async def delete_topic(self, name: str, *, cluster: str | None = None) -> None:
        """Delete a topic with its messages and offsets. A topic that does not exist is no error."""
        await topics.delete_topic(self.session, name, cluster=cluster)

    async def topic_bounds(self, topic: str) -> dict[QueueRef, QueueBounds]:
        """Return the first and the end offset of each queue of a topic."""
        return await topics.fetch_topic_bounds(self.session, topic)

    async def offset_at(self, queue: QueueRef, time_ms: int, *, upper: bool = False) -> int:
        """Return the first offset stored at or after a time; with `upper`, the last one at or before it."""
        return await topics.fetch_offset_at(self.session, queue, time_ms, upper=upper)

    # -- groups -------------------------------------------------------------------------------------------------------

    async def groups(self) -> dict[str, Group]:
        """Return every consumer group by name."""
        return await groups.fetch_groups(self.session)

    async def create_group(self, group: Group, *, cluster: str | None = None) -> None:
        """Create or change a consumer group."""
        await groups.create_group(self.session, group, cluster=cluster)

    async def delete_group(self, name: str, *, clean_offsets: bool = True) -> None:
        """Delete a consumer group, and its committed offsets unless `clean_offsets` is False."""
        await groups.delete_group(self.session, name, clean_offsets=clean_offsets)

    async def progress(self, group: str, topic: str | None = None) -> GroupProgress:
        """Return committed offsets and lag of a group on a topic, or on all topics that it reads."""
        return await groups.fetch_progress(self.session, group, topic)

    async def members(self, group: str) -> list[GroupMember]:
        """Return the members of a group that are online, sorted by client id."""
        return await groups.fetch_members(self.session, group)

    async def reset_offsets(
        self, group: str, topic: str, to: StartPosition | int, *, force: bool = True
    ) -> dict[QueueRef, int]:
        """Reset a group on a topic to `"first"`, `"last"` or a time, and return the new offset of each queue.

        A time is a datetime or ms since 1970; -1 is the newest message. Members that are online continue from there;
        for a group without one the offsets are committed. Without `force`, offsets only move back.
        """
        return await offset_reset.reset_offsets(self.session, group, topic, to, force=force)

    async def reset_queue(self, group: str, queue: QueueRef, offset: int) -> None:
        """Reset a group on one queue to an offset."""
        await offset_reset.reset_queue(self.session, group, queue, offset)

    # -- messages -----------------------------------------------------------------------------------------------------

    async def find_by_key(
        self, topic: str, key: str, *, limit: int = 32, begin_ms: int = 0, end_ms: int = (1 << 63) - 1
    ) -> list[StoredMessage]:
        """Return the newest messages of a topic that have the key, the oldest of them first."""
        route = await self.session.route(topic)
        return await query_by_key(self.session, route, key, limit=limit, begin_ms=begin_ms, end_ms=end_ms)

    async def find_by_id(self, message_id: str, *, topic: str | None = None) -> StoredMessage:
        """Return the message with an id; raise `Refused` if there is none.

        An offset id contains the position of the message. A unique id, which the sender assigned, needs the topic.
        """
        if topic is None:
            return await view_by_offset_id(self.session, message_id)
        found = await query_by_unique_key(self.session, await self.session.route(topic), message_id)
        if found is not None:
            return found
        addresses = {address for cluster in (await self.clusters()).values() for address in cluster.addresses}
        try:
            # Both kinds of id look alike: connect only if the id contains the address of a known broker.
            return await view_by_offset_id(self.session, message_id, only=addresses)
        except SparrowError as cause:
            raise Refused(f"topic {topic!r} has no message with the id {message_id!r}, or no longer") from cause

    async def consume_directly(
        self, group: str, message_id: str, *, topic: str | None = None, client_id: str | None = None
    ) -> ConsumeDirectlyResult:
        """Have a member of the group handle a message now, and return the result.

        The group's offsets do not matter and do not change. The id is an offset id, or a unique id with its topic.
        Without a `client_id` any member that is online is used.
        """
        message = await self.find_by_id(message_id, topic=topic)
        host = message.store_host
        address = str(Address(str(ip_address(host.ip)), host.port))
        if client_id is None:  # RocketMQ's brokers require one
            members = await groups.fetch_members_on(self.session, address, group)
            if not members:
                raise Refused(f"no consumer of group {group!r} is online")
            client_id = members[0].client_id
        offset_id = format_offset_id(host, message.physical_offset)
        header = ConsumeMessageDirectly(group, client_id, offset_id, topic=message.topic)
        answer = await self.session.invoke(
            address, RequestCode.CONSUME_MESSAGE_DIRECTLY, header, timeout_ms=CONSUME_DIRECTLY_TIMEOUT_MS
        )
        return bodies.read(ConsumeDirectlyResult, answer.body)

    async def dead_letters(self, group: str, *, newest: int | None = None) -> list[StoredMessage]:
        """Return the dead letters of a group, the oldest first on each broker; `topic` is their original topic.

        Their properties `DLQ_REASON`, `DLQ_ERROR_TYPE`, `DLQ_TRACEBACK`, `DLQ_CONSUMER` and `DLQ_ATTEMPT` say why they
        failed. `newest`: return at most this many of each broker.
        """
        return [letter async for letter in read_dead_letters(self.session, group, newest=newest)]

    async def given_up_transactions(self, *, newest: int | None = None) -> list[StoredMessage]:
        """Return the messages of transactions that no producer ended, the oldest first on each broker.

        `topic` is the topic they were meant for; the property `PGROUP` is their producer group, and
        `TRANSACTION_CHECK_TIMES` how often the broker checked back. `newest`: at most this many of each broker.
        """
        return [message async for message in read_given_up_transactions(self.session, newest=newest)]

    async def dead_letter_table(self, group: str, *, columns: Iterable[str] | None = None) -> pa.Table:
        """Return the dead letters of a group as an Arrow table; raise `Refused` if the group has never had one."""
        require("numpy", "pyarrow", extra="tables", for_="Admin.dead_letter_table")
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
        """Send dead letters again: those with these ids, those since a time, or all; return how many.

        They go to their original topic under their own unique ids, so every group that reads it gets them once more;
        with `to_group_only` they go to the retry topic of this group. They also stay among the dead letters.
        """
        wanted = dead_letter_filter(ids, since, everything=everything)
        return await redrive_dead_letters(self.session, group, wanted, to_group=to_group_only)

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
        """Deliver messages of a topic once more, to a group or to all groups that have committed offsets on it.

        The messages are not copied; they are delivered like retries, with the property `RESENT`. They are selected by
        offsets `begin` to `end`, both included, in a queue or in the queues of a priority; by one of the `keys`; or by
        store time from `from_ms` to before `to_ms`, which may also narrow down keys. Messages that a group has not
        read yet are refused unless `force`. `dry_run` only counts.
        """
        request = make_resend_request(
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
        return await resend_messages(self.session, await self.route(topic), request, broker)

    # -- tokens -------------------------------------------------------------------------------------------------------

    async def issue_token(
        self,
        name: str,
        kind: TokenKind,
        *,
        topics: Iterable[str] | None = None,
        groups: Iterable[str] | None = None,
        addresses: Iterable[str] | None = None,
        secret_key: str | None = None,
    ) -> Credentials:
        """Issue a token that may produce (`p`), consume (`c`), both (`pc`) or administer (`a`), and return its keys.

        It is limited to `topics` and `groups`: names, prefixes (`orders-*`), or `*`; None means all. Its requests may
        come from `addresses`: IP addresses and networks (`10.0.0.0/8`); none mean from anywhere. Every broker gets the
        same token. A name that exists is refused, unless `secret_key` is its secret: brokers that do not have the
        token get it then.
        """
        return await tokens.issue_token(
            self.session, name, kind, topics=topics, groups=groups, addresses=addresses, secret_key=secret_key
        )

    async def change_token(
        self,
        name: str,
        kind: TokenKind,
        *,
        topics: Iterable[str] | None = None,
        groups: Iterable[str] | None = None,
        addresses: Iterable[str] | None = None,
    ) -> None:
        """Replace the kind of a token, its patterns of topics and groups, and its addresses, from the next request on.

        What is left out is not kept: None means all topics, all groups, and from anywhere.
        """
        await tokens.change_token(self.session, name, kind, topics=topics, groups=groups, addresses=addresses)

    async def tokens(self) -> list[TokenDescription]:
        """Return every token by name, revoked ones included, without secrets."""
        return await tokens.fetch_tokens(self.session)

    async def revoke_token(self, name: str) -> None:
        """Revoke a token for good on every master, from the next request on."""
        await tokens.revoke_token(self.session, name)
