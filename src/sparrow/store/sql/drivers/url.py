"""URLs of databases, such as `postgresql://me@db/messages`."""

from __future__ import annotations

import re
from typing import Literal, NamedTuple
from urllib.parse import unquote, urlsplit

from sparrow.model.errors import SettingsError

Dialect = Literal["mysql", "postgresql", "sqlite"]
"""Which SQL a database speaks; MariaDB speaks MySQL's."""


class DatabaseUrl(NamedTuple):
    """The parts of a database's URL."""

    dialect: Dialect
    host: str
    port: int
    user: str
    password: str
    name: str
    """The name of the database; for SQLite, the path of the file."""

    def __str__(self) -> str:
        """Without user and password, for messages."""
        return self.name if self.dialect == "sqlite" else f"{self.dialect}://{self.host}:{self.port}/{self.name}"


_SCHEMES: dict[str, tuple[Dialect, int]] = {
    "mysql": ("mysql", 3306),
    "mariadb": ("mysql", 3306),
    "postgresql": ("postgresql", 5432),
    "postgres": ("postgresql", 5432),
    "sqlite": ("sqlite", 0),
}
"""The dialect and the default port of each scheme."""


def parse_database_url(url: str) -> DatabaseUrl:
    """Parse `mysql://user:password@host:port/name`, `postgresql://...` or `sqlite:///path`."""
    parts = urlsplit(url)
    if parts.scheme not in _SCHEMES:
        raise _unusable(url, "mysql://user:password@host/name, postgresql://... or sqlite:///path")
    dialect, port = _SCHEMES[parts.scheme]
    if dialect == "sqlite":
        if parts.netloc or len(parts.path) < 2:
            raise _unusable(url, "sqlite:///relative/path or sqlite:////absolute/path")
        return DatabaseUrl(dialect, "", 0, "", "", unquote(parts.path[1:]))
    name = unquote(parts.path.strip("/"))
    try:
        port = parts.port or port
    except ValueError:
        raise _unusable(url, "a port number") from None
    if not parts.hostname or not name or "/" in name:
        raise _unusable(url, f"{parts.scheme}://user:password@host/name, with the database's name at the end,")
    return DatabaseUrl(
        dialect, parts.hostname, port, unquote(parts.username or ""), unquote(parts.password or ""), name
    )


def is_database_url(store: str) -> bool:
    """Return whether a store is given as a URL, not as a directory."""
    return "://" in store


def _unusable(url: str, suggestion: str) -> SettingsError:
    return SettingsError("store", re.sub(r":[^:@/]+@", ":***@", url), "the URL", suggestion)
