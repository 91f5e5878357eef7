"""A real etcd: private, on loopback, and ended with the process that started it; also a newer one than Debian's."""

from __future__ import annotations

import fcntl
import signal
import ssl
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from tests.support.certificates import Certificates
from tests.support.databases import ROOT_FOLDER, Server, _free_port, _parent_death_prefix, _private_folder, _program
from tests.support.message_brokers import PACKAGES

FETCH_TIMEOUT_S = 120


@dataclass(eq=False)
class EtcdServer(Server):
    """A member of an etcd cluster; `url` is its client endpoint."""

    tls: Certificates | None = None

    def _is_ready(self) -> bool:
        try:
            verify: ssl.SSLContext | bool = True if self.tls is None else self.tls_context()
            answer = httpx.get(f"{self.url}/health", timeout=1, trust_env=False, verify=verify)
            return answer.json().get("health") == "true"
        except (httpx.HTTPError, ValueError):
            return False

    def tls_context(self) -> ssl.SSLContext:
        """Return a context that trusts the server, and shows the server's own certificate as a client's."""
        assert self.tls is not None
        context = ssl.create_default_context(cafile=str(self.tls.authority))
        context.load_cert_chain(str(self.tls.certificate), str(self.tls.key))
        return context


def newer_etcd() -> Path:
    """Return the program of Debian unstable's etcd, unpacked below the folder of the test servers.

    Fetched once with apt, without changing this machine; skips the test with the reason where that is not possible.
    """
    folder = ROOT_FOLDER / "etcd-newer"
    program = folder / "unpacked" / "usr" / "bin" / "etcd"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not program.exists():
            try:
                _fetch_newer_etcd(folder)
            except (OSError, subprocess.SubprocessError, IndexError) as error:
                pytest.skip(f"Debian unstable's etcd-server cannot be fetched: {error}")
    try:
        subprocess.run([program, "--version"], check=True, capture_output=True, timeout=30)
    except (OSError, subprocess.SubprocessError) as error:
        pytest.skip(f"Debian unstable's etcd-server does not run here: {error}")
    return program


def _fetch_newer_etcd(folder: Path) -> None:
    (folder / "lists" / "partial").mkdir(parents=True, exist_ok=True)
    (folder / "cache" / "archives" / "partial").mkdir(parents=True, exist_ok=True)
    sources = folder / "sources.list"
    sources.write_text("deb [trusted=yes] http://deb.debian.org/debian unstable main\n")
    options = [
        *(
            f"Dir::Etc::SourceList={sources}",
            "Dir::Etc::SourceParts=/dev/null",
            f"Dir::State::Lists={folder / 'lists'}",
        ),
        *(f"Dir::Cache={folder / 'cache'}", "Acquire::Languages=none", "Acquire::http::Timeout=20"),
    ]
    apt = ["apt-get", "-q", *(word for option in options for word in ("-o", option))]
    for words in ("update", "download etcd-server"):
        command = [*apt, *words.split()]
        subprocess.run(command, check=True, capture_output=True, cwd=folder, timeout=FETCH_TIMEOUT_S)
    package = sorted(folder.glob("etcd-server_*.deb"))[-1]
    subprocess.run(["dpkg-deb", "-x", str(package), str(folder / "unpacked")], check=True, timeout=60)


@contextmanager
def etcd_cluster(
    members: int = 1, *, program: Path | None = None, tls: Certificates | None = None
) -> Iterator[list[EtcdServer]]:
    """Run etcd members that elect quickly: a lease of one second is granted, and a dead member is noticed soon.

    `program`: another etcd than the one that is installed. `tls`: clients connect with TLS and show a certificate.
    """
    program = program or _program("etcd", "etcd", PACKAGES)
    scheme = "http" if tls is None else "https"
    secured = (
        ()
        if tls is None
        else (
            *(f"--cert-file={tls.certificate}", f"--key-file={tls.key}"),
            *("--client-cert-auth", f"--trusted-ca-file={tls.authority}"),
        )
    )
    ports = [(_free_port(), _free_port()) for _ in range(members)]
    cluster = ",".join(f"m{number}=http://127.0.0.1:{peer}" for number, (_, peer) in enumerate(ports))
    with ExitStack() as stack:
        servers = []
        for number, (client, peer) in enumerate(ports):
            folder = stack.enter_context(_private_folder(None, owner=None))
            client_url, peer_url = f"{scheme}://127.0.0.1:{client}", f"http://127.0.0.1:{peer}"
            command = (
                *_parent_death_prefix(None),
                *(str(program), f"--name=m{number}", f"--data-dir={folder / 'data'}", "--unsafe-no-fsync"),
                *(f"--listen-client-urls={client_url}", f"--advertise-client-urls={client_url}"),
                *(f"--listen-peer-urls={peer_url}", f"--initial-advertise-peer-urls={peer_url}"),
                *(f"--initial-cluster={cluster}", "--heartbeat-interval=50", "--election-timeout=500"),
                *secured,
            )
            servers.append(EtcdServer(client_url, folder, command, (), signal.SIGKILL, tls=tls))
        try:
            # Together: a member answers once a majority is there.
            with ThreadPoolExecutor(members) as starters:
                list(starters.map(EtcdServer.start, servers))
            yield servers
        finally:
            for server in servers:
                server.stop()
