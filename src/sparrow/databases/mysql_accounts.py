"""Accounts of MySQL: what the login of its default type needs."""

from __future__ import annotations

from sparrow.extras import require


def require_cryptography() -> None:
    """Raise `MissingExtra` if `cryptography` is not installed.

    To log in to an account of type caching_sha2_password without TLS, the drivers encrypt the password with it. They
    raise `RuntimeError` without it.
    """
    require("cryptography", extra="mysql", for_="a MySQL account of type caching_sha2_password, without TLS,")
