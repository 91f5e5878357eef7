"""Replicated databases whose writing server can be killed: a Galera cluster, and PostgreSQL with a synchronous standby.

with galera_cluster() as cluster:
    url = cluster.new_database()   # mysql://root@127.0.0.1:1,127.0.0.1:2,127.0.0.1:3/db1
    cluster.fail_over()            # kills the first node that is writable; the others go on
    cluster.repair()               # starts it again and waits until it has caught up
"""

from __future__ import annotations

import itertools
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.support import databases
from tests.support.databases import Server, ServerNotInstalled, _free_port, _run
from tests.support.wait import wait_until

GALERA_LIBRARY = Path("/usr/lib/galera/libgalera_smm.so")
GALERA_SCRIPTS = Path(__file__).with_name("galera")
# A node that is killed closes its connections; the others need not wait long until they go on without it.
GALERA_TIMEOUTS = "evs.keepalive_period=PT0.5S;evs.suspect_timeout=PT2S;evs.inactive_timeout=PT8S"
CATCH_UP_S = 60.0


@dataclass(eq=False)
class GaleraNode(Server):
    """A node that joins its cluster with the last state that it has on disk."""

    is_first: bool = True
    """Whether the start founds the cluster."""

    def start(self) -> None:
        """Start the node; wait until it may be written."""
        command = self.command
        # As Debian's service does after a crash: the file with the state is not valid then, InnoDB knows it.
        recovery = (*command, "--wsrep-recover")
        done = subprocess.run(recovery, capture_output=True, text=True, env=databases.ENVIRONMENT, cwd=self.folder)
        found = re.findall(r"Recovered position:\s*([0-9a-f-]{36}:\d+)", done.stdout + done.stderr)
        position = tuple(f"--wsrep-start-position={state}" for state in found[-1:])
        founding = ("--wsrep-new-cluster",) if self.is_first else ()
        self.command = (*command, *position, *founding)
        try:
            super().start()
        finally:
            self.command, self.is_first = command, False

    def _is_ready(self) -> bool:
        try:
            return "ON" in _run(*self.client, "SHOW GLOBAL STATUS LIKE 'wsrep_ready'")
        except subprocess.CalledProcessError:
            return False


@dataclass(eq=False)
class Replicated:
    """Servers with the same data. The first one that runs is the one to write, where all can be written."""

    servers: list[Server]
    _numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def new_database(self) -> str:
        """Return the URL of an empty database, with all hosts."""
        name = f"db{next(self._numbers)}"
        self.servers[0].execute(f"CREATE DATABASE {name}")
        account = self.servers[0].url.rpartition("@")[0]
        return f"{account}@{','.join(server.url.rpartition('@')[2] for server in self.servers)}/{name}"

    def fail_over(self) -> None:
        """Kill the server that is written; return when another one may be."""
        raise NotImplementedError

    def repair(self) -> None:
        """Bring the killed server back as a replica, with all data."""
        raise NotImplementedError


class GaleraCluster(Replicated):
    """Nodes that can all be written."""

    def fail_over(self) -> None:
        next(server for server in self.servers if server.is_running).kill()

    def repair(self) -> None:
        self.wait_for_quorum()  # a node that returns before it is missed confuses the others
        for server in self.servers:
            if not server.is_running:
                server.start()
        self.wait_for_quorum()

    def wait_for_quorum(self) -> None:
        """Wait until the nodes that run agree that they are the cluster."""
        running = [server for server in self.servers if server.is_running]
        query = "SHOW GLOBAL STATUS WHERE Variable_name IN ('wsrep_cluster_size', 'wsrep_cluster_status')"

        def is_agreed(server: Server) -> bool:
            words = _run(*server.client, query).split()
            return str(len(running)) in words and "Primary" in words

        wait_until(lambda: all(map(is_agreed, running)), within_s=CATCH_UP_S)


