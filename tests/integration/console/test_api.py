"""The REST API against a live platform, on the log store and on SQLite."""

import base64
import json
import threading
from typing import Any

import httpx
import pytest
from tests.support.wait import wait_until

from sparrow import Admin, Consumer, Message, Producer
from sparrow.testing.platform import RunningPlatform

V1 = "/api/v1"


def ok(answer: httpx.Response, status: int = 200) -> Any:
    assert answer.status_code == status, answer.text
    return answer.json() if answer.content else None


def problem(answer: httpx.Response, status: int) -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    assert answer.headers["Content-Type"] == "application/problem+json"
    found: dict[str, Any] = answer.json()
    assert found["status"] == status
    assert found["detail"]
    return found


# -- topics -----------------------------------------------------------------------------------------------------------


def test_a_topic_is_created_changed_listed_and_deleted_by_plan(console: httpx.Client) -> None:
    made = ok(console.post(f"{V1}/topics", json={"name": "fresh", "queues": 3, "message_type": "FIFO"}), 201)
    assert (made["queues"], made["message_type"], made["kind"]) == (3, "FIFO", "normal")
    problem(console.post(f"{V1}/topics", json={"name": "fresh"}), 409)
    changed = ok(console.patch(f"{V1}/topics/fresh", json={"queues": 5, "permission": "read_only"}))
    assert (changed["queues"], changed["is_writable"]) == (5, False)
    assert "fresh" in [topic["name"] for topic in ok(console.get(f"{V1}/topics", params={"q": "FRES"}))["items"]]
    plan = ok(console.delete(f"{V1}/topics/fresh", params={"dry_run": True}))
    assert plan["dry_run"]
    assert "needs the plan" in problem(console.delete(f"{V1}/topics/fresh"), 409)["detail"]
    assert problem(console.delete(f"{V1}/topics/fresh", params={"plan": "0" * 16}), 409)["plan"] == plan["hash"]
    assert not ok(console.delete(f"{V1}/topics/fresh", params={"plan": plan["hash"]}))["dry_run"]
    problem(console.get(f"{V1}/topics/fresh"), 404)
    problem(console.delete(f"{V1}/topics/fresh", params={"force": True}), 404)


def test_a_system_topic_is_not_deleted(console: httpx.Client) -> None:
    assert "system topic" in problem(console.delete(f"{V1}/topics/SCHEDULE_TOPIC_XXXX?force=true"), 422)["detail"]


def test_a_topic_shows_its_queues_and_readers(console: httpx.Client) -> None:
    found = ok(console.get(f"{V1}/topics/orders"))
    assert found["groups"] == ["billing"]
    assert sum(queue["messages"] for queue in found["queues"]) == 10
    assert all(queue["newest"]["text"].endswith("Z") for queue in found["queues"] if queue["messages"])


def test_lists_are_paged_sorted_and_filtered(console: httpx.Client) -> None:
    for number in range(5):
        ok(console.post(f"{V1}/topics", json={"name": f"paged-{number}", "queues": 1}), 201)
    seen: list[str] = []
    cursor = None
    while True:
        params = {"q": "paged-", "sort": "-name", "limit": 2} | ({"cursor": cursor} if cursor else {})
        page = ok(console.get(f"{V1}/topics", params=params))
        assert page["total"] == 5
        seen += [topic["name"] for topic in page["items"]]
        cursor = page["next"]
        if cursor is None:
            break
    assert seen == [f"paged-{number}" for number in (4, 3, 2, 1, 0)]
    problem(console.get(f"{V1}/topics", params={"cursor": "!"}), 422)
    problem(console.get(f"{V1}/topics", params={"limit": 201}), 422)
    by_kind = ok(console.get(f"{V1}/topics", params={"kind": ["dead_letter"]}))["items"]
    assert [topic["name"] for topic in by_kind] == ["%DLQ%billing"]


# -- groups -----------------------------------------------------------------------------------------------------------


def test_a_group_is_created_changed_and_deleted_by_plan(console: httpx.Client) -> None:
    made = ok(console.post(f"{V1}/groups", json={"name": "new-group", "retries_max": 3}), 201)
    assert made["retries_max"] == 3
    problem(console.post(f"{V1}/groups", json={"name": "new-group"}), 409)
    assert ok(console.patch(f"{V1}/groups/new-group", json={"may_consume": False}))["may_consume"] is False
    assert ok(console.get(f"{V1}/groups/new-group"))["config"]["retries_max"] == 3
    plan = ok(console.delete(f"{V1}/groups/new-group", params={"dry_run": True}))["hash"]
    ok(console.delete(f"{V1}/groups/new-group", params={"plan": plan}))
    problem(console.get(f"{V1}/groups/new-group"), 404)
    problem(console.patch(f"{V1}/groups/new-group", json={}), 404)


