"""The command line, run as a user runs it."""

import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from typer.testing import CliRunner

from sparrow.cli.main import COMMAND_MODULES, app
from sparrow.cli.settings import load_settings
from sparrow.client.aio.produce.producer import Producer
from sparrow.model import Message
from sparrow.model.errors import SettingsError
from sparrow.spark.runtime.tar_archive import extract

SPARROW = [sys.executable, "-m", "sparrow"]
FIXTURE = Path(__file__).parents[1] / "fixtures" / "rocketmq_store"


def run(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*SPARROW, *words], cwd=cwd, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.thorough
def test_sparrow_without_arguments_and_help_list_all_commands(tmp_path: Path) -> None:
    for words in ([], ["--help"]):
        done = run(*words, cwd=tmp_path)
        assert "Usage" in done.stdout + done.stderr
        for verb in COMMAND_MODULES:
            assert f" {verb} " in done.stdout + done.stderr


@pytest.mark.parametrize(
    "words", [[verb] for verb in COMMAND_MODULES] + [["store", "info"], ["pipeline", "archive"]], ids=" ".join
)
def test_every_command_has_help(words: list[str]) -> None:
    done = CliRunner().invoke(app, [*words, "--help"])
    assert done.exit_code == 0
    assert f"Usage: sparrow {' '.join(words)}" in done.output


def test_misspelt_command_gets_a_suggestion() -> None:
    done = CliRunner().invoke(app, ["piplin"])
    assert done.exit_code == 2
    assert "Did you mean 'pipeline'?" in done.output


def test_command_is_imported_without_the_others(tmp_path: Path) -> None:
    code = "import sys; from sparrow.cli.main import app; app(['token', '--help'], standalone_mode=False); "
    code += "print('LOADED', 'sparrow.cli.demo.commands' in sys.modules, 'sparrow.broker' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert "LOADED False False" in done.stdout, done.stdout + done.stderr


FREE_PORTS = ("--port", "0", "--name-server-port", "0")
NO_CONSOLE = "--no-console"


@contextmanager
def running(*words: str, cwd: Path) -> Iterator[tuple[subprocess.Popen[str], list[str]]]:
    """Start a server; yield it, and its output up to the line that it is ready."""
    with subprocess.Popen([*SPARROW, *words], cwd=cwd, stdout=subprocess.PIPE, text=True) as child:
        try:
            assert child.stdout is not None
            said = []
            for line in child.stdout:
                said.append(line.strip())
                if "Ctrl-C" in line:
                    break
            assert child.poll() is None, said
            yield child, said
        finally:
            child.kill()


@pytest.mark.thorough
def test_demo_sends_and_receives_and_closes_its_store_cleanly(tmp_path: Path) -> None:
    done = run("demo", "--no-spark", "--seconds", "3", *FREE_PORTS, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    found = re.search(r"([\d,]+)\s+orders\s+sent,\s+([\d,]+)\s+received", " ".join(done.stdout.split()))
    assert found, done.stdout
    assert int(found.group(2).replace(",", "")) > 100, done.stdout
    assert not (tmp_path / "sparrow-data" / "store" / "abort").exists()
    shown = " ".join(run("store", "info", "sparrow-data", cwd=tmp_path).stdout.split())
    assert "demo_orders" in shown
    assert "the newest log file is allocated as it fills" in shown


@pytest.mark.parametrize("words", [["demo", "--no-spark"], ["up", "--console-port", "0"]])
def test_ctrl_c_stops_a_server_cleanly(tmp_path: Path, words: list[str]) -> None:
    with running(*words, *FREE_PORTS, cwd=tmp_path) as (child, said):
        assert any(line.startswith("name server 127.0.0.1:") for line in said)
        assert any(line.startswith("broker sparrow 127.0.0.1:") for line in said)
        child.send_signal(signal.SIGINT)
        assert child.wait(30) == 0
    assert not (tmp_path / "sparrow-data" / "store" / "abort").exists()


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("words", "last"),
    [(["--console-port", "0"], "console http"), (["--no-console", "--shards", "2"], "ready")],
    ids=["console", "shards"],
)
def test_ctrl_c_is_answered_once_and_not_by_every_process(tmp_path: Path, words: list[str], last: str) -> None:
    command = [*SPARROW, "up", *words, *FREE_PORTS]
    with (
        open(tmp_path / "errors", "w+") as errors,
        subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=errors, text=True) as child,
    ):
        try:
            assert child.stdout is not None
            said = ""
            while last not in said or "ready" not in said:
                line = child.stdout.readline()
                assert line, said
                said += line
            child.send_signal(signal.SIGINT)
            assert child.wait(60) == 0
        finally:
            child.kill()
        errors.seek(0)
        said = errors.read().strip()
    assert said == "Stopping; finishing requests in progress (Ctrl-C again to stop now)."


def test_up_is_ready_within_a_second(tmp_path: Path) -> None:
    with running("up", *FREE_PORTS, NO_CONSOLE, cwd=tmp_path) as (_, said):
        found = re.search(r"ready after ([\d.]+) s", said[-1])
        assert found, said
        assert float(found.group(1)) < 1.0


