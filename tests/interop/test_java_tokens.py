"""The official clients with their own signing (`AclClientRPCHook`) on a broker that requires tokens."""

from collections.abc import Iterator

import pytest
from tests.interop import platforms
from tests.interop.java import ClientError, JavaClient, java_client
from tests.interop.official import Kit
from tests.interop.platforms import Platform

from sparrow.client import Admin, Credentials
from sparrow.model.access.token import TokenKind

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]

ADMIN = Credentials("operator", "a long secret")


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    """Sparrow with `auth` on."""
    settings = {"BROKER__AUTH": "true", f"BROKER__ADMIN_TOKENS__{ADMIN.access_key.upper()}": ADMIN.secret_key}
    with platforms.sparrow(tmp_path_factory.mktemp("guarded"), **settings) as running:
        yield running


@pytest.fixture(scope="module")
def java(kit: Kit, guarded: Platform, tmp_path_factory: pytest.TempPathFactory) -> Iterator[JavaClient]:
    with java_client(kit, guarded.name_server, tmp_path_factory.mktemp("java")) as client:
        yield client


def keys(guarded: Platform, name: str, kind: TokenKind) -> dict[str, str]:
    with Admin(guarded.name_server, credentials=ADMIN) as admin:
        issued = admin.issue_token(name, kind)
    return {"accessKey": issued.access_key, "secretKey": issued.secret_key}


@pytest.fixture
def topic(request: pytest.FixtureRequest, guarded: Platform, kit: Kit) -> str:
    """A topic named after the test, created before its clients: Java clients need half a minute to find a new topic."""
    name = f"{request.node.originalname}_{kit.version.replace('.', '_')}"
    with Admin(guarded.name_server, credentials=ADMIN) as admin:
        admin.create_topic(name, 4)
    return name


def test_signed_messages_are_sent_and_consumed(java: JavaClient, guarded: Platform, kit: Kit, topic: str) -> None:
    sender, reader = (
        keys(guarded, f"appid-340101;sid-p0912;{kit.version}", "p"),
        keys(guarded, f"billing-{kit.version}", "c"),
    )
    with (
        java.producer("signing", **sender) as producer,
        java.push_consumer(f"{topic}_group", topic, refusals=1, refusalLevel=1, **reader) as consumer,
    ):
        producer.send(topic, [{"body": "one", "tags": "a", "keys": "k1 k2", "properties": {"é": "名"}}])
        producer.send(topic, ["two"], mode="async")
        producer.send(topic, ["three", "four"], mode="batch")
        producer.send(topic, ["five"], mode="oneway")
        seen = consumer.receive(10)  # each is rejected once
    assert sorted(message.body for message in seen) == sorted(["one", "two", "three", "four", "five"] * 2)
    assert {message.reconsume_times for message in seen} == {0, 1}


def test_a_signed_orderly_consumer_locks_and_commits(java: JavaClient, guarded: Platform, kit: Kit, topic: str) -> None:
    sender, reader = keys(guarded, f"sender-{kit.version}", "p"), keys(guarded, f"reader-{kit.version}", "c")
    bodies = [f"{number}" for number in range(20)]
    with java.producer("signing", **sender) as producer:
        producer.send(topic, [{"body": body, "hash": "one queue"} for body in bodies])
    with java.push_consumer(f"{topic}_group", topic, orderly=True, **reader) as consumer:
        assert [message.body for message in consumer.receive(20)] == bodies
    with Admin(guarded.name_server, credentials=ADMIN) as admin:
        assert admin.progress(f"{topic}_group", topic).lag == 0


def test_a_signed_transaction_is_committed(java: JavaClient, guarded: Platform, kit: Kit, topic: str) -> None:
    sender, reader = keys(guarded, f"paying-{kit.version}", "p"), keys(guarded, f"paid-{kit.version}", "c")
    with (
        java.producer("signing_tx", transactional=True, **sender) as producer,
        java.push_consumer(f"{topic}_group", topic, **reader) as consumer,
    ):
        producer.send_in_transaction(topic, {"body": "kept"}, "COMMIT_MESSAGE")
        producer.send_in_transaction(topic, {"body": "asked", "properties": {"answers": "COMMIT_MESSAGE"}}, "UNKNOW")
        assert sorted(message.body for message in consumer.receive(2)) == ["asked", "kept"]


@pytest.mark.parametrize("wrong", ["kind", "secret", "name", "revoked", "none"])
def test_an_unauthorized_send_is_refused_with_a_message(
    java: JavaClient, guarded: Platform, kit: Kit, wrong: str
) -> None:
    name = f"{wrong}-{kit.version}"
    options, sentence = {
        "kind": lambda: (keys(guarded, name, "c"), "consumers may not send"),
        "secret": lambda: (keys(guarded, name, "p") | {"secretKey": "guessed"}, "signature"),
        "name": lambda: ({"accessKey": name, "secretKey": "guessed"}, "the signature is not that of a token"),
        "revoked": lambda: (keys(guarded, name, "p"), "is revoked"),
        "none": lambda: ({}, "is not signed"),
    }[wrong]()
    if wrong == "revoked":
        with Admin(guarded.name_server, credentials=ADMIN) as admin:
            admin.revoke_token(name)
    with java.producer("refused", **options) as producer, pytest.raises(ClientError) as caught:
        producer.send("refused", ["never"], mode="async")  # a synchronous send reports only its number of attempts
    assert sentence in str(caught.value)
    assert "CODE: 16" in str(caught.value)
