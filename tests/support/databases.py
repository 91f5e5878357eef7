"""Real MariaDB and PostgreSQL servers: private, on loopback, durable, and gone when the process that started them is.

    with mariadb_server() as server:
        url = server.new_database()

Creating a data folder from nothing takes seconds, so it is done once per user and version and copied from then on.
What several test processes share is locked: each may start servers of its own at the same time as the others.
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
from tests.support.waiting import wait_until

# Not the temporary folder of the environment: a unix socket's path has at most 107 bytes (103 on macOS).
HOME = Path(f"/tmp/sparrow-databases-{os.geteuid()}")
SOCKET_PATH_MAX = 103
START_S = 60.0
STOP_S = 30.0
INSTALL = ("apt-get", "-o", "DPkg::Lock::Timeout=300")
INSTALL_WORDS = ("install", "-y", "-qq", "--no-install-recommends")
PACKAGES = ("mariadb-server", "postgresql")
# Below the ports that systems give to outgoing connections: one of those could sit on ours while the server is down.
PORTS = range(20_000, 30_000)
# The environment of every program here: none of the caller's PG* or MYSQL_* may lead it elsewhere.
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

# A new database is hundreds of files to write, and to remove in the end.
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

# The kernel's parent-death signal means the death of the *thread* that started the child. This one lives as long as
# the process, so a server may be started from a thread of a short-lived event loop.
_LAUNCHER = ThreadPoolExecutor(1, thread_name_prefix="database-launcher")


class NoServer(Exception):
    """The server's programs are not on this machine and cannot be put there from here."""

    def __init__(self, name: str, packages: Sequence[str] = PACKAGES) -> None:
        words = " ".join((INSTALL[0], *INSTALL_WORDS, *packages))
        super().__init__(f"no {name} server found; as root, run: apt-get update && {words}")


@dataclass(eq=False)
class Server:
    """A server that comes back on its port, with its data, until `stop` throws them away."""

    url: str
    """Without a database."""
    folder: Path
    command: Sequence[str]
    client: Sequence[str]
    """Runs the statement that is added to it."""
    farewell: signal.Signals
    """Asks for an orderly end that does not wait for clients to leave."""
    emptying: str = ""
    """A statement that leaves nothing in a database, where that is quicker than to make another."""
    _process: subprocess.Popen[bytes] | None = None
    _numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    _empty: list[str] = field(default_factory=list)

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def new_database(self) -> str:
        """The URL of an empty one that nobody else uses."""
        if self._empty:
            return self._empty.pop()
        name = f"db{next(self._numbers)}"
        self._tell(f"CREATE DATABASE {name}")
        return f"{self.url}/{name}"

    def take_back(self, url: str) -> None:
        """Nobody needs the database any more: another may get it, once it is empty."""
        if not (self.emptying and self.is_running):
            return
        *words, run = self.client
        try:
            _run(*words, f"--dbname={url.rpartition('/')[2]}", run, self.emptying)
        except subprocess.CalledProcessError:
            return  # somebody would not leave
        self._empty.append(url)

    def start(self) -> None:
        """Returns once the server answers."""
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
                start_new_session=True,  # an interrupt at the keyboard is for the tests, not for the server
            )
            self._process = starting.result()
        deadline = time.monotonic() + START_S
        while not self._answers():
            if not self.is_running or time.monotonic() > deadline:
                self.kill()
                raise RuntimeError(f"{self.url} did not start:\n{self._log.read_text(errors='replace')[-4_000:]}")
            time.sleep(0.01)

    def kill(self) -> None:
        """With no chance to finish anything; returns when none of its processes is left."""
        if self._process is None or not self.is_running:
            return
        self._process.send_signal(signal.SIGSTOP)  # while it stands still, no child is born after the count
        family = psutil.Process(self._process.pid).children(recursive=True)
        self._process.kill()
        for child in family:
            _kill(child)
        self._process.wait()
        # A new server refuses the data folder while an old child still has its shared memory.
        wait_until(lambda: not any(map(_is_alive, family)))

    def stop(self) -> None:
        """The end, and a quick one: the data are removed. May be called again, and after `kill`."""
        if self._process is not None and self.is_running:
            self._process.send_signal(self.farewell)
            try:
                self._process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def _log(self) -> Path:
        return self.folder / "log"

    def _tell(self, statement: str) -> None:
        _run(*self.client, statement)

    def _answers(self) -> bool:
        try:
            self._tell("SELECT 1")
        except subprocess.CalledProcessError:
            return False
        return True


@contextmanager
def mariadb_server(folder: Path | None = None, *, binlog: bool = False, **settings: object) -> Iterator[Server]:
    """Running when entered, removed when left. `settings` are the server's own; they win over the ones here.

    Its files go into a new folder inside `folder`; say one on a real disk where /tmp is memory and durability counts.
    """
    daemon = _program("mariadbd", "MariaDB")
    port = _free_port()
    # To stay root is deliberate: a change of user makes the kernel forget the parent-death signal.
    account = ("--user=root",) if os.geteuid() == 0 else ()
    create = (str(_program("mariadb-install-db", "MariaDB")), "--no-defaults", *account)
    create += ("--auth-root-authentication-method=normal", "--skip-test-db", "--skip-name-resolve")
    create += (f"--innodb-log-file-size={MARIADB_SETTINGS['innodb_log_file_size']}", "--datadir={data}")
    with _private_folder(folder, owner=None) as private:
        data = private / "data"
        _copy_template(daemon, create, data, owner=None)
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
        server = Server(
            f"mysql://root@127.0.0.1:{port}",
            private,
            (*_guarded(None), str(daemon), "--no-defaults", *account, *options),
            (*client, f"--port={port}", "--user=root", "--execute"),
            signal.SIGKILL,
        )
        yield from _running(server)


