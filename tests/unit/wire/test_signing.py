"""Signatures of RocketMQ clients."""

import base64
import hashlib
import hmac

import msgspec
import pytest

from sparrow.model.access.token import Credentials
from sparrow.wire import headers, signing
from sparrow.wire.bodies import TokenDescription
from sparrow.wire.codes import RequestCode
from sparrow.wire.frame import RemotingCommand, Serialization, decode, encode
from sparrow.wire.headers import GetRoute, Header, QueueRequest
from sparrow.wire.signing import Challenge, accept_once, has_valid_signature, sign, sign_once, signature

FIELDS = {"AccessKey": "ak", "queueId": "0", "topic": "TopicTest"}
KEY = "sk12345678"
CREDENTIALS = Credentials("ak", KEY)


def made_by_hand(data: bytes, key: str = KEY) -> str:
    return base64.b64encode(hmac.new(key.encode(), data, hashlib.sha1).digest()).decode()


def test_the_signature_equals_that_of_rocketmq():
    assert signature(FIELDS, b"", KEY) == "7YP22DJCPjrRSBEtTCVTO/774qs="


def test_values_are_signed_in_the_order_of_their_names_followed_by_the_body():
    fields = {"b": "2", "a": "1", "B": "0", "AccessKey": "ak"}
    assert signature(fields, b"body", KEY) == made_by_hand(b"ak012body")


def test_names_are_sorted_by_utf_16_units():
    # In UTF-16, U+10000 is D800 DC00 and sorts before U+FFFF; by code points it sorts after it.
    assert signature({"\uffff": "2", "\U00010000": "1"}, b"", KEY) == made_by_hand(b"12")


def test_values_and_key_are_encoded_as_utf_8():
    assert signature({"a": "é名"}, b"", "schlüssel") == made_by_hand("é名".encode(), "schlüssel")


def test_an_existing_signature_does_not_change_the_signature():
    assert signature(FIELDS | {"Signature": "any"}, b"", KEY) == signature(FIELDS, b"", KEY)


def test_a_body_may_be_a_memoryview():
    assert signature(FIELDS, memoryview(b"body"), KEY) == signature(FIELDS, b"body", KEY)


@pytest.mark.parametrize(
    "forged",
    [
        {"topic": "Other"},
        {"AccessKey": "ab"},
        {"more": "1"},
        {"Signature": ""},
        {"Signature": "é"},
        {"Signature": made_by_hand(b"ak0TopicTest", "another")},
    ],
)
def test_a_changed_request_has_no_valid_signature(forged):
    fields = FIELDS | {"Signature": signature(FIELDS, b"body", KEY)}
    assert has_valid_signature(fields, b"body", KEY)
    assert not has_valid_signature(fields | forged, b"body", KEY)
    assert not has_valid_signature(fields, b"Body", KEY)
    assert not has_valid_signature(fields, b"body", KEY + "9")


def test_a_request_without_a_signature_has_no_valid_signature():
    assert not has_valid_signature(FIELDS, b"", KEY)
    assert not has_valid_signature({}, b"", KEY)


@pytest.mark.parametrize("name", ["_UNIQUE_KEY_QUERY", "__ZONE_NAME", "SecurityToken"])
def test_fields_that_clients_add_after_signing_may_be_signed_or_not(name):
    before = FIELDS | {"Signature": signature(FIELDS, b"", KEY)}
    assert has_valid_signature(before | {name: "true"}, b"", KEY)
    together = FIELDS | {name: "true"}
    assert has_valid_signature(together | {"Signature": signature(together, b"", KEY)}, b"", KEY)


def test_only_some_of_several_added_fields_may_be_signed():
    together = FIELDS | {"_UNIQUE_KEY_QUERY": "true"}
    told = together | {"Signature": signature(together, b"", KEY), "SecurityToken": "s", "__ZONE_MODE": "m"}
    assert has_valid_signature(told, b"", KEY)
    assert not has_valid_signature(told | {"topic": "Other"}, b"", KEY)


