"""Who may ask for what, when the broker asks who is there.

1. A request is signed with a token that is known, not revoked, and of the kind that may ask this; else it reaches no
   handler. Why not is said in a sentence that holds no secret.
2. Whether a token was revoked, or may do this, is told only to those who have shown that it is theirs.
3. What stands in no list below is an administrator's.
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
"""What a token of each kind may ask for. A message by its physical offset (33) is not among it: the log holds more than
messages."""

SEND_TOPIC_FIELDS: dict[int, str] = {
    RequestCode.SEND_MESSAGE: "topic",
    RequestCode.SEND_MESSAGE_V2: "b",
    RequestCode.SEND_BATCH_MESSAGE: "b",
    RequestCode.SEND_REPLY_MESSAGE: "topic",
    RequestCode.SEND_REPLY_MESSAGE_V2: "b",
}
"""Here it depends on the topic, which this field names."""
ENCODED_RECORD_CODES = frozenset({RequestCode.STAGE_RECORDS, RequestCode.APPEND_ONCE})
"""Here it depends on all topics that the body has records for."""
REPLY_CODES = frozenset({RequestCode.SEND_REPLY_MESSAGE, RequestCode.SEND_REPLY_MESSAGE_V2})
INTERNAL_PRODUCER_PREFIXES = ("CLIENT_INNER_PRODUCER", "_INNER_TRACE_PRODUCER")
"""How groups start that Java's consumers name in their heartbeats: all of them one, those that trace another."""


def may_send(kind: TokenKind, topic: str, code: int = RequestCode.SEND_MESSAGE) -> bool:
    """As in RocketMQ: consumers put what they could not handle into retry topics, and both may say what they did."""
    if code in REPLY_CODES:
        return kind == "p" and not topic.startswith(RETRY_TOPIC_PREFIX)
    return topic == TRACE_TOPIC or (kind == "c") == topic.startswith(RETRY_TOPIC_PREFIX)


class RequestAuthorizer:
    """Checks requests against the tokens there are at that moment."""

    def __init__(self, tokens: Mapping[str, Token], admins: Mapping[str, SecretStr]) -> None:
        """`tokens` is looked into at every request: what is revoked there counts for the next one."""
        self._tokens = tokens
        self._admins = {name: secret_key.get_secret_value() for name, secret_key in admins.items()}

    def check(self, command: RemotingCommand) -> None:
        """`NotPermitted` unless the request may be made."""
        fields = command.fields()
        name = fields.get(ACCESS_KEY_FIELD)
        if not name or SIGNATURE_FIELD not in fields:
            raise _refusal(command, "this broker wants requests to be signed with a token, and this one is not")
        token = None
        secret_key = self._admins.get(name)
        if secret_key is None:
            token = self._tokens.get(name)
            if token is None:
                raise _refusal(command, f"there is no token {name[:TOKEN_NAME_CHARS_MAX]!r} here")
            secret_key = token.secret_key
        if not has_valid_signature(fields, command.body, secret_key):
            raise _refusal(command, f"the signature is not the one that the secret key of token {name!r} makes")
        if token is not None:
            _check_token(token, command, fields)


def _check_token(token: Token, command: RemotingCommand, fields: Mapping[str, str]) -> None:
    if token.is_revoked:
        raise _refusal(command, f"token {token.name!r} was revoked")
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
        raise _refusal(command, f"token {token.name!r} is {TOKEN_KIND_LABELS[token.kind]}, and this takes {who}")
    elif command.code in ENCODED_RECORD_CODES:
        _check_records(token, command)
    elif command.code == RequestCode.HEART_BEAT:
        _check_heartbeat(token, command)


def _check_records(token: Token, command: RemotingCommand) -> None:
    try:
        topics = sorted(queue_batches.topics_in(command.body))
    except ProtocolError:
        return  # whoever serves it says what is wrong with them
    for topic in topics:
        if not may_send(token.kind, topic):
            raise _refusal(command, f"token {token.name!r} is {TOKEN_KIND_LABELS[token.kind]}, and {_who_sends(topic)}")


def _check_heartbeat(token: Token, command: RemotingCommand) -> None:
    """Brokers tell members things: a token is a member of what it may take part in, and of nothing else."""
    said = bodies.read(HeartbeatData, command.body)
    consumers = [consumer.group_name for consumer in said.consumer_data_set]
    if token.kind == "p" and consumers:
        raise _refusal(command, f"token {token.name!r} is a producer's, and group {consumers[0]!r} consumes")
    producers = [
        one.group_name for one in said.producer_data_set if not one.group_name.startswith(INTERNAL_PRODUCER_PREFIXES)
    ]
    if token.kind == "c" and producers:
        raise _refusal(command, f"token {token.name!r} is a consumer's, and group {producers[0]!r} produces")


_ADMINS = "one of the broker's admin tokens"
_NAMES = {int(code): code.name for code in RequestCode}


def _who_sends(topic: str) -> str:
    return (
        "only consumers send to retry topics"
        if topic.startswith(RETRY_TOPIC_PREFIX)
        else "consumers do not send messages"
    )


def _refusal(command: RemotingCommand, why: str) -> NotPermitted:
    return NotPermitted(_NAMES.get(command.code, f"request {command.code}"), why)
