"""Every program under examples/ runs unchanged."""

import runpy
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SPARK_EXAMPLES = sorted((ROOT / "examples").glob("spark_*.py"))
MISTAKES = ROOT / "examples" / "mistakes.py"  # test_mistakes.py runs it
OWN_TESTS = {MISTAKES, ROOT / "examples" / "at_most_once.py", ROOT / "examples" / "idempotent.py"}
EXAMPLES = sorted({*(ROOT / "examples").glob("*.py")} - {*SPARK_EXAMPLES, *OWN_TESTS})
IN_MAKE_TEST = {"asyncio_client", "bus_first_steps", "delayed", "first_steps", "ordered", "transactions"}
"""What a new user tries first; `make thorough` runs the other examples, whose features have tests of their own."""


@pytest.mark.parametrize(
    "example",
    [pytest.param(path, marks=[] if path.stem in IN_MAKE_TEST else [pytest.mark.thorough]) for path in EXAMPLES],
    ids=lambda path: path.stem,
)
def test_example_runs(example: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(example)], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout


@pytest.mark.thorough
@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize("example", SPARK_EXAMPLES, ids=lambda path: path.stem)
def test_spark_example_runs(example: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Run in this process, where `spark_session` finds the running session: each start of Spark takes ten seconds."""
    runpy.run_path(str(example), run_name="__main__")
    assert EXAMPLE_SAYS[example.stem] in capfd.readouterr().out


EXAMPLE_SAYS = {
    "spark_first_steps": "after the second run: group revenue is 0 orders behind",
    "spark_pipeline": "0 orders read by the second run",
}


@pytest.mark.thorough
def test_the_successor_of_a_crashed_consumer_gets_its_message_again_only_at_least_once(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "at_most_once.py")],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.splitlines() == [
        "at least once: the successor gets first, second, third",
        "at most once: the successor gets second, third",
    ]


def test_repeated_send_of_the_idempotent_example_returns_the_first_result_and_stores_nothing(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "idempotent.py")],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    said = dict(line.split(":", 1) for line in done.stdout.splitlines())
    assert said["repeat"].split() == said["first"].split()
    assert said["messages"].strip() == "1"
