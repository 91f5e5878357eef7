"""Connections of servers to other servers: certificates that are replaced while the server runs."""

import shutil
from pathlib import Path

import pytest
from tests.support.certificates import make_certificates
from tests.support.raw_connection import running_listener

from sparrow.model.errors import ConnectionLost, SettingsError
from sparrow.model.tls import Tls
from sparrow.net.access import tls as tls_module
from sparrow.net.access.peer_access import PeerAccess
from sparrow.net.channel import Channel
from sparrow.wire.frame import RemotingCommand, encode, response_to

ECHO = 7001


def echo(command: RemotingCommand, channel: Channel) -> None:
    channel.write(encode(response_to(command, 0, None, command.body)))


async def test_a_certificate_and_authorities_are_replaced_without_a_restart(tmp_path, monkeypatch):
    monkeypatch.setattr(tls_module, "_RELOAD_INTERVAL_S", 0.0)
    old, new = (make_certificates(tmp_path, name) for name in ("old", "new"))
    own = [Path(shutil.copy(file, tmp_path / f"own-{file.name[4:]}")) for file in old]
    access = PeerAccess(Tls(authorities=str(own[0]), certificate=str(own[1]), key=str(own[2])))
    settings = {
        "tls_certificate": str(new.certificate),
        "tls_key": str(new.key),
        "tls_client_authorities": str(new.authority),
    }
    async with running_listener(echo, **settings) as server:
        with pytest.raises(ConnectionLost, match="CERTIFICATE_VERIFY_FAILED"):
            await access.connect(server.address)
        for source, target in zip(new, own, strict=True):
            shutil.copy(source, target)
        channel = await access.connect(server.address, timeout_ms=30_000)
        assert (await channel.request(ECHO, body=b"me", timeout_ms=30_000)).body == b"me"
        channel.close()


def test_files_that_cannot_be_used_are_named(tmp_path):
    with pytest.raises(SettingsError, match=r"missing\.pem"):
        PeerAccess(Tls(authorities=str(tmp_path / "missing.pem")))
