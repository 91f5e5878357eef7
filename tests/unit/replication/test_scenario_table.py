"""The table of fault scenarios in docs/high-availability.md names tests that exist, and leaves no scenario out."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
TABLE = re.compile(r"^\| (\d+) \|.*\| ([^|]+) \|$", re.MULTILINE)


def test_every_scenario_has_a_test_that_exists() -> None:
    rows = TABLE.findall((ROOT / "docs" / "high-availability.md").read_text())
    assert [int(number) for number, _ in rows] == list(range(1, 42))
    tests = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    defined = set(re.findall(r"def (test_\w+)\(", tests))
    for number, listed in rows:
        names = re.findall(r"`(test_\w+)`", listed)
        assert names or listed == "not yet", f"scenario {number} has no test"
        assert set(names) <= defined, f"scenario {number}: {set(names) - defined} do not exist"
