"""Authentication and authorization: requests are signed with a token, and the token's kind decides what it may send.

Requests are checked if the setting `auth` is on.

1. A request reaches its handler only if it is signed with a known token that is not revoked and whose kind may send
   this request. Refusals name the reason and contain no secret.
2. Only a request with a valid signature is told that its token is revoked or not permitted.
3. Requests in none of the lists below need an admin token.
"""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import SecretStr

from sparrow.model.errors import NotPermitted, ProtocolError
from sparrow.model.protocol import RETRY_TOPIC_PREFIX, TRACE_TOPIC
from sparrow.model.token import TOKEN_KIND_LABELS, TOKEN_NAME_CHARS_MAX, Token, TokenKind
from sparrow.wire import bodies, queue_batches
from sparrow.wire.bodies import HeartbeatData
from sparrow.wire.codes import RequestCode
from sparrow.wire.frame import RemotingCommand
from sparrow.wire.signing import ACCESS_KEY_FIELD, SIGNATURE_FIELD, has_valid_signature

PRODUCER_CODES = frozenset(
    {
        RequestCode.SEND_MESSAGE,
        RequestCode.SEND_MESSAGE_V2,
        RequestCode.SEND_BATCH_MESSAGE,
        RequestCode.SEND_REPLY_MESSAGE,
        RequestCode.SEND_REPLY_MESSAGE_V2,
        RequestCode.RECALL_MESSAGE,
        RequestCode.END_TRANSACTION,
        RequestCode.STAGE_RECORDS,
        RequestCode.SEAL_STAGE,
        RequestCode.COMMIT_STAGES,
        RequestCode.DROP_STAGES,
        RequestCode.QUERY_LEDGER,
        RequestCode.APPEND_ONCE,
    }
)
CONSUMER_CODES = frozenset(
    {
        RequestCode.PULL_MESSAGE,
        RequestCode.LITE_PULL_MESSAGE,
        RequestCode.POP_MESSAGE,
        RequestCode.ACK_MESSAGE,
        RequestCode.BATCH_ACK_MESSAGE,
        RequestCode.CHANGE_MESSAGE_INVISIBLETIME,
        RequestCode.NOTIFICATION,
        RequestCode.PEEK_MESSAGE,
        RequestCode.POLLING_INFO,
        RequestCode.QUERY_ASSIGNMENT,
        RequestCode.CONSUMER_SEND_MSG_BACK,
        RequestCode.QUERY_CONSUMER_OFFSET,
        RequestCode.UPDATE_CONSUMER_OFFSET,
        RequestCode.LOCK_BATCH_MQ,
        RequestCode.UNLOCK_BATCH_MQ,
        RequestCode.GET_CONSUMER_LIST_BY_GROUP,
        RequestCode.CHECK_CLIENT_CONFIG,
        RequestCode.QUERY_MESSAGE,
    }
)
SHARED_CODES = frozenset(
    {
        RequestCode.HEART_BEAT,
        RequestCode.UNREGISTER_CLIENT,
        RequestCode.GET_MAX_OFFSET,
        RequestCode.GET_MIN_OFFSET,
        RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
        RequestCode.GET_EARLIEST_MSG_STORETIME,
        RequestCode.QUERY_QUEUE_BOUNDS,
    }
)
ALLOWED_CODES: dict[TokenKind, frozenset[RequestCode]] = {
    "p": PRODUCER_CODES | SHARED_CODES,
    "c": CONSUMER_CODES | SHARED_CODES,
}
"""The requests that each kind of token may send.

VIEW_MESSAGE_BY_ID (33) is not among them: it reads any physical offset, and the log contains more than messages.
"""

SEND_TOPIC_FIELDS: dict[int, str] = {
    RequestCode.SEND_MESSAGE: "topic",
    RequestCode.SEND_MESSAGE_V2: "b",
    RequestCode.SEND_BATCH_MESSAGE: "b",
    RequestCode.SEND_REPLY_MESSAGE: "topic",
    RequestCode.SEND_REPLY_MESSAGE_V2: "b",
}
"""Requests that depend on one topic, and the header field that names it."""
ENCODED_RECORD_CODES = frozenset({RequestCode.STAGE_RECORDS, RequestCode.APPEND_ONCE})
"""Requests that depend on every topic in their encoded records."""
REPLY_CODES = frozenset({RequestCode.SEND_REPLY_MESSAGE, RequestCode.SEND_REPLY_MESSAGE_V2})
INTERNAL_PRODUCER_PREFIXES = ("CLIENT_INNER_PRODUCER", "_INNER_TRACE_PRODUCER")
"""Prefixes of the producer groups in heartbeats of Java's consumers: the client's internal one, and the one for traces.
"""


