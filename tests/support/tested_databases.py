"""Which databases a run tests, and how the server of each is started."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager

from tests.support.databases import Server, mariadb_server, postgres_server
from tests.support.mysql import mysql_server


def databases_under_test(*names: str) -> list[str]:
    """Return the databases that a test runs on: those named, or with SPARROW_DATABASE=mysql, MySQL for MariaDB."""
    if os.environ.get("SPARROW_DATABASE") == "mysql":
        return [name.replace("mariadb", "mysql") for name in names if name.startswith("mariadb")]
    return list(names)


def database_server(name: str, **settings: object) -> AbstractContextManager[Server]:
    """Return a new server of a database, with these settings; it runs inside the context."""
    servers: dict[str, Callable[..., AbstractContextManager[Server]]] = {
        "mariadb": mariadb_server,
        "mysql": mysql_server,
        "postgresql": postgres_server,
    }
    return servers[name](**settings)
