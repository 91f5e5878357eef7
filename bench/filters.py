"""The cost of a SQL92 selector per message: one property string at a time, and a column of them."""

from __future__ import annotations

import random

import pyarrow as pa

from _harness import Row, cpu_seconds, is_smoke, report
from sparrow.broker.sql92 import Selector, compile_selector
from sparrow.wire.properties import decode

COMMON = "a BETWEEN 3 AND 100 AND region IN ('eu', 'us') AND NOT (tag IS NULL)"
WHOLE = "a >= 3 AND a <= 100 AND region <> 'cn' AND order STARTSWITH '0000' AND (price > 1.5 OR region = 'us')"


def message(number: int, dice: random.Random, *, is_regular: bool) -> bytes:
    """Return a property string of about 120 bytes; regular ones have the same names in the same order."""
    entries = [
        ("UNIQ_KEY", f"7F0000010BC418B4AAC2{number:012d}"),
        ("WAIT", "true"),
        ("TAGS", dice.choice(["TagA", "TagB"])),
        ("a", str(dice.randrange(200))),
        ("region", dice.choice(["eu", "us", "cn"])),
        ("price", f"{dice.uniform(0, 5):.2f}"),
        ("tag", "x"),
        ("order", f"{number:08d}"),
        ("CLUSTER", "demo"),
    ]
    if not is_regular:
        dice.shuffle(entries)
        del entries[dice.randrange(2 * len(entries)) :]
    return "".join(f"{name}\x01{value}\x02" for name, value in entries).encode()


def reads_as_python(properties: bytes) -> bool:
    """Evaluate the selector as Python code over decoded properties, as a consumer would write it."""
    found = decode(properties)
    try:
        return 3 <= int(found["a"]) <= 100 and found["region"] in ("eu", "us") and "tag" in found
    except KeyError:
        return False


def main() -> None:
    count = 2_000 if is_smoke() else 100_000
    dice = random.Random(92)
    regular = [message(number, dice, is_regular=True) for number in range(count)]
    mixed = [message(number, dice, is_regular=False) for number in range(count)]
    columns = {id(messages): pa.array(messages, pa.binary()) for messages in (regular, mixed)}
    common, whole = compile_selector(COMMON), compile_selector(WHOLE)

    for messages in (regular, mixed):
        for selector in (common, whole):
            answers = [selector.matches(one) for one in messages]
            assert 0 < sum(answers) < count, "the selector must match some messages and not all"
            assert selector.mask(columns[id(messages)]).tolist() == answers
        assert [common.matches(one) for one in messages] == [reads_as_python(one) for one in messages]

    def one_at_a_time(selector: Selector, messages: list[bytes]) -> float:
        matches = selector.matches
        return count / cpu_seconds(lambda: [matches(one) for one in messages]) / 1e3

    def columnar(selector: Selector, messages: list[bytes]) -> float:
        column = columns[id(messages)]
        return count / cpu_seconds(lambda: selector.mask(column)) / 1e6

    taken = [one for one in regular if common.matches(one)] * 3
    looked_through = len(taken) / count * one_at_a_time(common, taken)
    by_hand = count / cpu_seconds(lambda: [reads_as_python(one) for one in regular]) / 1e3
    single, together = one_at_a_time(common, regular), columnar(common, regular)
    compiling = cpu_seconds(lambda: [Selector(COMMON) for _ in range(100)], 3) / 100 * 1e6
    report(
        "filters",
        [
            Row("three properties, one message at a time", single, "thousand/s", 300.0),
            Row("the same when every message is taken, so that all is looked at", looked_through, "thousand/s", 300.0),
            Row("three properties, a column", together, "million/s", 5.0),
            Row("one at a time, against the same by hand on decoded properties", single / by_hand, "x", 1.2),
            Row("a column, against one at a time", together * 1e3 / single, "x", 5.0),
            Row("three properties of mixed messages, one at a time", one_at_a_time(common, mixed), "thousand/s"),
            Row("three properties of mixed messages, a column", columnar(common, mixed), "million/s"),
            Row("six conditions with decimals, one at a time", one_at_a_time(whole, regular), "thousand/s"),
            Row("six conditions with decimals, a column", columnar(whole, regular), "million/s"),
            Row("compile an expression", compiling, "µs"),
            Row("length of a property string", sum(map(len, regular)) / count, "bytes"),
        ],
    )


if __name__ == "__main__":
    main()
