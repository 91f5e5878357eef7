"""The database servers that the tests use: durability, kill and restart, and cleanup."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from threading import Thread

import psutil
import pytest
from tests.support import databases
from tests.support.databases import ENVIRONMENT, Server, ServerNotInstalled, mariadb_server, postgres_server
from tests.support.server_processes import ROOT
from tests.support.wait import wait_until

FACTORIES = {"mariadb": mariadb_server, "postgres": postgres_server}
TABLES = "SELECT count(*) FROM information_schema.tables WHERE table_schema NOT IN ('information_schema', {hidden})"
HIDDEN = {"mariadb": "'mysql', 'sys'", "postgres": "'pg_catalog'"}

# Starts a server in a folder of templates, prints its folder, and waits until it is killed or stdin closes.
OWNER = """
import sys
from pathlib import Path
from tests.support import databases

databases.ROOT_FOLDER = Path(sys.argv[2])
with getattr(databases, sys.argv[1] + "_server")() as server:
    print(server.folder, server._process.pid, flush=True)
    sys.stdin.read()
"""


@pytest.fixture(params=list(FACTORIES))
def engine(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def server(engine: str) -> Iterator[Server]:
    with FACTORIES[engine]() as server:
        yield server


@pytest.fixture
def home() -> Iterator[Path]:
    """A folder without templates, outside of pytest's folders, which the user postgres cannot read."""
    folder = Path(tempfile.mkdtemp(prefix="sparrow-home-", dir="/tmp"))
    yield folder
    shutil.rmtree(folder)


def ask(server: Server, url: str, statement: str) -> list[str]:
    """Return the words of the result, without column names or borders."""
    name = url.rpartition("/")[2]
    *words, run = server.client
    if url.startswith("mysql:"):
        words += [f"--database={name}", "--skip-column-names"]
    else:
        words += [f"--dbname={name}", "--tuples-only", "--no-align", "--field-separator=\t"]
    done = subprocess.run([*words, run, statement], check=True, capture_output=True, text=True, env=ENVIRONMENT)
    return done.stdout.split()


def owner(engine: str, home: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", OWNER, engine, str(home)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )


def where(owner: subprocess.Popen[str]) -> tuple[Path, psutil.Process]:
    assert owner.stdout is not None
    folder, pid = owner.stdout.readline().split()
    return Path(folder), psutil.Process(int(pid))


@pytest.mark.thorough
def test_each_new_database_is_separate_and_empty(server: Server, engine: str) -> None:
    first, second = server.new_database(), server.new_database()
    assert first != second
    assert first.startswith(f"{server.url}/")
    ask(server, first, "CREATE TABLE only_here (n INT)")
    tables = TABLES.format(hidden=HIDDEN[engine])
    if engine == "mariadb":
        tables += " AND table_schema = DATABASE()"  # its information schema covers the whole server
    assert ask(server, first, tables) == ["1"]
    assert ask(server, second, tables) == ["0"]


@pytest.mark.thorough
def test_committed_rows_survive_a_kill_and_a_start(server: Server) -> None:
    url = server.new_database()
    ask(server, url, "CREATE TABLE kept (n INT)")
    ask(server, url, "INSERT INTO kept VALUES (1), (2)")
    assert server._process is not None
    family = psutil.Process(server._process.pid).children(recursive=True)

    server.kill()
    assert not server.is_running
    assert not any(map(databases._is_alive, family))

    server.start()
    assert server.is_running
    assert ask(server, url, "SELECT n FROM kept ORDER BY n") == ["1", "2"]
    assert server.new_database() != url


@pytest.mark.thorough
def test_a_stopped_server_leaves_no_files(server: Server) -> None:
    assert server.folder.is_dir()
    server.stop()
    assert not server.is_running
    assert not server.folder.exists()
    server.stop()


@pytest.mark.thorough
def test_a_server_started_on_a_thread_outlives_the_thread(server: Server) -> None:
    url = server.new_database()
    server.kill()
    thread = Thread(target=server.start)
    thread.start()
    thread.join()
    # The kernel sends its signal while the thread ends; this query runs after that.
    assert ask(server, url, "SELECT 7") == ["7"]
    assert server.is_running


@pytest.mark.thorough
def test_a_server_dies_with_its_owner_and_the_next_one_removes_its_folder(engine: str, home: Path) -> None:
    killed = owner(engine, home)
    folder, process = where(killed)
    killed.kill()
    killed.communicate()
    wait_until(lambda: not databases._is_alive(process))
    assert folder.exists()

    later = owner(engine, home)
    where(later)
    assert not folder.exists()
    later.communicate("")
    assert later.returncode == 0
    assert not list(home.glob("server-*"))


@pytest.mark.thorough
def test_two_processes_can_start_concurrently_and_share_the_template(engine: str, home: Path) -> None:
    both = [owner(engine, home) for _ in range(2)]
    folders = {where(one)[0] for one in both}
    assert len(folders) == 2
    assert all(folder.is_dir() for folder in folders), "the second run must not remove the folder of the first"
    templates = [path for path in home.iterdir() if not path.name.startswith(("server-", "ports"))]
    assert len(templates) == 1
    for one in both:
        one.communicate("")
        assert one.returncode == 0


@pytest.mark.thorough
def test_commits_are_durable_by_default_and_settings_can_be_overridden() -> None:
    with mariadb_server(binlog=True, max_connections=17) as server:
        asked = "SELECT @@innodb_flush_log_at_trx_commit, @@log_bin, @@sync_binlog, @@max_connections"
        assert ask(server, server.new_database(), asked) == ["1", "1", "1", "17"]
    with postgres_server(max_connections=17) as server:
        asked = "SELECT name, setting FROM pg_settings WHERE name IN ('fsync', 'synchronous_commit', 'max_connections')"
        answer = ask(server, server.new_database(), f"{asked} ORDER BY name")
        assert answer == ["fsync", "on", "max_connections", "17", "synchronous_commit", "on"]


def test_a_failed_start_reports_its_cause() -> None:
    with pytest.raises(RuntimeError, match="no_such_setting"):
        with postgres_server(no_such_setting=1):
            pass


@pytest.mark.thorough
def test_a_path_too_long_for_a_unix_socket_is_refused() -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as shallow:
        deep = Path(shallow, "x" * 100)
        deep.mkdir()
        with pytest.raises(ValueError, match="unix socket"), mariadb_server(deep):
            pass
        assert not list(deep.iterdir())


@pytest.mark.thorough
def test_without_permission_to_install_the_error_contains_the_install_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1)
    with pytest.raises(ServerNotInstalled, match=r"no MariaDB .* apt-get install .*mariadb-server"):
        databases._program("no-such-daemon", "MariaDB")