def test_groups_are_listed_with_lag_and_dead_letters(console: httpx.Client) -> None:
    (billing,) = ok(console.get(f"{V1}/groups", params={"topic": "orders"}))["items"]
    assert (billing["name"], billing["lag"], billing["dead_letters"]) == ("billing", 0, 1)
    names = [group["name"] for group in ok(console.get(f"{V1}/groups", params={"system": True}))["items"]]
    assert "TOOLS_CONSUMER" in names


def test_a_group_shows_members_and_their_queues(console: httpx.Client, busy_platform: RunningPlatform) -> None:
    with Consumer(busy_platform.name_servers, group="watchers", consume_from="first") as consumer:
        consumer.subscribe("orders")
        consumer.poll(timeout_ms=10_000)
        found = ok(console.get(f"{V1}/groups/watchers"))
        (member,) = found["members"]
        assert {(queue["topic"], queue["queue_id"]) for queue in member["queues"]} >= {("orders", 0), ("orders", 1)}
        (topic,) = found["topics"]
        assert (topic["topic"], topic["expression"], topic["lag"]) == ("orders", "*", 10)
        assert {queue["member"] for queue in topic["queues"]} == {member["client_id"]}
        # Members would commit their own offsets again.
        body = {"topic": "orders", "position": "first"}
        plan = ok(console.post(f"{V1}/groups/watchers/reset", params={"dry_run": True}, json=body))
        assert plan["members"] == 1
        answer = console.post(f"{V1}/groups/watchers/reset", params={"plan": plan["hash"]}, json=body)
        assert problem(answer, 409)["code"] == "MembersOnline"
        ok(console.post(f"{V1}/groups/watchers/reset", params={"force": True}, json=body))


def test_a_reset_does_what_its_plan_says_and_nothing_else(
    console: httpx.Client, busy_platform: RunningPlatform
) -> None:
    with Admin(busy_platform.name_servers) as admin:
        admin.reset_offsets("auditors", "orders", "last")
        body = {"topic": "orders", "position": "first"}
        plan = ok(console.post(f"{V1}/groups/auditors/reset", params={"dry_run": True}, json=body))
        assert (plan["again"], plan["skipped"]) == (10, 0)
        assert sum(queue["difference"] for queue in plan["queues"]) == -10
        assert admin.progress("auditors", "orders").lag == 0  # nothing happened yet
        queue = next(queue for queue, read in admin.progress("auditors", "orders").queues.items() if read.end)
        admin.reset_queue("auditors", queue, 0)  # meanwhile, the state changes
        answer = console.post(f"{V1}/groups/auditors/reset", params={"plan": plan["hash"]}, json=body)
        current = problem(answer, 409)["plan"]
        ok(console.post(f"{V1}/groups/auditors/reset", params={"plan": current}, json=body))
        assert admin.progress("auditors", "orders").lag == 10
        one = {"topic": "orders", "broker": queue.broker_name, "queue_id": queue.queue_id, "offset": 1, "expected": 7}
        problem(console.post(f"{V1}/groups/auditors/reset", params={"force": True}, json=one), 409)
        ok(console.post(f"{V1}/groups/auditors/reset", params={"force": True}, json=one | {"expected": 0}))
        assert admin.progress("auditors", "orders").queues[queue].committed == 1


@pytest.mark.parametrize(
    "body",
    [
        {"topic": "orders"},
        {"topic": "orders", "position": "first", "offset": 3},
        {"topic": "orders", "offset": 3},
        {"topic": "orders", "offset": 10**6, "broker": "sparrow", "queue_id": 0},
        {"topic": "orders", "position": "first", "broker": "sparrow", "queue_id": 99},
    ],
)
def test_a_senseless_reset_is_refused(console: httpx.Client, body: dict[str, Any]) -> None:
    problem(console.post(f"{V1}/groups/billing/reset", params={"dry_run": True}, json=body), 422)


