"""TLS of listeners and clients: who is accepted, mutual TLS, certificates that are replaced, slow handshakes."""

import asyncio
import logging
import shutil
import ssl
from pathlib import Path

import pytest
from tests.support.certificates import Certificates, make_certificates
from tests.support.raw_connection import open_raw_connection, running_listener
from tests.support.wait import eventually

from sparrow.model.errors import ConnectionLost, SettingsError
from sparrow.model.tls import Tls
from sparrow.net import Listener, connect
from sparrow.net.access import tls as tls_module
from sparrow.net.access.tls import client_context, http_context
from sparrow.net.channel import Channel
from sparrow.settings import ConsoleSettings, NetSettings
from sparrow.wire.frame import RemotingCommand, encode, response_to

ECHO = 7001


def echo(command: RemotingCommand, channel: Channel) -> None:
    channel.write(encode(response_to(command, 0, None, command.body)))


@pytest.fixture
def server_files(tmp_path: Path) -> Certificates:
    return make_certificates(tmp_path)


def settings_of(files: Certificates, **others: object) -> dict[str, object]:
    return {"tls_certificate": str(files.certificate), "tls_key": str(files.key), **others}


def trusting(files: Certificates, own: Certificates | None = None) -> ssl.SSLContext | None:
    if own is None:
        return client_context(Tls(authorities=str(files.authority)))
    return client_context(Tls(authorities=str(files.authority), certificate=str(own.certificate), key=str(own.key)))


async def test_large_frames_pass_in_both_directions(server_files):
    async with running_listener(echo, **settings_of(server_files)) as server:
        channel = await connect(server.address, tls=trusting(server_files))
        bodies = [bytes([n]) * (3 << 20) for n in range(4)]
        answers = await asyncio.gather(*(channel.request(ECHO, body=body, timeout_ms=30_000) for body in bodies))
        assert [answer.body for answer in answers] == bodies
        assert channel.address == str(server.address)
        (seen,) = server.channels
        assert seen.address.startswith("127.0.0.1:")
        channel.close()
        await eventually(lambda: not server.channels)


async def test_a_connection_without_tls_is_refused_where_tls_is_required(server_files, caplog):
    async with running_listener(echo, **settings_of(server_files)) as server:
        async with open_raw_connection(server.address) as wire:
            wire.write(RemotingCommand(ECHO, 1))
            assert await wire.is_closed_by_peer()
        assert (("tls",), 1) in server.listener.access_refusals()
    assert "does not use TLS, and net.tls_required is true" in caplog.text


async def test_one_port_serves_connections_with_and_without_tls(server_files):
    async with running_listener(echo, **settings_of(server_files, tls_required=False)) as server:
        plain, encrypted = await connect(server.address), await connect(server.address, tls=trusting(server_files))
        for channel in (plain, encrypted):
            assert (await channel.request(ECHO, body=b"me")).body == b"me"
            channel.close()


async def test_a_server_with_a_certificate_of_another_authority_is_not_trusted(server_files, tmp_path):
    (tmp_path / "other").mkdir()
    other = make_certificates(tmp_path / "other", "other")
    async with running_listener(echo, **settings_of(server_files)) as server:
        with pytest.raises(ConnectionLost, match=r"CERTIFICATE_VERIFY_FAILED.*authorities"):
            await connect(server.address, tls=trusting(other))
        unverified = await connect(server.address, tls=client_context(Tls(verifies=False)))
        unverified.close()


async def test_a_server_without_tls_is_reported(server_files):
    async with running_listener(echo) as server:
        with pytest.raises(ConnectionLost, match="no TLS connection"):
            await connect(server.address, tls=trusting(server_files))


async def test_mutual_tls_accepts_only_clients_with_a_certificate(server_files, tmp_path):
    (tmp_path / "client").mkdir()
    client = make_certificates(tmp_path / "client", "client")
    settings = settings_of(server_files, tls_client_authorities=str(client.authority))
    async with running_listener(echo, **settings) as server:
        with pytest.raises(ConnectionLost):
            # With TLS 1.3, a client learns only with the first answer that its certificate was refused.
            stranger = await connect(server.address, tls=trusting(server_files))
            await stranger.request(ECHO)
        assert (("tls",), 1) in server.listener.access_refusals()
        known = await connect(server.address, tls=trusting(server_files, client))
        assert (await known.request(ECHO, body=b"me")).body == b"me"
        known.close()
        assert not [channel for channel in server.channels if channel.requests_in_progress]


