"""URLs of databases: their parts, and what is said about one that cannot be used."""

import pytest

from sparrow.model.errors import SettingsError
from sparrow.store.sql.drivers.url import DatabaseUrl, parse_database_url


@pytest.mark.parametrize(
    ("url", "parts"),
    [
        ("mysql://me:p%2Fw@db/shop", DatabaseUrl("mysql", "db", 3306, "me", "p/w", "shop")),
        ("mariadb://db:3307/shop", DatabaseUrl("mysql", "db", 3307, "", "", "shop")),
        ("postgres://me@db/shop", DatabaseUrl("postgresql", "db", 5432, "me", "", "shop")),
        ("sqlite:///data/shop.db", DatabaseUrl("sqlite", "", 0, "", "", "data/shop.db")),
        ("sqlite:////data/shop.db", DatabaseUrl("sqlite", "", 0, "", "", "/data/shop.db")),
    ],
)
def test_parts_of_a_url(url, parts):
    assert parse_database_url(url) == parts


@pytest.mark.parametrize(
    ("url", "reason", "suggestion"),
    [
        ("oracle://me:secret@db/shop", "the scheme 'oracle' is unknown", "mysql://user:password@host/name, postgresql"),
        ("data/shop.db", "it has no scheme", "mysql://user:password@host/name, postgresql"),
        ("mysql://me:secret@db:many/shop", "its host or port is not valid", "mysql://user:password@host:3306/name"),
        ("mysql://me:sec/secret@db/shop", "its host or port is not valid", "mysql://user:password@host:3306/name"),
        ("mysql://me:secret@db", "the part after the host is not one database name", "mysql://user:password@host/name"),
        ("postgresql:///shop", "it has no host", "postgresql://user:password@host/name"),
        ("sqlite://shop.db", "it names a host, and SQLite has none", "sqlite:///relative/path or sqlite:////absolute"),
        ("sqlite://", "it has no path", "sqlite:///relative/path or sqlite:////absolute"),
    ],
)
def test_a_bad_url_is_refused_with_the_reason_the_url_without_its_password_and_what_to_write(url, reason, suggestion):
    with pytest.raises(SettingsError) as refused:
        parse_database_url(url)
    said = str(refused.value)
    assert said.startswith(f"store = {hidden(url)!r} cannot be used: {reason}. Write {suggestion}")
    assert "secret" not in said


def hidden(url: str) -> str:
    return url.replace("sec/secret", "***").replace("secret", "***")
