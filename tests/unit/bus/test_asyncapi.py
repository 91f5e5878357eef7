"""The AsyncAPI document describes the payloads of handlers in their wire form."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
from typing import Any

import msgspec
import pydantic
import pytest

from sparrow.bus import EventBus, SubscriptionError
from sparrow.bus.asyncapi import asyncapi, format_document


class Line(pydantic.BaseModel):
    item_no: int = pydantic.Field(alias="itemNumber")
    note: str | None = None


class Order(pydantic.BaseModel):
    order_id: int
    lines: list[Line]


class Paid(msgspec.Struct):
    order_id: int
    amount: Decimal
    after: timedelta | None = None


@dataclass
class Shipped:
    order_id: int
    by: Paid


def made(**options: Any) -> EventBus:
    return EventBus("sqlite:///unused.db", "memory://", app="shop", **options)


def references(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for key, child in value.items():
            if key == "$ref":
                yield child
            else:
                yield from references(child)
    elif isinstance(value, list):
        for child in value:
            yield from references(child)


def resolved(document: dict[str, Any], reference: str) -> Any:
    found: Any = document
    for part in reference.removeprefix("#/").split("/"):
        found = found[part]
    return found


def payload(document: dict[str, Any], operation: str) -> Any:
    """Return the schema of the only message of an operation, with references resolved."""
    [message] = document["operations"][operation]["messages"]
    schema = resolved(document, resolved(document, message["$ref"])["$ref"])["payload"]
    return resolved(document, schema["$ref"]) if "$ref" in schema else schema


def test_every_subscription_is_an_operation_on_its_channel() -> None:
    bus = made(topic_prefix="eu")

    @bus.subscribe("order.created", group="billing", dead_letter="order.dead")
    async def bill(order: Order) -> Paid:
        """Writes the bill.

        And sends it."""
        raise NotImplementedError

    @bus.subscribe("order.created")
    def store(order: dict[str, Any]) -> None: ...

    @bus.subscribe("order.#")
    def note(body: bytes) -> None: ...

    document = asyncapi(bus, publishes={"order.shipped": Shipped})
    assert document["asyncapi"] == "3.0.0"
    assert document["info"] == {"title": "shop", "version": "v1"}
    assert {channel["address"] for channel in document["channels"].values()} == {
        "eu.order.created",
        "eu.order.#",
        "eu.order.dead",
        "eu.order.shipped",
    }
    operations = document["operations"]
    assert set(operations) == {
        "receive.eu.order.created.billing.v1",
        "receive.eu.order.created.cap.queue.shop.v1",
        "receive.eu.order._any_.cap.queue.shop.v1",
        "send.eu.order.dead",
        "send.eu.order.shipped",
    }
    billing = operations["receive.eu.order.created.billing.v1"]
    assert (billing["action"], billing["summary"], billing["description"]) == (
        "receive",
        "Writes the bill.",
        "And sends it.",
    )
    assert billing["reply"]["address"]["location"] == "$message.header#/cap-callback-name"
    assert "reply" not in operations["receive.eu.order.created.cap.queue.shop.v1"]
    assert resolved(document, billing["channel"]["$ref"])["address"] == "eu.order.created"
    assert set(payload(document, "receive.eu.order.created.billing.v1")["properties"]) == {"order_id", "lines"}
    assert payload(document, "receive.eu.order.created.cap.queue.shop.v1")["type"] == "object"
    assert set(payload(document, "send.eu.order.shipped")["properties"]) == {"order_id", "by"}


def test_all_references_resolve_and_the_document_is_json() -> None:
    bus = made()
    bus.subscriptions.add("a", lambda order: None)
    bus.subscriptions.add("b.*", lambda order: None, group="b")
    bus.subscriptions.add("b._one_", lambda order: None, group="b")
    document = asyncapi(bus, publishes={"x": list[Order], "y": Shipped, "z": int, "w": Any, "v": dict[str, Line]})
    assert len(document["channels"]) == 8, "topics with similar keys must have separate channels"
    found = list(references(document))
    assert len(found) > 20
    for reference in found:
        assert resolved(document, reference) is not None
    assert json.loads(format_document(document)) == document


def test_schema_names_are_the_wire_names() -> None:
    bus = made(naming="pascal")
    document = asyncapi(bus, publishes={"order": Order, "paid": Paid, "shipped": Shipped})
    schemas = document["components"]["schemas"]
    assert set(schemas["Order"]["properties"]) == set(schemas["Order"]["required"]) == {"OrderId", "Lines"}
    assert set(schemas["Line"]["properties"]) == {"itemNumber", "Note"}, "an explicit name must be kept"
    assert set(schemas["Paid"]["properties"]) == {"OrderId", "Amount", "After"}
    assert schemas["Paid"]["properties"]["Amount"]["type"] == "number"
    assert set(schemas["Shipped"]["properties"]) == {"OrderId", "By"}


def test_a_batch_handler_is_described_by_a_single_message() -> None:
    bus = made()

    @bus.subscribe("paid", batch=10)
    def many(paid: list[Paid]) -> None: ...

    one = payload(asyncapi(bus), "receive.paid.cap.queue.shop.v1")
    assert set(one["properties"]) == {"order_id", "amount", "after"}


def test_two_models_with_the_same_name_are_both_described() -> None:
    def another() -> type:
        class Paid(msgspec.Struct):
            in_cash: bool

        return Paid

    document = asyncapi(made(), publishes={"a": Paid, "b": another(), "c": list[Paid]})
    assert set(payload(document, "send.a")["properties"]) == {"order_id", "amount", "after"}
    assert set(payload(document, "send.b")["properties"]) == {"in_cash"}
    assert resolved(document, payload(document, "send.c")["items"]["$ref"]) == payload(document, "send.a")
    assert set(document["components"]["schemas"]) == {"Paid", "Paid-2"}


def test_invalid_handlers_raise_instead_of_giving_a_document() -> None:
    bus = made()
    bus.subscriptions.add("a", lambda order: None)
    bus.subscriptions.add("a", lambda order: None)
    with pytest.raises(SubscriptionError):
        asyncapi(bus)
