"""Sign requests, and verify signatures.

There are two kinds of signatures. RocketMQ's (`AclUtils`, `AclClientRPCHook`, Go's `ACLInterceptor`):

    Signature = base64(HMAC-SHA1(secret key, values of all ext fields but Signature, sorted by name, then the body))

1. Names are sorted by UTF-16 units, as in Java. Key and values are UTF-8.
2. Code and opaque number are not signed, and there is neither a time nor a nonce: a signature proves who made a
   request, not that it is new. An attacker who reads the connection can replay it.

And ours, which is valid once and on one connection only:

    Signature = base64(HMAC-SHA256(secret key, code, challenge, names and values of other ext fields, then the body))

1. The challenge is a random text that the server has made for this connection.
2. The ext field SignatureCount numbers the signed requests of the connection; a server accepts only rising numbers.
3. Each part is preceded by its length, so that no part can be taken for another.
"""

from __future__ import annotations

import hmac
import secrets
from binascii import b2a_base64
from collections.abc import Mapping
from functools import cache, lru_cache
from itertools import combinations
from typing import cast

import msgspec

from sparrow.model.access.token import Credentials
from sparrow.wire.headers import EmptyHeader, Header, write

ACCESS_KEY_FIELD, SIGNATURE_FIELD, COUNT_FIELD = "AccessKey", "Signature", "SignatureCount"

_COUNT_DIGITS_MAX = 19
_ORDERS_CACHED_MAX = 64
"""Sets of names whose order is kept: every kind of request has its own."""
_KEYS_CACHED_MAX = 256
_MAY_BE_UNSIGNED = (
    ("_UNIQUE_KEY_QUERY",),  # clients before 4.9.4 add it after signing
    ("__ZONE_NAME", "__ZONE_MODE"),  # Java's zone hook runs after the signing hook
    ("SecurityToken",),  # Go does not sign it
)
"""Fields that some clients add after signing. They do not affect what a request does."""


def signature(fields: Mapping[str, str], body: bytes | memoryview, secret_key: str) -> str:
    """Return the signature of a request with these ext fields, ignoring an existing one."""
    signed_text = "".join([fields[name] for name in _java_order(tuple(fields))])
    # An unpaired surrogate becomes a question mark, as in Java.
    digest = _keyed(secret_key, "sha1").copy()
    digest.update(signed_text.encode("utf-8", "replace"))
    digest.update(body)
    return b2a_base64(digest.digest(), newline=False).decode()


def has_valid_signature(fields: Mapping[str, str], body: bytes | memoryview, secret_key: str) -> bool:
    """Return whether the signature among the fields is valid."""
    given = fields.get(SIGNATURE_FIELD, "").encode()
    if hmac.compare_digest(signature(fields, body, secret_key).encode(), given):
        return True
    added = [names for names in _MAY_BE_UNSIGNED if any(name in fields for name in names)]
    for count in range(1, len(added) + 1):
        for chosen in combinations(added, count):
            left_out = {name for names in chosen for name in names}
            rest = {name: value for name, value in fields.items() if name not in left_out}
            if hmac.compare_digest(signature(rest, body, secret_key).encode(), given):
                return True
    return False


def sign(header: Header | None, body: bytes | memoryview, credentials: Credentials) -> Header:
    """Return the header with access key and signature."""
    plain = header if header is not None else EmptyHeader()
    fields = write(plain)
    fields[ACCESS_KEY_FIELD] = credentials.access_key
    kind = _signed_kind(type(plain))
    return kind(
        *msgspec.structs.astuple(plain),
        access_key=credentials.access_key,
        signature=signature(fields, body, credentials.secret_key),
    )


class Challenge:
    """What the signatures of one connection contain, so that they are valid there and once. Both sides have one."""

    __slots__ = ("count", "text")

    def __init__(self, text: str | None = None) -> None:
        self.text = text if text is not None else secrets.token_hex(16)
        self.count = 0
        """The number of the last signed request."""


def sign_once(
    code: int, header: Header | None, body: bytes | memoryview, credentials: Credentials, challenge: Challenge
) -> Header:
    """Return the header with a signature that is valid for the next request of the connection."""
    plain = header if header is not None else EmptyHeader()
    challenge.count += 1
    fields = write(plain)
    fields[ACCESS_KEY_FIELD] = credentials.access_key
    fields[COUNT_FIELD] = str(challenge.count)
    kind = _signed_kind(type(plain), has_count=True)
    return kind(
        *msgspec.structs.astuple(plain),
        access_key=credentials.access_key,
        signature=_signature_for(challenge.text, code, fields, body, credentials.secret_key),
        signature_count=challenge.count,
    )


def accept_once(
    code: int, fields: Mapping[str, str], body: bytes | memoryview, secret_key: str, challenge: Challenge
) -> bool:
    """Return whether the signature is valid for this request and this connection; it is not valid a second time."""
    number = fields.get(COUNT_FIELD, "")
    if not (number.isascii() and number.isdigit() and len(number) < _COUNT_DIGITS_MAX):
        return False
    given = fields.get(SIGNATURE_FIELD, "").encode()
    if not hmac.compare_digest(_signature_for(challenge.text, code, fields, body, secret_key).encode(), given):
        return False
    if int(number) <= challenge.count:
        return False
    challenge.count = int(number)
    return True


def _signature_for(
    challenge: str, code: int, fields: Mapping[str, str], body: bytes | memoryview, secret_key: str
) -> str:
    first, labels = str(code), _labels(tuple(fields))
    text = f"{2 + 2 * len(labels)};{len(first)}:{first}{len(challenge)}:{challenge}"
    text += "".join([f"{label}{len(value := fields[name])}:{value}" for name, label in labels])
    digest = _keyed(secret_key, "sha256").copy()
    digest.update(text.encode("utf-8", "surrogatepass"))
    digest.update(body)
    return b2a_base64(digest.digest(), newline=False).decode()


@lru_cache(_KEYS_CACHED_MAX)
def _keyed(secret_key: str, algorithm: str) -> hmac.HMAC:
    """Return the HMAC of no data, to be copied: the key costs more than a small request."""
    return hmac.new(secret_key.encode(), digestmod=algorithm)


@cache
def _signed_kind(kind: type[Header], *, has_count: bool = False) -> type[Header]:
    more: list[tuple[str, type, object]] = [
        ("access_key", str, msgspec.field(name=ACCESS_KEY_FIELD)),
        ("signature", str, msgspec.field(name=SIGNATURE_FIELD)),
    ]
    if has_count:
        more.append(("signature_count", int, msgspec.field(name=COUNT_FIELD)))
    made = msgspec.defstruct(f"Signed{kind.__name__}", more, bases=(kind,), frozen=True, gc=False, kw_only=True)
    return cast(type[Header], made)


@lru_cache(_ORDERS_CACHED_MAX)
def _java_order(names: tuple[str, ...]) -> list[str]:
    """Return the names of fields that are signed, in Java's order."""
    return sorted((name for name in names if name != SIGNATURE_FIELD), key=_java_sort_key)


@lru_cache(_ORDERS_CACHED_MAX)
def _labels(names: tuple[str, ...]) -> list[tuple[str, str]]:
    """Return the names of fields that are signed in their order, each with its part of the signed text."""
    return [(name, f"{len(name)}:{name}") for name in sorted(names) if name != SIGNATURE_FIELD]


def _java_sort_key(name: str) -> bytes:
    return name.encode("utf-16-be", "surrogatepass")
