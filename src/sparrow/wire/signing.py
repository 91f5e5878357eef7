"""Tokens on the wire: how a request is signed, and the requests that issue, list and revoke tokens.

The signature is RocketMQ's (`AclUtils`, `AclClientRPCHook`, Go's `ACLInterceptor`):

    Signature = base64(HMAC-SHA1(secret key, values of all ext fields but Signature, by name, then the body))

1. Names are sorted as Java sorts them, by UTF-16 units. Key and values are UTF-8.
2. The code and the number of a request are not signed, and there is neither time nor nonce: a signature shows who made
   a request, not that it is new. Whoever can read the connection can say it again.
"""

from __future__ import annotations

import base64
import hmac
from collections.abc import Mapping
from functools import cache
from itertools import combinations
from typing import cast

import msgspec

from sparrow.model.token import Credentials
from sparrow.wire.headers import EmptyHeader, Header, write

ACCESS_KEY_FIELD, SIGNATURE_FIELD = "AccessKey", "Signature"

_MAY_BE_UNSIGNED = (
    ("_UNIQUE_KEY_QUERY",),  # clients before 4.9.4 add it to a query that is signed already
    ("__ZONE_NAME", "__ZONE_MODE"),  # Java's zone hook comes after the signing one
    ("SecurityToken",),  # Go adds it and leaves it out of what it signs
)
"""Fields that some clients add after signing. They are no part of what a request asks for."""


def signature(fields: Mapping[str, str], body: bytes | memoryview, secret_key: str) -> str:
    """Of a request with these ext fields; one that is there already does not count."""
    said = "".join([fields[name] for name in sorted(fields, key=_as_java_sorts) if name != SIGNATURE_FIELD])
    # Half of a surrogate pair is a question mark to Java's encoder, as it is to this one.
    made = hmac.new(secret_key.encode(), said.encode("utf-8", "replace"), "sha1")
    made.update(body)
    return base64.b64encode(made.digest()).decode()


def has_valid_signature(fields: Mapping[str, str], body: bytes | memoryview, secret_key: str) -> bool:
    """Whether the signature among the fields is right."""
    told = fields.get(SIGNATURE_FIELD, "").encode()
    if hmac.compare_digest(signature(fields, body, secret_key).encode(), told):
        return True
    added = [names for names in _MAY_BE_UNSIGNED if any(name in fields for name in names)]
    for count in range(1, len(added) + 1):
        for chosen in combinations(added, count):
            left_out = {name for names in chosen for name in names}
            rest = {name: value for name, value in fields.items() if name not in left_out}
            if hmac.compare_digest(signature(rest, body, secret_key).encode(), told):
                return True
    return False


def sign(header: Header | None, body: bytes | memoryview, credentials: Credentials) -> Header:
    """The header with the two fields that a broker checks."""
    plain = header if header is not None else EmptyHeader()
    fields = write(plain)
    fields[ACCESS_KEY_FIELD] = credentials.access_key
    kind = _signed_kind(type(plain))
    return kind(
        *msgspec.structs.astuple(plain),
        access_key=credentials.access_key,
        signature=signature(fields, body, credentials.secret_key),
    )


@cache
def _signed_kind(kind: type[Header]) -> type[Header]:
    more = [
        ("access_key", str, msgspec.field(name=ACCESS_KEY_FIELD)),
        ("signature", str, msgspec.field(name=SIGNATURE_FIELD)),
    ]
    made = msgspec.defstruct(f"Signed{kind.__name__}", more, bases=(kind,), frozen=True, gc=False, kw_only=True)
    return cast(type[Header], made)


def _as_java_sorts(name: str) -> bytes:
    return name.encode("utf-16-be", "surrogatepass")