def test_port_in_use_is_refused_with_a_clear_message(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        done = run("up", "--port", port, "--name-server-port", "0", cwd=tmp_path)
    assert done.returncode == 1
    assert port in done.stderr
    assert "Traceback" not in done.stderr


def test_store_in_use_is_refused_with_a_clear_message(tmp_path: Path) -> None:
    with running("up", *FREE_PORTS, NO_CONSOLE, cwd=tmp_path):
        done = run("up", *FREE_PORTS, NO_CONSOLE, cwd=tmp_path)
    assert done.returncode == 1
    assert "open in another process" in done.stderr


def test_error_names_the_wrong_setting(tmp_path: Path) -> None:
    done = run("up", "--flush", "sometimes", *FREE_PORTS, cwd=tmp_path)
    assert done.returncode == 1
    assert "log.flush" in done.stderr
    assert "sometimes" in done.stderr


@pytest.mark.parametrize(
    ("toml", "variables", "sentence"),
    [
        ("[broker]\nprot = 1", {}, "there is no setting broker.prot (from sparrow.toml): did you mean broker.port?"),
        ("[borker]\nport = 1", {}, "there is no setting borker (from sparrow.toml): did you mean broker?"),
        ("[log]\nzzz = 1", {}, "there is no setting log.zzz (from sparrow.toml): docs/broker.md lists all settings."),
        ("", {"SPARROW_BROKER__PROT": "1"}, "(from SPARROW_BROKER__PROT): did you mean broker.port?"),
        ("", {"SPARROW_BROKR__PORT": "1"}, "did you mean SPARROW_BROKER__…?"),
        ("", {"SPARROW_NAME_SERVER": "127.0.0.1:9876"}, "use SPARROW_NAME_SERVERS for the addresses of name servers"),
        ("[broker\n", {}, "it is not TOML"),
    ],
)
def test_unknown_settings_are_refused_with_the_nearest_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, toml: str, variables: dict[str, str], sentence: str
) -> None:
    (tmp_path / "sparrow.toml").write_text(toml)
    monkeypatch.chdir(tmp_path)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SettingsError) as refused:
        load_settings()
    assert sentence in str(refused.value)


@pytest.mark.thorough
def test_unusable_data_folder_is_refused_with_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for command in (("up",), ("demo", "--no-spark"), ("broker",), ("name-server",)):
        done = run(*command, "--data", "file", cwd=tmp_path)
        assert (done.returncode, done.stderr.count("\n")) == (1, 1), done.stderr
        assert "cannot use file (--data): it is a file, not a folder. Choose a folder" in done.stderr
    for folder in ("file/below", "/proc"):  # even root cannot write to /proc
        done = run("up", "--data", folder, cwd=tmp_path)
        assert (done.returncode, done.stderr.count("\n")) == (1, 1), done.stderr
        assert f"cannot use {folder} (--data): " in done.stderr


def test_settings_come_from_the_file_and_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sparrow.toml").write_text('[broker]\nname = "from-file"\ncluster = "from-file"\n')
    monkeypatch.setenv("SPARROW_BROKER__NAME", "from-environment")
    with running("up", *FREE_PORTS, NO_CONSOLE, cwd=tmp_path) as (_, said):
        assert any(line.startswith("broker from-environment ") for line in said)


async def test_shards_share_a_topic_and_stop_together(tmp_path: Path) -> None:
    with running("up", "--shards", "2", *FREE_PORTS, NO_CONSOLE, cwd=tmp_path) as (child, said):
        name_servers = next(line.split()[-1] for line in said if line.startswith("name server"))
        brokers = {line.split()[1] for line in said if line.startswith("broker")}
        assert brokers == {"sparrow-0", "sparrow-1"}
        async with Producer(name_servers) as producer:
            results = [await producer.send(Message("sharded", f"{n}")) for n in range(16)]
        assert {result.broker_name for result in results} == brokers
        child.send_signal(signal.SIGINT)
        assert child.wait(30) == 0
    for number in range(2):
        folder = tmp_path / "sparrow-data" / f"shard-{number}" / "store"
        assert folder.is_dir()
        assert not (folder / "abort").exists()


@pytest.mark.thorough
def test_shards_stop_when_their_parent_is_killed(tmp_path: Path) -> None:
    with running("up", "--shards", "2", *FREE_PORTS, NO_CONSOLE, cwd=tmp_path) as (child, _):
        shards = psutil.Process(child.pid).children()
        assert len(shards) == 2
        child.kill()
        _, alive = psutil.wait_procs(shards, timeout=30)
        assert not alive
    for number in range(2):
        folder = tmp_path / "sparrow-data" / f"shard-{number}" / "store"
        assert not (folder / "abort").exists(), "the server must shut down cleanly"


def test_store_info_reads_a_rocketmq_directory(tmp_path: Path) -> None:
    extract(FIXTURE / "clean.tar.xz", tmp_path / "theirs")
    done = run("store", "info", "theirs", cwd=tmp_path)
    assert "TopicTest" in done.stdout
    assert "fixture_group 40" in done.stdout


def test_directory_that_is_not_a_store_is_refused_with_a_clear_message(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    done = run("store", "info", "empty", cwd=tmp_path)
    assert done.returncode != 0
    assert "has no commitlog folder" in " ".join(done.stderr.replace("│", " ").split())