async def test_a_certificate_is_replaced_without_a_restart(server_files, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(tls_module, "_RELOAD_INTERVAL_S", 0.0)
    caplog.set_level(logging.INFO)
    (tmp_path / "next").mkdir()
    following = make_certificates(tmp_path / "next")
    async with running_listener(echo, **settings_of(server_files)) as server:
        before = await connect(server.address, tls=trusting(server_files))
        server_files.certificate.write_text("half a file")
        broken = await connect(server.address, tls=trusting(server_files))  # the one before stays in use
        assert "the new certificate is not used" in caplog.text
        shutil.copy(following.key, server_files.key)
        shutil.copy(following.certificate, server_files.certificate)
        after = await connect(server.address, tls=trusting(following))
        for channel in (before, broken, after):  # open connections go on
            assert (await channel.request(ECHO, body=b"me")).body == b"me"
            channel.close()


async def test_a_peer_that_starts_no_handshake_is_disconnected(server_files, monkeypatch, caplog):
    monkeypatch.setattr(tls_module, "HANDSHAKE_TIMEOUT_S", 0.2)
    async with running_listener(echo, **settings_of(server_files)) as server:
        async with open_raw_connection(server.address) as silent, open_raw_connection(server.address) as slow:
            slow.write(b"\x16\x03\x01")  # the start of a handshake
            assert await silent.is_closed_by_peer()
            assert await slow.is_closed_by_peer()
    assert "no handshake within" in caplog.text


async def test_handshakes_count_as_connections(server_files):
    async with running_listener(echo, **settings_of(server_files, connections_max=2)) as server:
        async with open_raw_connection(server.address), open_raw_connection(server.address):
            with pytest.raises(ConnectionLost):
                await connect(server.address, tls=trusting(server_files))
            assert server.listener.refused == 1


async def test_a_listener_stops_in_the_middle_of_a_handshake(server_files):
    async with running_listener(echo, **settings_of(server_files)) as server:
        async with open_raw_connection(server.address) as wire:
            wire.write(b"\x16")
            await asyncio.wait_for(server.listener.stop(), 12)
            assert await wire.is_closed_by_peer()


async def test_an_http_port_serves_a_replaced_certificate_to_new_connections(server_files, tmp_path, monkeypatch):
    monkeypatch.setattr(tls_module, "_RELOAD_INTERVAL_S", 0.0)
    (tmp_path / "next").mkdir()
    following = make_certificates(tmp_path / "next")
    context = http_context(ConsoleSettings.model_validate(settings_of(server_files)))
    assert http_context(ConsoleSettings()) is None

    async def greet(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"hello\n")

    async def greeting(files: Certificates) -> bytes:
        # The address is no host name, so the client names no server in its handshake.
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=trusting(files))
        try:
            return await reader.readline()
        finally:
            writer.close()

    async with await asyncio.start_server(greet, "127.0.0.1", 0, ssl=context) as server:
        port = server.sockets[0].getsockname()[1]
        assert await greeting(server_files) == b"hello\n"
        server_files.certificate.write_text("half a file")
        assert await greeting(server_files) == b"hello\n"
        shutil.copy(following.key, server_files.key)
        shutil.copy(following.certificate, server_files.certificate)
        assert await greeting(following) == b"hello\n"
        with pytest.raises(ssl.SSLCertVerificationError):
            await greeting(server_files)


def test_files_that_cannot_be_used_are_named(server_files, tmp_path):
    with pytest.raises(SettingsError, match=r"missing\.pem"):
        Listener(echo, NetSettings(tls_certificate=str(tmp_path / "missing.pem"))).bind("127.0.0.1", 0)
    with pytest.raises(SettingsError, match=r"authorities\.pem"):
        client_context(Tls(authorities=str(tmp_path / "authorities.pem")))
    with pytest.raises(ValueError, match="need tls_certificate"):
        NetSettings(tls_key=str(server_files.key))
