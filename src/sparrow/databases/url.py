"""URLs of databases, such as `postgresql://me@db/messages` or `mysql://me@a,b,c/messages?ssl_ca=/etc/ca.pem`.

`parse_database_url` is for the SQL store. The event bus leaves its URLs to SQLAlchemy, except what that does not know:
`split_hosts` takes the list of hosts out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal, NamedTuple
from urllib.parse import SplitResult, parse_qsl, unquote

from sparrow.model.errors import SettingsError

Dialect = Literal["mysql", "postgresql", "sqlite"]
"""Which SQL a database speaks; MariaDB speaks MySQL's."""

TLS_OPTIONS: Mapping[Dialect, tuple[str, ...]] = {
    "mysql": ("ssl", "ssl_ca", "ssl_cert", "ssl_key", "ssl_verify_cert", "ssl_verify_identity"),
    "postgresql": ("sslmode", "sslrootcert", "sslcert", "sslkey"),
    "sqlite": (),
}
"""The options of a URL about TLS: PyMySQL's names for MySQL, libpq's for PostgreSQL."""
TARGET_OPTION = "target_session_attrs"
_TARGETS = ("read-write", "primary")
"""What `target_session_attrs` may be. Both mean the same here: only a host that can be written is used."""


class DatabaseHost(NamedTuple):
    """A server of the database."""

    name: str
    port: int

    def __str__(self) -> str:
        return f"[{self.name}]:{self.port}" if ":" in self.name else f"{self.name}:{self.port}"


class DatabaseUrl(NamedTuple):
    """The parts of a database's URL."""

    dialect: Dialect
    hosts: tuple[DatabaseHost, ...]
    """The servers, the preferred one first; none for SQLite."""
    user: str
    password: str
    name: str
    """The name of the database; for SQLite, the path of the file."""
    options: Mapping[str, str] = {}

    def __str__(self) -> str:
        """Without user, password and options, for messages."""
        if self.dialect == "sqlite":
            return self.name
        return f"{self.dialect}://{','.join(map(str, self.hosts))}/{self.name}"


_SCHEMES: dict[str, tuple[Dialect, int]] = {
    "mysql": ("mysql", 3306),
    "mariadb": ("mysql", 3306),
    "postgresql": ("postgresql", 5432),
    "postgres": ("postgresql", 5432),
    "sqlite": ("sqlite", 0),
}
"""The dialect and the default port of each scheme."""
_HOST = re.compile(r"(?:\[([^\]]+)\]|([^:\[\]]*))(?::(\d{1,5}))?")
_FORMS = "mysql://user:password@host/name, postgresql://user:password@host/name or sqlite:///path"
_INVALID_HOST = "its host or port is not valid"
_VALID_HOST = "mysql://user:password@host:3306/name, and %2F for a slash in the password"


def parse_database_url(url: str) -> DatabaseUrl:
    """Parse `mysql://user:password@host:port/name`, `postgresql://...` or `sqlite:///path`, for the SQL store."""
    parts = _split(url)
    if parts.scheme not in _SCHEMES:
        raise _unusable(url, f"the scheme {parts.scheme!r} is unknown" if parts.scheme else "it has no scheme")
    dialect, default_port = _SCHEMES[parts.scheme]
    options = _parse_options(url, dialect, parts.query)
    if dialect == "sqlite":
        if parts.netloc or len(parts.path) < 2:
            reason = "it names a host, and SQLite has none" if parts.netloc else "it has no path"
            raise _unusable(url, reason, "sqlite:///relative/path or sqlite:////absolute/path")
        return DatabaseUrl(dialect, (), "", "", unquote(parts.path[1:]), options)
    account, hosts = _split_netloc(parts, default_port)
    if hosts is None:
        raise _unusable(url, _INVALID_HOST, _VALID_HOST)
    name = unquote(parts.path.strip("/"))
    if not hosts[0].name or not name or "/" in name:
        reason = "it has no host" if not hosts[0].name else "the part after the host is not one database name"
        raise _unusable(url, reason, f"{parts.scheme}://user:password@host/name")
    user, _, password = account.partition(":")
    return DatabaseUrl(dialect, hosts, unquote(user), unquote(password), name, options)


def split_hosts(url: str) -> tuple[str, tuple[DatabaseHost, ...]]:
    """Return the URL with its first host only, and all hosts; no host if it names fewer than two.

    The scheme may name a driver, as in `mysql+pymysql://a,b/shop`.
    """
    parts = _split(url)
    scheme = parts.scheme.partition("+")[0]
    if "," not in parts.netloc.rpartition("@")[2] or scheme not in _SCHEMES:
        return url, ()
    account, hosts = _split_netloc(parts, _SCHEMES[scheme][1])
    if hosts is None:
        raise SettingsError("database", url, "the URL", _VALID_HOST, _INVALID_HOST)
    netloc = f"{account}@{hosts[0]}" if account else str(hosts[0])
    return parts._replace(netloc=netloc).geturl(), hosts


def is_database_url(store: str) -> bool:
    """Return whether a store is given as a URL, not as a directory."""
    return "://" in store


def _split(url: str) -> SplitResult:
    """Split a URL. Unlike `urlsplit`, which newer versions of Python restrict, leave hosts as they are."""
    scheme, separator, rest = url.partition("://")
    if not separator:
        return SplitResult(url.partition(":")[0].lower() if ":" in url else "", "", "", "", "")
    before, _, fragment = rest.partition("#")
    location, _, query = before.partition("?")
    netloc, slash, path = location.partition("/")
    return SplitResult(scheme.lower(), netloc, slash + path, query, fragment)


def _split_netloc(parts: SplitResult, default_port: int) -> tuple[str, tuple[DatabaseHost, ...] | None]:
    """Return the account and the hosts; None if a host or port is not valid."""
    account, _, rest = parts.netloc.rpartition("@")
    hosts = []
    for text in rest.split(","):
        found = _HOST.fullmatch(text)
        if found is None or ("," in rest and not (found[1] or found[2])):
            return account, None
        port = int(found[3] or default_port)
        if not 0 < port < 1 << 16:
            return account, None
        hosts.append(DatabaseHost((found[1] or found[2]).lower(), port))
    return account, tuple(hosts)


def _parse_options(url: str, dialect: Dialect, query: str) -> dict[str, str]:
    options = dict(parse_qsl(query, keep_blank_values=True))
    known = TLS_OPTIONS[dialect] + ((TARGET_OPTION,) if dialect == "postgresql" else ())
    for name in options:
        if name not in known:
            suggestion = f"one of {', '.join(known)}" if known else "no options"
            raise _unusable(url, f"the option {name!r} is unknown", suggestion)
    if options.get(TARGET_OPTION, _TARGETS[0]) not in _TARGETS:
        raise _unusable(url, "it asks for a host that may be read-only", f"{TARGET_OPTION}={_TARGETS[0]}")
    return options


def _unusable(url: str, reason: str, suggestion: str = _FORMS) -> SettingsError:
    return SettingsError("store", url, "the URL", suggestion, reason)
