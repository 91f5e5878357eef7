"""What an event of the bus shows to roles that rules hide something from."""

from collections.abc import Iterator
from datetime import UTC, datetime

import pytest

from sparrow.bus.operations.stored_event import StoredEvent
from sparrow.bus.states import EventStatus
from sparrow.console.api.bus import _shown
from sparrow.console.masks import HIDDEN, NO_MASKS, Masks, check_event_search, set_masks
from sparrow.model.errors import NotPermitted
from sparrow.settings import ConsoleMask

EVENT = StoredEvent(
    id=1,
    version="v1",
    name="order.created",
    group="billing",
    content="{}",
    headers={"cap-msg-id": "1", "customer": "olga"},
    value={"card": "4111", "order": 7},
    retries=1,
    added=datetime.now(UTC),
    expires_at=None,
    status=EventStatus.FAILED,
    key="olga",
    rounds=0,
    error="ValueError: no customer olga with card 4111",
    parked=False,
    message_id="1",
)


@pytest.fixture(autouse=True)
def _without_masks_afterwards() -> Iterator[None]:
    yield
    set_masks(NO_MASKS)


@pytest.mark.parametrize(
    ("rule", "hidden"),
    [
        (ConsoleMask(properties=["KEYS"]), {"key", "error"}),
        (ConsoleMask(properties=["customer"]), {"headers", "error"}),
        (ConsoleMask(fields=["card"]), {"value", "error"}),
        (ConsoleMask(topics=["payment.*"], body=True, properties=["*"]), set()),
    ],
    ids=["key", "header", "member", "another event"],
)
def test_what_is_hidden_and_the_error_that_may_quote_it(rule: ConsoleMask, hidden: set[str]) -> None:
    everything = _shown(EVENT)
    set_masks(Masks([rule]))
    shown = _shown(EVENT)
    assert {name for name in shown if shown[name] != everything[name]} == hidden
    assert all(HIDDEN in str(shown[name]) for name in hidden)


def test_headers_that_are_hidden_are_not_searched() -> None:
    check_event_search("olga")
    set_masks(Masks([ConsoleMask(properties=["customer"])]))
    check_event_search(None)
    with pytest.raises(NotPermitted, match="search in the content"):
        check_event_search("olga")
