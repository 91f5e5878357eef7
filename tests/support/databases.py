"""Real MariaDB and PostgreSQL servers: private, on loopback, durable, and ended with the process that started them.

    with mariadb_server() as server:
        url = server.new_database()

The creation of a data folder takes seconds, so it happens once per user and version, and each server gets a copy. A
lock protects files shared by several test processes, which may start servers at the same time.
"""

from __future__ import annotations

import fcntl
import hashlib
import itertools
import os
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from tests.support.wait import wait_until

# Not the temporary folder of the environment: a unix socket's path has at most 107 bytes (103 on macOS).
ROOT_FOLDER = Path(f"/tmp/sparrow-databases-{os.geteuid()}")
SOCKET_PATH_MAX = 103
START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 30.0
INSTALL = ("apt-get", "-o", "DPkg::Lock::Timeout=300")
INSTALL_ARGUMENTS = ("install", "-y", "-qq", "--no-install-recommends")
PACKAGES = ("mariadb-server", "postgresql")
# Below the ephemeral ports: an outgoing connection could occupy a port of that range while the server is down.
PORTS = range(20_000, 30_000)
# The environment of every program here: no PG* or MYSQL_* variable of the caller may redirect it.
ENVIRONMENT = {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C"}

MARIADB_SETTINGS = {
    "innodb_buffer_pool_size": "64M",
    "innodb_log_file_size": "64M",
    "innodb_flush_log_at_trx_commit": 1,
    "innodb_buffer_pool_dump_at_shutdown": "OFF",
    "innodb_buffer_pool_load_at_startup": "OFF",
    "max_connections": 200,
    "skip_name_resolve": "ON",
    "performance_schema": "OFF",
    "character_set_server": "utf8mb4",
}
POSTGRES_SETTINGS = {
    "fsync": "on",
    "synchronous_commit": "on",
    "shared_buffers": "64MB",
    "max_connections": 200,
}

# Empties a database for reuse: a new one would write, and later remove, hundreds of files.
EMPTY_POSTGRES = """
    SET lock_timeout = '5s';
    SELECT pg_terminate_backend(pid) FROM pg_stat_activity
        WHERE datname = current_database() AND pid <> pg_backend_pid();
    DO $$
        DECLARE name text;
        BEGIN
            FOR name IN SELECT nspname FROM pg_namespace WHERE nspname !~ '^pg_|^information_schema$' LOOP
                EXECUTE format('DROP SCHEMA %I CASCADE', name);
            END LOOP;
        END
    $$;
    CREATE SCHEMA public;
"""

# The kernel sends the parent-death signal when the *thread* that started the child ends. This thread lives as long as
# the process, so that a short-lived event loop's thread may start a server.
_LAUNCHER = ThreadPoolExecutor(1, thread_name_prefix="database-launcher")


class ServerNotInstalled(Exception):
    """The server's programs are missing on this machine and cannot be installed from here."""

    def __init__(self, name: str, packages: Sequence[str] = PACKAGES) -> None:
        words = " ".join((INSTALL[0], *INSTALL_ARGUMENTS, *packages))
        super().__init__(f"no {name} server found; as root, run: apt-get update && {words}")


@dataclass(eq=False)
class Server:
    """A server that can be restarted on its port with its data, until `stop` removes them."""

    url: str
    """The URL without a database."""
    folder: Path
    command: Sequence[str]
    client: Sequence[str]
    """The command that runs the statement appended to it."""
    stop_signal: signal.Signals
    """The signal for a shutdown that does not wait for clients to disconnect."""
    empty_statement: str = ""
    """A statement that empties a database, where this is faster than a new database."""
    _process: subprocess.Popen[bytes] | None = None
    _numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    _empty: list[str] = field(default_factory=list)

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def new_database(self) -> str:
        """Return the URL of an empty database that no other test uses."""
        if self._empty:
            return self._empty.pop()
        name = f"db{next(self._numbers)}"
        self.execute(f"CREATE DATABASE {name}")
        return f"{self.url}/{name}"

    def recycle_database(self, url: str) -> None:
        """Empty a database that is no longer used and keep it for another test."""
        if not (self.empty_statement and self.is_running):
            return
        *words, run = self.client
        try:
            _run(*words, f"--dbname={url.rpartition('/')[2]}", run, self.empty_statement)
        except subprocess.CalledProcessError:
            return  # a client is still connected
        self._empty.append(url)

    def start(self) -> None:
        """Start the server and wait until it answers."""
        assert not self.is_running, f"{self.url} is running"
        with self._log.open("ab") as log:
            starting = _LAUNCHER.submit(
                subprocess.Popen,
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=ENVIRONMENT,
                cwd=self.folder,
                start_new_session=True,  # Ctrl-C is for the tests, not for the server
            )
            self._process = starting.result()
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self._is_ready():
            if not self.is_running or time.monotonic() > deadline:
                self.kill()
                raise RuntimeError(f"{self.url} did not start:\n{self._log.read_text(errors='replace')[-4_000:]}")
            time.sleep(0.01)

    def kill(self) -> None:
        """Kill all processes of the server without a shutdown; return when none is left."""
        if self._process is None or not self.is_running:
            return
        self._process.send_signal(signal.SIGSTOP)  # a stopped process forks no child after the count
        family = psutil.Process(self._process.pid).children(recursive=True)
        self._process.kill()
        for child in family:
            _kill(child)
        self._process.wait()
        # A new server refuses the data folder while an old child still has its shared memory.
        wait_until(lambda: not any(map(_is_alive, family)))

    def stop(self) -> None:
        """Stop the server at once and remove its data. May be called again, and after `kill`."""
        if self._process is not None and self.is_running:
            self._process.send_signal(self.stop_signal)
            try:
                self._process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def _log(self) -> Path:
        return self.folder / "log"

    def execute(self, statement: str) -> None:
        """Run a statement with the server's own client."""
        _run(*self.client, statement)

    def _is_ready(self) -> bool:
        try:
            self.execute("SELECT 1")
        except subprocess.CalledProcessError:
            return False
        return True


@contextmanager
def mariadb_server(
    folder: Path | None = None,
    *,
    binlog: bool = False,
    kind: type[Server] = Server,
    is_started: bool = True,
    **settings: object,
) -> Iterator[Server]:
    """Run a MariaDB server inside the context and remove it afterwards. `settings` override the defaults below.

    Its files go into a new folder inside `folder`; name one on a real disk where /tmp is in memory and durability
    matters.
    """
    daemon = _program("mariadbd", "MariaDB")
    port = _free_port()
    # The server stays root on purpose: after a change of user the kernel drops the parent-death signal.
    account = ("--user=root",) if os.geteuid() == 0 else ()
    create = (str(_program("mariadb-install-db", "MariaDB")), "--no-defaults", *account)
    create += ("--auth-root-authentication-method=normal", "--skip-test-db", "--skip-name-resolve")
    create += (f"--innodb-log-file-size={MARIADB_SETTINGS['innodb_log_file_size']}", "--datadir={data}")
    with _private_folder(folder, owner=None) as private:
        data = private / "data"
        _copy_template((str(daemon),), create, data, owner=None)
        wanted = MARIADB_SETTINGS | {
            "datadir": data,
            "tmpdir": private,
            "socket": private / "socket",
            "pid_file": private / "pid",
            "bind_address": "127.0.0.1",
            "port": port,
        }
        if binlog:
            wanted |= {"log_bin": data / "binlog", "sync_binlog": 1, "server_id": 1}
        options = [f"--{name}={value}" for name, value in (wanted | settings).items()]
        client = (str(_program("mariadb", "MariaDB")), "--no-defaults", "--protocol=tcp", "--host=127.0.0.1")
        server = kind(
            f"mysql://root@127.0.0.1:{port}",
            private,
            (*_parent_death_prefix(None), str(daemon), "--no-defaults", *account, *options),
            (*client, f"--port={port}", "--user=root", "--execute"),
            signal.SIGKILL,
        )
        yield from _run_server(server, is_started)


@contextmanager
def postgres_server(folder: Path | None = None, *, is_started: bool = True, **settings: object) -> Iterator[Server]:
    """The same for PostgreSQL. It refuses to run as root, so under root it runs as user postgres, who must have access
    to `folder`; pytest's own temporary folders are closed to other users.
    """
    daemon = _program("postgres", "PostgreSQL")
    port = _free_port()
    owner = "postgres" if os.geteuid() == 0 else None
    create = (
        *(str(daemon.with_name("initdb")), "--username=postgres", "--auth=trust"),
        *("--encoding=UTF8", "--locale=C", "--no-sync", "--pgdata={data}"),
    )
    with _private_folder(folder, owner=owner) as private:
        data = private / "data"
        _copy_template((str(daemon),), create, data, owner=owner)
        wanted = POSTGRES_SETTINGS | {
            "listen_addresses": "127.0.0.1",
            "port": port,
            "unix_socket_directories": private,
        }
        options = [f"--{name}={value}" for name, value in (wanted | settings).items()]
        client = (str(daemon.with_name("psql")), "--no-psqlrc", "--quiet", "--host=127.0.0.1", f"--port={port}")
        server = Server(
            f"postgresql://postgres@127.0.0.1:{port}",
            private,
            (*_parent_death_prefix(owner), str(daemon), "-D", str(data), *options),
            (*client, "--username=postgres", "--dbname=postgres", "--command"),
            signal.SIGQUIT,
            EMPTY_POSTGRES,
        )
        yield from _run_server(server, is_started)


def _run_server(server: Server, is_started: bool = True) -> Iterator[Server]:
    try:
        if is_started:
            server.start()
        yield server
    finally:
        server.stop()


# -- programs ---------------------------------------------------------------------------------------------------------


def _program(name: str, server: str, packages: Sequence[str] = PACKAGES) -> Path:
    """Return the program's path; install its packages if it is missing and installation is allowed."""
    if (found := _find(name)) is not None:
        return found
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise ServerNotInstalled(server, packages)
    with _locked(_home()):
        if (found := _find(name)) is None:  # another process may have installed it meanwhile
            _run(*INSTALL, "update", "-qq", env=ENVIRONMENT | {"DEBIAN_FRONTEND": "noninteractive"})
            _run(*INSTALL, *INSTALL_ARGUMENTS, *packages, env=ENVIRONMENT | {"DEBIAN_FRONTEND": "noninteractive"})
            found = _find(name)
    if found is None:
        raise ServerNotInstalled(server, packages)
    return found


def _find(name: str) -> Path | None:
    # Debian's psql and similar programs on the PATH are slow wrappers, so look first in the folders of the versions,
    # newest first.
    versions = [path for path in Path("/usr/lib/postgresql").glob("*/bin") if path.parent.name.isdigit()]
    versions.sort(key=lambda path: int(path.parent.name), reverse=True)
    places = [*map(str, versions), *os.get_exec_path(), "/usr/sbin", "/usr/local/sbin"]
    found = shutil.which(name, path=os.pathsep.join(places))
    return None if found is None else Path(found)


def _parent_death_prefix(user: str | None) -> tuple[str, ...]:
    """Return a command prefix that makes a command end with this process, optionally as another user, without a process
    in between.

    Linux only: on other systems a server outlives a test process that was killed.
    """
    identity = () if user is None else (f"--reuid={user}", f"--regid={user}", "--init-groups")
    return ("setpriv", *identity, "--pdeathsig=KILL", "--") if shutil.which("setpriv") else ()


def _run(*command: str, env: dict[str, str] = ENVIRONMENT) -> str:
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, env=env, cwd="/")
    if done.returncode != 0:
        error = subprocess.CalledProcessError(done.returncode, command, done.stdout, done.stderr)
        error.add_note(done.stdout[-2_000:] + done.stderr[-2_000:])  # the exception's text omits the program's output
        raise error
    return done.stdout


