"""etcd with TLS, client certificates and accounts, as the coordinator of replica sets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import pytest
from pydantic import SecretStr
from tests.support.certificates import Certificates, make_certificates
from tests.support.etcd import EtcdServer, etcd_cluster, newer_etcd
from tests.support.replica_sets import sparrow

from sparrow.model.errors import Refused, SettingsError, SparrowError, Unavailable
from sparrow.replication.coordinator import CallOutcome
from sparrow.replication.core.membership import ReplicaSetState
from sparrow.replication.core.output import Elect
from sparrow.replication.etcd.coordinator import EtcdCoordinator
from sparrow.replication.etcd.gateway import EtcdGateway, open_gateway
from sparrow.settings import ReplicationSettings

KEYS = {"permType": "READWRITE", "key": "c3BhcnJvdy8=", "range_end": "c3BhcnJvdzA="}
"""All that begin with `sparrow/`, up to `sparrow0`."""
ROOT_PASSWORD, PASSWORD = "of-the-root", "of-sparrow"
STATE = ReplicaSetState(set_id="set", members=(1,), min_in_sync=1, in_sync={1: "a"}, change_id="first")


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    # With a common name in a client's certificate, etcd's gateway refuses every call while accounts are on.
    return make_certificates(tmp_path_factory.mktemp("certificates"), "etcd", has_common_name=False)


@pytest.fixture(scope="module", params=["installed", pytest.param("newer", marks=pytest.mark.thorough)])
def etcd(request: pytest.FixtureRequest, certificates: Certificates) -> Iterator[EtcdServer]:
    """An etcd that accepts TLS with client certificates only, and has an account `sparrow` with its own keys."""
    program = newer_etcd() if request.param == "newer" else None
    with etcd_cluster(program=program, tls=certificates) as (server,):
        with httpx.Client(base_url=server.url, verify=server.tls_context(), trust_env=False) as client:
            for path, body in (
                ("user/add", {"name": "root", "password": ROOT_PASSWORD}),
                ("user/grant", {"user": "root", "role": "root"}),
                ("role/add", {"name": "sparrow"}),
                (
                    "role/grant",
                    {
                        "name": "sparrow",
                        "perm": {"permType": "READWRITE", "key": "c3BhcnJvdy8=", "range_end": "c3BhcnJvdzA="},
                    },
                ),
                ("user/add", {"name": "sparrow", "password": PASSWORD}),
                ("user/grant", {"user": "sparrow", "role": "sparrow"}),
                ("user/add", {"name": "stranger", "password": PASSWORD}),
                ("auth/enable", {}),
            ):
                prefix = "" if path == "auth/enable" else "auth/"
                client.post(f"/v3/{prefix}{path}", json=body).raise_for_status()
        yield server


def settings(etcd: EtcdServer, certificates: Certificates, /, **changes: object) -> ReplicationSettings:
    given = {
        "etcd": etcd.url,
        "etcd_ca": str(certificates.authority),
        "etcd_cert": str(certificates.certificate),
        "etcd_key": str(certificates.key),
        "etcd_user": "sparrow",
        "etcd_password": SecretStr(PASSWORD),
    }
    return ReplicationSettings(**{**given, **changes})  # type: ignore[arg-type]


@pytest.fixture
async def gateway(etcd: EtcdServer, certificates: Certificates) -> AsyncIterator[EtcdGateway]:
    connected = open_gateway(settings(etcd, certificates))
    yield connected
    await connected.close()


async def test_a_replica_elects_renews_and_watches_with_certificate_and_account(gateway: EtcdGateway) -> None:
    replica = EtcdCoordinator(gateway, "test", "secured", 1, ttl_s=1)
    await replica.initialise(STATE)
    snapshot = await replica.read()
    assert snapshot is not None
    elected = ReplicaSetState(
        set_id="set", members=(1,), min_in_sync=1, epoch=1, leader=1, in_sync={1: "a"}, change_id="x"
    )
    election = Elect(state=elected, state_revision=snapshot.state_revision, leader_revision=0)
    assert await replica.elect(election) is CallOutcome.APPLIED
    assert await replica.renew()

    async def watched() -> None:
        async for seen in replica.watch():
            if seen.addresses:
                return

    watching = asyncio.create_task(watched())
    await replica.announce()
    await asyncio.wait_for(watching, 20)


async def test_a_token_that_is_over_is_replaced(gateway: EtcdGateway) -> None:
    assert (await gateway.range("sparrow/none/")).keys == []
    gateway._token = "not-a-token"  # as one that has expired
    assert (await gateway.range("sparrow/none/")).keys == []


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"etcd_password": SecretStr("wrong")}, "does not accept the account or its password"),
        ({"etcd_user": ""}, "requires an account"),
        ({"etcd_password": None}, "needs a password"),
        ({"etcd_user": "stranger"}, "grant it a role"),
        ({"etcd_cert": "", "etcd_key": ""}, "cannot be reached|did not answer"),
        ({"etcd_ca": ""}, "cannot be reached"),
    ],
    ids=["wrong password", "no account", "no password", "no role", "no certificate", "unknown authority"],
)
async def test_a_client_without_rights_is_refused_with_a_sentence(
    etcd: EtcdServer, certificates: Certificates, changes: dict[str, object], sentence: str
) -> None:
    refused = open_gateway(settings(etcd, certificates, **changes))
    with pytest.raises((Refused, Unavailable), match=sentence) as caught:
        await refused.range("sparrow/test/")
    assert PASSWORD not in str(caught.value)
    await refused.close()


async def test_the_password_may_come_from_a_file(etcd: EtcdServer, certificates: Certificates, tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text(f"{PASSWORD}\n")
    changes = {"etcd_password": None, "etcd_password_file": str(file)}
    reader = open_gateway(settings(etcd, certificates, **changes))
    assert (await reader.range("sparrow/none/")).keys == []
    await reader.close()


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"etcd": "http://127.0.0.1:1"}, "replication.etcd"),
        ({"etcd_key": ""}, "replication.etcd_key"),
        ({"etcd_ca": "/nowhere.pem"}, "replication.etcd_ca"),
        ({"etcd_password_file": "/nowhere"}, "replication.etcd_password_file"),
    ],
)
def test_settings_that_cannot_work_are_refused(
    etcd: EtcdServer, certificates: Certificates, changes: dict[str, object], key: str
) -> None:
    with pytest.raises(SettingsError) as caught:
        open_gateway(settings(etcd, certificates, **changes))
    assert caught.value.key == key


async def test_commands_use_the_settings(
    etcd: EtcdServer, certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = {"ca": certificates.authority, "cert": certificates.certificate, "key": certificates.key}
    for name, path in given.items():
        monkeypatch.setenv(f"SPARROW_REPLICATION__ETCD_{name.upper()}", str(path))
    words = ("cluster", "init", "--name", "by-command", "--etcd", etcd.url)
    refused = await sparrow(*words)
    assert isinstance(refused.error, SparrowError)
    assert "requires an account" in str(refused.error)
    monkeypatch.setenv("SPARROW_REPLICATION__ETCD_USER", "sparrow")
    monkeypatch.setenv("SPARROW_REPLICATION__ETCD_PASSWORD", PASSWORD)
    done = await sparrow(*words)
    assert done.exit_code == 0, done
    shown = await sparrow("cluster", "status", "--name", "by-command", "--etcd", etcd.url)
    assert "nobody leads" in shown.output
