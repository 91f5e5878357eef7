"""Tokens as values: valid names, kinds and secrets; secrets are never shown."""

import pytest

from sparrow.model.access.permissions import parse_patterns
from sparrow.model.access.token import (
    Credentials,
    Token,
    parse_password,
    parse_secret_key,
    parse_token_kind,
    validate_reissue,
    validate_token_name,
)
from sparrow.model.errors import IllegalName, Refused

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


def test_there_are_four_kinds_and_any_other_is_refused():
    assert [parse_token_kind(kind) for kind in ("p", "c", "pc", "a")] == ["p", "c", "pc", "a"]
    for kind in ("", "P", "cp", "admin"):
        with pytest.raises(Refused, match="use p for producing, c for consuming, pc for both, or a for administering"):
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


def test_issuing_a_name_again_with_its_secret_returns_the_existing_token():
    assert validate_reissue(token(), token(id=7, created_ms=9)) == token()


def test_issuing_a_name_again_is_refused_for_another_secret_other_permissions_or_a_revoked_token():
    with pytest.raises(Refused, match="its secret key is shown only once"):
        validate_reissue(token(), token(secret=bytes(32)))
    with pytest.raises(Refused, match=r"'billing' is a consumer's \(type c\), for topics \* and groups \*"):
        validate_reissue(token(), token(kind="p"))
    with pytest.raises(Refused, match="change it with `sparrow token change`"):
        validate_reissue(token(), token(topics=("orders",)))
    with pytest.raises(Refused, match=r"groups \*, from 10\.0\.0\.0/8: change it with"):
        validate_reissue(token(addresses=("10.0.0.0/8",)), token())
    with pytest.raises(Refused, match="was revoked"):
        validate_reissue(token(revoked_ms=9), token())


@pytest.mark.parametrize("pattern", ["", "a b", "*a", "a*b", "a**", "ä", "x" * 129, "a/b"])
def test_a_pattern_that_is_no_name_no_prefix_and_no_star_is_refused(pattern):
    with pytest.raises(Refused, match="is no pattern of topics"):
        parse_patterns([pattern], "topic")


def test_topics_of_groups_are_no_patterns_of_topics():
    with pytest.raises(Refused, match="permit the group instead"):
        parse_patterns(["%RETRY%billing"], "topic")


def test_patterns_are_sorted_and_no_patterns_mean_every_name():
    assert parse_patterns(["b", "a-*", "b"], "group") == ("a-*", "b")
    assert parse_patterns(["b", "*"], "group") == parse_patterns(None, "group") == ("*",)
    for patterns in ([], [f"t{number}" for number in range(257)]):
        with pytest.raises(Refused, match="a token has 1 to 256 patterns of topics"):
            parse_patterns(patterns, "topic")


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


@pytest.mark.parametrize(
    "password", ["x", "a b", "пароль", "p" * 31, "p" * 32, "p" * 33, "p" * 96, "AB" * 32, "ab" * 32]
)
def test_a_password_is_what_clients_sign_with(password):
    assert Token(id=1, name="web", kind="p", secret=parse_password(password), created_ms=1).secret_key == password


@pytest.mark.parametrize("password", ["", " ", " a", "a ", "a\n", "a\0", "\ud800"])
def test_a_password_that_a_client_could_not_be_configured_with_is_refused(password):
    with pytest.raises(Refused, match="the password must have printable characters") as refused:
        parse_password(password)
    assert refused.value.args == (
        "the password must have printable characters, at least one, and no blank at either end",
    )


def test_a_long_password_is_refused_and_not_shown():
    with pytest.raises(Refused, match="the password has 97 bytes of 96 at most") as refused:
        parse_password("secret-" * 13 + "secret")
    assert "secret-" not in str(refused.value)
