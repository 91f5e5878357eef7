"""Authorization of requests: pure, without a socket."""

import pytest
from pydantic import SecretStr

from sparrow.broker.auth import ALLOWED_CODES, CONSUMER_CODES, PRODUCER_CODES, SHARED_CODES, RequestAuthorizer
from sparrow.broker.dispatch import HANDLERS
from sparrow.model.errors import BadRequest, NotPermitted
from sparrow.model.token import Credentials, Token
from sparrow.wire import bodies, headers
from sparrow.wire.codes import RequestCode
from sparrow.wire.frame import RemotingCommand
from sparrow.wire.headers import Header
from sparrow.wire.signing import sign

ADMIN = Credentials("operator", "a long secret")


def token(name: str, kind: str, **others) -> Token:
    return Token(id=1, name=name, kind=kind, secret=name.encode().ljust(32), created_ms=1, **others)


TOKENS = {
    "sender": token("sender", "p"),
    "reader": token("reader", "c"),
    "gone": token("gone", "c", revoked_ms=9),
}


@pytest.fixture
def guard() -> RequestAuthorizer:
    return RequestAuthorizer(TOKENS, {ADMIN.access_key: SecretStr(ADMIN.secret_key)})


def of(name: str) -> Credentials:
    return ADMIN if name == ADMIN.access_key else Credentials(name, TOKENS[name].secret_key)


def request(code: int, name: str, header: Header | None = None, body: bytes = b"") -> RemotingCommand:
    return RemotingCommand(code, ext=headers.write(sign(header, body, of(name))), body=body)


def send_to(topic: str, code: int = RequestCode.SEND_MESSAGE_V2) -> Header:
    kind = (
        headers.SendMessage
        if code in (RequestCode.SEND_MESSAGE, RequestCode.SEND_REPLY_MESSAGE)
        else headers.SendMessageV2
    )
    return kind("g", topic, "TBW102", 4, 0, 0, 1, 0, "")


def heartbeat(*, producers: tuple[str, ...] = (), consumers: tuple[str, ...] = ()) -> bytes:
    producing = [bodies.ProducerData(group) for group in producers]
    return bodies.write(bodies.HeartbeatData("id", producing, [bodies.ConsumerData(group) for group in consumers]))


def refused(guard: RequestAuthorizer, command: RemotingCommand) -> str:
    with pytest.raises(NotPermitted) as caught:
        guard.check(command)
    return str(caught.value)


# -- authentication ---------------------------------------------------------------------------------------------------


def test_a_request_without_a_token_is_refused(guard):
    assert "is not signed" in refused(guard, RemotingCommand(RequestCode.PULL_MESSAGE))
    assert "is not signed" in refused(guard, RemotingCommand(RequestCode.PULL_MESSAGE, ext={"AccessKey": "reader"}))
    assert "is not signed" in refused(guard, RemotingCommand(RequestCode.PULL_MESSAGE, ext={"Signature": "s"}))


def test_an_unknown_token_is_refused_by_its_name(guard):
    ext = headers.write(sign(None, b"", Credentials("stranger", "secret")))
    assert "there is no token 'stranger'" in refused(guard, RemotingCommand(RequestCode.PULL_MESSAGE, ext=ext))


def test_a_wrong_signature_is_refused_for_every_token(guard):
    for name in ("sender", "reader", "gone", "operator"):
        ext = headers.write(sign(None, b"", Credentials(name, "wrong")))
        said = refused(guard, RemotingCommand(RequestCode.HEART_BEAT, ext=ext))
        assert "signature" in said
        assert "revoked" not in said, "only the owner may learn that the token is revoked"


def test_a_revoked_token_is_refused(guard):
    assert "token 'gone' is revoked" in refused(guard, request(RequestCode.PULL_MESSAGE, "gone"))


def test_a_check_uses_the_current_state_of_a_token():
    tokens = {}
    guard = RequestAuthorizer(tokens, {})
    asked = request(RequestCode.PULL_MESSAGE, "reader")
    refused(guard, asked)
    tokens["reader"] = TOKENS["reader"]
    guard.check(asked)
    tokens["reader"] = token("reader", "c", revoked_ms=3)
    refused(guard, asked)


