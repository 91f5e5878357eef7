"""TLS options of database URLs: what they ask for, and what is said about options that cannot be used."""

import ssl

import pytest

from sparrow.databases.tls import mysql_tls, postgres_tls, tls_arguments
from sparrow.model.errors import SettingsError


@pytest.mark.parametrize(
    ("options", "verify_mode", "checks_host"),
    [
        ({"ssl": "true"}, ssl.CERT_NONE, False),
        ({"ssl_verify_cert": "true"}, ssl.CERT_REQUIRED, False),
        ({"ssl_verify_identity": "true"}, ssl.CERT_REQUIRED, True),
    ],
)
def test_options_of_mysql(options, verify_mode, checks_host):
    context = mysql_tls(options)
    assert isinstance(context, ssl.SSLContext)
    assert (context.verify_mode, context.check_hostname) == (verify_mode, checks_host)


@pytest.mark.parametrize(
    ("mode", "verify_mode", "checks_host"),
    [
        ("require", ssl.CERT_NONE, False),
        ("verify-ca", ssl.CERT_REQUIRED, False),
        ("verify-full", ssl.CERT_REQUIRED, True),
    ],
)
def test_modes_of_postgresql(mode, verify_mode, checks_host):
    context = postgres_tls({"sslmode": mode})
    assert isinstance(context, ssl.SSLContext)
    assert (context.verify_mode, context.check_hostname) == (verify_mode, checks_host)


def test_a_connection_may_be_unencrypted_if_the_url_says_so_or_nothing():
    assert (mysql_tls({}), mysql_tls({"ssl": "off"})) == (None, False)
    assert (postgres_tls({}), postgres_tls({"sslmode": "prefer"})) == (None, "prefer")


def test_a_driver_that_understands_the_options_keeps_them():
    assert tls_arguments("postgresql", "psycopg", {"sslmode": "require"}) is None
    assert tls_arguments("postgresql", "asyncpg", {"sslmode": "disable"}) == {"ssl": "disable"}
    assert tls_arguments("mysql", "pymysql", {"ssl": "false"}) == {"ssl_disabled": True}


def test_values_that_mean_nothing_are_refused():
    with pytest.raises(SettingsError, match=r"ssl = 'maybe'.*true or false"):
        mysql_tls({"ssl": "maybe"})
    with pytest.raises(SettingsError, match=r"sslmode = 'full'.*verify-full"):
        postgres_tls({"sslmode": "full"})
