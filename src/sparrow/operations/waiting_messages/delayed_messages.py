"""Delayed messages: those that wait for their delivery time, and recalling them with a result for each."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence

import msgspec

from sparrow.client.aio.admin.admin import Admin
from sparrow.client.aio.admin.clusters import fetch_masters
from sparrow.client.aio.admin.waiting_messages import fetch_delayed
from sparrow.client.aio.connection.session import ClientSession
from sparrow.client.produce.delayed_delivery import RecallHandle
from sparrow.model.errors import Refused, SparrowError
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
from sparrow.wire.bodies import DelayedMessageEntry, DelayedMessages, ListDelayed, TimerPosition
from sparrow.wire.codes import RequestCode
from sparrow.wire.headers import RecallMessage

DelayedCursor = dict[str, TimerPosition | None]
"""The `next` of a page: the position at each broker that has more."""
_LISTED_AT_ONCE = 256


class DelayedMessageView(msgspec.Struct, frozen=True, kw_only=True):
    """A message that waits for its delivery time."""

    handle: str | None
    """The recall handle; None if its sender assigned no id, so that it cannot be recalled."""
    message_id: str | None
    topic: str
    broker: str
    due_ms: int
    store_ms: int
    keys: tuple[str, ...]
    tags: str | None
    body_bytes: int


async def list_delayed(
    admin: Admin,
    *,
    topic: str | None = None,
    from_ms: int = 0,
    until_ms: int | None = None,
    limit: int = 50,
    after: DelayedCursor | None = None,
) -> WaitingPage[DelayedMessageView, TimerPosition]:
    """Return delayed messages of all brokers, the next to be delivered first."""
    asked = ListDelayed(topic=topic, from_ms=from_ms, until_ms=until_ms, limit=limit)

    def fetch(address: str, position: TimerPosition | None) -> Awaitable[DelayedMessages]:
        return fetch_delayed(admin.session, address, msgspec.structs.replace(asked, after=position))

    return await list_waiting(
        admin.session,
        fetch,
        _view,
        sort_key=lambda entry: entry.due_ms,
        position_of=lambda entry: entry.position,
        limit=limit,
        after=after,
    )


async def plan_recall(admin: Admin, handles: Sequence[str]) -> WaitingPlan:
    """Return which messages a recall would reach; nothing is changed."""
    masters = await fetch_masters(admin.session)
    items = [await _look_up(admin.session, masters, handle) for handle in check_ids(handles)]
    return make_plan(WaitingAction.RECALL, items)


async def recall_delayed(
    admin: Admin, handles: Sequence[str], *, plan: str | None, force: bool = False
) -> WaitingReport:
    """Cancel deliveries as planned. One that fails does not stop the others."""
    current = await plan_recall(admin, handles)
    check_plan("the recall of delayed messages", plan, current.hash, force=force)
    masters = await fetch_masters(admin.session)
    return make_report(WaitingAction.RECALL, [await _recall(admin.session, masters, item) for item in current.items])


async def _recall(session: ClientSession, masters: Mapping[str, str], item: WaitingItem) -> WaitingItem:
    if item.state is not WaitingState.WAITING:
        return item
    handle = RecallHandle.parse(item.id)
    try:
        request = RecallMessage(handle.topic, item.id)
        await session.invoke(masters[handle.broker_name], RequestCode.RECALL_MESSAGE, request)
    except SparrowError as error:
        return msgspec.structs.replace(item, state=WaitingState.FAILED, error=str(error))
    return msgspec.structs.replace(item, state=WaitingState.RECALLED)


async def _look_up(session: ClientSession, masters: Mapping[str, str], text: str) -> WaitingItem:
    """Return whether the message of a handle waits. Brokers cancel without looking, so it is looked up before."""
    try:
        handle = RecallHandle.parse(text)
    except Refused as error:
        return WaitingItem(id=text, state=WaitingState.FAILED, error=str(error))
    known = WaitingItem(
        id=text, state=WaitingState.NOT_FOUND, topic=handle.topic, message_id=handle.message_id, error=None
    )
    if handle.broker_name not in masters:
        why = f"broker {handle.broker_name!r} has no master now"
        return msgspec.structs.replace(known, state=WaitingState.FAILED, error=why)
    request = ListDelayed(
        topic=handle.topic,
        unique_key=handle.message_id,
        from_ms=handle.due_ms,
        until_ms=handle.due_ms + 1,
        limit=_LISTED_AT_ONCE,
    )
    try:
        while True:  # as many as are due in this very millisecond
            found = await fetch_delayed(session, masters[handle.broker_name], request)
            if any(entry.due_ms == handle.due_ms for entry in found.messages):
                return msgspec.structs.replace(known, state=WaitingState.WAITING)
            if found.next is None:
                return known
            request = msgspec.structs.replace(request, after=found.next)
    except SparrowError as error:  # a broker that does not respond, or a time that none can have
        return msgspec.structs.replace(known, state=WaitingState.FAILED, error=str(error))


def _view(broker: str, entry: DelayedMessageEntry, _answer: DelayedMessages) -> DelayedMessageView:
    return DelayedMessageView(
        handle=entry.recall_handle,
        message_id=entry.unique_key,
        topic=entry.topic,
        broker=broker,
        due_ms=entry.due_ms,
        store_ms=entry.store_ms,
        keys=tuple((entry.keys or "").split()),
        tags=entry.tags,
        body_bytes=entry.body_bytes,
    )
