"""Plans and resets, without brokers."""

import pytest

from sparrow.model.errors import Refused
from sparrow.operations.dead_letters import RedriveSelection
from sparrow.operations.errors import PlanChanged
from sparrow.operations.groups import is_system_group
from sparrow.operations.offset_resets import QueueReset, ResetTarget
from sparrow.operations.plans import check_plan, hash_plan
from sparrow.operations.topics import TopicKind, kind_of_topic


def test_a_hash_depends_on_values_and_not_on_their_order_in_a_dict() -> None:
    assert hash_plan("reset", {"a": 1, "b": 2}) == hash_plan("reset", {"b": 2, "a": 1})
    assert hash_plan("reset", {"a": 1}) != hash_plan("reset", {"a": 2})


def test_only_the_current_plan_is_carried_out_unless_forced() -> None:
    check_plan("it", "abc", "abc", force=False)
    check_plan("it", None, "abc", force=True)
    with pytest.raises(PlanChanged, match="the state has changed"):
        check_plan("it", "old", "abc", force=False)
    with pytest.raises(PlanChanged, match="needs the plan of a dry run"):
        check_plan("it", None, "abc", force=False)


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"position": "first", "time": 1},
        {"offset": 1},
        {"position": "first", "broker": "a"},
        {"position": "first", "expected": 1},
    ],
)
def test_a_reset_without_one_clear_target_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(Refused):
        ResetTarget(**wrong)  # type: ignore[arg-type]


def test_a_queue_without_a_committed_offset_has_no_difference() -> None:
    assert QueueReset(broker="a", queue_id=0, first=0, end=9, old=None, new=4).difference == 0
    assert QueueReset(broker="a", queue_id=0, first=0, end=9, old=7, new=4).difference == -3


def test_dead_letters_are_selected_in_exactly_one_way() -> None:
    RedriveSelection(ids=("a",))
    for wrong in ({}, {"ids": ("a",), "everything": True}, {"ids": ()}, {"ids": ("a",) * 1_001}):
        with pytest.raises(Refused):
            RedriveSelection(**wrong)  # type: ignore[arg-type]


def test_topics_and_groups_of_the_system_are_known_by_name() -> None:
    kinds = {name: kind_of_topic(name, {"DefaultCluster"}) for name in ("a", "%RETRY%g", "%DLQ%g", "DefaultCluster")}
    assert list(kinds.values()) == [TopicKind.NORMAL, TopicKind.RETRY, TopicKind.DEAD_LETTER, TopicKind.SYSTEM]
    assert is_system_group("CID_RMQ_SYS_TRANS")
    assert not is_system_group("CID_billing")
