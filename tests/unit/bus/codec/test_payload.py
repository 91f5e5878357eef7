"""Payloads of every kind as plain JSON and back; values without a JSON form and bodies of another type are refused."""

import base64
import dataclasses
import enum
import json
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Annotated, Any, Generic, TypedDict, TypeVar
from uuid import UUID

import msgspec
import pydantic
import pytest
from tests.support.cases import each_case

from sparrow.bus.codec.payload import encode_payload, payload_decoder, payload_type_name
from sparrow.bus.errors import NotSerializable, Undecodable


class Colour(enum.IntEnum):
    RED = 1


@dataclasses.dataclass
class Line:
    article_id: int
    unit_price: Decimal


class Order(pydantic.BaseModel):
    order_id: int
    lines: list[Line] = []
    note: str | None = None


class Shipped(msgspec.Struct):
    order_id: int
    parcels: dict[str, Line] = {}
    took: timedelta = timedelta(0)


class Tree(pydantic.BaseModel):
    node_name: str
    child_nodes: list["Tree"] = []


class Photo(pydantic.BaseModel):
    raw_bytes: bytes
    exact_price: Decimal = Decimal(0)
    ratio: float = 0.0


class Aliased(pydantic.BaseModel):
    order_id: int = pydantic.Field(alias="nr")


class Either(pydantic.BaseModel):
    value: timedelta | str


class Marked(TypedDict):
    order: Order


EXACT = Decimal("12345678901234567890.123456789012345678901")


def written(value, naming=None):
    return json.loads(encode_payload("t", value, naming=naming))


# -- encoding --------------------------------------------------------------------------------------------------------


def test_none_is_encoded_as_an_empty_body():
    assert encode_payload("t", None) == b""


