"""Where a recovered log ends, by its state records of atomic appends."""

import pytest

from sparrow.model.topic import Topic
from sparrow.store.log.commit_log.log_scan import DamagedRange
from sparrow.store.log.recovery.incomplete_appends import IncompleteAppends
from sparrow.store.log.state.updates import AtomicAppendBegin, LedgerUpdate, TopicUpdate

END = 1000
WITHOUT_CHECKPOINT = 1 << 62


def seen(*words: tuple[object, int], open_at: int | None = None) -> IncompleteAppends:
    groups = IncompleteAppends(open_at)
    for word, at in words:
        groups.observe(word, at)
    return groups


def begun(at: int) -> tuple[object, int]:
    return AtomicAppendBegin("s", 1), at


def ended(at: int, *, begun: int) -> tuple[object, int]:
    return LedgerUpdate("s", 1, 0, begun), at


def other(at: int) -> tuple[object, int]:
    return TopicUpdate("t", Topic(name="t")), at


@pytest.mark.parametrize("checkpoint", [0, 100, 500, WITHOUT_CHECKPOINT])
def test_a_log_of_complete_atomic_appends_keeps_its_end(checkpoint):
    groups = seen(other(10), begun(100), ended(200, begun=100), other(250), begun(300), ended(900, begun=300))
    assert groups.recovered_end(END, [], checkpoint) == END
    assert seen().recovered_end(END, [DamagedRange(5, 9)], checkpoint) == END


@pytest.mark.parametrize("checkpoint", [0, 300, 500, WITHOUT_CHECKPOINT])
def test_a_log_that_ends_inside_an_atomic_append_ends_at_its_start(checkpoint):
    assert seen(begun(100), ended(200, begun=100), begun(300)).recovered_end(END, [], checkpoint) == 300
    assert seen(open_at=50).recovered_end(END, [], checkpoint) == 50


def test_an_atomic_append_that_began_before_the_scan_may_end():
    assert seen(ended(200, begun=50), open_at=50).recovered_end(END, [], 500) == END


def test_a_re_appended_ledger_entry_ends_no_atomic_append():
    assert seen(begun(100), (LedgerUpdate("s", 1, 0), 150)).recovered_end(END, [], 0) == 100


@pytest.mark.parametrize(
    "damage", [DamagedRange(100, 110), DamagedRange(150, 160), DamagedRange(90, 105), DamagedRange(195, 220)]
)
def test_an_atomic_append_damaged_after_the_checkpoint_is_removed(damage):
    groups = seen(begun(100), ended(200, begun=100), other(300))
    assert groups.recovered_end(END, [damage], 100) == 100
    assert groups.recovered_end(END, [damage], 101) == END, "the append was complete when the checkpoint was written"
    assert groups.recovered_end(END, [damage], WITHOUT_CHECKPOINT) == END, "the time of the damage is unknown"


@pytest.mark.parametrize("damage", [DamagedRange(20, 100), DamagedRange(240, 260), DamagedRange(150, 150)])
def test_damage_outside_an_atomic_append_does_not_remove_it(damage):
    assert seen(begun(100), ended(200, begun=100), other(300)).recovered_end(END, [damage], 0) == END


def test_a_lost_end_record_removes_the_append_only_after_the_checkpoint():
    groups = seen(begun(100), other(300))
    assert groups.recovered_end(END, [DamagedRange(180, 220)], 100) == 100
    assert groups.recovered_end(END, [DamagedRange(180, 220)], 101) == END


def test_the_first_of_several_incomplete_appends_sets_the_end():
    groups = seen(begun(100), ended(200, begun=100), begun(300), ended(400, begun=300), begun(500))
    assert groups.recovered_end(END, [DamagedRange(350, 360)], 0) == 300
