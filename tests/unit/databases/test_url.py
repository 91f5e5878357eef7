"""URLs of databases: their parts, and what is said about one that cannot be used."""

import pytest

from sparrow.databases.url import DatabaseHost, DatabaseUrl, parse_database_url, split_hosts
from sparrow.model.errors import SettingsError


@pytest.mark.parametrize(
    ("url", "parts"),
    [
        ("mysql://me:p%2Fw@db/shop", DatabaseUrl("mysql", (DatabaseHost("db", 3306),), "me", "p/w", "shop")),
        ("mariadb://db:3307/shop", DatabaseUrl("mysql", (DatabaseHost("db", 3307),), "", "", "shop")),
        ("postgres://me@db/shop", DatabaseUrl("postgresql", (DatabaseHost("db", 5432),), "me", "", "shop")),
        (
            "mysql://me:pw@a,b:3307,[::1]/shop",
            DatabaseUrl(
                "mysql",
                (DatabaseHost("a", 3306), DatabaseHost("b", 3307), DatabaseHost("::1", 3306)),
                *("me", "pw", "shop"),
            ),
        ),
        (
            "postgresql://a,b/shop?target_session_attrs=read-write",
            DatabaseUrl(
                *("postgresql", (DatabaseHost("a", 5432), DatabaseHost("b", 5432)), "", "", "shop"),
                {"target_session_attrs": "read-write"},
            ),
        ),
        ("mysql://[::1]:3307/shop", DatabaseUrl("mysql", (DatabaseHost("::1", 3307),), "", "", "shop")),
        (
            "mysql://db/shop?ssl_ca=/etc/my%20ca.pem&ssl_verify_identity=true",
            DatabaseUrl(
                *("mysql", (DatabaseHost("db", 3306),), "", "", "shop"),
                {"ssl_ca": "/etc/my ca.pem", "ssl_verify_identity": "true"},
            ),
        ),
        ("sqlite:///data/shop.db", DatabaseUrl("sqlite", (), "", "", "data/shop.db")),
        ("sqlite:////data/shop.db", DatabaseUrl("sqlite", (), "", "", "/data/shop.db")),
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
        ("mysql://me:secret@db:70000/shop", "its host or port is not valid", "mysql://user:password@host:3306/name"),
        ("mysql://a,,b/shop", "its host or port is not valid", "mysql://user:password@host:3306/name"),
        (
            "postgresql://a,b/shop?target_session_attrs=any",
            "it asks for a host that may be read-only",
            "target_session",
        ),
        ("mysql://db/shop?sslmode=require", "the option 'sslmode' is unknown", "one of ssl, ssl_ca, ssl_cert"),
        ("postgresql://db/shop?charset=utf8", "the option 'charset' is unknown", "one of sslmode, sslrootcert"),
        ("sqlite:///shop.db?mode=ro", "the option 'mode' is unknown", "no options"),
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


def test_messages_name_all_hosts_and_no_password():
    assert str(parse_database_url("mysql://me:secret@a,b:3307/shop?ssl=true")) == "mysql://a:3306,b:3307/shop"


@pytest.mark.parametrize(
    ("url", "one", "hosts"),
    [
        ("mysql+pymysql://me:p%2Cw@a,b:3307/shop?x=1", "mysql+pymysql://me:p%2Cw@a:3306/shop?x=1", "a:3306 b:3307"),
        ("postgresql://a,b/shop", "postgresql://a:5432/shop", "a:5432 b:5432"),
        ("postgresql://me@a/shop", "postgresql://me@a/shop", ""),
        ("sqlite:///a,b.db", "sqlite:///a,b.db", ""),
    ],
)
def test_the_bus_gets_a_url_with_one_host_and_the_hosts(url, one, hosts):
    assert (split_hosts(url)[0], " ".join(map(str, split_hosts(url)[1]))) == (one, hosts)