@each_case(
    ("value", "expected"),
    [
        ({"a": [1, 2.5, None, True, "é"]}, {"a": [1, 2.5, None, True, "é"]}),
        (UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        (datetime(2026, 5, 1, 12, 30, tzinfo=UTC), "2026-05-01T12:30:00Z"),
        (date(2026, 5, 1), "2026-05-01"),
        (EXACT, str(EXACT)),
        (b"\xff\x00", "/wA="),
        (bytearray(b"\xff\x00"), "/wA="),
        (Colour.RED, 1),
        (timedelta(days=1, seconds=2), "P1DT2S"),
        ({1: "x"}, {"1": "x"}),
        (Order(order_id=7, lines=[Line(1, Decimal("1.10"))]),
         {"order_id": 7, "lines": [{"article_id": 1, "unit_price": "1.10"}], "note": None}),
        (Shipped(1), {"order_id": 1, "parcels": {}, "took": "P0D"}),
        ([Aliased(nr=4)], [{"nr": 4}]),
        ("NaN", "NaN"),
        ({"null": None, "Infinity": "NaN"}, {"null": None, "Infinity": "NaN"}),
    ],
)  # fmt: skip
def test_values_are_encoded_as_plain_json(value, expected):
    assert written(value) == expected


class Text(str):
    pass


def test_subclasses_of_str_and_dict_are_encoded_like_str_and_dict():
    class Wrapped(dict):
        pass

    assert written(Wrapped(a=Text("b"))) == {"a": "b"}


def circle():
    inside: list = []
    inside.append(inside)
    return inside


@each_case(
    ("value", "why"),
    [
        (float("nan"), "NaN"),
        ({"a": [None, float("inf")]}, "NaN"),
        (Shipped(1, {"p": Line(1, Decimal("NaN"))}), "NaN"),
        (Photo(raw_bytes=b"", ratio=float("nan")), "NaN"),
        (circle(), "contains itself"),
        ({"a": "\ud800"}, "surrogates"),
        (object(), "a object has no JSON form"),
        ({"a": {object(): 1}}, "object"),
        (lambda: 1, "function"),
    ],
)
@each_case("naming", [None, "pascal"])
def test_a_value_without_a_json_form_is_refused_with_the_event_name(value, why, naming):
    with pytest.raises(NotSerializable, match=why) as caught:
        encode_payload("order.created", value, naming=naming)
    assert caught.value.name == "order.created"


def test_pascal_naming_renames_fields_and_keeps_keys_of_dicts():
    value = Shipped(7, {"first_parcel": Line(1, EXACT)}, timedelta(days=1, hours=2, milliseconds=5))
    body = encode_payload("t", value, naming="pascal")
    assert body == (
        b'{"OrderId":7,"Parcels":{"first_parcel":{"ArticleId":1,"UnitPrice":%s}},"Took":"1.02:00:00.0050000"}'
        % str(EXACT).encode()
    )
    assert list(written(value, "camel")) == ["orderId", "parcels", "took"]


def test_nested_models_are_renamed_too():
    value = {"some_key": [Order(order_id=1, lines=[Line(2, Decimal(3))])], "other": (Shipped(4),)}
    assert written(value, "pascal") == {
        "some_key": [{"OrderId": 1, "Lines": [{"ArticleId": 2, "UnitPrice": 3}], "Note": None}],
        "other": [{"OrderId": 4, "Parcels": {}, "Took": "00:00:00"}],
    }


def test_a_name_that_the_model_sets_is_kept():
    class Own(msgspec.Struct, rename={"order_id": "nr"}, tag="own"):
        order_id: int

    assert written([Aliased(nr=1), Own(2)], "pascal") == [{"nr": 1}, {"type": "own", "nr": 2}]


def test_custom_serialisers_of_a_model_still_apply_when_its_fields_are_renamed():
    class Priced(pydantic.BaseModel):
        unit_price: int

        @pydantic.field_serializer("unit_price")
        def cents(self, value: int) -> str:
            return f"{value} ct"

        @pydantic.computed_field
        @property
        def in_full(self) -> int:
            return self.unit_price * 100

    assert written(Priced(unit_price=5), "pascal") == {"UnitPrice": "5 ct", "InFull": 500}


def test_two_fields_with_the_same_renamed_name_are_refused():
    @dataclasses.dataclass
    class Twins:
        a_b: int
        aB: int

    with pytest.raises(NotSerializable, match="same name"):
        encode_payload("t", Twins(1, 2), naming="pascal")


def test_the_payload_type_is_the_short_class_name():
    assert [payload_type_name(each) for each in (Order(order_id=1), {}, None)] == ["Order", "dict", "null"]


# -- decoding --------------------------------------------------------------------------------------------------------


@each_case(
    ("annotation", "value"),
    [
        (Any, {"a": 1}),
        (None, [1]),
        (dict, {"a": 1}),
        (str, "text"),
        (int, 5),
        (Decimal, EXACT),
        (list[UUID], [UUID(int=3)]),
        (Colour, Colour.RED),
        (Order, Order(order_id=1, lines=[Line(2, EXACT)])),
        (Annotated[Order, "anything"], Order(order_id=1)),
        (list[Order], [Order(order_id=1)]),
        (Order | None, Order(order_id=1)),
        (Line, Line(1, EXACT)),
        (Shipped, Shipped(1, {"a_b": Line(1, Decimal("0.10"))}, timedelta(hours=30, microseconds=1))),
        (Tree, Tree(node_name="a", child_nodes=[Tree(node_name="b")])),
        (Photo, Photo(raw_bytes=b"\xff\x00", exact_price=EXACT, ratio=0.1)),
        (dict[str, list[Shipped]], {"a_b": [Shipped(1)]}),
        (Aliased, Aliased(nr=3)),
        (tuple[int, Shipped], (1, Shipped(2))),
    ],
)
@each_case("naming", [None, "pascal", "camel"])
def test_payloads_round_trip(annotation, value, naming):
    assert payload_decoder(annotation, naming=naming)(encode_payload("t", value, naming=naming)) == value


def test_a_typed_dict_may_contain_models():
    body = b'{"order":{"OrderId":4}}'
    with pytest.raises(Undecodable):
        payload_decoder(Marked)(body)
    assert payload_decoder(Marked, naming="pascal")(body) == {"order": Order(order_id=4)}


def test_with_a_naming_the_original_field_names_are_accepted_too():
    assert payload_decoder(Shipped, naming="pascal")(b'{"order_id":1,"Took":"PT5S"}') == Shipped(
        1, took=timedelta(seconds=5)
    )


def test_bytes_are_the_body_unchanged():
    assert payload_decoder(bytes)(b"\xff not json") == b"\xff not json"
    assert payload_decoder(bytes)(b"") == b""
    assert base64.b64decode(json.loads(encode_payload("t", b"\xff"))) == b"\xff"


@pytest.mark.parametrize("annotation", [Any, None, Order | None, Annotated[dict | None, 1]])
def test_an_empty_body_is_none_where_none_is_allowed(annotation):
    assert payload_decoder(annotation)(b"") is None


@pytest.mark.parametrize("annotation", [Order, dict, str, Shipped, list[int]])
def test_an_empty_body_is_refused_where_a_value_is_required(annotation):
    with pytest.raises(Undecodable, match="empty"):
        payload_decoder(annotation)(b"")


@each_case(
    ("annotation", "body", "why"),
    [
        (Any, b"{", "truncated"),
        (Any, b"\xff", "malformed"),
        (Any, b"NaN", "malformed"),
        (dict, b"[1]", "Expected `object`"),
        (int, b'"5"', "Expected `int`"),
        (str, b"5", "Expected `str`"),
        (Shipped, b'{"order_id":"5"}', r"\$.order_id"),
        (Order, b'{"order_id":"x"}', "order_id: Input should be a valid integer"),
        (Order, b"{}", "Order: order_id: Field required"),
        (Order, b"nonsense", "Invalid JSON"),
        (Photo, b'{"raw_bytes":"*"}', "base64"),
        (Any, b"[" * 100_000, "nested too deeply"),
    ],
)
@each_case("naming", [None, "pascal"])
def test_a_body_of_another_type_is_undecodable_with_a_reason(annotation, body, why, naming):
    if naming and annotation is Order and body == b"nonsense":
        why = "malformed"
    with pytest.raises(Undecodable, match=why):
        payload_decoder(annotation, naming=naming)(body)


def test_a_type_that_json_cannot_represent_is_refused_when_the_decoder_is_built():
    class Opaque:
        pass

    @dataclasses.dataclass
    class Around:
        inner: Opaque

    for annotation in (Opaque, list[Opaque], Around):
        with pytest.raises(TypeError, match="cannot be decoded from JSON"):
            payload_decoder(annotation)


@pytest.mark.parametrize(
    ("annotation", "body", "value"),
    [
        (int | Decimal, b"5", 5),
        (Either, b'{"Value":"1.00:00:00"}', Either(value="1.00:00:00")),
        (Decimal | None, b"1.10", Decimal("1.10")),
        (timedelta | None, b'"00:00:01"', timedelta(seconds=1)),
        (Order | Aliased, b'{"OrderId":1}', Order(order_id=1)),
    ],
)
def test_a_union_is_decoded_as_the_member_that_fits(annotation, body, value):
    read = payload_decoder(annotation, naming="pascal")(body)
    assert (read, type(read)) == (value, type(value))


def test_fields_of_generic_models_are_renamed():
    thing = TypeVar("thing")

    class Page(msgspec.Struct, Generic[thing]):
        first_item: thing

    assert payload_decoder(Page[Order], naming="pascal")(b'{"FirstItem":{"OrderId":3}}') == Page(Order(order_id=3))


@pytest.mark.parametrize("body", [b'{"Took":"99999999999.00:00:00","OrderId":1}', b"1e99999999999999999999"])
def test_numbers_out_of_range_are_undecodable(body):
    with pytest.raises(Undecodable):
        payload_decoder(Shipped, naming="pascal")(body)


def test_a_struct_may_contain_a_pydantic_model():
    class Both(msgspec.Struct):
        order: Order

    assert payload_decoder(Both)(b'{"order":{"order_id":3}}') == Both(Order(order_id=3))