def test_histories_have_a_value_for_each_sample(console: httpx.Client) -> None:
    wait_until(lambda: len(ok(console.get(f"{V1}/overview"))["times_ms"]) > 2, within_s=60)
    overview = ok(console.get(f"{V1}/overview"))
    assert all(len(values) == len(overview["times_ms"]) for values in overview["series"].values())
    assert any(alert["kind"] == "dead_letters" for alert in overview["alerts"])
    group = ok(console.get(f"{V1}/groups/billing/series"))
    assert group["series"]["lag:orders"][-1] == 0
    topic = ok(console.get(f"{V1}/topics/orders/series"))
    assert {"in_per_s", "lag:billing"} <= topic["series"].keys()


# -- messages ---------------------------------------------------------------------------------------------------------


def test_a_search_is_bounded_and_continues(console: httpx.Client) -> None:
    seen: list[str] = []
    cursor = None
    answers = 0
    while True:
        params = {"tag": "paid", "order": "oldest", "limit": 4} | ({"cursor": cursor} if cursor else {})
        found = ok(console.get(f"{V1}/topics/orders/messages", params=params))
        seen += [message["body"]["text"] for message in found["messages"]]
        answers += 1
        cursor = found["next"]
        if found["complete"]:
            break
    assert sorted(seen) == [f'{{"order": {number}}}' for number in range(9)]
    assert answers >= 3
    little = ok(console.get(f"{V1}/topics/orders/messages", params={"text": "nowhere", "scan": 3}))
    assert (little["scanned"], little["complete"], little["messages"]) == (3, False, [])


def test_messages_are_found_by_key_time_and_text(console: httpx.Client) -> None:
    (by_key,) = ok(console.get(f"{V1}/topics/orders/messages", params={"key": "order-7"}))["messages"]
    assert by_key["body"]["content_type"] == "application/json"
    assert json.loads(by_key["body"]["text"]) == {"order": 7}
    assert isinstance(by_key["physical_offset"], str)
    since = ok(console.get(f"{V1}/topics/orders/messages", params={"from": by_key["stored"]["text"], "text": "bad"}))
    assert [message["keys"] for message in since["messages"]] == [["order-bad"]]
    assert ok(console.get(f"{V1}/topics/orders/messages", params={"to": "1000"}))["messages"] == []
    problem(console.get(f"{V1}/topics/orders/messages", params={"from": "yesterday"}), 422)
    problem(console.get(f"{V1}/topics/nowhere/messages"), 404)


def test_a_message_is_sent_and_found_by_id(console: httpx.Client) -> None:
    raw = bytes(reversed(range(256)))
    body = {"base64": base64.b64encode(raw).decode(), "keys": ["binary"], "properties": {"city": "Oslo"}}
    ok(console.post(f"{V1}/topics", json={"name": "binaries", "queues": 1}), 201)
    sent = ok(console.post(f"{V1}/topics/binaries/messages", json=body), 201)
    found = ok(console.get(f"{V1}/messages/{sent['message_id']}", params={"topic": "binaries", "body_bytes": 16}))
    assert base64.b64decode(found["body"]["base64"]) == raw[:16]
    assert (found["body"]["size"], found["body"]["truncated"]) == (256, True)
    assert found["properties"]["city"] == "Oslo"
    by_offset_id = ok(console.get(f"{V1}/messages/{sent['offset_id']}"))
    assert by_offset_id["id"] == sent["message_id"]
    download = console.get(f"{V1}/messages/{sent['message_id']}/body", params={"topic": "binaries"})
    assert download.content == raw
    assert download.headers["Content-Disposition"].startswith("attachment")
    problem(console.get(f"{V1}/messages/{'0' * 32}", params={"topic": "binaries"}), 404)
    problem(console.post(f"{V1}/topics/binaries/messages", json={"text": "a", "base64": "YQ=="}), 422)
    problem(console.post(f"{V1}/topics/binaries/messages", json={"base64": "?"}), 422)
    problem(console.post(f"{V1}/topics/binaries/messages", json={"text": "x" * (5 << 20)}), 413)


def test_the_journey_of_a_message_tells_who_handled_it(console: httpx.Client) -> None:
    def steps(key: str) -> list[str]:
        (found,) = ok(console.get(f"{V1}/topics/orders/messages", params={"key": key}))["messages"]
        journey = ok(console.get(f"{V1}/messages/{found['id']}/journey", params={"topic": "orders"}))
        return [event["step"] for event in journey["events"] if event["group"] in (None, "billing", "DEFAULT_PRODUCER")]

    wait_until(lambda: "handled" in steps("order-1"), within_s=60)  # traces are sent in the background
    good, bad = steps("order-1"), steps("order-bad")
    assert good[:2] in (["produced", "stored"], ["stored", "delivered"])
    assert good[-1] == "acknowledged"
    assert "dead" in bad


