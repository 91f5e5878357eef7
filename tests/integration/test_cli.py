"""The command line, run as a user runs it."""

import signal
import subprocess
import sys
import tarfile
from pathlib import Path

SPARROW = [sys.executable, "-m", "sparrow"]
FIXTURE = Path(__file__).parents[1] / "fixtures" / "rocketmq_store"


def run(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*SPARROW, *words], cwd=cwd, capture_output=True, text=True, timeout=60, check=False)


def test_plain_sparrow_and_help_explain_themselves(tmp_path: Path) -> None:
    for words in ([], ["--help"], ["demo", "--help"], ["store", "info", "--help"]):
        done = run(*words, cwd=tmp_path)
        assert "Usage" in done.stdout + done.stderr
    assert "Example" in run("demo", "--help", cwd=tmp_path).stdout


def test_the_demo_writes_reads_back_and_leaves_the_store_in_order(tmp_path: Path) -> None:
    done = run("demo", "--seconds", "1", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "orders read back as Arrow" in done.stdout
    assert not (tmp_path / "sparrow-data" / "abort").exists()
    assert "demo_orders" in run("store", "info", "sparrow-data", cwd=tmp_path).stdout


def test_ctrl_c_stops_the_demo_cleanly(tmp_path: Path) -> None:
    with subprocess.Popen([*SPARROW, "demo"], cwd=tmp_path, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline().startswith("store:")
        while not list(tmp_path.glob("sparrow-data/commitlog/*")):
            assert child.poll() is None
        child.send_signal(signal.SIGINT)
        assert child.wait(30) == 0
    assert not (tmp_path / "sparrow-data" / "abort").exists()


def test_a_rocketmq_directory_can_be_looked_into(tmp_path: Path) -> None:
    with tarfile.open(FIXTURE / "clean.tar.xz") as archive:
        archive.extractall(tmp_path / "theirs", filter="data")
    done = run("store", "info", "theirs", cwd=tmp_path)
    assert "TopicTest" in done.stdout
    assert "fixture_group 40" in done.stdout


def test_what_is_no_store_is_refused_with_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    done = run("store", "info", "empty", cwd=tmp_path)
    assert done.returncode != 0
    assert "no store" in " ".join(done.stderr.split())