@pytest.mark.parametrize("serialization", list(Serialization))
@pytest.mark.parametrize("header", [None, GetRoute("T"), QueueRequest("名", 7)])
def test_a_signed_header_keeps_its_fields_and_is_valid_in_both_serializations(header: Header | None, serialization):
    ext = headers.write(sign(header, b"body", CREDENTIALS))
    command = decode(encode(RemotingCommand(105, 1, ext=ext, body=b"body", serialization=serialization)))
    assert has_valid_signature(command.fields(), command.body, KEY)
    assert command.fields()["AccessKey"] == "ak"
    if header is not None:
        assert headers.read(type(header), command.ext) == header


def test_every_kind_of_request_can_be_signed():
    for kind in headers.REQUEST_HEADERS.values():
        filled = {field.name: _any(field.type) for field in msgspec.structs.fields(kind) if field.required}
        plain = kind(**filled)
        ext = headers.write(sign(plain, b"", CREDENTIALS))
        assert headers.write(plain) | {"AccessKey": "ak", "Signature": ext["Signature"]} == ext


def _any(kind):
    return "1" if kind is str else 1


def test_every_request_has_a_unique_code():
    assert len(set(RequestCode)) == len(RequestCode.__members__)


def test_the_repr_of_a_token_description_hides_its_secret():
    assert "5ec2e7" not in repr([TokenDescription(1, "billing", "c", 5, None, "5ec2e7")])


# -- signatures over a challenge --------------------------------------------------------------------------------------


def signed_once(challenge: Challenge, header: Header, body: bytes = b"", code: int = RequestCode.PULL_MESSAGE):
    """Return the fields of a request as a server reads them."""
    signed = sign_once(code, header, body, CREDENTIALS, challenge)
    return decode(encode(RemotingCommand(code, 1, ext=headers.write(signed), body=body))).fields()


def test_a_signature_over_a_challenge_is_valid_once_and_on_its_connection():
    ours, theirs, other = Challenge("c1"), Challenge("c1"), Challenge("c2")
    code = RequestCode.PULL_MESSAGE
    first, second = signed_once(ours, GetRoute("orders"), b"a"), signed_once(ours, GetRoute("orders"), b"a")
    assert first != second
    assert not accept_once(code, first, b"a", KEY, other)
    assert accept_once(code, first, b"a", KEY, theirs)
    assert not accept_once(code, first, b"a", KEY, theirs), "a replay"
    assert accept_once(code, second, b"a", KEY, theirs)
    assert not accept_once(code, first, b"a", KEY, theirs), "a late replay"


def test_a_signature_over_a_challenge_binds_code_fields_body_and_key():
    challenge = Challenge()
    fields = signed_once(challenge, GetRoute("orders"), b"body")
    fresh = Challenge(challenge.text)
    code = RequestCode.PULL_MESSAGE
    assert not accept_once(RequestCode.DELETE_TOPIC_IN_BROKER, fields, b"body", KEY, fresh)
    assert not accept_once(code, fields | {"topic": "other"}, b"body", KEY, fresh)
    assert not accept_once(code, fields | {"more": ""}, b"body", KEY, fresh)
    assert not accept_once(code, fields | {"SignatureCount": "2"}, b"body", KEY, fresh)
    assert not accept_once(code, fields | {"SignatureCount": "9" * 5000}, b"body", KEY, fresh)
    assert not accept_once(code, fields, b"bodies", KEY, fresh)
    assert not accept_once(code, fields, b"body", "another key", fresh)
    assert fresh.count == 0
    assert accept_once(code, fields, b"body", KEY, fresh)


def test_no_part_of_a_signed_request_can_be_taken_for_another():
    """RocketMQ's signature joins the values: `ab` and `c` sign like `a` and `bc`."""
    joined = {"AccessKey": "ak", "SignatureCount": "1", "a": "ab", "b": "c"}
    moved = joined | {"a": "a", "b": "bc"}
    assert signature(joined, b"", KEY) == signature(moved, b"", KEY)
    body = b"1:x1:y"
    signatures = {
        signing._signature_for("c", 1, joined, b"", KEY),
        signing._signature_for("c", 1, moved, b"", KEY),
        signing._signature_for("c", 1, joined, body, KEY),
        signing._signature_for("c", 1, joined | {"x": "y"}, b"", KEY),
    }
    assert len(signatures) == 4
