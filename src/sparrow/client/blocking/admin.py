"""The blocking admin client. `sparrow.client.aio.admin.admin` documents its guarantees."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from datetime import datetime
from typing import TYPE_CHECKING

from sparrow.client import aio
from sparrow.client.aio.admin.clusters import Cluster
from sparrow.client.aio.admin.groups import GroupMember, GroupProgress
from sparrow.client.aio.admin.resend import ResendResult
from sparrow.client.blocking.blocking_client import BlockingClient
from sparrow.client.options import StartPosition
from sparrow.client.topic_route import TopicRoute
from sparrow.model.access.token import Credentials, TokenKind
from sparrow.model.message import StoredMessage
from sparrow.model.priority import Priority
from sparrow.model.protocol import PERM_READ, PERM_WRITE
from sparrow.model.queue import QueueBounds, QueueRef
from sparrow.model.tls import Tls
from sparrow.model.topic import Group
from sparrow.wire.bodies import ConsumeDirectlyResult, TokenDescription

if TYPE_CHECKING:
    import pyarrow as pa


class Admin(BlockingClient[aio.Admin]):
    """Administers topics, groups, offsets and tokens, and finds messages.

    ```python
    with Admin("127.0.0.1:9876") as admin:
        admin.create_topic("orders", queues=16)
        print(admin.progress("billing").lag)
    ```
    """

    def __init__(
        self, name_servers: str | None = None, *, credentials: Credentials | None = None, tls: Tls | None = None
    ) -> None:
        super().__init__(aio.Admin(name_servers, credentials=credentials, tls=tls), what="the admin client")

    # -- clusters and topics ------------------------------------------------------------------------------------------

    def clusters(self) -> dict[str, Cluster]:
        """Return every cluster by name, with the addresses of its brokers."""
        return self._run(self._client.clusters())

    def topics(self) -> list[str]:
        """Return the names of all topics of all brokers, system topics included."""
        return self._run(self._client.topics())

    def route(self, topic: str) -> TopicRoute:
        """Return the brokers and queues of a topic, as the name server reports them now."""
        return self._run(self._client.route(topic))

    def create_topic(
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
        return self._run(
            self._client.create_topic(
                name, queues, cluster=cluster, brokers=brokers, permission=permission, has_lanes=has_lanes
            )
        )

    def delete_topic(self, name: str, *, cluster: str | None = None) -> None:
        """Delete a topic with its messages and offsets. A topic that does not exist is no error."""
        self._run(self._client.delete_topic(name, cluster=cluster))

    def topic_bounds(self, topic: str) -> dict[QueueRef, QueueBounds]:
        """Return the first and the end offset of each queue of a topic."""
        return self._run(self._client.topic_bounds(topic))

    def offset_at(self, queue: QueueRef, time_ms: int, *, upper: bool = False) -> int:
        """Return the first offset stored at or after a time; with `upper`, the last one at or before it."""
        return self._run(self._client.offset_at(queue, time_ms, upper=upper))

    # -- groups -------------------------------------------------------------------------------------------------------

    def groups(self) -> dict[str, Group]:
        """Return every consumer group by name."""
        return self._run(self._client.groups())

    def create_group(self, group: Group, *, cluster: str | None = None) -> None:
        """Create or change a consumer group."""
        self._run(self._client.create_group(group, cluster=cluster))

    def delete_group(self, name: str, *, clean_offsets: bool = True) -> None:
        """Delete a consumer group, and its committed offsets unless `clean_offsets` is False."""
        self._run(self._client.delete_group(name, clean_offsets=clean_offsets))

    def progress(self, group: str, topic: str | None = None) -> GroupProgress:
        """Return committed offsets and lag of a group on a topic, or on all topics that it reads."""
        return self._run(self._client.progress(group, topic))

    def members(self, group: str) -> list[GroupMember]:
        """Return the members of a group that are online, sorted by client id."""
        return self._run(self._client.members(group))

    def reset_offsets(
        self, group: str, topic: str, to: StartPosition | int, *, force: bool = True
    ) -> dict[QueueRef, int]:
        """Reset a group on a topic to `"first"`, `"last"` or a time, and return the new offset of each queue.

        A time is a datetime or ms since 1970; -1 is the newest message. Members that are online continue from there;
        for a group without one the offsets are committed. Without `force`, offsets only move back.
        """
        return self._run(self._client.reset_offsets(group, topic, to, force=force))

    def reset_queue(self, group: str, queue: QueueRef, offset: int) -> None:
        """Reset a group on one queue to an offset."""
        self._run(self._client.reset_queue(group, queue, offset))

    # -- messages -----------------------------------------------------------------------------------------------------

    def find_by_key(
        self, topic: str, key: str, *, limit: int = 32, begin_ms: int = 0, end_ms: int = (1 << 63) - 1
    ) -> list[StoredMessage]:
        """Return the newest messages of a topic that have the key, the oldest of them first."""
        return self._run(self._client.find_by_key(topic, key, limit=limit, begin_ms=begin_ms, end_ms=end_ms))

    def find_by_id(self, message_id: str, *, topic: str | None = None) -> StoredMessage:
        """Return the message with an id; raise `Refused` if there is none.

        An offset id contains the position of the message. A unique id, which the sender assigned, needs the topic.
        """
        return self._run(self._client.find_by_id(message_id, topic=topic))

    def consume_directly(
        self, group: str, message_id: str, *, topic: str | None = None, client_id: str | None = None
    ) -> ConsumeDirectlyResult:
        """Have a member of the group handle a message now, and return the result.

        The group's offsets do not matter and do not change. The id is an offset id, or a unique id with its topic.
        Without a `client_id` any member that is online is used.
        """
        return self._run(self._client.consume_directly(group, message_id, topic=topic, client_id=client_id))

    def dead_letters(self, group: str, *, newest: int | None = None) -> list[StoredMessage]:
        """Return the dead letters of a group, the oldest first on each broker; `topic` is their original topic.

        Their properties `DLQ_REASON`, `DLQ_ERROR_TYPE`, `DLQ_TRACEBACK`, `DLQ_CONSUMER` and `DLQ_ATTEMPT` say why they
        failed. `newest`: return at most this many of each broker.
        """
        return self._run(self._client.dead_letters(group, newest=newest))

    def given_up_transactions(self, *, newest: int | None = None) -> list[StoredMessage]:
        """Return the messages of transactions that no producer ended, the oldest first on each broker.

        `topic` is the topic they were meant for; the property `PGROUP` is their producer group, and
        `TRANSACTION_CHECK_TIMES` how often the broker checked back. `newest`: at most this many of each broker.
        """
        return self._run(self._client.given_up_transactions(newest=newest))

    def dead_letter_table(self, group: str, *, columns: Iterable[str] | None = None) -> pa.Table:
        """Return the dead letters of a group as an Arrow table; raise `Refused` if the group has never had one."""
        return self._run(self._client.dead_letter_table(group, columns=columns))

    def redrive(
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
        return self._run(
            self._client.redrive(group, ids=ids, since=since, everything=everything, to_group_only=to_group_only)
        )

    def resend(
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
        return self._run(
            self._client.resend(
                topic,
                group=group,
                begin=begin,
                end=end,
                queue_id=queue_id,
                priority=priority,
                broker=broker,
                keys=keys,
                from_ms=from_ms,
                to_ms=to_ms,
                dry_run=dry_run,
                force=force,
            )
        )

    # -- tokens -------------------------------------------------------------------------------------------------------

    def issue_token(
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
        return self._run(
            self._client.issue_token(
                name, kind, topics=topics, groups=groups, addresses=addresses, secret_key=secret_key
            )
        )

    def change_token(
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
        self._run(self._client.change_token(name, kind, topics=topics, groups=groups, addresses=addresses))

    def tokens(self) -> list[TokenDescription]:
        """Return every token by name, revoked ones included, without secrets."""
        return self._run(self._client.tokens())

    def revoke_token(self, name: str) -> None:
        """Revoke a token for good on every master, from the next request on."""
        self._run(self._client.revoke_token(name))
