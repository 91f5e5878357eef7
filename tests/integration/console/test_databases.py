"""The verbs of the REST API against brokers whose messages are in MariaDB or PostgreSQL."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.support.consoles import running_console
from tests.support.databases import Server
from tests.support.tested_databases import databases_under_test
from tests.support.wait import wait_until

from sparrow import Admin, Consumer, Message, Producer
from sparrow.model.message import StoredMessage
from sparrow.testing.platform import run_platform

V1 = "/api/v1"
ORDERS = 6


@pytest.fixture(scope="module", params=databases_under_test("mariadb", "postgresql"))
def console(
    request: pytest.FixtureRequest,
    database_servers: Callable[[str], Server],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[httpx.Client]:
    """Provide a console for a platform whose group `billing` has read `orders`, and given one message up."""
    folder: Path = tmp_path_factory.mktemp("console")

    def handle(message: StoredMessage) -> None:
        if message.body == b"bad":
            raise ValueError("no such customer")

    server = database_servers(request.param)
    url = server.new_database()
    with run_platform(folder, store=url) as platform, Admin(platform.name_servers) as admin:
        admin.create_topic("orders", 2)
        with Producer(platform.name_servers) as producer:
            for number in range(ORDERS):
                producer.send(Message("orders", f'{{"order": {number}}}', keys=f"order-{number}"))
            producer.send(Message("orders", "bad", keys="order-bad"))
        with Consumer(platform.name_servers, group="billing", consume_from="first", retries_max=0) as consumer:
            consumer.subscribe("orders")
            consumer.start(handle)
            wait_until(lambda: len(admin.dead_letters("billing")) == 1, within_s=60)
            wait_until(lambda: admin.progress("billing", "orders").lag == 0, within_s=60)
        with running_console(platform.name_servers) as client:
            yield client
    server.recycle_database(url)


def ok(answer: httpx.Response, status: int = 200) -> Any:
    assert answer.status_code == status, answer.text
    return answer.json() if answer.content else None


def carry_out(console: httpx.Client, method: str, path: str, **how: Any) -> Any:
    """Make a dry run, then do what it planned."""
    plan = ok(console.request(method, V1 + path, params={"dry_run": True}, **how))
    return ok(console.request(method, V1 + path, params={"plan": plan["hash"]}, **how))


@pytest.mark.thorough
def test_topics_and_groups_are_created_changed_and_deleted(console: httpx.Client) -> None:
    ok(console.post(f"{V1}/topics", json={"name": "fresh", "queues": 2}), 201)
    assert ok(console.patch(f"{V1}/topics/fresh", json={"queues": 3}))["queues"] == 3
    carry_out(console, "DELETE", "/topics/fresh")
    assert console.get(f"{V1}/topics/fresh").status_code == 404
    ok(console.post(f"{V1}/groups", json={"name": "readers", "retries_max": 3}), 201)
    assert ok(console.patch(f"{V1}/groups/readers", json={"retries_max": 4}))["retries_max"] == 4
    carry_out(console, "DELETE", "/groups/readers")
    actions = {line["action"] for line in ok(console.get(f"{V1}/audit"))["lines"]}
    assert actions >= {"topic.create", "topic.update", "topic.delete", "group.create", "group.update", "group.delete"}


@pytest.mark.thorough
def test_messages_are_sent_found_traced_and_exported(console: httpx.Client) -> None:
    sent = ok(console.post(f"{V1}/topics/orders/messages", json={"json": {"order": 99}, "keys": ["order-99"]}), 201)
    found = ok(console.get(f"{V1}/topics/orders/messages", params={"key": "order-99"}))["messages"]
    assert [message["id"] for message in found] == [sent["message_id"]]
    by_text = ok(console.get(f"{V1}/topics/orders/messages", params={"text": '"order": 3'}))
    assert (len(by_text["messages"]), by_text["complete"]) == (1, True)
    journey = ok(console.get(f"{V1}/messages/{sent['message_id']}/journey", params={"topic": "orders"}))
    assert {"produced", "stored"} <= {event["step"] for event in journey["events"]}
    exported = console.get(f"{V1}/topics/orders/messages/export", params={"text": "order"})
    lines = [json.loads(line) for line in exported.text.splitlines()]
    assert {line["keys"][0] for line in lines} == {*(f"order-{number}" for number in range(ORDERS)), "order-99"}
    assert exported.headers["X-Complete"] == "true"


@pytest.mark.thorough
def test_offsets_are_reset_and_messages_resent(console: httpx.Client) -> None:
    body = {"topic": "orders", "position": "first"}
    assert carry_out(console, "POST", "/groups/billing/reset", json=body)["again"] >= ORDERS
    assert ok(console.get(f"{V1}/groups/billing"))["lag"] >= ORDERS
    carry_out(console, "POST", "/groups/billing/reset", json=body | {"position": "last"})
    resent = carry_out(console, "POST", "/topics/orders/resend", json={"group": "billing", "keys": ["order-1"]})
    assert resent["count"] == 1


@pytest.mark.thorough
def test_dead_letters_are_listed_and_redriven(console: httpx.Client) -> None:
    assert ok(console.get(f"{V1}/dead-letters")) == [{"group": "billing", "letters": 1}]
    (letter,) = ok(console.get(f"{V1}/dead-letters/billing"))["letters"]
    assert (letter["error_type"], letter["reason"]) == ("ValueError", "no such customer")
    done = carry_out(console, "POST", "/dead-letters/billing/redrive", json={"everything": True})
    assert (done["state"], done["count"]) == ("done", 1)


@pytest.mark.thorough
def test_the_overview_has_figures_of_the_platform(console: httpx.Client) -> None:
    overview = ok(console.get(f"{V1}/overview"))
    assert (overview["topics"] >= 1, overview["groups"] >= 1, overview["dead_letters"]) == (True, True, 1)
    (broker,) = overview["brokers"]
    assert (broker["is_reachable"], broker["disk_ratio"]) == (True, None)
    (shown,) = ok(console.get(f"{V1}/cluster"))["brokers"]
    assert (shown["log_first"], shown["log_end"]) == (None, None), "offsets of a database are no bytes"
    assert ok(console.get(f"{V1}/replica-sets")) == []
