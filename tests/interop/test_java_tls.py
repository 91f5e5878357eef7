"""The official clients in their TLS mode, signed, on a platform that accepts only mutual TLS."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.interop import platforms
from tests.interop.java import ClientError, JavaClient, java_client
from tests.interop.official import Kit
from tests.interop.platforms import Platform
from tests.support.certificates import Certificates, make_certificates

from sparrow import Admin, Credentials, Tls

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]

ADMIN = Credentials("operator", "a long secret")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def guarded(files: Certificates, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    """Sparrow with `auth` on and mutual TLS; the broker registers with its name server over TLS too."""
    settings: dict[str, object] = {
        "BROKER__AUTH": "true",
        f"BROKER__ADMIN_TOKENS__{ADMIN.access_key.upper()}": ADMIN.secret_key,
    }
    for server in ("NAME_SERVER", "BROKER"):
        settings[f"{server}__NET__TLS_CERTIFICATE"] = files.certificate
        settings[f"{server}__NET__TLS_KEY"] = files.key
        settings[f"{server}__NET__TLS_CLIENT_AUTHORITIES"] = files.authority
        settings[f"{server}__NET__TLS_AUTHORITIES"] = files.authority
    with platforms.sparrow(tmp_path_factory.mktemp("guarded"), **settings) as running:
        yield running


@pytest.fixture(scope="module")
def admin(guarded: Platform, files: Certificates) -> Iterator[Admin]:
    tls = Tls(authorities=str(files.authority), certificate=str(files.certificate), key=str(files.key))
    with Admin(guarded.name_server, credentials=ADMIN, tls=tls) as admin:
        yield admin


def java_settings(folder: Path, **values: object) -> str:
    """Write the TLS file of the official clients; return the options of the JVM."""
    path = folder / "tls.properties"
    lines = [f"tls.{name.replace('_', '.')}={value}" for name, value in values.items()]
    path.write_text("\n".join(lines), encoding="utf-8")
    return f"-Dtls.enable=true -Dtls.config.file={path}"


@pytest.fixture(scope="module")
def java(
    kit: Kit, guarded: Platform, files: Certificates, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[JavaClient]:
    folder = tmp_path_factory.mktemp("java")
    options = java_settings(
        folder,
        test_mode_enable="false",
        client_certPath=files.certificate,
        client_keyPath=files.key,
        client_trustCertPath=files.authority,
        client_authServer="true",
    )
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("JAVA_TOOL_OPTIONS", options)
        with java_client(kit, guarded.name_server, folder) as client:
            yield client


def test_signed_messages_pass_over_mutual_tls(java: JavaClient, admin: Admin, kit: Kit) -> None:
    topic = f"over_tls_{kit.version.replace('.', '_')}"
    admin.create_topic(topic, 4)
    sender, reader = (
        {"accessKey": issued.access_key, "secretKey": issued.secret_key}
        for issued in (admin.issue_token(f"sender-{kit.version}", "p"), admin.issue_token(f"reader-{kit.version}", "c"))
    )
    large = "x" * 200_000
    with (
        java.producer("tls", **sender) as producer,
        java.push_consumer(
            f"{topic}_group",
            topic,
            refusals=1,
            refusalLevel=1,
            **reader,
        ) as consumer,
    ):
        producer.send(topic, [{"body": "one", "tags": "a", "keys": "k1"}])
        producer.send(topic, ["two", "three"], mode="batch")
        producer.send(topic, [large], mode="async")
        seen = consumer.receive(8)  # each is rejected once
    assert sorted(message.body for message in seen) == sorted(["one", "two", "three", large] * 2)


def test_a_java_client_without_a_certificate_is_refused(
    kit: Kit, guarded: Platform, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("stranger")
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("JAVA_TOOL_OPTIONS", java_settings(folder, test_mode_enable="true"))
        with java_client(kit, guarded.name_server, folder) as stranger, pytest.raises(ClientError):
            with stranger.producer("strangers") as producer:
                producer.send("never", ["never"])
