"""Replicas that accept only mutual TLS and signed requests: a set fails over and is verified, a slave copies."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.certificates import Certificates, make_certificates
from tests.support.etcd import EtcdServer, etcd_cluster
from tests.support.platforms import send
from tests.support.replica_servers import LOG, equal_logs, fixed_server, leading_broker
from tests.support.replica_sets import Load, read_all, running_set

from sparrow.model.access.token import Credentials
from sparrow.model.errors import ConnectionLost, SettingsError
from sparrow.model.tls import Tls
from sparrow.nameserver.server import NameServer
from sparrow.net.access.peer_access import PeerAccess
from sparrow.net.access.tls import client_context
from sparrow.net.address import Address
from sparrow.net.channel import Channel
from sparrow.net.dialer import connect
from sparrow.replication.replica_connection import ReplicaConnection
from sparrow.replication.server import ReplicaServer
from sparrow.settings import BrokerSettings, NameServerSettings, NetSettings, ReplicationSettings
from sparrow.wire.codes import RequestCode, ResponseCode
from sparrow.wire.headers import QueryReplica
from sparrow.wire.signing import sign

ADMIN = Credentials("admin", "a-secret-key")


@pytest.fixture(scope="module")
def etcd() -> Iterator[EtcdServer]:
    with etcd_cluster() as (server,):
        yield server


@pytest.fixture
def files(tmp_path: Path) -> Certificates:
    return make_certificates(tmp_path)


@pytest.fixture
def net(files: Certificates) -> NetSettings:
    return NetSettings(
        tls_certificate=str(files.certificate),
        tls_key=str(files.key),
        tls_client_authorities=str(files.authority),
        tls_authorities=str(files.authority),
    )


@pytest.fixture
def tls(files: Certificates, monkeypatch: pytest.MonkeyPatch) -> Tls:
    """TLS of clients, which the environment gives to all clients of the test."""
    monkeypatch.setenv("SPARROW_TLS_AUTHORITIES", str(files.authority))
    monkeypatch.setenv("SPARROW_TLS_CERTIFICATE", str(files.certificate))
    monkeypatch.setenv("SPARROW_TLS_KEY", str(files.key))
    return Tls(authorities=str(files.authority), certificate=str(files.certificate), key=str(files.key))


@pytest.mark.thorough
async def test_a_set_with_mutual_tls_and_signatures_fails_over_and_is_verified(
    etcd: EtcdServer, tmp_path: Path, net: NetSettings, tls: Tls, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens = {ADMIN.access_key: ADMIN.secret_key}
    monkeypatch.setenv("SPARROW_BROKER__AUTH", "true")
    monkeypatch.setenv("SPARROW_BROKER__ADMIN_TOKENS", json.dumps(tokens))
    async with running_set(
        etcd.url,
        tmp_path,
        name_server=NameServerSettings(port=0, net=net),
        net=net,
        auth=True,
        auth_requires_challenge=True,
        admin_tokens=tokens,
    ) as replicas:
        async with Load(replicas.name_servers, credentials=ADMIN) as load:
            await load.more()
            first = await replicas.leader()
            await replicas.in_sync(1, 2, 3)
            await _refuses_strangers(str(replicas.servers[first].address), tls)
            killed = replicas.servers[first]
            killed.node.replica.leader = None  # as a killed process, which tells nobody
            await replicas.stop(first)
            await replicas.leader(but=first)
            await load.more()
            await replicas.start(first)
            await replicas.in_sync(1, 2, 3)
        assert "have the same log" in await replicas.succeeds("verify")
        assert set(load.acknowledged) <= set(await read_all(replicas.name_servers, credentials=ADMIN))
        # An operator without the environment of clients connects like a replica with the same settings.
        for name in ("AUTHORITIES", "CERTIFICATE", "KEY"):
            monkeypatch.setenv(f"SPARROW_BROKER__NET__TLS_{name}", os.environ[f"SPARROW_TLS_{name}"])
            monkeypatch.delenv(f"SPARROW_TLS_{name}")
        assert f"replica {await replicas.leader()} leads" in await replicas.succeeds("status", "--check")


async def _refuses_strangers(address: str, tls: Tls) -> None:
    """Assert that a replica answers neither without a certificate nor to a signature that can be replayed."""
    assert tls.authorities is not None
    for unknown in (None, Tls(authorities=tls.authorities)):
        with pytest.raises(ConnectionLost):
            async with ReplicaConnection(address, PeerAccess(unknown)) as stranger:
                await stranger.status()
    channel = await connect(Address.parse(address), tls=client_context(tls))
    replayed = await channel.request(RequestCode.QUERY_REPLICA, sign(QueryReplica(), b"", ADMIN), timeout_ms=30_000)
    channel.close()
    assert replayed.code == ResponseCode.NO_PERMISSION
    assert "challenge" in str(replayed.remark)


@pytest.mark.parametrize("finds_by_name_server", [True, False])
async def test_a_slave_copies_its_master_over_mutual_tls(
    tmp_path: Path, net: NetSettings, tls: Tls, finds_by_name_server: bool
) -> None:
    async with (
        NameServer(NameServerSettings(port=0, net=net)) as name_server,
        fixed_server(
            tmp_path / "m", str(name_server.address), role="async-master", admin_token="a secret", net=net
        ) as master,
    ):
        await leading_broker(master)
        channel: Channel = await PeerAccess(tls, Credentials("admin", "a secret")).connect(master.address)
        for number in range(10):
            await send(channel, "t", b"%d" % number)
        channel.close()
        by_name = {} if finds_by_name_server else {"master": str(master.address)}
        known = str(name_server.address) if finds_by_name_server else ""
        async with fixed_server(
            tmp_path / "s", known, role="slave", broker_id=1, admin_token="a secret", net=net, **by_name
        ) as slave:
            await equal_logs([master, slave])
            assert slave.store.written > 0


@pytest.mark.thorough
async def test_a_master_and_its_slave_change_to_tls_one_after_the_other(tmp_path: Path, net: NetSettings) -> None:
    accepting = net.model_copy(update={"tls_required": False, "tls_client_authorities": None, "tls_authorities": None})
    connecting = accepting.model_copy(update={"tls_authorities": net.tls_authorities})
    async with NameServer(NameServerSettings(port=0, net=accepting)) as name_server:
        addresses, length = str(name_server.address), 0
        for master_net, slave_net in ((accepting, None), (accepting, connecting), (connecting, net), (net, net)):
            async with (
                fixed_server(tmp_path / "m", addresses, role="async-master", net=master_net) as master,
                fixed_server(tmp_path / "s", addresses, role="slave", broker_id=1, net=slave_net) as slave,
            ):
                await leading_broker(master)
                await equal_logs([master, slave])
                assert slave.store.written > length, "each start of the master writes its epoch"
                length = slave.store.written


def test_replicas_that_require_tls_need_the_authorities_of_the_others(tmp_path: Path) -> None:
    settings = BrokerSettings(net=NetSettings(tls_certificate="server.pem"))
    with pytest.raises(SettingsError, match=r"tls_authorities.*replicas fetch from each other"):
        ReplicaServer(settings, tmp_path, LOG, ReplicationSettings(role="async-master"))