# -- dead letters and resends -----------------------------------------------------------------------------------------


def test_dead_letters_are_listed_with_their_cause_and_redriven_one_by_one(
    console: httpx.Client, busy_platform: RunningPlatform
) -> None:
    assert {"group": "billing", "letters": 1} in ok(console.get(f"{V1}/dead-letters"))
    (letter,) = ok(console.get(f"{V1}/dead-letters/billing"))["letters"]
    assert letter["topic"] == "orders"
    assert letter["cause"] == "ValueError: no such customer"
    letter_id = letter["message"]["id"]
    assert "Traceback" in ok(console.get(f"{V1}/dead-letters/billing/{letter_id}"))["traceback"]
    problem(console.get(f"{V1}/dead-letters/billing/unknown"), 404)
    problem(console.get(f"{V1}/dead-letters/nobody"), 404)
    body = {"ids": [letter_id, "unknown"]}
    plan = ok(console.post(f"{V1}/dead-letters/billing/redrive", params={"dry_run": True}, json=body))
    assert (plan["count"], plan["missing"]) == (1, ["unknown"])
    done = ok(console.post(f"{V1}/dead-letters/billing/redrive", params={"plan": plan["hash"]}, json=body))
    assert done["state"] == "partial"
    assert [(item["id"], item["state"]) for item in done["items"]] == [(letter_id, "sent"), ("unknown", "not_found")]
    with Admin(busy_platform.name_servers) as admin:
        assert len(admin.find_by_key("orders", "order-bad")) == 2
    everything = ok(console.post(f"{V1}/dead-letters/billing/redrive?dry_run=true", json={"everything": True}))
    assert everything["count"] == 1


def test_messages_are_resent_by_plan(console: httpx.Client) -> None:
    body = {"group": "billing", "keys": ["order-3"]}
    plan = ok(console.post(f"{V1}/topics/orders/resend", params={"dry_run": True}, json=body))
    assert (plan["count"], plan["groups"]) == (1, ["billing"])
    assert ok(console.post(f"{V1}/topics/orders/resend", params={"plan": plan["hash"]}, json=body))["count"] == 1
    problem(console.post(f"{V1}/topics/orders/resend", params={"dry_run": True}, json={}), 422)


# -- plain HTTP -------------------------------------------------------------------------------------------------------


def test_curl_is_enough_to_send_receive_and_acknowledge(console: httpx.Client) -> None:
    ok(console.post(f"{V1}/topics", json={"name": "plain", "queues": 1}), 201)
    headers = {"X-Keys": "k1 k2", "X-Tags": "t", "Content-Type": "application/json"}
    ok(console.post("/api/topics/plain/messages", content=b'{"a": 1}', headers=headers), 201)
    params: dict[str, Any] = {"group": "curls", "wait_ms": 30_000, "invisible_ms": 600_000}
    (message,) = ok(console.get("/api/topics/plain/messages", params=params))["messages"]
    assert (message["body"]["text"], message["keys"], message["tags"]) == ('{"a": 1}', ["k1", "k2"], "t")
    body = {"group": "curls", "handles": [message["handle"], "bm90IGEgaGFuZGxl"]}
    done = ok(console.post("/api/topics/plain/acknowledgements", json=body))
    assert (done["acknowledged"], [item["acknowledged"] for item in done["items"]]) == (1, [True, False])
    assert ok(console.get("/api/topics/plain/messages", params=params | {"wait_ms": 0}))["messages"] == []


def test_a_receive_waits_for_a_message(console: httpx.Client, busy_platform: RunningPlatform) -> None:
    ok(console.post(f"{V1}/topics", json={"name": "awaited", "queues": 1}), 201)
    received: list[Any] = []

    def receive() -> None:
        params = {"group": "waiters", "wait_ms": "60000"}
        received.append(ok(console.get("/api/topics/awaited/messages", params=params)))

    thread = threading.Thread(target=receive)
    thread.start()
    with Producer(busy_platform.name_servers) as producer:
        producer.send(Message("awaited", "late"))
    thread.join(60)
    assert received[0]["messages"][0]["body"]["text"] == "late"


