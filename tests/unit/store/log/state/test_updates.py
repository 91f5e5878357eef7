"""State as the sum of its updates, and the updates that must be appended again."""

import pytest
from tests.support.log_stores import loaded

from sparrow.model.errors import CorruptRecord
from sparrow.model.topic import Group, Topic
from sparrow.store.log.state.tables import StateTables
from sparrow.store.log.state.updates import (
    AtomicAppendBegin,
    GroupUpdate,
    LedgerUpdate,
    MarkUpdate,
    OffsetsUpdate,
    QueueEndsUpdate,
    TopicUpdate,
    decode_updates,
    encode_updates,
)

A, B = Topic(name="A"), Topic(name="B", read_queues=2)


@pytest.fixture
def state():
    state = StateTables()
    state.apply([TopicUpdate("A", A), GroupUpdate("g", Group(name="g"))], 100)
    state.apply([TopicUpdate("B", B), OffsetsUpdate("A", "g", {0: 5, 1: 6})], 200)
    return state


def test_updates_add_up_to_state(state):
    assert state.topics == {"A": A, "B": B}
    assert state.groups == {"g": Group(name="g")}
    assert state.offsets == {("A", "g"): {0: 5, 1: 6}}


def test_the_newest_update_of_an_object_counts(state):
    changed = Topic(name="A", permission=4)
    state.apply([TopicUpdate("A", changed), OffsetsUpdate("A", "g", {0: 1})], 300)
    assert state.topics["A"] == changed
    assert state.offsets["A", "g"] == {0: 1}


def test_a_deleted_object_is_gone(state):
    state.apply(
        [TopicUpdate("A", None), OffsetsUpdate("A", "g", None), GroupUpdate("g", None), GroupUpdate("h", None)], 300
    )
    assert (state.topics, state.groups, state.offsets) == ({"B": B}, {}, {})
    assert state.updates_before(1000) == [TopicUpdate("B", B)]


def test_updates_round_trip_through_their_record():
    words = [TopicUpdate("A", A), TopicUpdate("B", None), GroupUpdate("g", None), OffsetsUpdate("A", "g", {7: 1 << 40})]
    ((chunk, body),) = encode_updates(words)
    assert list(chunk) == words == decode_updates(body, 0)


def test_many_updates_are_split_into_records_of_limited_size():
    words = [TopicUpdate(f"T{n}", A) for n in range(2500)]
    chunks = list(encode_updates(words))
    assert [len(chunk) for chunk, _ in chunks] == [1000, 1000, 500]
    assert [word for _, body in chunks for word in decode_updates(body, 0)] == words


@pytest.mark.parametrize("body", [b"", b"{}", b"[1]", b'[{"type":"other"}]', b"\xff"])
def test_an_unknown_record_is_reported_as_corrupt_at_its_offset(body):
    with pytest.raises(CorruptRecord) as caught:
        decode_updates(body, 4711)
    assert caught.value.physical_offset == 4711


def test_only_the_last_updates_before_a_position_are_appended_again(state):
    assert state.updates_before(100) == []
    assert state.updates_before(101) == [TopicUpdate("A", A), GroupUpdate("g", Group(name="g"))]
    assert len(state.updates_before(201)) == 4
    state.apply([TopicUpdate("A", A)], 300)
    assert state.updates_before(101) == [GroupUpdate("g", Group(name="g"))]


def test_many_commits_give_one_offsets_update(state):
    state.offsets["A", "g"][0] = 9
    state.unflushed_offsets |= {("A", "g"), ("A", "forgotten")}
    assert state.take_changed_offsets() == [OffsetsUpdate("A", "g", {0: 9, 1: 6})]
    assert state.take_changed_offsets() == []


def test_an_update_does_not_change_with_the_state(state):
    (word,) = [word for word in state.updates_before(1000) if isinstance(word, OffsetsUpdate)]
    state.offsets["A", "g"][0] = 99
    assert word.offsets == {0: 5, 1: 6}


def test_a_snapshot_restores_the_state_and_its_positions(state):
    state.apply([TopicUpdate("B", None)], 300)
    again = StateTables()
    again.restore(loaded(state.snapshot(7, 400)))
    assert (again.topics, again.groups, again.offsets) == (state.topics, state.groups, state.offsets)
    for place in (100, 101, 201, 301):
        assert again.updates_before(place) == state.updates_before(place)