def _kill(process: psutil.Process) -> None:
    try:
        process.kill()
    except psutil.NoSuchProcess:
        pass


def _is_alive(process: psutil.Process) -> bool:
    """Return whether the process lives; a zombie counts as dead: not every container has an init that reaps it."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _free_port() -> int:
    """Return a port that no other test process gets until this one ends: servers take seconds until they listen."""
    locks = _home() / "ports"
    locks.mkdir(exist_ok=True)
    while True:
        port = random.SystemRandom().choice(PORTS)  # not `random.choice`: a seeded test would give all workers the same
        lock = os.open(locks / str(port), os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with socket.socket() as trial:
                trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                trial.bind(("127.0.0.1", port))
        except OSError:
            os.close(lock)
            continue
        return port  # the lock stays open until this process ends


# -- folders ----------------------------------------------------------------------------------------------------------


def _home() -> Path:
    """Return the folder of templates and servers, readable for PostgreSQL's user."""
    ROOT_FOLDER.mkdir(exist_ok=True)
    if ROOT_FOLDER.is_symlink() or ROOT_FOLDER.stat().st_uid != os.geteuid():
        raise PermissionError(f"{ROOT_FOLDER} belongs to another user; remove it")
    ROOT_FOLDER.chmod(0o755)
    return ROOT_FOLDER


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