def test_no_refusal_contains_a_secret(guard):
    secrets = [ADMIN.secret_key, *(one.secret_key for one in TOKENS.values())]
    for name in (*TOKENS, ADMIN.access_key):
        wrong = Credentials(name, of(name).secret_key + "x")
        said = refused(guard, RemotingCommand(17, ext=headers.write(sign(None, b"", wrong))))
        assert not any(secret in said for secret in secrets)
    for name in TOKENS:
        said = refused(guard, request(RequestCode.UPDATE_AND_CREATE_TOPIC, name))
        assert not any(secret in said for secret in secrets)


# -- permissions ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", sorted(CONSUMER_CODES))
def test_consumer_requests_need_a_consumer_token(guard, code):
    guard.check(request(code, "reader"))
    said = refused(guard, request(code, "sender"))
    assert code.name in said
    assert "a consumer's token" in said


@pytest.mark.parametrize("code", sorted(PRODUCER_CODES))
def test_producer_requests_need_a_producer_token(guard, code):
    guard.check(request(code, "sender", send_to("T", code)))
    assert code.name in refused(guard, request(code, "reader", send_to("T", code)))


@pytest.mark.parametrize("code", sorted(SHARED_CODES - {RequestCode.HEART_BEAT}))
def test_offset_queries_and_unregistering_need_any_token(guard, code):
    guard.check(request(code, "sender"))
    guard.check(request(code, "reader"))


def test_all_other_broker_requests_need_an_admin_token(guard):
    others = {int(code) for code in HANDLERS} - {int(code) for code in ALLOWED_CODES["p"] | ALLOWED_CODES["c"]}
    assert {17, 25, 33, 200, 207, 215, 222, 9101, 9102, 9103} <= others
    for code in others | {424242}:
        for name in ("sender", "reader"):
            assert "one of the broker's admin tokens" in refused(guard, request(code, name))
        guard.check(request(code, ADMIN.access_key))


def test_an_admin_token_may_make_all_producer_and_consumer_requests(guard):
    for code in ALLOWED_CODES["p"] | ALLOWED_CODES["c"]:
        guard.check(request(code, ADMIN.access_key))


@pytest.mark.parametrize(
    "code", [RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE]
)
def test_only_consumers_send_to_retry_topics(guard, code):
    """Java's consumers send messages there whose ordered attempts are used up."""
    guard.check(request(code, "reader", send_to("%RETRY%g", code)))
    assert "only consumers" in refused(guard, request(code, "sender", send_to("%RETRY%g", code)))


@pytest.mark.parametrize("code", [RequestCode.SEND_REPLY_MESSAGE, RequestCode.SEND_REPLY_MESSAGE_V2])
def test_a_reply_cannot_be_sent_to_a_retry_topic(guard, code):
    for name in ("sender", "reader"):
        refused(guard, request(code, name, send_to("%RETRY%g", code)))


def test_producers_and_consumers_may_send_traces(guard):
    for name in ("sender", "reader"):
        guard.check(request(RequestCode.SEND_MESSAGE_V2, name, send_to("RMQ_SYS_TRACE_TOPIC")))


def test_a_heartbeat_needs_a_token_of_the_kind_of_its_groups(guard):
    guard.check(request(RequestCode.HEART_BEAT, "sender", body=heartbeat(producers=("g",))))
    guard.check(request(RequestCode.HEART_BEAT, "reader", body=heartbeat(consumers=("g",))))
    assert "'g' is a consumer group" in refused(
        guard, request(RequestCode.HEART_BEAT, "sender", body=heartbeat(consumers=("g",)))
    )
    assert "'g' is a producer group" in refused(
        guard, request(RequestCode.HEART_BEAT, "reader", body=heartbeat(producers=("g",)))
    )
    guard.check(request(RequestCode.HEART_BEAT, ADMIN.access_key, body=heartbeat(producers=("g",), consumers=("h",))))


def test_the_inner_producers_of_java_consumers_are_allowed(guard):
    inner = heartbeat(producers=("CLIENT_INNER_PRODUCER", "_INNER_TRACE_PRODUCER-g-CONSUME"), consumers=("g",))
    guard.check(request(RequestCode.HEART_BEAT, "reader", body=inner))


def test_an_unreadable_heartbeat_is_a_bad_request(guard):
    with pytest.raises(BadRequest):
        guard.check(request(RequestCode.HEART_BEAT, "sender", body=b"{"))
