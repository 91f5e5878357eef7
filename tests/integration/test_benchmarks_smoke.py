"""Every benchmark runs at smoke scale and writes a valid report."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BENCHES = sorted(path for path in (ROOT / "bench").glob("*.py") if not path.name.startswith("_"))


IN_MAKE_TEST = {"columns", "frames", "store"}
"""Benchmarks that take seconds at smoke scale. `make spark` and `make thorough` run the others."""


@pytest.mark.parametrize(
    "bench",
    [pytest.param(path, marks=[] if path.stem in IN_MAKE_TEST else [pytest.mark.thorough]) for path in BENCHES],
    ids=lambda path: path.stem,
)
def test_a_bench_reports_its_figures(bench: Path, tmp_path: Path) -> None:
    result = tmp_path / "results" / f"{bench.stem}.json"
    environment = {**os.environ, "SPARROW_BENCH_RESULT": str(result), "PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, str(bench), "--smoke"]
    ran = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    entries = json.loads(result.read_text())
    assert entries, "a bench must report figures"
    for entry in entries:
        assert entry.keys() == {"name", "value", "unit", "goal", "met"}
        assert isinstance(entry["name"], str)
        assert isinstance(entry["unit"], str)
        assert isinstance(entry["value"], int | float)
        assert entry["goal"] is None or isinstance(entry["goal"], int | float)
        assert entry["met"] in (None, True, False)
        assert (entry["met"] is None) == (entry["goal"] is None)
        assert entry["name"] in ran.stdout, "every written figure must be printed"
    assert len({(entry["name"], entry["unit"]) for entry in entries}) == len(entries), (
        "figures must have different names"
    )
