"""Where a log that is read again has to end, by what its words say of groups."""

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
def test_a_log_of_whole_groups_ends_where_it_ends(checkpoint):
    groups = seen(other(10), begun(100), ended(200, begun=100), other(250), begun(300), ended(900, begun=300))
    assert groups.recovered_end(END, [], checkpoint) == END
    assert seen().recovered_end(END, [DamagedRange(5, 9)], checkpoint) == END


@pytest.mark.parametrize("checkpoint", [0, 300, 500, WITHOUT_CHECKPOINT])
def test_a_log_that_breaks_off_in_a_group_ends_where_that_began(checkpoint):
    assert seen(begun(100), ended(200, begun=100), begun(300)).recovered_end(END, [], checkpoint) == 300
    assert seen(open_at=50).recovered_end(END, [], checkpoint) == 50


def test_a_group_that_was_open_before_the_reading_began_may_end():
    assert seen(ended(200, begun=50), open_at=50).recovered_end(END, [], 500) == END


def test_the_ledger_said_again_ends_no_group():
    assert seen(begun(100), (LedgerUpdate("s", 1, 0), 150)).recovered_end(END, [], 0) == 100


@pytest.mark.parametrize(
    "damage", [DamagedRange(100, 110), DamagedRange(150, 160), DamagedRange(90, 105), DamagedRange(195, 220)]
)
def test_behind_the_checkpoint_a_group_with_damage_in_it_never_was(damage):
    groups = seen(begun(100), ended(200, begun=100), other(300))
    assert groups.recovered_end(END, [damage], 100) == 100
    assert groups.recovered_end(END, [damage], 101) == END, "it was whole when the checkpoint was written"
    assert groups.recovered_end(END, [damage], WITHOUT_CHECKPOINT) == END, "nobody knows when it was damaged"


@pytest.mark.parametrize("damage", [DamagedRange(20, 100), DamagedRange(240, 260), DamagedRange(150, 150)])
def test_damage_beside_a_group_is_none_of_its_business(damage):
    assert seen(begun(100), ended(200, begun=100), other(300)).recovered_end(END, [damage], 0) == END


def test_a_lost_end_with_other_words_behind_it_counts_only_behind_the_checkpoint():
    groups = seen(begun(100), other(300))
    assert groups.recovered_end(END, [DamagedRange(180, 220)], 100) == 100
    assert groups.recovered_end(END, [DamagedRange(180, 220)], 101) == END


def test_of_several_that_are_not_whole_the_first_counts():
    groups = seen(begun(100), ended(200, begun=100), begun(300), ended(400, begun=300), begun(500))
    assert groups.recovered_end(END, [DamagedRange(350, 360)], 0) == 300
