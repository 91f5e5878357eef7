"""URLs of databases, such as `postgresql://me@db/messages`."""

from __future__ import annotations

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
_FORMS = "mysql://user:password@host/name, postgresql://user:password@host/name or sqlite:///path"


def parse_database_url(url: str) -> DatabaseUrl:
    """Parse `mysql://user:password@host:port/name`, `postgresql://...` or `sqlite:///path`."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise _unusable(
            url,
            "its host or port is not valid",
            "mysql://user:password@host:3306/name, and %2F for a slash in the password",
        ) from None
    if parts.scheme not in _SCHEMES:
        raise _unusable(url, f"the scheme {parts.scheme!r} is unknown" if parts.scheme else "it has no scheme")
    dialect, default_port = _SCHEMES[parts.scheme]
    if dialect == "sqlite":
        if parts.netloc or len(parts.path) < 2:
            reason = "it names a host, and SQLite has none" if parts.netloc else "it has no path"
            raise _unusable(url, reason, "sqlite:///relative/path or sqlite:////absolute/path")
        return DatabaseUrl(dialect, "", 0, "", "", unquote(parts.path[1:]))
    name = unquote(parts.path.strip("/"))
    if not parts.hostname or not name or "/" in name:
        reason = "it has no host" if not parts.hostname else "the part after the host is not one database name"
        raise _unusable(url, reason, f"{parts.scheme}://user:password@host/name")
    return DatabaseUrl(
        dialect,
        parts.hostname,
        port or default_port,
        unquote(parts.username or ""),
        unquote(parts.password or ""),
        name,
    )


def is_database_url(store: str) -> bool:
    """Return whether a store is given as a URL, not as a directory."""
    return "://" in store


def _unusable(url: str, reason: str, suggestion: str = _FORMS) -> SettingsError:
    return SettingsError("store", url, "the URL", suggestion, reason)
