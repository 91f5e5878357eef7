"""A handler's parameters get arguments by their annotations; impossible handlers are refused before anything runs."""

from __future__ import annotations

import functools
from asyncio import CancelledError
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import pytest
from sqlalchemy import Connection
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession
from sqlalchemy.orm import Session

from sparrow.bus.codec.headers import Headers
from sparrow.bus.errors import SubscriptionError, Undecodable
from sparrow.bus.handlers.call_plan import CancelToken, Event, plan_call

if TYPE_CHECKING:
    from nowhere import Unseen


class Order(msgspec.Struct):
    order_id: int


class Mailer:
    pass


class OwnSession(AsyncSession):
    pass


HEADERS = Headers({"cap-msg-id": "7"})
EVENT = Event(
    id="7", name="a", group="g", headers=HEADERS, value=1, retries=0, added=datetime(2026, 1, 1, tzinfo=UTC), key="k"
)
CANCEL = CancelToken()


def called(handler, **options):
    """Call the handler as planned and return its result."""
    args, kwargs = plan_call(handler, **options).arguments("payload", HEADERS, EVENT, "session", CANCEL)
    return handler(*args, **kwargs)


# -- arguments -------------------------------------------------------------------------------------------------------


def test_everything_is_injected_by_annotation_in_any_order():
    def handler(h: Headers, session: Session, e: Event, c: CancelToken, evt: Order):
        return h, session, e, c, evt

    assert called(handler) == (HEADERS, "session", EVENT, CANCEL, "payload")


def test_the_payload_is_the_first_parameter_of_an_ordinary_type():
    def handler(h: Headers, evt, size: int = 5, *, deep: bool = True):
        return h, evt, size, deep

    assert called(handler) == (HEADERS, "payload", 5, True)


def test_a_handler_may_have_no_payload():
    assert called(lambda: "done") == "done"
    assert plan_call(lambda: "done").payload_annotation is None


def test_the_payload_may_be_a_keyword_only_parameter():
    def handler(*, evt: Order):
        return evt

    assert called(handler) == "payload"


def test_positional_only_parameters_stay_in_their_positions():
    def handler(evt, size=5, h: Headers | None = None, /):
        return evt, size, h

    assert called(handler) == ("payload", 5, HEADERS)


def test_optional_and_annotated_types_are_recognised():
    def handler(evt: Annotated[Order, "payload"], h: Annotated[Headers | None, "all"] = None):
        return evt, h

    assert called(handler) == ("payload", HEADERS)
    assert plan_call(handler).decode(b'{"order_id":3}') == Order(3)


def test_other_types_come_from_providers():
    mailer = Mailer()

    def handler(mail: Mailer, evt: dict):
        return mail, evt

    assert called(handler, providers={Mailer: lambda: mailer}) == (mailer, "payload")


def test_a_parameter_without_a_source_is_named_in_the_error():
    def handler(evt: dict, mail: Mailer):
        pass

    with pytest.raises(SubscriptionError, match=r"'mail' of .*handler"):
        plan_call(handler)


def test_a_payload_type_that_cannot_be_decoded_is_named_in_the_error():
    def handler(mail: Mailer):
        pass

    with pytest.raises(SubscriptionError, match=r"'mail' of .*handler.* Mailer cannot be decoded"):
        plan_call(handler)


def test_an_annotation_that_cannot_be_resolved_at_run_time_is_named_in_the_error():
    def handler(evt: Unseen):
        pass

    with pytest.raises(SubscriptionError, match="'Unseen' of parameter 'evt'"):
        plan_call(handler)


def test_a_return_annotation_that_cannot_be_resolved_is_ignored():
    def handler(evt: dict) -> Unseen:
        return evt

    assert called(handler) == "payload"


def test_local_types_that_the_handler_uses_are_resolved():
    class Local(msgspec.Struct):
        a: int

    def handler(evt: Local):
        return Local(evt.a)

    assert plan_call(handler).decode(b'{"a":1}') == Local(1)


# -- the payload -----------------------------------------------------------------------------------------------------


def test_the_payload_is_decoded_as_annotated():
    def handler(evt: Order):
        pass

    assert plan_call(handler).decode(b'{"order_id":3}') == Order(3)
    assert plan_call(handler, naming="pascal").decode(b'{"OrderId":3}') == Order(3)
    with pytest.raises(Undecodable):
        plan_call(handler).decode(b'{"order_id":"x"}')


def test_the_default_of_the_payload_replaces_an_empty_body():
    def handler(evt: Order = Order(0)):  # noqa: B008
        pass

    assert plan_call(handler).decode(b"") == Order(0)


def test_a_handler_without_payload_accepts_any_json_or_an_empty_body():
    assert [plan_call(lambda: None).decode(body) for body in (b"", b"[1]")] == [None, [1]]


# -- kinds of handlers -----------------------------------------------------------------------------------------------


class Orders:
    def plain(self, evt: Order, headers: Headers):
        return evt, headers

    async def later(self, evt: Order, session: AsyncSession):
        return evt, session

    async def __call__(self, evt: Order):
        return evt

    @staticmethod
    def standing(evt: Order):
        return evt


