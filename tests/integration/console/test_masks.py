"""What roles below admin do not see: hidden bodies, members and properties on every way out, and downloads."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from tests.integration.console.test_access import TOKENS, bearer
from tests.support.consoles import running_console
from tests.support.wait import wait_until

from sparrow import Admin, Consumer, Message, Producer
from sparrow.console.masks import HIDDEN
from sparrow.model.message import StoredMessage
from sparrow.model.protocol import TRACE_TOPIC
from sparrow.model.transaction import TransactionState
from sparrow.testing.platform import RunningPlatform, run_platform

V1 = "/api/v1"
CARD = "4111-1111"
TOPICS = {"payments", "salaries", "visits"}
UNKNOWN = TransactionState.UNKNOWN
MASKS = [
    {"topics": ["payments"], "fields": ["card*"], "properties": ["customer"]},
    {"topics": ["salaries"], "body": True},
    {"topics": ["visits"], "properties": ["KEYS", "TAGS"]},
]


@pytest.fixture(scope="module")
def platform() -> Iterator[RunningPlatform]:
    """Provide a platform with a payment, a salary and a visit, all three dead letters, and visits that wait.

    The texts of errors quote the messages.
    """

    def refuse(message: StoredMessage) -> None:
        raise ValueError(f"cannot handle {message.body.decode()} {message.keys} {message.tags}")

    with (
        run_platform() as platform,
        Producer(platform.name_servers, trace=True, transaction_checker=lambda _: UNKNOWN) as producer,
        Admin(platform.name_servers) as admin,
    ):
        body = json.dumps({"order": 7, "cardNumber": CARD})
        producer.send(Message("payments", body, keys="payment-7", properties={"customer": CARD, "city": "Oslo"}))
        producer.send(Message("salaries", CARD, keys="salary-1"))
        producer.send(Message("visits", "{}", keys=CARD, tags=CARD))
        producer.send(Message("visits", "later", keys=CARD, tags=CARD), deliver_after_ms=3_600_000)
        producer.begin_transaction(Message("visits", "perhaps", keys=CARD, tags=CARD))
        with Consumer(platform.name_servers, group="payroll", consume_from="first", retries_max=0) as consumer:
            for topic in TOPICS:
                consumer.subscribe(topic)
            consumer.start(refuse)
            wait_until(lambda: {letter.topic for letter in admin.dead_letters("payroll")} == TOPICS, within_s=100)
        wait_until(lambda: TRACE_TOPIC in admin.topics() and trace_count(admin) > 0, within_s=60)
        yield platform


def trace_count(admin: Admin) -> int:
    return sum(end - first for first, end in admin.topic_bounds(TRACE_TOPIC).values())


@pytest.fixture(scope="module")
def console(platform: RunningPlatform) -> Iterator[httpx.Client]:
    settings: dict[str, Any] = {"auth": True, "tokens": TOKENS, "masks": MASKS}
    with running_console(platform.name_servers, **settings) as client:
        yield client


def seen(console: httpx.Client, name: str, path: str, **query: Any) -> str:
    answer = console.get(V1 + path, params=query, headers=bearer(name))
    assert answer.status_code == 200, answer.text
    return answer.text


def test_only_admins_see_what_is_hidden(console: httpx.Client) -> None:
    (found,), (payment,), (visit,) = (
        json.loads(seen(console, "olga", f"/topics/{topic}/messages"))["messages"]
        for topic in ("salaries", "payments", "visits")
    )
    ways: list[tuple[str, dict[str, Any]]] = [
        ("/topics/payments/messages", {}),
        ("/topics/payments/messages", {"key": "payment-7"}),
        ("/topics/payments/messages/export", {}),
        ("/topics/salaries/messages", {}),
        ("/topics/salaries/messages/export", {}),
        (f"/messages/{found['id']}", {"topic": "salaries"}),
        (f"/messages/{found['id']}/journey", {"topic": "salaries"}),
        ("/dead-letters/payroll", {}),
        ("/topics/%25DLQ%25payroll/messages/export", {}),
        (f"/dead-letters/payroll/{payment['id']}", {}),
        (f"/messages/{payment['id']}/journey", {"topic": "payments"}),
        ("/topics/visits/messages", {}),
        ("/topics/visits/messages/export", {}),
        (f"/dead-letters/payroll/{visit['id']}", {}),
        (f"/messages/{visit['id']}/journey", {"topic": "visits"}),
        ("/delayed-messages", {}),
        ("/transactions/half", {}),
        (f"/topics/{TRACE_TOPIC}/messages", {}),
        ("/topics/rmq_sys_wheel_timer/messages", {}),
        ("/topics/RMQ_SYS_TRANS_HALF_TOPIC/messages", {}),
    ]
    for path, query in ways:
        assert CARD in seen(console, "anna", path, **query), path
        for name in ("vera", "olga"):
            assert CARD not in seen(console, name, path, **query), path


def test_what_is_not_hidden_stays(console: httpx.Client) -> None:
    (payment,) = json.loads(seen(console, "vera", "/topics/payments/messages"))["messages"]
    assert json.loads(payment["body"]["text"]) == {"order": 7, "cardNumber": HIDDEN}
    assert (payment["properties"]["customer"], payment["properties"]["city"]) == (HIDDEN, "Oslo")
    assert payment["keys"] == ["payment-7"]
    (salary,) = json.loads(seen(console, "vera", "/topics/salaries/messages"))["messages"]
    assert (salary["body"]["masked"], salary["body"]["text"], salary["body"]["size"]) == (True, None, len(CARD))
    (line,) = map(json.loads, seen(console, "vera", "/topics/salaries/messages/export").splitlines())
    assert line["keys"] == ["salary-1"]
    assert not line.keys() & {"body", "body_base64"}


def test_hidden_content_is_neither_searched_nor_downloaded(console: httpx.Client) -> None:
    (salary,) = json.loads(seen(console, "vera", "/topics/salaries/messages"))["messages"]
    refused = [
        ("/topics/payments/messages", {"text": "4"}),
        ("/topics/salaries/messages/export", {"text": "4"}),
        ("/topics/salaries/events", {"text": "4"}),
        ("/dead-letters/payroll", {"text": "4"}),
        ("/dead-letters/payroll", {"key": CARD}),
        ("/topics/visits/messages", {"key": CARD}),
        ("/topics/visits/messages", {"tag": CARD}),
        ("/topics/visits/events", {"key": CARD}),
        (f"/messages/{salary['id']}/body", {"topic": "salaries"}),
    ]
    for path, query in refused:
        answer = console.get(V1 + path, params=query, headers=bearer("olga"))
        assert (answer.status_code, "console.masks" in answer.text) == (403, True), path
    found = json.loads(seen(console, "anna", "/topics/payments/messages", text=CARD))
    assert len(found["messages"]) == 1


def test_a_live_tail_hides_too(console: httpx.Client) -> None:
    path = f"{V1}/topics/salaries/events"
    with console.stream("GET", path, params={"newest": 1}, headers=bearer("vera")) as stream:
        line = next(each for each in stream.iter_lines() if each.startswith("data: "))
    assert json.loads(line.removeprefix("data: "))["body"]["masked"]


def test_pages_show_that_something_is_hidden(console: httpx.Client) -> None:
    (salary,) = json.loads(seen(console, "vera", "/topics/salaries/messages"))["messages"]
    for path in ("/messages?topic=salaries", f"/topics/salaries/messages/{salary['id']}", "/dead-letters/payroll"):
        page = console.get(path, headers=bearer("vera"))
        assert page.status_code == 200, page.text
        assert CARD not in page.text, path
    assert (
        "only administrators see the body"
        in console.get(f"/topics/salaries/messages/{salary['id']}", headers=bearer("vera")).text
    )


def test_received_messages_hide_too(console: httpx.Client) -> None:
    for topic, hidden in (("payments", '"cardNumber": "••••••"'), ("visits", HIDDEN)):
        query: dict[str, Any] = {"group": "curl", "wait_ms": 30_000, "invisible_ms": 1_000}
        received = console.get(f"/api/topics/{topic}/messages", params=query, headers=bearer("olga"), timeout=60)
        message = received.json()["messages"][0]
        assert CARD not in received.text
        assert hidden in message["body"]["text"] or message["keys"] == [hidden]


def test_pages_of_waiting_messages_hide_too(console: httpx.Client) -> None:
    for path in ("/delayed", "/transactions"):
        assert CARD in console.get(path, headers=bearer("anna")).text, path
        page = console.get(path, headers=bearer("vera"))
        assert (CARD in page.text, HIDDEN in page.text) == (False, True), path


def test_the_audit_does_not_tell_hidden_keys(console: httpx.Client) -> None:
    sent = {"text": "{}", "keys": ["secret-key"], "tags": "secret-tag"}
    assert console.post(f"{V1}/topics/visits/messages", json=sent, headers=bearer("olga")).status_code == 201
    resend = {"group": "payroll", "keys": ["secret-key"]}
    refused = console.post(f"{V1}/topics/visits/resend?dry_run=true", json=resend, headers=bearer("olga"))
    assert refused.status_code == 403
    console.post(f"{V1}/topics/visits/resend?force=true", json=resend, headers=bearer("anna"))
    for name in ("vera", "anna"):
        assert "secret" not in seen(console, name, "/audit")
        assert "message.resend" in seen(console, name, "/audit")


def test_downloads_can_be_left_to_admins(platform: RunningPlatform) -> None:
    settings: dict[str, Any] = {"auth": True, "tokens": TOKENS, "export": False}
    with running_console(platform.name_servers, **settings) as console:
        path = f"{V1}/topics/payments/messages/export"
        assert console.get(path, headers=bearer("olga")).status_code == 403
        assert console.get(path, headers=bearer("anna")).status_code == 200