@contextmanager
def postgres_server(folder: Path | None = None, **settings: object) -> Iterator[Server]:
    """The same for PostgreSQL. It refuses to be root, so under root it is the user postgres, who must reach `folder`:
    pytest's own temporary folders are closed to others and will not do."""
    daemon = _program("postgres", "PostgreSQL")
    port = _free_port()
    owner = "postgres" if os.geteuid() == 0 else None
    create = (
        *(str(daemon.with_name("initdb")), "--username=postgres", "--auth=trust"),
        *("--encoding=UTF8", "--locale=C", "--no-sync", "--pgdata={data}"),
    )
    with _private_folder(folder, owner=owner) as private:
        data = private / "data"
        _copy_template(daemon, create, data, owner=owner)
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
            (*_guarded(owner), str(daemon), "-D", str(data), *options),
            (*client, "--username=postgres", "--dbname=postgres", "--command"),
            signal.SIGQUIT,
            EMPTY_POSTGRES,
        )
        yield from _running(server)


def _running(server: Server) -> Iterator[Server]:
    try:
        server.start()
        yield server
    finally:
        server.stop()


# -- programs ---------------------------------------------------------------------------------------------------------


def _program(name: str, server: str, packages: Sequence[str] = PACKAGES) -> Path:
    """Installs the packages if this is allowed and the program is missing."""
    if (found := _find(name)) is not None:
        return found
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise NoServer(server, packages)
    with _locked(_home()):
        if (found := _find(name)) is None:  # another process may have installed it while we waited
            _run(*INSTALL, "update", "-qq", env=ENVIRONMENT | {"DEBIAN_FRONTEND": "noninteractive"})
            _run(*INSTALL, *INSTALL_WORDS, *packages, env=ENVIRONMENT | {"DEBIAN_FRONTEND": "noninteractive"})
            found = _find(name)
    if found is None:
        raise NoServer(server, packages)
    return found


def _find(name: str) -> Path | None:
    # Debian's psql and friends on the PATH are slow wrappers, so the folders of the versions come first, newest first.
    versions = [path for path in Path("/usr/lib/postgresql").glob("*/bin") if path.parent.name.isdigit()]
    versions.sort(key=lambda path: int(path.parent.name), reverse=True)
    places = [*map(str, versions), *os.get_exec_path(), "/usr/sbin", "/usr/local/sbin"]
    found = shutil.which(name, path=os.pathsep.join(places))
    return None if found is None else Path(found)


def _guarded(user: str | None) -> tuple[str, ...]:
    """Words that make a command die with this process, as another user if one is named; they leave no process between.

    Only Linux has them: elsewhere a server outlives a test process that was killed.
    """
    identity = () if user is None else (f"--reuid={user}", f"--regid={user}", "--init-groups")
    return ("setpriv", *identity, "--pdeathsig=KILL", "--") if shutil.which("setpriv") else ()


def _run(*command: str, env: dict[str, str] = ENVIRONMENT) -> str:
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, env=env, cwd="/")
    if done.returncode != 0:
        error = subprocess.CalledProcessError(done.returncode, command, done.stdout, done.stderr)
        error.add_note(done.stdout[-2_000:] + done.stderr[-2_000:])  # its own sentence leaves out what the program said
        raise error
    return done.stdout


def _kill(process: psutil.Process) -> None:
    try:
        process.kill()
    except psutil.NoSuchProcess:
        pass


def _is_alive(process: psutil.Process) -> bool:
    """An orphan that nobody buries is as dead as one that is gone: not every container has an init that does."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _free_port() -> int:
    while True:
        port = random.SystemRandom().choice(PORTS)  # not `random.choice`: a seeded test would give all workers the same
        with socket.socket() as trial:
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                trial.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port


# -- folders ----------------------------------------------------------------------------------------------------------


def _home() -> Path:
    """Where templates and servers live, open to read for the user that PostgreSQL runs as."""
    HOME.mkdir(exist_ok=True)
    if HOME.is_symlink() or HOME.stat().st_uid != os.geteuid():
        raise PermissionError(f"{HOME} belongs to another user; remove it")
    HOME.chmod(0o755)
    return HOME


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
    """A new folder for one server. Its lock says that it is in use, and is gone with this process however it ends."""
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
    """Folders whose process died before it could remove them."""
    for folder in home.glob("server-*"):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
        except BlockingIOError:
            pass
        finally:
            os.close(descriptor)


def _copy_template(daemon: Path, create: Sequence[str], data: Path, *, owner: str | None) -> None:
    """`create` makes a data folder at `{data}`; another version or other words make another template."""
    version = _run(str(daemon), "--version")
    key = hashlib.sha256("\0".join((version, *create)).encode()).hexdigest()[:16]
    template = _home() / f"{daemon.name}-{key}"
    with _locked(_home()):
        if not template.exists():
            half_made = template.with_suffix(".new")
            shutil.rmtree(half_made, ignore_errors=True)
            half_made.mkdir(mode=0o700)
            if owner is not None:
                shutil.chown(half_made, owner, owner)
            _run(*_guarded(owner), *(word.format(data=half_made) for word in create))
            half_made.rename(template)
    _run("cp", "-a", str(template), str(data))


def prepare() -> None:
    """Install what is missing before any test's time runs; where that is not allowed, say how it is done."""
    try:
        _program("mariadbd", "MariaDB")
        _program("postgres", "PostgreSQL")
    except NoServer as missing:
        print(missing)


if __name__ == "__main__":
    prepare()
