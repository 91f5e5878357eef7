"""Authorization of requests: pure, without a socket."""

from typing import Any

import msgspec
import numpy as np
import pytest
from pydantic import SecretStr

from sparrow.broker.access import authorizer
from sparrow.broker.access.authorizer import RequestAuthorizer
from sparrow.broker.access.requirements import EVERYTHING, REQUIREMENTS
from sparrow.broker.dispatch import HANDLERS, INLINE_HANDLERS
from sparrow.model.access.permissions import TokenAction
from sparrow.model.access.token import Credentials, Token
from sparrow.model.errors import BadRequest, NotPermitted
from sparrow.model.queue import Queue, QueueRef
from sparrow.wire import bodies, headers, queue_batches
from sparrow.wire.bodies.pop import Ack, BatchAck, QueryAssignment, SetRequestMode
from sparrow.wire.codes import RequestCode
from sparrow.wire.frame import RemotingCommand
from sparrow.wire.headers import Header
from sparrow.wire.signing import sign

ADMIN = Credentials("operator", "a long secret")
PRODUCER_CODES = [code for code, need in REQUIREMENTS.items() if need.actions == (TokenAction.PUBLISH,)]
CONSUMER_CODES = [code for code, need in REQUIREMENTS.items() if need.actions == (TokenAction.SUBSCRIBE,)]
SHARED_CODES = [
    code
    for code, need in REQUIREMENTS.items()
    if {*need.actions} == {TokenAction.PUBLISH, TokenAction.SUBSCRIBE} and not need.sends
]
SEND_CODES = [code for code, need in REQUIREMENTS.items() if need.sends]


def token(name: str, kind: str, **others) -> Token:
    return Token(id=1, name=name, kind=kind, secret=name.encode().ljust(32), created_ms=1, **others)