@contextmanager
def galera_cluster(nodes: int = 3) -> Iterator[GaleraCluster]:
    """Run a Galera cluster of MariaDB servers inside the context."""
    databases._program("mariadbd", "MariaDB")
    if not GALERA_LIBRARY.exists():
        raise ServerNotInstalled("Galera", ("galera-4",))
    group_ports = [_free_port() for _ in range(nodes)]
    address = "gcomm://" + ",".join(f"127.0.0.1:{port}" for port in group_ports)
    with ExitStack() as stack:
        servers: list[Server] = []
        for at, port in enumerate(group_ports):
            provider = f"base_port={port};gmcast.listen_addr=tcp://127.0.0.1:{port};{GALERA_TIMEOUTS};"
            provider += f"ist.recv_addr=127.0.0.1:{_free_port()};gcache.size=32M;pc.recovery=FALSE"
            settings = {
                "wsrep_on": "ON",
                "wsrep_provider": GALERA_LIBRARY,
                "wsrep_cluster_address": address,
                "wsrep_node_address": f"127.0.0.1:{port}",
                "wsrep_node_name": f"node{at}",
                "wsrep_provider_options": provider,
                "wsrep_sst_method": "local",
                "wsrep_sst_receive_address": f"127.0.0.1:{_free_port()}",
                "binlog_format": "ROW",
                "innodb_autoinc_lock_mode": 2,
                "server_id": at + 1,
            }
            server = stack.enter_context(databases.mariadb_server(kind=GaleraNode, is_started=False, **settings))
            assert isinstance(server, GaleraNode)
            server.is_first = at == 0
            _move_settings_to_file(server)
            servers.append(server)
        _give_all_the_first_state(servers)
        for server in servers:
            server.start()
        cluster = GaleraCluster(servers)
        cluster.wait_for_quorum()
        yield cluster


def _give_all_the_first_state(servers: Sequence[Server]) -> None:
    """Copy the data of the first node to the others. So they need not fetch a snapshot, for which rsync is needed."""
    first, *others = servers
    first.start()
    first.kill()
    data = first.folder / "data"
    for other in others:
        shutil.rmtree(other.folder / "data")
        _run("cp", "-a", str(data), str(other.folder / "data"))
    state = data / "grastate.dat"  # lets the first node found the cluster again, with its state
    state.write_text(state.read_text().replace("safe_to_bootstrap: 0", "safe_to_bootstrap: 1"))
    assert isinstance(first, GaleraNode)
    first.is_first = True


def _move_settings_to_file(server: Server) -> None:
    """Start the server with a file of settings: the scripts that a joining node runs get all words of a command."""
    at = server.command.index("--no-defaults")
    settings = [word.removeprefix("--") for word in server.command[at + 1 :]]
    file = server.folder / "my.cnf"
    file.write_text("[mysqld]\n" + "\n".join(settings) + "\n")
    *prefix, daemon = server.command[:at]
    path = f"PATH={GALERA_SCRIPTS}:{databases.ENVIRONMENT['PATH']}"
    server.command = (*prefix, "env", path, daemon, f"--defaults-file={file}")


class PostgresPair(Replicated):
    """A primary and a synchronous standby. The promoted standby gets a new standby in the folder of the old primary."""

    def fail_over(self) -> None:
        primary, standby = self._primary(), self._standby()
        primary.kill()
        standby.execute("SELECT pg_promote(true, 30)")

    def repair(self) -> None:
        primary = self._primary()
        dead = next(server for server in self.servers if not server.is_running)
        make_standby(primary, dead)
        dead.start()
        wait_for_standby(primary)

    def _primary(self) -> Server:
        return next(server for server in self.servers if server.is_running and not _is_standby(server))

    def _standby(self) -> Server:
        return next(server for server in self.servers if server.is_running and _is_standby(server))


@contextmanager
def postgres_pair() -> Iterator[PostgresPair]:
    """Run a primary with a standby that has each commit before it is acknowledged."""
    with ExitStack() as stack:
        primary = stack.enter_context(databases.postgres_server())
        standby = stack.enter_context(databases.postgres_server(is_started=False))
        # The standby copies the file that this writes. It takes effect when a standby runs: else commits would hang.
        primary.execute("ALTER SYSTEM SET synchronous_standby_names = '*'")
        make_standby(primary, standby)
        standby.start()
        wait_for_standby(primary)
        primary.execute("SELECT pg_reload_conf()")
        yield PostgresPair([primary, standby])


def make_standby(primary: Server, standby: Server) -> None:
    """Replace the data of a server that is not running by a copy of the primary's."""
    data, port = standby.folder / "data", primary.url.rpartition(":")[2]
    shutil.rmtree(data, ignore_errors=True)
    owner = "postgres" if os.geteuid() == 0 else None
    program = databases._program("postgres", "PostgreSQL").with_name("pg_basebackup")
    options = (
        "--host=127.0.0.1",
        f"--port={port}",
        "--username=postgres",
        "--checkpoint=fast",
        "--write-recovery-conf",
    )
    _run(*databases._parent_death_prefix(owner), str(program), *options, "--no-sync", f"--pgdata={data}")


def wait_for_standby(primary: Server) -> None:
    """Wait until a standby receives the primary's log."""
    query = "SELECT count(*) || ' streaming' FROM pg_stat_replication WHERE state = 'streaming'"
    wait_until(lambda: "1 streaming" in _run(*primary.client, query), within_s=CATCH_UP_S)


def _is_standby(server: Server) -> bool:
    return "standby" in _run(*server.client, "SELECT CASE WHEN pg_is_in_recovery() THEN 'standby' ELSE 'primary' END")
