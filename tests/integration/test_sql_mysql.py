"""What MySQL has and MariaDB has not: accounts of type caching_sha2_password. For `make mysql`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(os.environ.get("SPARROW_DATABASE") != "mysql", reason="`make mysql` runs it")

NEEDED = (
    'a MySQL account of type caching_sha2_password, without TLS, needs cryptography: pip install "sparrowmq[mysql]"'
)


@pytest.fixture
def fresh_url(database_servers) -> str:
    """Return the URL of a database on a server that has not seen the account: later logins need no encryption."""
    server = database_servers("mysql")
    server.execute("FLUSH PRIVILEGES")  # forgets the accounts that have logged in
    return server.new_database()


def said_without_cryptography(code: str, folder: Path) -> str:
    """Run code in an interpreter without the package; return the last line of its error."""
    script = f"import sys\nsys.modules['cryptography'] = None\n{code}"
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, cwd=folder)
    assert done.returncode == 1, done.stdout
    return done.stderr.strip().splitlines()[-1]


def test_a_server_without_cryptography_names_the_extra(fresh_url: str, tmp_path: Path) -> None:
    code = f"from sparrow.cli.main import entry\nsys.argv = ['sparrow', 'up', '--store', {fresh_url!r}]\nentry()"
    assert said_without_cryptography(code, tmp_path) == f"sparrow: {NEEDED}"


def test_a_bus_without_cryptography_names_the_extra(fresh_url: str, tmp_path: Path) -> None:
    """The asyncio driver of the bus; the blocking one uses TLS where the server offers it, and needs no encryption."""
    code = f"import asyncio\nfrom sparrow.bus.aio import EventBus\nbus = EventBus({fresh_url!r}, 'memory://')\n"
    code += "asyncio.run(bus.prepare())"
    assert said_without_cryptography(code, tmp_path) == f"sparrow.model.errors.settings.MissingExtra: {NEEDED}"


def test_tls_needs_no_cryptography(fresh_url: str, tmp_path: Path) -> None:
    code = f"from sparrow.bus import EventBus\nbus = EventBus({fresh_url + '?ssl=true'!r}, 'memory://')\n"
    code += "bus.prepare(); bus.stop(); sys.exit('prepared')"
    assert said_without_cryptography(code, tmp_path) == "prepared"
