"""Answers and inputs about tokens, sessions, transactions and the audit."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from sparrow.console.models.fields import ApiInput, ApiModel, Text, Time
from sparrow.console.models.messages import MessageAnswer
from sparrow.model.access.permissions import PATTERN_CHARS_MAX, PATTERNS_MAX
from sparrow.model.access.source_addresses import SOURCE_ADDRESS_CHARS_MAX, SOURCE_ADDRESSES_MAX
from sparrow.model.access.token import TokenKind

_TYPES = "p may produce, c may consume, pc both, a may also administer."


class TokenAnswer(ApiModel):
    """A token of brokers, without its secret."""

    name: Text
    type: str = Field(description=f"{_TYPES} acl: the entries of its ACL decide.")
    topics: list[Text] = Field(description="Topics it may use: names, prefixes (`orders-*`) or `*`.")
    groups: list[Text] = Field(description="Consumer groups it may use.")
    addresses: list[Text] = Field(
        description="IP addresses and networks that its requests may come from; empty: from anywhere."
    )
    acl: list[Text] = Field(description="Entries of its ACL, which alone count if the type is `acl`.")
    created: Time | None
    disabled: Time | None
    revoked: Time | None


class TokenPermissionsInput(ApiInput):
    """What a token may do."""

    type: TokenKind = Field(description=_TYPES)
    topics: list[Annotated[str, Field(max_length=PATTERN_CHARS_MAX)]] | None = Field(
        default=None,
        max_length=PATTERNS_MAX,
        description="Names, prefixes (`orders-*`) or `*`; without it, all topics.",
    )
    groups: list[Annotated[str, Field(max_length=PATTERN_CHARS_MAX)]] | None = Field(
        default=None, max_length=PATTERNS_MAX, description="The same for consumer groups."
    )
    addresses: list[Annotated[str, Field(max_length=SOURCE_ADDRESS_CHARS_MAX)]] | None = Field(
        default=None,
        max_length=SOURCE_ADDRESSES_MAX,
        description="IP addresses and networks (`10.0.0.0/8`) that its requests may come from; without it, from "
        "anywhere.",
    )


class TokenInput(TokenPermissionsInput):
    """A token to issue."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "name": "billing",
                    "type": "c",
                    "topics": ["orders-*"],
                    "groups": ["billing"],
                    "addresses": ["10.0.0.0/8"],
                }
            ]
        }
    )

    name: str = Field(min_length=1, max_length=190)


class CredentialsAnswer(ApiModel):
    """What the owner of a token signs requests with. It is shown only here."""

    access_key: Text
    secret_key: str


class LogInInput(ApiInput):
    """The secret key of a token of the console."""

    secret_key: str = Field(min_length=1, max_length=1_024)


class IdentityAnswer(ApiModel):
    """Who makes the request."""

    name: str
    role: Literal["viewer", "operator", "admin"]
    csrf_token: str | None = Field(description="Changes within a session send it as X-CSRF-Token.")
    is_auth_on: bool


class TransactionAnswer(ApiModel):
    """The message of a transaction that brokers gave up."""

    topic: Text = Field(description="The topic it was meant for.")
    producer_group: Text
    checks: int | None
    message: MessageAnswer


class AuditLineAnswer(ApiModel):
    """A change."""

    time: Time
    who: Text
    role: str
    source: str
    action: str = Field(examples=["topic.delete"])
    target: Text
    cluster: str
    request: Any
    before: Any
    after: Any
    result: str
    error: Text | None


class AuditPageAnswer(ApiModel):
    """Changes, the newest first."""

    lines: list[AuditLineAnswer]
    complete: bool
    next: str | None
