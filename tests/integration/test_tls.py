"""A platform that accepts only mutual TLS: brokers register, clients send and consume, the command line administers."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.certificates import Certificates, make_certificates
from tests.support.platforms import running_platform

from sparrow import Message, Tls, aio
from sparrow.model.errors import Unavailable
from sparrow.settings import NameServerSettings, NetSettings


@pytest.fixture
def files(tmp_path: Path) -> Certificates:
    return make_certificates(tmp_path)


def net_settings(files: Certificates) -> NetSettings:
    return NetSettings(
        tls_certificate=str(files.certificate),
        tls_key=str(files.key),
        tls_client_authorities=str(files.authority),
        tls_authorities=str(files.authority),
    )


async def test_a_platform_over_mutual_tls(tmp_path: Path, files: Certificates) -> None:
    tls = Tls(authorities=str(files.authority), certificate=str(files.certificate), key=str(files.key))
    net = net_settings(files)
    async with running_platform(
        tmp_path / "data", name_server=NameServerSettings(port=0, net=net), net=net
    ) as platform:
        name_servers = platform.name_servers
        async with aio.Admin(name_servers, tls=tls) as admin:
            await admin.create_topic("orders", 4)
        async with (
            aio.Producer(name_servers, tls=tls) as producer,
            aio.Consumer(name_servers, group="billing", tls=tls) as consumer,
            aio.PopConsumer(name_servers, group="packing", tls=tls) as popper,
        ):
            await consumer.subscribe("orders")
            bodies = {f"{number}".encode() * 1000 for number in range(200)}
            await asyncio.gather(*(producer.send(Message("orders", body)) for body in bodies))
            seen: set[bytes] = set()
            async for message in consumer:
                seen.add(bytes(message.body))
                if seen == bodies:
                    break
            assert await popper.receive("orders")
        async with aio.Producer(name_servers, timeout_ms=1000) as stranger:
            with pytest.raises(Unavailable):
                await stranger.send(Message("orders", b"in the clear"))
        environment = {
            "SPARROW_TLS_AUTHORITIES": str(files.authority),
            "SPARROW_TLS_CERTIFICATE": str(files.certificate),
            "SPARROW_TLS_KEY": str(files.key),
        }
        listed = await asyncio.to_thread(
            subprocess.run,
            [sys.executable, "-m", "sparrow", "topic", "list", "--name-servers", name_servers],
            env=os.environ | environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert "orders" in listed.stdout, listed.stderr