@contextmanager
def _private_folder(parent: Path | None, *, owner: str | None) -> Iterator[Path]:
    """Yield a new folder for one server. Its lock marks it as in use and ends with this process, even after a kill."""
    home = _home()
    with _locked(home):
        _remove_leftovers(home)
        folder = Path(tempfile.mkdtemp(prefix="server-", dir=(parent or home).resolve()))
        descriptor = os.open(folder, os.O_RDONLY)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    try:
        if len(os.fsencode(folder / ".s.PGSQL.00000.lock")) > SOCKET_PATH_MAX:
            raise ValueError(f"{folder} is too long for a unix socket; choose a folder nearer to the root")
        if owner is not None:
            shutil.chown(folder, owner, owner)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(descriptor)


def _remove_leftovers(home: Path) -> None:
    """Remove folders whose process died before it removed them."""
    for folder in home.glob("server-*"):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
        except BlockingIOError:
            pass
        finally:
            os.close(descriptor)


def _copy_template(daemon: Sequence[str], create: Sequence[str], data: Path, *, owner: str | None) -> None:
    """Copy a data folder made by `create` at `{data}`; another version or command makes another template."""
    version = _run(*daemon, "--version")
    key = hashlib.sha256("\0".join((version, *create)).encode()).hexdigest()[:16]
    template = _home() / f"{Path(daemon[-1]).name}-{key}"
    with _locked(_home()):
        if not template.exists():
            half_made = template.with_suffix(".new")
            shutil.rmtree(half_made, ignore_errors=True)
            half_made.mkdir(mode=0o700)
            if owner is not None:
                shutil.chown(half_made, owner, owner)
            _run(*_parent_death_prefix(owner), *(word.format(data=half_made) for word in create))
            half_made.rename(template)
    _run("cp", "-a", str(template), str(data))


def prepare() -> None:
    """Install missing programs before any test's timeout runs; where that is not allowed, print the instructions."""
    try:
        _program("mariadbd", "MariaDB")
        _program("postgres", "PostgreSQL")
    except ServerNotInstalled as missing:
        print(missing)


if __name__ == "__main__":
    prepare()
