"""Rounds of `make versus`: their order, medians, spreads and ratios."""

import pytest
from bench.versus.report import rows
from bench.versus.rounds import Spread, compare, interleave, summarize
from bench.versus.run import Run
from bench.versus.workload import CPU, FULL, RATE, SMOKE, Comparison, Goal, Workload


def recorded(calls: list[str], name: str, values: list[float]):
    remaining = iter(values)

    def work() -> dict[str, float]:
        calls.append(name)
        return {RATE: next(remaining)}

    return work


def test_sides_take_turns_and_warm_ups_are_dropped() -> None:
    calls: list[str] = []
    sides = {"A": recorded(calls, "A", [1, 10, 11]), "B": recorded(calls, "B", [2, 20, 21])}

    measured = interleave(sides, rounds=2, warm_ups=1)

    assert calls == ["A", "B", "A", "B", "A", "B"]
    assert measured == {"A": [{RATE: 10}, {RATE: 11}], "B": [{RATE: 20}, {RATE: 21}]}


@pytest.mark.parametrize(("rounds", "warm_ups"), [(0, 1), (1, -1)])
def test_a_run_without_a_measured_round_is_refused(rounds: int, warm_ups: int) -> None:
    with pytest.raises(ValueError, match=f"rounds = {rounds} and warm_ups = {warm_ups}"):
        interleave({}, rounds=rounds, warm_ups=warm_ups)


def test_an_outlier_moves_the_spread_and_not_the_median() -> None:
    assert summarize([3, 1, 100]) == Spread(median=3, lowest=1, highest=100)
    assert summarize([4, 2]) == Spread(median=3, lowest=2, highest=4)


def test_a_ratio_compares_within_each_round() -> None:
    # The machine was ten times slower in the last round, at both sides. The ratio of the medians would be the same here
    # only by chance; the ratios of the rounds are 2, 2 and 2.
    assert compare([200, 40, 20], [100, 20, 10]) == Spread(2, 2, 2)
    assert compare([1, 4, 9], [1, 2, 3]) == Spread(2, 1, 3)


def test_sides_with_different_numbers_of_rounds_are_not_compared() -> None:
    with pytest.raises(ValueError, match="shorter"):
        compare([1, 2], [1])


@pytest.mark.parametrize(("ours", "is_met"), [(59.0, True), (61.0, False)])
def test_the_goal_of_a_cost_is_an_upper_limit(ours: float, is_met: bool, tmp_path) -> None:
    run = Run(SMOKE, tmp_path)
    measured = {"Sparrow": [{CPU: ours, RATE: 130}], "Kafka": [{CPU: 100.0, RATE: 100}]}
    goals = [Goal(CPU, "Kafka", 0.6), Goal(RATE, "Kafka", 1.2)]
    run.comparisons.append(Comparison("Kafka", "send", measured, goals))

    with_goals = {row.name: row for row in rows(run) if row.goal is not None}

    cost = with_goals[f"Kafka: send: {CPU}, Sparrow / Kafka"]
    rate = with_goals[f"Kafka: send: {RATE}, Sparrow / Kafka"]
    assert (cost.value, cost.met) == (ours / 100, is_met)
    assert (rate.value, rate.met) == (1.3, True)


def test_every_row_has_its_own_name(tmp_path) -> None:
    run = Run(SMOKE, tmp_path)
    run.comparisons.append(Comparison("Kafka", "send", {"Sparrow": [{RATE: 1.0}], "Kafka": [{RATE: 2.0}]}))

    names = [row.name for row in rows(run)]

    assert len(names) == len(set(names)) == 9  # three figures with median, lowest and highest


def test_a_failed_work_load_is_kept_and_the_run_goes_on(tmp_path, capsys) -> None:
    def fail() -> dict[str, float]:
        raise RuntimeError("the server is gone")

    run = Run(SMOKE, tmp_path)
    run.measure("Kafka", Workload("send", {"Sparrow": fail}))
    run.measure("Kafka", Workload("consume", {"Sparrow": lambda: {RATE: 1.0}}))

    assert run.failures == {"Kafka: send": "the server is gone"}
    assert [comparison.name for comparison in run.comparisons] == ["consume"]
    assert "the server is gone" in capsys.readouterr().err


def test_only_work_loads_with_the_wanted_text_are_measured(tmp_path) -> None:
    run = Run(SMOKE, tmp_path, only="batches")
    for name in ("64 senders", "batches of 100"):
        run.measure("RocketMQ", Workload(name, {"Sparrow": lambda: {RATE: 1.0}}))

    assert [comparison.name for comparison in run.comparisons] == ["batches of 100"]


def test_only_a_wanted_work_load_is_prepared(tmp_path) -> None:
    prepared: list[str] = []
    run = Run(SMOKE, tmp_path, only="backlog")
    for name in ("64 senders", "backlog of 10 GB"):
        sides = {"Sparrow": recorded(prepared, f"{name}, round", [1.0])}
        run.measure("RocketMQ", Workload(name, sides, prepare=lambda name=name: prepared.append(name)))

    assert prepared == ["backlog of 10 GB", "backlog of 10 GB, round"]


def test_a_failed_preparation_is_kept_like_a_failed_round(tmp_path) -> None:
    def fail() -> None:
        raise RuntimeError("the disk is full")

    run = Run(SMOKE, tmp_path)
    run.measure("RocketMQ", Workload("backlog", {"Sparrow": lambda: {RATE: 1.0}}, prepare=fail))

    assert run.failures == {"RocketMQ: backlog": "the disk is full"}
    assert not run.comparisons


def test_a_work_load_with_long_rounds_has_fewer_of_them_and_no_warm_up(tmp_path) -> None:
    calls: list[str] = []
    run = Run(FULL, tmp_path)
    run.measure("RocketMQ", Workload("start", {"Sparrow": recorded(calls, "A", [1.0] * 9)}, rounds_max=3))

    assert len(calls) == 3
