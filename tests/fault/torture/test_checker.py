"""The checker of histories finds every kind of violation, and nothing in a history that keeps all promises."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.fault.torture.checker import Findings, check
from tests.fault.torture.history import (
    Acknowledged,
    ClockSet,
    Connections,
    Decided,
    Failed,
    Fault,
    HistoryFile,
    Popped,
    Received,
    Record,
    Sent,
    make_body,
    read_body,
    read_history,
)

START = 1_000_000


def kinds(history: list[Record]) -> list[str]:
    return [violation.kind for violation in check(history).violations]


def stored(name: str, at_ms: int = START, **how: object) -> list[Record]:
    return [Sent(name, at_ms, **how), Acknowledged(name, at_ms + 1)]  # type: ignore[arg-type]


def ordered(*numbers: int, unstored: tuple[int, ...] = ()) -> list[Record]:
    """Return the sends of a key, in order."""
    return [
        record
        for number in numbers
        for record in stored(f"ordered/k/{number}", key="k", number=number)
        if number not in unstored or isinstance(record, Sent)
    ]


def received_in_order(*numbers: int) -> list[Record]:
    return [Received(f"ordered/k/{number}", START + 10) for number in numbers]


def test_a_history_that_keeps_all_promises_has_no_violation_and_is_counted() -> None:
    history: list[Record] = [
        *stored("plain/a/1"),
        Failed("plain/a/2", START + 2, "Unavailable"),
        Received("plain/a/1", START + 5, "plain/0@0"),
        Received("plain/a/1", START + 6, "plain/0@0"),
        *stored("pop/a/1", START + 400),
        Received("pop/a/1", START + 500),
        Popped("pop/a/1", START + 501),
        Received("pop/a/1", START + 2_500),
        Fault("kill", START, START + 1, START + 2, "broker killed"),
        Connections(START, 2_000),
    ]
    findings = check(history)
    assert findings.violations == []
    assert (findings.acknowledged, findings.received, findings.repeats) == (
        {"plain": 1, "pop": 1},
        {"plain": 1, "pop": 1},
        {"plain": 1, "pop": 1},
    )
    assert (findings.failed, findings.popped_again, findings.connections, len(findings.faults)) == (1, 1, 2_000, 1)
    assert (findings.longest_send_pause_ms, findings.longest_receive_pause_ms) == (400, 2_000)
    assert check([]) == Findings()


def test_an_acknowledged_message_that_never_arrives_is_lost() -> None:
    assert kinds(stored("plain/a/1")) == ["lost"]
    assert kinds([Sent("plain/a/1", START)]) == [], "whether a send without an answer is stored is unknown"


@pytest.mark.parametrize("how", [{"due_ms": START + 1_000}, {"delay_ms": 1_000}])
def test_a_delayed_message_that_arrives_before_its_time_is_early(how: dict[str, int]) -> None:
    sent = stored("delayed/a/1", **how)
    assert kinds([*sent, Received("delayed/a/1", START + 999)]) == ["early"]
    assert kinds([*sent, Received("delayed/a/1", START + 1_000)]) == []


def test_a_time_is_one_of_the_clocks_that_the_broker_had_since_the_send() -> None:
    set_forward: list[Record] = [ClockSet("b", START - 9_000, 0), ClockSet("b", START + 500, 5_000)]
    sent = stored("delayed/a/1", due_ms=START + 4_000)
    assert kinds([*set_forward, *sent, Received("delayed/a/1", START + 600)]) == []
    assert kinds([*set_forward, *sent, Received("delayed/a/1", START + 200)]) == ["early"]
    changes = (-9_000, 0), (-8_000, 60_000), (-1_000, 0)
    set_back = [ClockSet("b", START + at_ms, offset_ms) for at_ms, offset_ms in changes]
    assert kinds([*set_back, *sent, Received("delayed/a/1", START + 600)]) == ["early"], "it was right again before"


def test_a_clock_that_is_behind_makes_a_time_later_and_leaves_a_delay_as_it_is() -> None:
    behind: list[Record] = [ClockSet("b", START - 9_000, -5_000)]
    at_a_time = stored("delayed/a/1", due_ms=START + 1_000)
    assert kinds([*behind, *at_a_time, Received("delayed/a/1", START + 1_500)]) == ["early"]
    assert kinds([*behind, *at_a_time, Received("delayed/a/1", START + 6_000)]) == []
    by_level = stored("delayed/a/1", delay_ms=1_000)
    assert kinds([*behind, *by_level, Received("delayed/a/1", START + 999)]) == ["early"]
    assert kinds([*behind, *by_level, Received("delayed/a/1", START + 1_000)]) == []


def test_a_half_message_is_delivered_after_its_commit_only() -> None:
    half = stored("paid/a/1", is_half=True)
    arrives = Received("paid/a/1", START + 20)
    commit, rollback = Decided("paid/a/1", START + 10, True), Decided("paid/a/1", START + 10, False)
    assert kinds([*half, commit, arrives]) == []
    assert kinds([*half, arrives]) == ["uncommitted"]
    assert kinds([*half, arrives, commit]) == ["uncommitted"], "the commit came later"
    assert kinds([*half, rollback, arrives]) == ["uncommitted"]
    assert kinds([*half, commit]) == ["lost"]
    assert kinds([*half, rollback]) == []
    assert kinds(half) == [], "nobody has decided it"
    assert kinds([Sent("paid/a/1", START, is_half=True), commit]) == [], "never acknowledged"
    assert kinds([*half, rollback, commit])[0] == "uncommitted", "the load contradicts itself"


def test_the_messages_of_a_key_arrive_in_order() -> None:
    sends = ordered(1, 2, 3)
    assert kinds([*sends, *received_in_order(1, 2, 3)]) == []
    assert kinds([*sends, *received_in_order(1, 2, 1, 2, 3)]) == [], "a repeat"
    assert kinds([*sends, *received_in_order(1, 3, 2)]) == ["order"]
    assert kinds([*sends, *received_in_order(2, 3, 1)]) == ["order"]
    assert kinds([*sends, *received_in_order(1, 3)]) == ["order", "lost"]
    assert kinds([*ordered(1, 2, 3, unstored=(2,)), *received_in_order(1, 3)]) == [], "2 was never acknowledged"


def test_a_message_that_nobody_sent_is_a_phantom_and_a_wrong_body_is_damaged() -> None:
    assert kinds([Received("plain/a/1", START)]) == ["phantom"]
    assert kinds([*stored("plain/a/1"), Received("plain/a/1", START + 2, is_intact=False)]) == ["damaged"]
    body = make_body("plain/a/1")
    assert read_body(body) == ("plain/a/1", True)
    assert read_body(body[:-1]) == ("plain/a/1", False)
    assert read_body(make_body("plain/a/2").replace(b"a/2", b"a/1", 1)) == ("plain/a/1", False)
    assert read_body(b"\xff\xff")[1] is False


def test_a_place_holds_one_message_for_ever() -> None:
    one: list[Record] = [Sent("plain/a/1", START), Acknowledged("plain/a/1", START + 1, "plain/0@0")]
    other: list[Record] = [Sent("plain/a/2", START), Acknowledged("plain/a/2", START + 1, "plain/0@0")]
    arrive: list[Record] = [Received("plain/a/1", START + 2), Received("plain/a/2", START + 2)]
    assert kinds([*one, *other, *arrive]) == ["place"]
    moved = Received("plain/a/2", START + 3, "plain/0@0")
    assert kinds([*one, *stored("plain/a/2"), *arrive, moved]) == ["place"]


def test_a_history_is_read_as_it_was_written_and_knows_what_is_owed(tmp_path: Path) -> None:
    history = HistoryFile(tmp_path / "history")
    records: list[Record] = [
        *stored("plain/a/1"),
        Received("plain/b/9", START, "plain/1@5", is_intact=False),
        *stored("plain/b/9"),
        *stored("paid/a/1", is_half=True),
        *stored("paid/a/2", is_half=True),
        Decided("paid/a/1", START, True),
        Decided("paid/a/2", START, False),
        Failed("paid/a/2", START, "no answer"),
        Popped("pop/a/1", START),
        ClockSet("b", START, -5),
        Fault("cut", START, START, START, ""),
        Connections(START, 7),
    ]
    for record in records:
        history.write(record)
    assert history.owed == {"plain/a/1", "paid/a/1"}
    assert history.acknowledged == {"plain": 2, "paid": 2}
    history.write(Received("plain/a/1", START))
    assert history.owed == {"paid/a/1"}
    history.close()
    assert list(read_history(history.path))[:-1] == records
