"""Half messages: transactions that no producer has ended yet, and ending them by force with a result for each.

An id is `broker@offset`: the offset of the half message in the half queue of its broker.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence

import msgspec

from sparrow.client.aio.admin.admin import Admin
from sparrow.client.aio.admin.clusters import fetch_masters
from sparrow.client.aio.admin.waiting_messages import end_half_message, fetch_half_messages
from sparrow.client.aio.connection.session import ClientSession
from sparrow.model.errors import SparrowError
from sparrow.model.transaction import TransactionState
from sparrow.operations.plans import check_plan
from sparrow.operations.waiting_messages.actions import (
    WaitingAction,
    WaitingItem,
    WaitingPlan,
    WaitingReport,
    WaitingState,
    check_ids,
    make_plan,
    make_report,
)
from sparrow.operations.waiting_messages.pages import WaitingPage, list_waiting
from sparrow.wire.bodies import HalfMessageEntry, HalfMessages, ListHalfMessages
from sparrow.wire.headers.codec import JavaLong
from sparrow.wire.properties import parse_whole_number

HalfCursor = dict[str, JavaLong | None]
"""The `next` of a page: the offset at each broker that has more."""
_VERDICTS = {WaitingAction.COMMIT: TransactionState.COMMIT, WaitingAction.ROLLBACK: TransactionState.ROLLBACK}
_STATES = {
    "committed": WaitingState.COMMITTED,
    "rolled_back": WaitingState.ROLLED_BACK,
    "not_found": WaitingState.NOT_FOUND,
}


class HalfMessageView(msgspec.Struct, frozen=True, kw_only=True):
    """A half message whose transaction is not ended."""

    id: str
    message_id: str | None
    topic: str
    """The topic it is meant for."""
    broker: str
    producer_group: str | None
    """None if the half message cannot be read now."""
    store_ms: int
    checks: int
    """How often the broker has checked back."""
    checks_max: int
    """After this many it gives the transaction up."""
    next_check_ms: int
    keys: tuple[str, ...]
    tags: str | None
    body_bytes: int


async def list_half_messages(
    admin: Admin, *, topic: str | None = None, limit: int = 50, after: HalfCursor | None = None
) -> WaitingPage[HalfMessageView, JavaLong]:
    """Return half messages of all brokers, the oldest first."""

    def fetch(address: str, offset: JavaLong | None) -> Awaitable[HalfMessages]:
        return fetch_half_messages(admin.session, address, ListHalfMessages(topic=topic, after=offset, limit=limit))

    return await list_waiting(
        admin.session,
        fetch,
        _view,
        sort_key=lambda entry: entry.store_ms,
        position_of=lambda entry: entry.half_offset,
        limit=limit,
        after=after,
    )


async def plan_end(admin: Admin, ids: Sequence[str], action: WaitingAction) -> WaitingPlan:
    """Return which transactions a commit or rollback would end; nothing is changed."""
    masters = await fetch_masters(admin.session)
    found = [await _look_up(admin.session, masters, half_id) for half_id in check_ids(ids)]
    return make_plan(action, [item for item, _ in found])


async def end_half_messages(
    admin: Admin, ids: Sequence[str], action: WaitingAction, *, plan: str | None, force: bool = False
) -> WaitingReport:
    """Commit or roll back transactions as planned, in the name of their producers. One that fails stops no other."""
    masters = await fetch_masters(admin.session)
    found = [await _look_up(admin.session, masters, half_id) for half_id in check_ids(ids)]
    current = make_plan(action, [item for item, _ in found])
    check_plan(f"the {action} of transactions", plan, current.hash, force=force)
    items = [await _end(admin.session, masters, item, entry, action) for item, entry in found]
    return make_report(action, items)


async def _end(
    session: ClientSession,
    masters: Mapping[str, str],
    item: WaitingItem,
    entry: HalfMessageEntry | None,
    action: WaitingAction,
) -> WaitingItem:
    if entry is None or item.state is not WaitingState.WAITING:
        return item
    try:
        outcome = await end_half_message(session, masters[_broker_of(item.id)], entry, _VERDICTS[action])
    except SparrowError as error:
        return msgspec.structs.replace(item, state=WaitingState.FAILED, error=str(error))
    state = _STATES.get(outcome or "", WaitingState.FAILED)
    unexpected = f"the broker answered {outcome!r}" if state is WaitingState.FAILED else None
    return msgspec.structs.replace(item, state=state, error=unexpected)


async def _look_up(
    session: ClientSession, masters: Mapping[str, str], half_id: str
) -> tuple[WaitingItem, HalfMessageEntry | None]:
    broker, _, number = half_id.rpartition("@")
    offset = parse_whole_number(number)
    if not broker or offset is None:
        error = f"{half_id[:80]!r} is not the id of a half message: use broker@offset, as the list shows it"
        return WaitingItem(id=half_id, state=WaitingState.FAILED, error=error), None
    if broker not in masters:
        error = f"broker {broker!r} does not exist, or has no master now"
        return WaitingItem(id=half_id, state=WaitingState.FAILED, error=error), None
    try:
        answer = await fetch_half_messages(session, masters[broker], ListHalfMessages(half_offset=offset, limit=1))
    except SparrowError as failure:  # a broker that does not respond, or an offset that no queue can have
        return WaitingItem(id=half_id, state=WaitingState.FAILED, error=str(failure)), None
    if not answer.messages:
        return WaitingItem(id=half_id, state=WaitingState.NOT_FOUND), None
    entry = answer.messages[0]
    item = WaitingItem(id=half_id, state=WaitingState.WAITING, topic=entry.topic, message_id=entry.unique_key)
    if entry.producer_group is None:
        error = "its half message cannot be read, or not yet"
        return msgspec.structs.replace(item, state=WaitingState.FAILED, error=error), None
    return item, entry


def _broker_of(half_id: str) -> str:
    return half_id.rpartition("@")[0]


def _view(broker: str, entry: HalfMessageEntry, answer: HalfMessages) -> HalfMessageView:
    return HalfMessageView(
        id=f"{broker}@{entry.half_offset}",
        message_id=entry.unique_key,
        topic=entry.topic,
        broker=broker,
        producer_group=entry.producer_group,
        store_ms=entry.store_ms,
        checks=entry.checks,
        checks_max=answer.checks_max,
        next_check_ms=entry.next_check_ms,
        keys=tuple((entry.keys or "").split()),
        tags=entry.tags,
        body_bytes=entry.body_bytes,
    )