def test_bound_methods_partials_and_callable_objects_are_handlers():
    def handler(size: int, evt: Order, h: Headers, colour: str = "red"):
        return size, evt, h, colour

    assert called(Orders().plain) == ("payload", HEADERS)
    assert called(Orders.standing) == "payload"
    assert called(functools.partial(handler, 3, colour="blue")) == (3, "payload", HEADERS, "blue")
    assert plan_call(functools.partial(handler, 3)).decode(b'{"order_id":3}') == Order(3)
    assert plan_call(Orders()).decode(b'{"order_id":3}') == Order(3)


async def test_async_methods_partials_and_objects_are_recognised():
    orders = Orders()
    handlers = [orders.later, functools.partial(orders.later), orders, orders.plain]
    assert [plan_call(handler).is_async for handler in handlers] == [True, True, True, False]
    assert await called(orders) == "payload"


def test_a_decorated_handler_is_inspected_without_its_decorators():
    def traced(function):
        @functools.wraps(function)
        def around(*args, **kwargs):
            return function(*args, **kwargs)

        return around

    @traced
    def handler(evt: Order, h: Headers):
        return evt, h

    assert called(handler) == ("payload", HEADERS)
    with pytest.raises(SubscriptionError, match=r"functools\.wraps"):
        plan_call(lambda *args: None)


def test_a_generator_is_refused_as_a_handler():
    def handler(evt):
        yield evt

    with pytest.raises(SubscriptionError, match="must return, not yield"):
        plan_call(handler)


# -- database sessions and connections -------------------------------------------------------------------------------


def handlers():
    def with_session(s: Session): ...
    def with_connection(c: Connection): ...
    def without(evt: dict): ...
    async def with_async_session(s: AsyncSession): ...
    async def with_own(s: OwnSession | None): ...
    async def with_async_connection(c: AsyncConnection): ...

    return [with_session, with_connection, without, with_async_session, with_own, with_async_connection]


def test_the_kind_of_session_is_recognised():
    plans = [plan_call(handler) for handler in handlers()]
    assert [(each.session_kind, each.wants_connection) for each in plans] == [
        ("sync", False),
        ("sync", True),
        (None, False),
        ("async", False),
        ("async", False),
        ("async", True),
    ]


def test_a_sync_session_in_an_async_handler_is_refused_with_the_right_type_and_vice_versa():
    def plain(s: AsyncSession): ...
    async def later(c: Connection): ...

    with pytest.raises(SubscriptionError, match=r"plain is a plain def.*'s' is an AsyncSession: ask for Session"):
        plan_call(plain)
    with pytest.raises(SubscriptionError, match=r"later is async def.*'c' is a Connection: ask for AsyncConnection"):
        plan_call(later)


def test_two_sessions_are_refused():
    def handler(s: Session, c: Connection): ...

    with pytest.raises(SubscriptionError, match="two session or connection parameters"):
        plan_call(handler)


def test_a_session_is_recognised_by_name_without_importing_sqlalchemy():
    named_alike = type("Session", (), {"__module__": "sqlalchemy.orm.session"})

    def handler(s): ...

    handler.__annotations__["s"] = named_alike
    assert plan_call(handler).session_kind == "sync"


# -- batches ---------------------------------------------------------------------------------------------------------


def test_a_batch_handler_receives_lists():
    def handler(evts: list[Order], heads: list[Headers], events: Sequence[Event], s: Session, c: CancelToken): ...

    made = plan_call(handler, batch=True)
    assert made.decode(b'{"order_id":3}') == Order(3)
    _, kwargs = made.arguments([1], [HEADERS], [EVENT], "session", CANCEL)
    assert kwargs == {"evts": [1], "heads": [HEADERS], "events": [EVENT], "s": "session", "c": CANCEL}


@pytest.mark.parametrize("annotation", [Any, list, "no annotation"])
def test_a_batch_parameter_needs_no_item_type(annotation):
    def handler(evts): ...

    if annotation != "no annotation":
        handler.__annotations__["evts"] = annotation
    assert plan_call(handler, batch=True).decode(b"[1]") == [1]


def test_list_annotations_and_the_batch_option_must_agree():
    def one_order(evt: Order): ...
    def one_head(evts: list[Order], h: Headers): ...
    def many_heads(evt: Order, h: list[Headers]): ...

    with pytest.raises(SubscriptionError, match="list"):
        plan_call(one_order, batch=True)
    with pytest.raises(SubscriptionError, match=r"batch.*'h'"):
        plan_call(one_head, batch=True)
    with pytest.raises(SubscriptionError, match=r"one message.*'h'"):
        plan_call(many_heads)


# -- cancel tokens ---------------------------------------------------------------------------------------------------


def test_a_cancelled_token_raises_cancelled_error_in_its_handler():
    token = CancelToken()
    token.raise_if_cancelled()
    assert (token.is_cancelled, token.wait(0)) == (False, False)
    token.cancel()
    assert (token.is_cancelled, token.wait(0)) == (True, True)
    with pytest.raises(CancelledError):
        token.raise_if_cancelled()
