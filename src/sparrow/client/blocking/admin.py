"""What an operator asks for, for programs without an event loop. `sparrow.client.aio.admin.admin` says what is
promised."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from datetime import datetime
from typing import TYPE_CHECKING

from sparrow.client import aio
from sparrow.client.aio.admin.admin import Cluster, GroupMember, GroupProgress
from sparrow.client.aio.admin.resend import ResendResult
from sparrow.client.aio.consume.rebalance import StartPosition
from sparrow.client.blocking.blocking_client import BlockingClient
from sparrow.client.topic_route import TopicRoute
from sparrow.model.message import StoredMessage
from sparrow.model.priority import Priority
from sparrow.model.protocol import PERM_READ, PERM_WRITE
from sparrow.model.queue import QueueBounds, QueueRef
from sparrow.model.token import Credentials, TokenKind
from sparrow.model.topic import Group
from sparrow.wire.bodies import ConsumeDirectlyResult, TokenDescription

if TYPE_CHECKING:
    import pyarrow as pa


class Admin(BlockingClient[aio.Admin]):
    """Topics, groups, routes, how far groups are, and messages by key or id.

    ```python
    with Admin("127.0.0.1:9876") as admin:
        admin.create_topic("orders", queues=16)
        print(admin.progress("billing").lag)
    ```
    """

    def __init__(self, name_servers: str = "127.0.0.1:9876", *, credentials: Credentials | None = None) -> None:
        super().__init__(aio.Admin(name_servers, credentials=credentials), what="the admin client")

    # -- clusters and topics ------------------------------------------------------------------------------------------

    def clusters(self) -> dict[str, Cluster]:
        return self._run(self._client.clusters())

    def topics(self) -> list[str]:
        """Every topic any broker has, the brokers' own among them."""
        return self._run(self._client.topics())

    def route(self, topic: str) -> TopicRoute:
        """Where the topic lives, asked now."""
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
        """Make a topic, or change it, on the masters of a cluster or of the brokers named; on all without either. With
        lanes, messages have priorities: of each queue that producers know, readers see three."""
        return self._run(
            self._client.create_topic(
                name, queues, cluster=cluster, brokers=brokers, permission=permission, has_lanes=has_lanes
            )
        )

    def delete_topic(self, name: str, *, cluster: str | None = None) -> None:
        """Messages and offsets go with it. Deleting what is not there is fine."""
        self._run(self._client.delete_topic(name, cluster=cluster))

    def topic_bounds(self, topic: str) -> dict[QueueRef, QueueBounds]:
        """What each queue of the topic holds."""
        return self._run(self._client.topic_bounds(topic))

    def offset_at(self, queue: QueueRef, time_ms: int, *, upper: bool = False) -> int:
        """The first offset stored at or after that time; with `upper` the last one stored at or before it."""
        return self._run(self._client.offset_at(queue, time_ms, upper=upper))

    # -- groups -------------------------------------------------------------------------------------------------------

    def groups(self) -> dict[str, Group]:
        """Every group any master knows."""
        return self._run(self._client.groups())

    def create_group(self, group: Group, *, cluster: str | None = None) -> None:
        """Make a group, or change it."""
        self._run(self._client.create_group(group, cluster=cluster))

    def delete_group(self, name: str, *, clean_offsets: bool = True) -> None:
        self._run(self._client.delete_group(name, clean_offsets=clean_offsets))

    def progress(self, group: str, topic: str | None = None) -> GroupProgress:
        """How far the group is on a topic, or on all it reads."""
        return self._run(self._client.progress(group, topic))

    def members(self, group: str) -> list[GroupMember]:
        """Who consumes for the group now, by client id; nobody is an answer too."""
        return self._run(self._client.members(group))

    def reset_offsets(
        self, group: str, topic: str, to: StartPosition | int, *, force: bool = True
    ) -> dict[QueueRef, int]:
        """Make the group read on from another place: `"first"`, `"last"`, or a time (a datetime, or ms since 1970; -1
        is the newest message). Where each queue goes on is the answer."""
        return self._run(self._client.reset_offsets(group, topic, to, force=force))

    def reset_queue(self, group: str, queue: QueueRef, offset: int) -> None:
        """The same for one queue, and to an offset in it."""
        self._run(self._client.reset_queue(group, queue, offset))

    # -- messages -----------------------------------------------------------------------------------------------------

    def find_by_key(
        self, topic: str, key: str, *, limit: int = 32, begin_ms: int = 0, end_ms: int = (1 << 63) - 1
    ) -> list[StoredMessage]:
        """The newest messages of the topic that carry the key, oldest first."""
        return self._run(self._client.find_by_key(topic, key, limit=limit, begin_ms=begin_ms, end_ms=end_ms))

    def find_by_id(self, message_id: str, *, topic: str | None = None) -> StoredMessage:
        """The message with that id: an offset id, or a unique id and its topic. `Refused` when there is none."""
        return self._run(self._client.find_by_id(message_id, topic=topic))

    def consume_directly(
        self, group: str, message_id: str, *, topic: str | None = None, client_id: str | None = None
    ) -> ConsumeDirectlyResult:
        """Have a consumer of the group, or that one, handle a message now. The answer says what came of it."""
        return self._run(self._client.consume_directly(group, message_id, topic=topic, client_id=client_id))

    def dead_letters(self, group: str) -> list[StoredMessage]:
        """What the group gave up, oldest first on each broker; `topic` is the one a message was sent to."""
        return self._run(self._client.dead_letters(group))

    def dead_letter_table(self, group: str, *, columns: Iterable[str] | None = None) -> pa.Table:
        """The same as an Arrow table, for many. `Refused` when the group has never given one up."""
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
        """Send dead letters again: those with these ids, those that died since a time, or all; how many there were.

        They go to the topic they were sent to, for every group that reads it, or only to this group.
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
        """Deliver messages of a topic once more, to a group or to all that have committed an offset on it.

        Which messages: offsets `begin` to `end`, both included, of a queue or of a priority's queues; those with one of
        the `keys`; or those stored from `from_ms` on and before `to_ms`.
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

    def issue_token(self, name: str, kind: TokenKind) -> Credentials:
        """What a producer (`p`) or a consumer (`c`) is to sign its requests with. A name issued before is given as it
        was; one of another kind, or revoked, is refused."""
        return self._run(self._client.issue_token(name, kind))

    def tokens(self) -> list[TokenDescription]:
        """Every token of any master, by name, the revoked ones too. Secrets are not shown."""
        return self._run(self._client.tokens())

    def revoke_token(self, name: str) -> None:
        """For good, and from the next request on, on every master that has it."""
        self._run(self._client.revoke_token(name))
