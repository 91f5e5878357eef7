"""A real MySQL server, like those of `tests.support.databases`.

    with mysql_server() as server:
        url = server.new_database()

Debian's stable versions have no MySQL and call MariaDB `mysqld`. So the programs come from a small root of Debian
unstable, made with debootstrap: about a minute and 560 MB, once. The server itself runs outside of that root, with the
root's loader and libraries. Where a real MySQL is on the PATH, that one is used.
"""

from __future__ import annotations

import os
import platform
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support import databases
from tests.support.databases import Server, ServerNotInstalled, _free_port, _parent_death_prefix, _private_folder

# On a disk, and kept: the next run uses it again. Remove the folder to get a newer MySQL.
ROOT = Path(f"/var/tmp/sparrow-mysql-{os.geteuid()}")
SUITE, PACKAGE = "sid", "mysql-server-core"
ACCOUNTS = Path(__file__).with_name("mysql_accounts.sql")
ACCOUNT = "sparrow:sparrow"
"""An account of MySQL's default type, with a password: unlike one without, it needs the whole login protocol."""

MYSQL_SETTINGS = {
    "innodb_buffer_pool_size": "64M",
    "innodb_redo_log_capacity": "64M",
    "innodb_flush_log_at_trx_commit": 1,
    "innodb_buffer_pool_dump_at_shutdown": "OFF",
    "innodb_buffer_pool_load_at_startup": "OFF",
    "sync_binlog": 1,
    "max_connections": 200,
    "skip_name_resolve": "ON",
    "performance_schema": "OFF",
    "secure_file_priv": "NULL",
    "mysqlx": "OFF",
}


@contextmanager
def mysql_server(folder: Path | None = None, **settings: object) -> Iterator[Server]:
    """Run a MySQL server inside the context and remove it afterwards; its binary log is on, as by default."""
    daemon, port = _daemon(), _free_port()
    account = ("--user=root",) if os.geteuid() == 0 else ()
    # The initialization runs the file with the accounts, as the server's first statements.
    common = (*daemon, "--no-defaults", *account, f"--basedir={Path(daemon[-1]).parent.parent}")
    create = (*common, "--initialize-insecure", f"--init-file={ACCOUNTS}")
    create += (f"--innodb-redo-log-capacity={MYSQL_SETTINGS['innodb_redo_log_capacity']}", "--datadir={data}")
    with _private_folder(folder, owner=None) as private:
        data = private / "data"
        databases._copy_template(daemon, create, data, owner=None)
        wanted = MYSQL_SETTINGS | {
            "datadir": data,
            "tmpdir": private,
            "socket": private / "socket",
            "pid_file": private / "pid",
            "bind_address": "127.0.0.1",
            "port": port,
        }
        options = [f"--{name}={value}" for name, value in (wanted | settings).items()]
        client = (str(databases._program("mariadb", "MariaDB")), "--no-defaults", "--protocol=tcp", "--host=127.0.0.1")
        server = Server(
            f"mysql://{ACCOUNT}@127.0.0.1:{port}",
            private,
            (*_parent_death_prefix(None), *common, *options),
            (*client, f"--port={port}", "--user=root", "--execute"),
            signal.SIGKILL,
        )
        yield from databases._run_server(server)


def _daemon() -> tuple[str, ...]:
    """Return the command that starts `mysqld`; raise `ServerNotInstalled` if there is none."""
    own = databases._find("mysqld")
    if own is not None and "MariaDB" not in databases._run(str(own), "--version"):
        return (str(own),)
    if not ROOT.exists():
        raise MySqlNotInstalled("run `make mysql`, which makes it")
    (loader,) = ROOT.glob("usr/lib/*/ld-linux-*.so.*")
    return (str(loader), "--library-path", str(loader.parent), str(ROOT / "usr/sbin/mysqld"))


class MySqlNotInstalled(ServerNotInstalled):
    """There is no MySQL here."""

    def __init__(self, reason: str) -> None:
        Exception.__init__(self, f"no MySQL server found: {reason}")


# -- the root ---------------------------------------------------------------------------------------------------------


def make_root() -> None:
    """Make the root with MySQL's programs unless there is one; raise `MySqlNotInstalled` where that is impossible."""
    try:
        _daemon()
        return
    except MySqlNotInstalled:
        pass
    for is_missing, reason in (
        (os.geteuid() != 0, "debootstrap needs root"),
        (shutil.which("apt-get") is None, "this is no Debian"),
        (not _has_namespaces(), "namespaces and mounts are not permitted"),
    ):
        if is_missing:
            raise MySqlNotInstalled(reason)
    mirror = _mirror()
    if mirror is None:
        raise MySqlNotInstalled("apt has no source of Debian")
    debootstrap = databases._program("debootstrap", "debootstrap", ("debootstrap",))
    half_made = ROOT.with_suffix(".new")
    with databases._locked(databases._home()):
        if ROOT.exists():  # another process has made it meanwhile
            return
        shutil.rmtree(half_made, ignore_errors=True)
        command = (str(debootstrap), "--variant=minbase", f"--include={PACKAGE}", SUITE, str(half_made), mirror)
        # In namespaces of its own, so that no mount is left behind.
        contained = ("unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "--", *command)
        done = subprocess.run(contained, stdin=subprocess.DEVNULL, capture_output=True, text=True)
        if done.returncode != 0:
            shutil.rmtree(half_made, ignore_errors=True)
            raise MySqlNotInstalled(f"debootstrap failed: {(done.stdout + done.stderr).strip().splitlines()[-1]}")
        half_made.rename(ROOT)


def _has_namespaces() -> bool:
    command = ("unshare", "--mount", "--pid", "--fork", "--mount-proc", "true")
    return shutil.which("unshare") is not None and subprocess.run(command, capture_output=True).returncode == 0


def _mirror() -> str | None:
    """Return the address from which this machine has Debian."""
    release = platform.freedesktop_os_release().get("VERSION_CODENAME")
    listed = ("apt-get", "indextargets", "--format", "$(RELEASE) $(COMPONENT) $(REPO_URI)", "Created-By: Packages")
    for line in databases._run(*listed).splitlines():
        if line.startswith(f"{release} main "):
            return line.split()[2]
    return None


if __name__ == "__main__":
    try:
        make_root()
    except ServerNotInstalled as missing:
        sys.exit(str(missing))
