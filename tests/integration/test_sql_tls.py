"""TLS from the SQL store and the event bus to a real database server, by the options of the URL."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from sqlalchemy import Connection
from tests.support.certificates import Certificates, make_certificates
from tests.support.tested_databases import database_server, databases_under_test

from sparrow.bus import EventBus
from sparrow.bus.sql.connections.database import is_unreachable
from sparrow.model.errors import SettingsError
from sparrow.store.sql.drivers.database import open_database
from sparrow.store.sql.drivers.errors import StoreDatabaseUnreachable

# By the name of a server: the settings of its certificate.
SERVER_SETTINGS = {
    "mariadb": ("ssl_ca", "ssl_cert", "ssl_key"),
    "mysql": ("ssl_ca", "ssl_cert", "ssl_key"),
    "postgresql": ("ssl_ca_file", "ssl_cert_file", "ssl_key_file"),
}
# What an option of each kind of test looks like: for MySQL and MariaDB, and for PostgreSQL.
ENCRYPTED = ("ssl=true", "sslmode=require")
AUTHORITY = ("ssl_ca={ca}", "sslmode=verify-ca&sslrootcert={ca}")
IDENTITY = ("ssl_ca={ca}&ssl_verify_identity=true", "sslmode=verify-full&sslrootcert={ca}")
OFF = ("ssl=false", "sslmode=disable")
CIPHER = {
    "mysql": "SHOW SESSION STATUS LIKE 'Ssl_cipher'",
    "postgresql": "SELECT 'cipher', COALESCE(cipher, '') FROM pg_stat_ssl WHERE pid = pg_backend_pid()",
}


class Secured(NamedTuple):
    """A database on a server with a certificate."""

    url: str
    certificates: Certificates
    others: Certificates
    """Certificates of another authority."""

    def with_options(self, options: tuple[str, str], *, ca: Path | None = None, host: str = "127.0.0.1") -> str:
        text = options[self.url.startswith("postgresql")].format(ca=ca or self.certificates.authority)
        return f"{self.url.replace('127.0.0.1', host)}?{text}"


@pytest.fixture(scope="module", params=databases_under_test("mariadb", "postgresql"))
def secured(request: pytest.FixtureRequest) -> Iterator[Secured]:
    """Start a server with a certificate for 127.0.0.1."""
    folder = Path(tempfile.mkdtemp(prefix="sparrow-tls-", dir="/tmp"))  # pytest's folders are closed to other users
    folder.chmod(0o755)
    try:
        ours, others = make_certificates(folder), make_certificates(folder, "other")
        if request.param == "postgresql" and os.geteuid() == 0:
            shutil.chown(ours.key, "postgres")
        settings: dict[str, object] = dict(zip(SERVER_SETTINGS[request.param], ours, strict=True))
        if request.param == "postgresql":
            settings["ssl"] = "on"
        with database_server(request.param, **settings) as server:
            yield Secured(server.new_database(), ours, others)
    finally:
        shutil.rmtree(folder)


async def store_is_encrypted(url: str) -> bool:
    database = await open_database(url)
    try:
        ((_, cipher),) = await database.fetch(CIPHER[database.dialect])
        return bool(cipher)
    finally:
        await database.close()


async def bus_is_encrypted(url: str) -> bool:
    """Return whether both engines encrypt, or none."""
    bus = EventBus(url, "memory://")

    def cipher(db: Connection) -> bool:
        ((_, cipher),) = db.exec_driver_sql(CIPHER[bus.database.kind]).all()
        return bool(cipher)

    try:
        by_asyncio, by_threads = await bus.database.run(cipher), bus.database.run_blocking(cipher)
        assert by_asyncio == by_threads
        return by_asyncio
    finally:
        await bus.database.close()


@pytest.mark.parametrize("options", [ENCRYPTED, AUTHORITY, IDENTITY], ids=["encrypted", "authority", "identity"])
async def test_connections_are_encrypted_as_the_url_asks(secured: Secured, options: tuple[str, str]) -> None:
    url = secured.with_options(options)
    assert await store_is_encrypted(url)
    assert await bus_is_encrypted(url)


async def test_encryption_can_be_switched_off(secured: Secured) -> None:
    url = secured.with_options(OFF)
    assert not await store_is_encrypted(url)
    assert not await bus_is_encrypted(url)


async def test_the_name_of_the_host_is_checked_only_where_the_url_asks(secured: Secured) -> None:
    assert await store_is_encrypted(secured.with_options(AUTHORITY, host="localhost"))
    assert await bus_is_encrypted(secured.with_options(AUTHORITY, host="localhost"))
    await assert_refused(secured.with_options(IDENTITY, host="localhost"))


@pytest.mark.parametrize("options", [AUTHORITY, IDENTITY], ids=["authority", "identity"])
async def test_a_certificate_of_an_unknown_authority_is_refused(secured: Secured, options: tuple[str, str]) -> None:
    await assert_refused(secured.with_options(options, ca=secured.others.authority))


async def assert_refused(url: str) -> None:
    with pytest.raises(StoreDatabaseUnreachable, match="certificate"):
        await open_database(url)
    bus = EventBus(url, "memory://")
    with pytest.raises(Exception, match="certificate") as by_asyncio:
        await bus.database.run(lambda db: None)
    with pytest.raises(Exception, match="certificate") as by_threads:
        bus.database.run_blocking(lambda db: None)
    assert is_unreachable(by_asyncio.value)
    assert is_unreachable(by_threads.value)
    await bus.database.close()


async def test_a_missing_file_is_named(secured: Secured) -> None:
    with pytest.raises(SettingsError, match=r"/no/such\.pem"):
        await open_database(secured.with_options(AUTHORITY, ca=Path("/no/such.pem")))
