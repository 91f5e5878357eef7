"""TLS to a database, as the options of its URL ask for.

MySQL and MariaDB, with PyMySQL's names:

    ssl=true                   encrypt; do not verify the certificate
    ssl_ca=FILE                encrypt and verify the certificate with these authorities
    ssl_verify_cert=true       verify it; without ssl_ca, with the authorities of the system
    ssl_verify_identity=true   verify also that it names the host
    ssl_cert=FILE, ssl_key=FILE    the certificate of the client

PostgreSQL, with libpq's names: `sslmode` (disable, allow, prefer, require, verify-ca, verify-full), `sslrootcert`,
`sslcert`, `sslkey`. As in libpq, `require` with `sslrootcert` verifies the certificate.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping

from sparrow.databases.url import TLS_OPTIONS, Dialect
from sparrow.model.errors import SettingsError

_YES, _NO = ("true", "1", "yes", "on"), ("false", "0", "no", "off")
_OPTIONAL_MODES = ("disable", "allow", "prefer")
"""Modes in which the connection may be unencrypted."""
_MODES = (*_OPTIONAL_MODES, "require", "verify-ca", "verify-full")


def mysql_tls(options: Mapping[str, str]) -> ssl.SSLContext | bool | None:
    """Return the context; False if TLS is switched off, None if the URL does not mention it."""
    named = [name for name in TLS_OPTIONS["mysql"] if name in options]
    if not named:
        return None
    if not _flag(options, "ssl", True):
        return False
    authorities = options.get("ssl_ca")
    checks_host = _flag(options, "ssl_verify_identity", False)
    verifies = checks_host or _flag(options, "ssl_verify_cert", authorities is not None)
    return _context(authorities, verifies, checks_host, options.get("ssl_cert"), options.get("ssl_key"))


def postgres_tls(options: Mapping[str, str]) -> ssl.SSLContext | str | None:
    """Return the context; a mode if the connection may be unencrypted, None if the URL does not mention TLS."""
    authorities = options.get("sslrootcert")
    mode = options.get("sslmode")
    if mode is None:
        if not any(name in options for name in TLS_OPTIONS["postgresql"]):
            return None
        mode = "require"
    if mode not in _MODES:
        raise SettingsError("sslmode", mode, "the URL", ", ".join(_MODES))
    if mode in _OPTIONAL_MODES:
        return mode
    verifies = mode != "require" or authorities is not None
    return _context(authorities, verifies, mode == "verify-full", options.get("sslcert"), options.get("sslkey"))


def tls_arguments(dialect: Dialect, driver: str, options: Mapping[str, str]) -> dict[str, object] | None:
    """Return the arguments about TLS for a driver's `connect`; None if the driver understands the options itself."""
    if dialect == "mysql" and driver in ("asyncmy", "pymysql", "aiomysql"):
        context = mysql_tls(options)
        if context is False:
            return {"ssl_disabled": True} if driver == "pymysql" else {}
        return {} if context is None else {"ssl": context}
    if dialect == "postgresql" and driver == "asyncpg":
        wanted = postgres_tls(options)
        return {} if wanted is None else {"ssl": wanted}
    return None


def _context(
    authorities: str | None, verifies: bool, checks_host: bool, certificate: str | None, key: str | None
) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=authorities)
        context.check_hostname = checks_host
        context.verify_mode = ssl.CERT_REQUIRED if verifies else ssl.CERT_NONE
        if certificate is not None:
            context.load_cert_chain(certificate, key)
    except (OSError, ssl.SSLError) as cause:
        files = ", ".join(file for file in (authorities, certificate, key) if file is not None)
        raise SettingsError(
            "ssl", files, "the URL", "files that hold certificates and a key (PEM)", str(cause)
        ) from cause
    return context


def _flag(options: Mapping[str, str], name: str, default: bool) -> bool:
    value = options.get(name, "true" if default else "false").lower()
    if value not in _YES + _NO:
        raise SettingsError(name, value, "the URL", "true or false")
    return value in _YES
