"""How a client encrypts its connections."""

from __future__ import annotations

import os

import msgspec

AUTHORITIES_VARIABLE = "SPARROW_TLS_AUTHORITIES"
"""The environment variable with the authorities of clients that are given none; it switches TLS on."""
CERTIFICATE_VARIABLE = "SPARROW_TLS_CERTIFICATE"
KEY_VARIABLE = "SPARROW_TLS_KEY"


class Tls(msgspec.Struct, frozen=True, kw_only=True):
    """TLS to name servers and brokers. All files are PEM.

    Tls(authorities="ca.pem")                                        # verify the servers
    Tls(authorities="ca.pem", certificate="me.pem", key="me.key")    # and show who we are (mutual TLS)
    """

    authorities: str | None = None
    """The certificates that may sign those of servers; None uses the authorities of the system."""
    certificate: str | None = None
    """The certificate of this client, for servers that ask for one."""
    key: str | None = None
    """The key of the certificate; None if the file of the certificate contains it."""
    verifies: bool = True
    """Whether the certificate of a server is verified. Without, anyone in between can read and change everything."""
    checks_host: bool = True
    """Whether the certificate must name the address that the client connects to."""

    def __repr__(self) -> str:
        return f"Tls(authorities={self.authorities!r}, certificate={self.certificate!r})"


def default_tls() -> Tls | None:
    """Return how a client that is given nothing connects: as `SPARROW_TLS_AUTHORITIES` says, or without TLS."""
    authorities = os.environ.get(AUTHORITIES_VARIABLE)
    if not authorities:
        return None
    return Tls(
        authorities=authorities,
        certificate=os.environ.get(CERTIFICATE_VARIABLE) or None,
        key=os.environ.get(KEY_VARIABLE) or None,
    )