def test_a_mark_has_its_newest_value(state):
    state.apply([MarkUpdate("timers", 5), MarkUpdate("others", 1)], 300)
    state.apply([MarkUpdate("timers", 3)], 400)  # moving back is allowed: a clock may have been set
    assert state.marks == {"timers": 3, "others": 1}
    assert state.updates_before(400) == [
        TopicUpdate("A", A),
        GroupUpdate("g", Group(name="g")),
        TopicUpdate("B", B),
        OffsetsUpdate("A", "g", {0: 5, 1: 6}),
        MarkUpdate("others", 1),
    ]


def test_a_mark_is_restored_from_its_record_and_from_a_snapshot(state):
    ((_, body),) = encode_updates([MarkUpdate("timers", 1 << 40)])
    assert decode_updates(body, 0) == [MarkUpdate("timers", 1 << 40)]
    state.apply([MarkUpdate("timers", 1 << 40)], 300)
    again = StateTables()
    again.restore(loaded(state.snapshot(next_offset=9, log_end=400)))
    assert again.marks == {"timers": 1 << 40}
    assert again.updates_before(1000) == state.updates_before(1000)
    again.clear()
    assert again.marks == {}


# -- the ledger -------------------------------------------------------------------------------------------------------


def test_an_update_type_of_a_newer_version_does_not_affect_others():
    body = b'[{"type":"mark","name":"a","value":1},{"type":"of tomorrow","x":[1]},{"type":"mark","name":"b","value":2}]'
    assert decode_updates(body, 0) == [MarkUpdate("a", 1), MarkUpdate("b", 2)]


def test_the_ledger_keeps_the_newest_entry_of_a_scope_without_its_append_start(state):
    state.apply([AtomicAppendBegin("s", 1)], 300)
    assert state.ledger == {}
    state.apply([LedgerUpdate("s", 1, 50, 300)], 400)
    state.apply([LedgerUpdate("s", 2, 60, 450)], 500)
    assert state.ledger == {"s": LedgerUpdate("s", 2, 60)}
    assert (state.ledger_record_at("s"), state.ledger_record_at("t")) == (500, -1)
    assert LedgerUpdate("s", 2, 60) in state.updates_before(501)
    assert LedgerUpdate("s", 2, 60) not in state.updates_before(500)


def test_a_snapshot_contains_the_ledger(state):
    state.apply([LedgerUpdate("s", 2, 60, 450)], 500)
    again = StateTables()
    again.restore(loaded(state.snapshot(3, 600)))
    assert (again.ledger, again.ledger_record_at("s")) == ({"s": LedgerUpdate("s", 2, 60)}, 500)
    again.clear()
    assert again.ledger == {}
    assert again.updates_before(1000) == []


def test_scopes_expire_that_are_old_and_would_have_to_be_appended_again(state):
    for at, scope, ms in ((300, "old", 10), (400, "young", 99), (900, "old, but far", 10)):
        state.apply([LedgerUpdate(scope, 1, ms)], at)
    state.expire_scopes(500, older_than_ms=50)
    assert state.ledger.keys() == {"young", "old, but far"}
    assert LedgerUpdate("old", 1, 10) not in state.updates_before(1000)


def test_a_large_snapshot_is_encoded_in_pieces():
    state, again = StateTables(), StateTables()
    updates = [OffsetsUpdate("A", f"g{number}", {0: number, 10: 1}) for number in range(2_500)]
    for at, update in enumerate(updates):
        state.apply([update], at)
    again.restore(loaded(state.copy().snapshot(7, 400)))
    assert again.offsets == state.offsets
    assert again.updates_before(10_000) == updates


def test_a_copy_does_not_change_with_the_tables(state):
    copied = state.copy()
    state.apply([TopicUpdate("A", None), GroupUpdate("new", Group(name="new")), OffsetsUpdate("A", "g", None)], 300)
    assert (copied.topics, copied.groups, copied.offsets) == (
        {"A": A, "B": B},
        {"g": Group(name="g")},
        {("A", "g"): {0: 5, 1: 6}},
    )
    assert loaded(copied.snapshot(7, 400)).words


def test_values_to_compare_do_not_depend_on_the_order_of_updates():
    one, other = StateTables(), StateTables()
    one.apply([OffsetsUpdate("A", "g", {0: 5, 11: 6}), QueueEndsUpdate("A", {3: 1, 2: 0})], 100)
    other.apply([QueueEndsUpdate("A", {2: 0, 3: 1}), OffsetsUpdate("A", "g", {11: 6, 0: 5})], 100)
    assert sorted(one.subject_values()) == sorted(other.subject_values())
    other.apply([OffsetsUpdate("A", "g", {11: 6, 0: 4})], 100)
    assert sorted(one.subject_values()) != sorted(other.subject_values())