TOKENS = {
    "sender": token("sender", "p"),
    "reader": token("reader", "c"),
    "gone": token("gone", "c", revoked_ms=9),
    "both": token("both", "pc"),
    "chief": token("chief", "a"),
    "web": token("web", "p", topics=("orders", "invoices-*")),
    "billing": token("billing", "c", topics=("orders", "invoices-*"), groups=("billing", "report-*")),
    "team": token("team", "a", topics=("team-*",), groups=("team-*",)),
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


def refused(guard: RequestAuthorizer, command: RemotingCommand, host: str = "") -> str:
    with pytest.raises(NotPermitted) as caught:
        guard.check(command, None, host)
    return str(caught.value)


# -- authentication ---------------------------------------------------------------------------------------------------


def test_a_request_without_a_token_is_refused(guard):
    assert "is not signed" in refused(guard, RemotingCommand(RequestCode.PULL_MESSAGE))
    assert "is not signed" in refused(guard, RemotingCommand(RequestCode.PULL_MESSAGE, ext={"AccessKey": "reader"}))
    assert "is not signed" in refused(guard, RemotingCommand(RequestCode.PULL_MESSAGE, ext={"Signature": "s"}))


def test_a_refusal_does_not_tell_whether_a_token_exists(guard):
    said = {}
    for name in ("stranger", "reader", "gone", ADMIN.access_key):
        ext = headers.write(sign(None, b"", Credentials(name, "guessed")))
        said[name] = refused(guard, RemotingCommand(RequestCode.PULL_MESSAGE, ext=ext)).replace(repr(name), "…")
    assert len(set(said.values())) == 1
    assert "the signature is not that of a token …: check the access key and the secret key" in said["stranger"]


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
    for name in TOKENS.keys() - {"chief"}:
        said = refused(guard, request(RequestCode.UPDATE_AND_CREATE_TOPIC, name))
        assert not any(secret in said for secret in secrets)


# -- permissions ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", sorted(CONSUMER_CODES))
def test_consumer_requests_need_a_consumer_token(guard, code):
    guard.check(request(code, "reader"))
    said = refused(guard, request(code, "sender"))
    assert RequestCode(code).name in said
    assert "a consumer's token" in said


@pytest.mark.parametrize("code", sorted(PRODUCER_CODES))
def test_producer_requests_need_a_producer_token(guard, code):
    guard.check(request(code, "sender", send_to("T", code)))
    assert RequestCode(code).name in refused(guard, request(code, "reader", send_to("T", code)))


@pytest.mark.parametrize("code", SEND_CODES)
def test_sends_need_a_producer_token(guard, code):
    for name in ("sender", "both", "chief"):
        guard.check(request(code, name, send_to("T", code)))
    assert "consumers may not send" in refused(guard, request(code, "reader", send_to("T", code)))


@pytest.mark.parametrize("code", sorted({*SHARED_CODES} - {RequestCode.HEART_BEAT}))
def test_offset_queries_and_unregistering_need_any_token(guard, code):
    guard.check(request(code, "sender"))
    guard.check(request(code, "reader"))


def test_all_other_broker_requests_need_an_admin_token(guard):
    others = {int(code) for code in HANDLERS} - {*PRODUCER_CODES, *CONSUMER_CODES, *SHARED_CODES, *SEND_CODES}
    assert {17, 25, 33, 200, 207, 215, 222, 9101, 9102, 9103} <= others
    for code in others | {424242}:
        for name in ("sender", "reader"):
            assert "one of the broker's admin tokens" in refused(guard, request(code, name))
        guard.check(request(code, ADMIN.access_key))


def test_an_admin_token_may_make_all_producer_and_consumer_requests(guard):
    for code in (*PRODUCER_CODES, *CONSUMER_CODES, *SHARED_CODES, *SEND_CODES):
        guard.check(request(code, ADMIN.access_key))


@pytest.mark.parametrize(
    "code", [RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE]
)
def test_only_consumers_send_to_retry_topics(guard, code):
    """Java's consumers send messages there whose ordered attempts are used up."""
    for topic in ("%RETRY%g", "%DLQ%g"):
        guard.check(request(code, "reader", send_to(topic, code)))
        assert "only consumers" in refused(guard, request(code, "sender", send_to(topic, code)))


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


# -- patterns of topics and groups ------------------------------------------------------------------------------------


def pull(topic: str, group: str) -> Header:
    return headers.PullMessage(group, topic, 0, 0, 32, 4, 0, 0, 0, subscription="*")


def subscriptions(group: str, *topics: str) -> bytes:
    data = [bodies.SubscriptionData(topic) for topic in topics]
    return bodies.write(bodies.HeartbeatData("id", [], [bodies.ConsumerData(group, subscription_data_set=data)]))


def locks(group: str, *topics: str) -> bytes:
    return bodies.write(bodies.LockQueues(group, "id", [QueueRef(topic, "b", 0) for topic in topics]))


def acks(*uses: tuple[str, str]) -> bytes:
    return bodies.write(BatchAck("b", [Ack(group, topic, "0", 0, 0, 0, 1, 1, "AQ==") for topic, group in uses]))


def records(*topics: str) -> bytes:
    return queue_batches.encode((Queue(topic, 0), bytes(100), np.array([100], np.int32)) for topic in topics)


def assignment(topic: str, group: str) -> bytes:
    return bodies.write(QueryAssignment(topic, group, "id"))


def config(topic: str, group: str) -> bytes:
    return bodies.write(bodies.ClientConfigCheck("id", group, bodies.SubscriptionData(topic)))


CODE = RequestCode
REPLY_CODES = (CODE.SEND_REPLY_MESSAGE, CODE.SEND_REPLY_MESSAGE_V2)
CASES = {
    "web": {
        "allowed": [
            *((code, send_to("orders", code), b"") for code in SEND_CODES),
            (CODE.SEND_MESSAGE_V2, send_to("invoices-eu"), b""),
            (CODE.SEND_MESSAGE_V2, send_to("RMQ_SYS_TRACE_TOPIC"), b""),
            (CODE.RECALL_MESSAGE, headers.RecallMessage("orders", "h"), b""),
            (CODE.APPEND_ONCE, headers.AppendOnce("s", 1), records("orders", "invoices-eu")),
            (CODE.HEART_BEAT, None, heartbeat(producers=("any group",))),
            (CODE.GET_MAX_OFFSET, headers.QueueRequest("orders", 0), b""),
            (CODE.QUERY_QUEUE_BOUNDS, None, b'["orders"]'),
        ],
        "refused": [
            *((code, send_to("secrets", code), b"") for code in SEND_CODES),
            *((code, send_to("secrets", code), b"") for code in REPLY_CODES),
            (CODE.SEND_MESSAGE_V2, send_to("invoices"), b""),
            (CODE.SEND_MESSAGE_V2, send_to("%DLQ%billing"), b""),
            (CODE.SEND_MESSAGE_V2, None, b""),
            (CODE.RECALL_MESSAGE, headers.RecallMessage("secrets", "h"), b""),
            (CODE.APPEND_ONCE, headers.AppendOnce("s", 1), records("orders", "secrets")),
            (CODE.STAGE_RECORDS, headers.StageRecords("s", 0), records("%RETRY%billing")),
            (CODE.GET_MIN_OFFSET, headers.QueueRequest("secrets", 0), b""),
            (CODE.SEARCH_OFFSET_BY_TIMESTAMP, headers.SearchOffset("secrets", 0, 1), b""),
            (CODE.QUERY_QUEUE_BOUNDS, None, b'["orders", "secrets"]'),
        ],
    },
    "billing": {
        "allowed": [
            (CODE.PULL_MESSAGE, pull("orders", "billing"), b""),
            (CODE.PULL_MESSAGE, pull("orders", "TOOLS_CONSUMER"), b""),
            (CODE.PULL_MESSAGE, pull("%RETRY%billing", "billing"), b""),
            (CODE.LITE_PULL_MESSAGE, pull("invoices-eu", "report-1"), b""),
            (CODE.PULL_MESSAGE, pull("%DLQ%billing", "TOOLS_CONSUMER"), b""),
            (CODE.ACK_MESSAGE, headers.AckMessage("billing", "%RETRY%billing_orders", 0, "h", 0), b""),
            (CODE.SEND_MESSAGE_V2, send_to("%RETRY%billing"), b""),
            (CODE.HEART_BEAT, None, subscriptions("billing", "orders", "%RETRY%billing")),
            (CODE.LOCK_BATCH_MQ, None, locks("billing", "orders", "%RETRY%billing")),
            (CODE.BATCH_ACK_MESSAGE, None, acks(("orders", "billing"), ("invoices-eu", "report-1"))),
            (CODE.QUERY_ASSIGNMENT, None, assignment("orders", "billing")),
            (CODE.CHECK_CLIENT_CONFIG, None, config("orders", "billing")),
            (CODE.QUERY_MESSAGE, headers.QueryMessage("orders", "k", 1, 0, 1), b""),
            (CODE.UNREGISTER_CLIENT, headers.UnregisterClient("id", consumer_group="billing"), b""),
            (CODE.UNREGISTER_CLIENT, headers.UnregisterClient("id", producer_group="any"), b""),
            (CODE.CONSUMER_SEND_MSG_BACK, headers.SendMessageBack(0, "billing", 0), b""),
        ],
        "refused": [
            (CODE.PULL_MESSAGE, pull("secrets", "billing"), b""),
            (CODE.PULL_MESSAGE, pull("orders", "shipping"), b""),
            (CODE.PULL_MESSAGE, pull("secrets", "TOOLS_CONSUMER"), b""),
            (CODE.PULL_MESSAGE, pull("%RETRY%shipping", "billing"), b""),
            (CODE.PULL_MESSAGE, pull("%DLQ%shipping", "TOOLS_CONSUMER"), b""),
            (CODE.POP_MESSAGE, headers.PopMessage("shipping", "orders", 0, 1, 1, 1), b""),
            (CODE.PEEK_MESSAGE, headers.PeekMessage("billing", "secrets", 0, 1), b""),
            (CODE.NOTIFICATION, headers.NotificationRequest("billing", "secrets", 0, 1), b""),
            (CODE.POLLING_INFO, headers.GetPollingCount("shipping", "orders", 0), b""),
            (CODE.ACK_MESSAGE, headers.AckMessage("billing", "%RETRY%billing_secrets", 0, "h", 0), b""),
            (CODE.CHANGE_MESSAGE_INVISIBLETIME, headers.ChangeInvisibleTime("shipping", "orders", 0, "h", 0, 1), b""),
            (CODE.BATCH_ACK_MESSAGE, None, acks(("orders", "billing"), ("secrets", "billing"))),
            (CODE.QUERY_CONSUMER_OFFSET, headers.QueryOffset("shipping", "orders", 0), b""),
            (CODE.UPDATE_CONSUMER_OFFSET, headers.CommitOffset("billing", "secrets", 0, 1), b""),
            (CODE.SEND_MESSAGE_V2, send_to("%RETRY%shipping"), b""),
            (CODE.HEART_BEAT, None, subscriptions("shipping", "orders")),
            (CODE.HEART_BEAT, None, subscriptions("billing", "orders", "secrets")),
            (CODE.LOCK_BATCH_MQ, None, locks("shipping", "orders")),
            (CODE.UNLOCK_BATCH_MQ, None, locks("billing", "orders", "secrets")),
            (CODE.GET_CONSUMER_LIST_BY_GROUP, headers.ListConsumers("shipping"), b""),
            (CODE.QUERY_ASSIGNMENT, None, assignment("secrets", "billing")),
            (CODE.CHECK_CLIENT_CONFIG, None, config("secrets", "billing")),
            (CODE.QUERY_MESSAGE, headers.QueryMessage("secrets", "k", 1, 0, 1), b""),
            (CODE.UNREGISTER_CLIENT, headers.UnregisterClient("id", consumer_group="shipping"), b""),
            (CODE.CONSUMER_SEND_MSG_BACK, headers.SendMessageBack(0, "shipping", 0), b""),
            (CODE.GET_MAX_OFFSET, headers.QueueRequest("secrets", 0), b""),
        ],
    },
    "team": {
        "allowed": [
            (CODE.UPDATE_AND_CREATE_TOPIC, headers.UpdateTopic("team-x", "TBW102", 1, 1, 6, "S", False), b""),
            (CODE.DELETE_TOPIC_IN_BROKER, headers.DeleteTopic("team-x"), b""),
            (CODE.DELETE_SUBSCRIPTIONGROUP, headers.DeleteGroup("team-g"), b""),
            (CODE.INVOKE_BROKER_TO_RESET_OFFSET, headers.ResetOffset("team-x", "team-g", 0, False), b""),
            (CODE.CLONE_GROUP_OFFSET, headers.CloneGroupOffsets("team-a", "team-b", "team-x"), b""),
            (CODE.RESEND_MESSAGES, headers.ResendMessages("team-x", "team-g"), b""),
            (CODE.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, bodies.write(bodies.GroupConfig("team-g"))),
            (CODE.LIST_HALF_MESSAGES, None, bodies.write(bodies.ListHalfMessages("team-x"))),
            (CODE.SET_MESSAGE_REQUEST_MODE, None, bodies.write(SetRequestMode("team-x", "team-g"))),
            (CODE.SEND_MESSAGE_V2, send_to("team-x"), b""),
            (CODE.SEND_MESSAGE_V2, send_to("%DLQ%team-g"), b""),
            (CODE.PULL_MESSAGE, pull("team-x", "team-g"), b""),
            (CODE.HEART_BEAT, None, subscriptions("team-g", "team-x", "%RETRY%team-g")),
        ],
        "refused": [
            (CODE.UPDATE_AND_CREATE_TOPIC, headers.UpdateTopic("orders", "TBW102", 1, 1, 6, "S", False), b""),
            (CODE.DELETE_TOPIC_IN_BROKER, headers.DeleteTopic("orders"), b""),
            (CODE.DELETE_SUBSCRIPTIONGROUP, headers.DeleteGroup("billing"), b""),
            (CODE.INVOKE_BROKER_TO_RESET_OFFSET, headers.ResetOffset("team-x", "billing", 0, False), b""),
            (CODE.CLONE_GROUP_OFFSET, headers.CloneGroupOffsets("team-a", "team-b"), b""),
            (CODE.CLONE_GROUP_OFFSET, headers.CloneGroupOffsets("billing", "team-b", "team-x"), b""),
            (CODE.RESEND_MESSAGES, headers.ResendMessages("team-x"), b""),
            (CODE.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, bodies.write(bodies.GroupConfig("billing"))),
            (CODE.LIST_HALF_MESSAGES, None, bodies.write(bodies.ListHalfMessages())),
            (CODE.LIST_DELAYED_MESSAGES, None, bodies.write(bodies.ListDelayed("orders"))),
            (CODE.ISSUE_TOKEN, None, b"{}"),
            (CODE.LIST_TOKENS, None, b""),
            (CODE.GET_BROKER_CONFIG, None, b""),
            (CODE.VIEW_MESSAGE_BY_ID, headers.ViewMessage(0), b""),
            (424242, None, b""),
        ],
    },
}


def cases(outcome: str) -> list:
    return [
        pytest.param(name, *case, id=f"{name}-{case[0]}-{number}")
        for name, outcomes in CASES.items()
        for number, case in enumerate(outcomes[outcome])
    ]


@pytest.mark.parametrize(("name", "code", "header", "body"), cases("allowed"))
def test_a_request_for_names_that_the_patterns_match_is_allowed(guard, name, code, header, body):
    guard.check(request(code, name, header, body))


@pytest.mark.parametrize(("name", "code", "header", "body"), cases("refused"))
def test_a_request_for_any_other_name_is_refused(guard, name, code, header, body):
    said = refused(guard, request(code, name, header, body))
    assert repr(name) in said
    guard.check(request(code, ADMIN.access_key, header, body))


def test_an_allowed_request_is_refused_once_the_token_is_changed_or_revoked():
    tokens = {"web": TOKENS["web"]}
    guard = RequestAuthorizer(tokens, {})
    asked = request(RequestCode.SEND_MESSAGE_V2, "web", send_to("orders"))
    for _ in range(2):
        guard.check(asked)
    tokens["web"] = token("web", "p", topics=("invoices",))
    assert "no permission to publish to topic 'orders'" in refused(guard, asked)
    tokens["web"] = TOKENS["web"]
    guard.check(asked)
    tokens["web"] = token("web", "p", topics=("orders",), revoked_ms=9)
    assert "is revoked" in refused(guard, asked)


def test_the_memory_of_allowed_requests_is_limited(monkeypatch):
    monkeypatch.setattr(authorizer, "REQUESTS_CACHED_MAX", 8)
    monkeypatch.setattr(authorizer, "TOKENS_CACHED_MAX", 2)
    guard = RequestAuthorizer(TOKENS, {})
    for name in ("web", "team", "sender"):
        for number in range(50):
            topic = {"web": "invoices-", "team": "team-"}.get(name, "") + f"{number}"
            guard.check(request(RequestCode.SEND_MESSAGE_V2, name, send_to(topic)))
            guard.check(request(RequestCode.SEND_MESSAGE_V2, name, send_to(topic + "x" * 300)))
    assert len(guard._allowed) <= 2
    assert all(len(known.requests) <= 8 for known in guard._allowed.values())


# -- source addresses -------------------------------------------------------------------------------------------------


def near(**others) -> Token:
    return token("web", "p", **{"topics": ("orders",), "addresses": ("10.0.0.0/8", "::1")} | others)


def sending(topic: str = "orders") -> RemotingCommand:
    return request(RequestCode.SEND_MESSAGE_V2, "web", send_to(topic))


def test_a_token_is_used_from_its_addresses_and_from_nowhere_else():
    guard = RequestAuthorizer({"web": near()}, {})
    for host in ("10.0.0.1", "[::ffff:10.2.3.4]", "[::1]", "10.0.0.1"):
        guard.check(sending(), None, host)
    for host in ("192.168.1.5", "[::ffff:192.168.1.5]", "[::2]", "unconnected", ""):
        said = refused(guard, sending(), host)
        assert f"token 'web' may not be used from {host.strip('[]') or 'an unknown address'}" in said
        assert "10.0.0.0/8" not in said, "the networks help who has stolen the secret"


def test_addresses_are_checked_before_permissions_and_after_the_signature():
    guard = RequestAuthorizer({"web": near()}, {})
    said = {refused(guard, sending(topic), "192.168.1.5") for topic in ("orders", "secrets", "nothing")}
    assert len(said) == 1, "the same whatever the request names"
    assert "no permission to publish" in refused(guard, sending("secrets"), "10.0.0.1")
    forged = RemotingCommand(RequestCode.HEART_BEAT, ext=headers.write(sign(None, b"", Credentials("web", "guessed"))))
    assert refused(guard, forged, "192.168.1.5") == refused(guard, forged, "10.0.0.1")


def test_an_allowed_request_is_refused_from_another_address_and_once_the_list_is_changed():
    tokens = {"web": near()}
    guard = RequestAuthorizer(tokens, {})
    for _ in range(2):
        guard.check(sending(), None, "10.0.0.1")
        refused(guard, sending(), "11.0.0.1")
    tokens["web"] = near(addresses=("11.0.0.0/8",))
    refused(guard, sending(), "10.0.0.1")
    guard.check(sending(), None, "11.0.0.1")
    tokens["web"] = near(addresses=())
    guard.check(sending(), None, "10.0.0.1")


def test_a_list_is_compared_once_for_each_peer_and_never_for_a_token_without_one(monkeypatch):
    compared = []

    def compare(addresses: tuple[str, ...], host: str) -> bool:
        compared.append(host)
        return True

    monkeypatch.setattr(authorizer, "is_source_allowed", compare)
    guard = RequestAuthorizer(TOKENS | {"web": near()}, {ADMIN.access_key: SecretStr(ADMIN.secret_key)})
    for _ in range(3):
        for host in ("10.0.0.1", "10.0.0.2"):
            guard.check(sending(), None, host)
            guard.check(request(RequestCode.SEND_MESSAGE_V2, "sender", send_to("T")), None, host)
            guard.check(request(RequestCode.SEND_MESSAGE_V2, ADMIN.access_key, send_to("T")), None, host)
    assert compared == ["10.0.0.1", "10.0.0.2"]


def test_the_memory_of_peers_is_limited(monkeypatch):
    monkeypatch.setattr(authorizer, "HOSTS_CACHED_MAX", 8)
    guard = RequestAuthorizer({"web": near()}, {})
    for number in range(50):
        guard.check(sending(), None, f"10.0.0.{number}")
    assert all(len(known.hosts) <= 8 for known in guard._allowed.values())


def test_every_request_that_a_broker_handles_is_in_the_table():
    """Unlisted requests need to administer everything; this test makes sure that it was decided for each."""
    inline = {code for part in INLINE_HANDLERS for code in _inline_codes(part)}
    handled = {int(code) for code in HANDLERS} | inline
    assert {code for code in handled if code not in REQUIREMENTS} == set()
    assert {code for code in REQUIREMENTS if code not in handled} == set()


def _inline_codes(part: Any) -> set[int]:
    handler = part.__new__(part)  # the table needs no broker
    return {int(code) for code in handler.handlers()}


def test_every_request_with_a_topic_or_a_group_in_its_header_is_checked_by_it():
    """A header field that names a topic or a group is in the requirement, unless the request needs everything."""
    unchecked = {}
    for code, need in REQUIREMENTS.items():
        named = {field.name for field in msgspec.structs.fields(headers.request_header_type(code))} & {"topic", "group"}
        if need is EVERYTHING or need.names is not None:
            continue
        checked = {name for name, field in (("topic", need.topic), ("group", need.group)) if field is not None}
        if named - checked:
            unchecked[RequestCode(code).name] = named - checked
    assert unchecked == {
        **{RequestCode(code).name: {"group"} for code in (*SEND_CODES, *REPLY_CODES)},  # groups of producers
        "RECALL_MESSAGE": {"group"},
        "END_TRANSACTION": {"topic", "group"},  # the half message has the topic
        "QUERY_CONSUME_QUEUE": {"group"},  # chooses a filter
        "GET_CONSUME_STATS": {"topic"},
        "QUERY_SUBSCRIPTION_BY_CONSUMER": {"topic"},
    }