# -- events -----------------------------------------------------------------------------------------------------------


def test_new_messages_are_streamed_and_resumed_by_id(console: httpx.Client, busy_platform: RunningPlatform) -> None:
    ok(console.post(f"{V1}/topics", json={"name": "streamed", "queues": 2}), 201)
    with Producer(busy_platform.name_servers) as producer:
        for number in range(3):
            producer.send(Message("streamed", str(number), tags="even" if number % 2 == 0 else "odd"))

    def events(count: int, **headers: str) -> list[tuple[str, str]]:
        found: list[tuple[str, str]] = []
        url, event_id = f"{V1}/topics/streamed/events?newest=100&tag=even", ""
        with console.stream("GET", url, headers=headers) as answer:
            assert answer.headers["Content-Type"].startswith("text/event-stream")
            for line in answer.iter_lines():
                if line.startswith("id: "):
                    event_id = line.removeprefix("id: ")
                elif line.startswith("data: "):
                    found.append((event_id, json.loads(line.removeprefix("data: "))["body"]["text"]))
                    if len(found) == count:
                        return found
        raise AssertionError("the stream ended")

    both = events(2)
    assert {text for _, text in both} == {"0", "2"}
    (resumed,) = events(1, **{"Last-Event-ID": both[0][0]})
    assert resumed[1] == both[1][1]
    problem(console.get(f"{V1}/topics/nowhere/events"), 404)


def test_the_overview_is_streamed_with_each_sample(console: httpx.Client) -> None:
    numbers: list[int] = []
    with console.stream("GET", f"{V1}/overview/events") as answer:
        for line in answer.iter_lines():
            if line.startswith("id: "):
                numbers.append(int(line.removeprefix("id: ")))
            if len(numbers) == 2:
                break
    assert numbers[0] < numbers[1]


# -- the rest ---------------------------------------------------------------------------------------------------------


def test_clusters_and_brokers_are_described(console: httpx.Client) -> None:
    (served,) = ok(console.get(f"{V1}/clusters"))
    assert (served["name"], served["is_default"], served["is_reachable"]) == ("default", True, True)
    cluster = ok(console.get(f"{V1}/cluster"))
    (broker,) = cluster["brokers"]
    assert (broker["name"], broker["is_master"], broker["is_reachable"]) == ("sparrow", True, True)
    assert ok(console.get(f"{V1}/brokers/sparrow"))["figures"]["brokerActive"] == "true"
    assert ok(console.get(f"{V1}/brokers/sparrow/settings"))["settings"]["brokerName"] == "sparrow"
    problem(console.get(f"{V1}/brokers/nobody"), 404)
    problem(console.get(f"{V1}/topics", params={"cluster": "atlantis"}), 404)


def test_every_change_has_an_audit_line_also_a_failed_one(console: httpx.Client) -> None:
    ok(console.post(f"{V1}/topics", json={"name": "audited", "queues": 1}), 201)
    problem(console.post(f"{V1}/topics", json={"name": "audited", "queues": 1}), 409)
    newest = ok(console.get(f"{V1}/audit", params={"limit": 2}))["lines"]
    assert [(line["action"], line["target"], line["result"]) for line in newest] == [
        ("topic.create", "audited", "failed"),
        ("topic.create", "audited", "done"),
    ]
    failed, done = newest
    assert done["after"]["queues"] == 1
    assert (done["who"], done["source"]) == ("anonymous", "127.0.0.1")
    assert "exists already" in failed["error"]


def test_tokens_are_not_issued_by_brokers_without_auth(console: httpx.Client) -> None:
    refusal = problem(console.post(f"{V1}/tokens", json={"name": "shop", "type": "p"}), 422)
    assert "broker.auth is off" in refusal["detail"]
    assert ok(console.get(f"{V1}/tokens")) == []
    assert ok(console.get(f"{V1}/transactions/given-up")) == []


def test_answers_are_never_framed_sniffed_or_taken_for_pages(console: httpx.Client) -> None:
    headers = console.get(f"{V1}/topics").headers
    assert "frame-ancestors 'none'" in headers["Content-Security-Policy"]
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Referrer-Policy"] == "same-origin"
    for path in ("/docs", "/redoc"):  # they would load scripts from elsewhere
        assert console.get(path).status_code == 404
    assert problem(console.put(f"{V1}/topics"), 405)
    assert console.put(f"{V1}/topics").headers["Allow"]
