"""An event as one JSON document: every field of the requirement is present, and nothing is lost."""

import json
from datetime import UTC, datetime, timedelta, timezone

import msgspec
import pytest

from sparrow.bus.codec import headers as h
from sparrow.bus.codec.document import decode_document, encode_document
from sparrow.bus.transports.spi import Envelope

ADDED = datetime(2026, 3, 1, 12, 30, 0, 123456, tzinfo=UTC)
ID = 9_007_199_254_740_993
"""2^53 + 1: the first integer that a JavaScript number cannot represent."""


def envelope(body: bytes = b'{"a":1}', **changes: object) -> Envelope:
    event = Envelope(
        name="order.created",
        headers={h.ID: str(ID), h.NAME: "order.created", h.CALLBACK: None, h.CORRELATION_SEQUENCE: "0"},
        body=body,
        added=ADDED,
    )
    return msgspec.structs.replace(event, **changes)


def test_a_published_event_has_the_required_fields_and_no_group():
    assert json.loads(encode_document(envelope(retries=3))) == {
        "Id": str(ID),
        "Name": "order.created",
        "Content": '{"a":1}',
        "Added": "2026-03-01T12:30:00.123456Z",
        "ExpiresAt": None,
        "Retries": 3,
        "StatusName": "Processing",
        "Headers": {h.ID: str(ID), h.NAME: "order.created", h.CALLBACK: None, h.CORRELATION_SEQUENCE: "0"},
        "Version": "v1",
    }


def test_a_received_event_has_its_group():
    assert json.loads(encode_document(envelope(), group="billing.v1"))["Group"] == "billing.v1"


def test_expiry_state_and_version_are_written():
    expires = ADDED + timedelta(days=1)
    _, _, fields = decode_document(encode_document(envelope(), expires_at=expires, status="Failed", version="v2"))
    assert (fields.expires_at, fields.status_name, fields.version) == (expires, "Failed", "v2")


@pytest.mark.parametrize(
    "body", [b"", b"null", b'"text"', b"[1,2.5]", '{"名":"값 é \\u0001 \\" 🐦"}'.encode(), b' { "a" : 1 }\n']
)
def test_the_body_round_trips_byte_for_byte(body):
    headers, content, _ = decode_document(encode_document(envelope(body)))
    assert (content, headers) == (body, envelope().headers)


def test_a_null_header_stays_null():
    headers, _, _ = decode_document(encode_document(envelope()))
    assert h.CALLBACK in headers
    assert headers[h.CALLBACK] is None


def test_times_are_written_in_utc():
    elsewhere = ADDED.astimezone(timezone(timedelta(hours=5, minutes=30)))
    assert encode_document(envelope(added=elsewhere)) == encode_document(envelope())
    assert encode_document(envelope(added=ADDED.replace(tzinfo=None))) == encode_document(envelope())


def test_decoding_and_encoding_again_changes_nothing():
    first = encode_document(envelope(retries=2), group="g")
    assert msgspec.json.encode(decode_document(first)[2]) == first


def test_a_plain_document_gets_its_headers_from_its_fields():
    plain = b'{"Id":7,"Name":"order.created","Content":"{}","Group":"g","Added":"2026-03-01T12:30:00"}'
    headers, body, fields = decode_document(plain)
    assert headers == {h.ID: "7", h.NAME: "order.created", h.GROUP: "g"}
    assert (body, fields.retries) == (b"{}", 0)


def test_unknown_fields_are_ignored():
    more = json.loads(encode_document(envelope())) | {"Colour": "blue"}
    assert decode_document(json.dumps(more).encode())[0] == envelope().headers


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"\xff",
        b'{"a":1}',
        b'{"Id":"1","Timestamp":"2017-08-04T00:00:00","Content":"{}","CallbackName":null}',
        b'{"Id":"1","Name":"n","Content":{"a":1},"Added":"2026-03-01T12:30:00Z"}',
        b'{"Id":"1","Name":"n","Content":"{}","Added":"yesterday"}',
    ],
)
def test_an_invalid_document_is_a_value_error(body):
    with pytest.raises(ValueError, match="not the JSON document of an event"):
        decode_document(body)


def test_a_body_that_is_not_utf8_is_a_value_error():
    with pytest.raises(ValueError, match="utf-8"):
        encode_document(envelope(b'"\xff"'))
