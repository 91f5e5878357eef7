"""Delayed messages and transactions over the REST API, on the log store and on SQLite."""

import httpx
from tests.integration.console.test_api import V1, ok, problem

from sparrow import Message, Producer
from sparrow.model.transaction import TransactionState
from sparrow.testing.platform import RunningPlatform


def test_delayed_messages_are_listed_and_recalled_by_plan(
    console: httpx.Client, busy_platform: RunningPlatform
) -> None:
    with Producer(busy_platform.name_servers) as producer:
        for number in range(3):
            producer.send(Message("reminders", f"{number}", keys=f"r-{number}"), deliver_after_ms=3_600_000 + number)
    page = ok(console.get(f"{V1}/delayed-messages", params={"topic": "reminders", "limit": 2}))
    assert [message["keys"] for message in page["messages"]] == [["r-0"], ["r-1"]]
    assert not page["complete"]
    rest = ok(console.get(f"{V1}/delayed-messages", params={"topic": "reminders", "cursor": page["next"]}))
    assert ([message["keys"] for message in rest["messages"]], rest["complete"]) == ([["r-2"]], True)
    due = page["messages"][1]["due"]["text"]
    early = ok(console.get(f"{V1}/delayed-messages", params={"topic": "reminders", "to": due}))
    assert len(early["messages"]) == 1
    handles = [message["handle"] for message in page["messages"]]
    plan = ok(console.post(f"{V1}/delayed-messages/recall?dry_run=true", json={"handles": handles}))
    assert (plan["state"], plan["count"]) == ("planned", 2)
    problem(console.post(f"{V1}/delayed-messages/recall", json={"handles": handles}), 409)
    done = ok(console.post(f"{V1}/delayed-messages/recall", params={"plan": plan["hash"]}, json={"handles": handles}))
    assert [item["state"] for item in done["items"]] == ["recalled", "recalled"]
    again = ok(console.post(f"{V1}/delayed-messages/recall?force=true", json={"handles": handles}))
    assert (again["state"], again["not_found"]) == ("failed", 2)
    problem(console.post(f"{V1}/delayed-messages/recall", json={"handles": []}), 422)
    problem(console.get(f"{V1}/delayed-messages", params={"cursor": "x"}), 422)
    lines = ok(console.get(f"{V1}/audit?limit=5"))["lines"]
    assert ("delayed_message.recall", "done") in [(line["action"], line["result"]) for line in lines]


def test_half_messages_are_listed_and_ended_by_plan(console: httpx.Client, busy_platform: RunningPlatform) -> None:
    with Producer(
        busy_platform.name_servers, group="shop", transaction_checker=lambda _: TransactionState.UNKNOWN
    ) as producer:
        for number in range(3):
            producer.begin_transaction(Message("bookings", f"{number}", keys=f"b-{number}"))
        page = ok(console.get(f"{V1}/transactions/half", params={"topic": "bookings"}))
        assert [(half["keys"], half["producer_group"], half["checks"]) for half in page["messages"]] == [
            ([f"b-{number}"], "shop", 0) for number in range(3)
        ]
        first, second, third = (half["id"] for half in page["messages"])
        commit = {"ids": [first, second], "verdict": "commit"}
        plan = ok(console.post(f"{V1}/transactions/end?dry_run=true", json=commit))
        assert plan["count"] == 2
        done = ok(console.post(f"{V1}/transactions/end", params={"plan": plan["hash"]}, json=commit))
        assert (done["state"], done["count"]) == ("done", 2)
        rollback = {"ids": [first, third], "verdict": "rollback"}
        mixed = ok(console.post(f"{V1}/transactions/end?force=true", json=rollback))
        assert [item["state"] for item in mixed["items"]] == ["not_found", "rolled_back"]
        assert mixed["state"] == "partial"
    assert ok(console.get(f"{V1}/transactions/half", params={"topic": "bookings"}))["messages"] == []
    found = ok(console.get(f"{V1}/topics/bookings/messages"))
    assert sorted(message["body"]["text"] for message in found["messages"]) == ["0", "1"]
    problem(console.post(f"{V1}/transactions/end", json={"ids": ["x@1"], "verdict": "maybe"}), 422)
    assert ok(console.get(f"{V1}/transactions/given-up")) == []
