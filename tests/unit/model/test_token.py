"""Tokens as values: valid names, kinds and secrets; secrets are never shown."""

import pytest

from sparrow.model.errors import IllegalName, Refused
from sparrow.model.token import (
    Credentials,
    Token,
    parse_secret_key,
    parse_token_kind,
    validate_reissue,
    validate_token_name,
)

SECRET = bytes(range(32))


def token(**others):
    return Token(**{"id": 1, "name": "billing", "kind": "c", "secret": SECRET, "created_ms": 5} | others)


@pytest.mark.parametrize("name", ["appid-340101;sid-p0912", "billing", "Ünïcode 名", "x" * 190])
def test_any_printable_text_is_a_valid_name(name):
    assert validate_token_name(name) == name


@pytest.mark.parametrize("name", ["", " ", " a", "a ", "a\n", "a\x00b", "a\u2028b", "x" * 191])
def test_an_ambiguous_or_too_long_name_is_refused(name):
    with pytest.raises(IllegalName):
        validate_token_name(name)


def test_there_are_two_kinds_and_any_other_is_refused():
    assert [parse_token_kind(kind) for kind in "pc"] == ["p", "c"]
    for kind in ("", "P", "pc", "admin"):
        with pytest.raises(Refused, match="use p for producing, or c for consuming"):
            parse_token_kind(kind)


def test_new_secrets_are_long_and_unique():
    one, other = parse_secret_key(None), parse_secret_key(None)
    assert one != other
    assert len(one) == len(other) == 32


def test_a_secret_is_parsed_from_the_text_that_clients_use():
    assert parse_secret_key(token().secret_key) == SECRET


@pytest.mark.parametrize("text", ["", "00", SECRET.hex().upper(), SECRET.hex()[:-2], SECRET.hex() + "00", "zz" * 32])
def test_an_invalid_secret_is_refused_and_not_repeated_in_the_error(text):
    with pytest.raises(Refused) as caught:
        parse_secret_key(text)
    assert not text or text not in str(caught.value)


def test_issuing_a_name_again_returns_the_existing_token():
    assert validate_reissue(token(), "c") is not None
    assert validate_reissue(token(), "c") == token()


def test_issuing_a_name_again_is_refused_for_another_kind_or_a_revoked_token():
    with pytest.raises(Refused, match=r"'billing' is a consumer's \(type c\) already"):
        validate_reissue(token(), "p")
    with pytest.raises(Refused, match="was revoked"):
        validate_reissue(token(revoked_ms=9), "c")


def test_secrets_are_hidden_in_texts():
    credentials = Credentials("billing", token().secret_key)
    for shown in (repr(token()), str(token()), f"{credentials}", repr(credentials), repr([credentials])):
        assert "billing" in shown
        assert SECRET.hex() not in shown
        assert repr(SECRET) not in shown


@pytest.mark.parametrize("keys", [("", "secret"), ("name", ""), ("", "")])
def test_credentials_with_only_one_key_are_refused(keys):
    with pytest.raises(Refused, match="empty access key or secret key"):
        Credentials(*keys)