def may_send(kind: TokenKind, topic: str, code: int = RequestCode.SEND_MESSAGE) -> bool:
    """Return whether a token may send to a topic, by RocketMQ's rules.

    Consumers send to retry topics only. Producers and consumers both send traces.
    """
    if code in REPLY_CODES:
        return kind == "p" and not topic.startswith(RETRY_TOPIC_PREFIX)
    return topic == TRACE_TOPIC or (kind == "c") == topic.startswith(RETRY_TOPIC_PREFIX)


class RequestAuthorizer:
    """Checks requests against the current tokens."""

    def __init__(self, tokens: Mapping[str, Token], admins: Mapping[str, SecretStr]) -> None:
        """Keep the tokens by reference.

        `tokens` is read at every request, so that a revocation takes effect with the next one.
        """
        self._tokens = tokens
        self._admins = {name: secret_key.get_secret_value() for name, secret_key in admins.items()}

    def check(self, command: RemotingCommand) -> None:
        """Raise `NotPermitted` unless the request may be sent."""
        fields = command.fields()
        name = fields.get(ACCESS_KEY_FIELD)
        if not name or SIGNATURE_FIELD not in fields:
            raise _refusal(
                command,
                "the request is not signed, and this broker requires a token: set "
                "the client's access key and secret key",
            )
        token = None
        secret_key = self._admins.get(name)
        if secret_key is None:
            token = self._tokens.get(name)
            if token is None:
                raise _refusal(
                    command, f"there is no token {name[:TOKEN_NAME_CHARS_MAX]!r}: issue it, or check the access key"
                )
            secret_key = token.secret_key
        if not has_valid_signature(fields, command.body, secret_key):
            raise _refusal(
                command, f"the signature does not match the secret key of token {name!r}: check the secret key"
            )
        if token is not None:
            _check_token(token, command, fields)


def _check_token(token: Token, command: RemotingCommand, fields: Mapping[str, str]) -> None:
    if token.is_revoked:
        raise _refusal(command, f"token {token.name!r} is revoked: use another one")
    topic_field = SEND_TOPIC_FIELDS.get(command.code)
    if topic_field is not None:
        topic = fields.get(topic_field, "")
        if not may_send(token.kind, topic, command.code):
            raise _refusal(command, f"token {token.name!r} is {TOKEN_KIND_LABELS[token.kind]}, and {_who_sends(topic)}")
    elif command.code not in ALLOWED_CODES[token.kind]:
        who = next(
            (f"{TOKEN_KIND_LABELS[kind]} token" for kind, codes in ALLOWED_CODES.items() if command.code in codes),
            _ADMINS,
        )
        raise _refusal(
            command, f"token {token.name!r} is {TOKEN_KIND_LABELS[token.kind]}, and this request needs {who}"
        )
    elif command.code in ENCODED_RECORD_CODES:
        _check_records(token, command)
    elif command.code == RequestCode.HEART_BEAT:
        _check_heartbeat(token, command)


def _check_records(token: Token, command: RemotingCommand) -> None:
    try:
        topics = sorted(queue_batches.topics_in(command.body))
    except ProtocolError:
        return  # the handler reports what is wrong with the records
    for topic in topics:
        if not may_send(token.kind, topic):
            raise _refusal(command, f"token {token.name!r} is {TOKEN_KIND_LABELS[token.kind]}, and {_who_sends(topic)}")


def _check_heartbeat(token: Token, command: RemotingCommand) -> None:
    """Check the groups in a heartbeat: a token may only join groups of its own kind."""
    heartbeat = bodies.read(HeartbeatData, command.body)
    consumers = [consumer.group_name for consumer in heartbeat.consumer_data_set]
    if token.kind == "p" and consumers:
        raise _refusal(command, f"token {token.name!r} is a producer's, and {consumers[0]!r} is a consumer group")
    producers = [
        one.group_name
        for one in heartbeat.producer_data_set
        if not one.group_name.startswith(INTERNAL_PRODUCER_PREFIXES)
    ]
    if token.kind == "c" and producers:
        raise _refusal(command, f"token {token.name!r} is a consumer's, and {producers[0]!r} is a producer group")


_ADMINS = "one of the broker's admin tokens"
_NAMES = {int(code): code.name for code in RequestCode}


def _who_sends(topic: str) -> str:
    return (
        "only consumers may send to retry topics"
        if topic.startswith(RETRY_TOPIC_PREFIX)
        else "consumers may not send messages"
    )


def _refusal(command: RemotingCommand, why: str) -> NotPermitted:
    return NotPermitted(_NAMES.get(command.code, f"request {command.code}"), why)
