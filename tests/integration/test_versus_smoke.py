"""`make versus` at smoke scale: Sparrow with the peers that are installed already, a moment for each work load."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from bench.versus.__main__ import SECTIONS

ROOT = Path(__file__).resolve().parents[2]

pytestmark = [pytest.mark.thorough, pytest.mark.timeout(600)]


@pytest.mark.parametrize("section", SECTIONS)
def test_a_section_prints_its_tables_and_writes_its_figures(section: str, tmp_path: Path) -> None:
    result = tmp_path / "versus.json"
    environment = {**os.environ, "SPARROW_BENCH_RESULT": str(result), "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
    command = [sys.executable, "-m", "bench.versus", section, "--smoke"]
    ran = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    entries = json.loads(result.read_text())
    assert entries or "missing: " in ran.stdout, "a section measures something, or says what it needs"
    for entry in entries:
        assert entry.keys() == {"name", "value", "unit", "goal", "met"}
        assert entry["value"] >= 0  # CPU time has a resolution of 10 ms
        assert (entry["goal"], entry["met"]) == (None, None), "a smoke run has no goals"
    assert len({entry["name"] for entry in entries}) == len(entries), "figures must have different names"
    titles = {entry["name"].rpartition(": ")[0] for entry in entries}
    written = (tmp_path / "versus.md").read_text()
    for title in titles:
        peer, _, name = title.partition(": ")
        assert name[:40] in ran.stdout, f"every work load has a table: {ran.stdout}"
        assert f"### {peer}" in written
        assert name in written
