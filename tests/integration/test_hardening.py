"""The configuration of SECURITY.md starts as it is printed, and keeps strangers out."""

import re
import ssl
import tomllib
from pathlib import Path

import httpx
import pytest
from tests.support.certificates import make_certificates
from tests.support.raw_connection import open_raw_connection
from tests.support.server_processes import server_process

from sparrow import Credentials, Message, Tls, aio
from sparrow.model.errors import Refused
from sparrow.net.access.tls import client_context
from sparrow.net.address import Address
from sparrow.net.dialer import connect
from sparrow.wire.codes import RequestCode, ResponseCode
from sparrow.wire.frame import RemotingCommand
from sparrow.wire.headers import DeleteTopic, EmptyHeader
from sparrow.wire.signing import sign

PAGE = Path(__file__).parents[2] / "SECURITY.md"
OPERATOR = Credentials("operator", "a secret key of 8 characters or more")


async def test_auth_without_an_admin_token_makes_the_first_administrator(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("sparrow.toml").write_text("[broker]\nauth = true\n", encoding="utf-8")
    words = ["up", "--no-console", "--data", str(tmp_path / "data"), "--name-server-port", "0", "--port", "0"]
    async with server_process(*words) as said:
        text = "".join(said)
        assert "made the first administrator: access key administrator" in text
        kept = tomllib.loads((tmp_path / "data" / "administrator.toml").read_text())
        administrator = Credentials(kept["access_key"], kept["secret_key"])
        assert administrator.secret_key not in text
        name_server = re.findall(r"127\.0\.0\.1:\d+", text)[0]
        async with aio.Admin(name_server, credentials=administrator) as admin:
            await admin.create_topic("orders", 1)  # the broker has registered, so the name server knows the token, too
            await admin.issue_token("web", "p")
            assert [token.name for token in await admin.tokens()] == ["web"]
        async with aio.Admin(name_server) as stranger:
            with pytest.raises(Refused, match="not signed"):
                await stranger.issue_token("mine", "a")


async def test_the_configuration_of_the_hardening_guide_keeps_strangers_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = make_certificates(tmp_path)
    (printed,) = re.findall(r"```toml\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    for name, file in {
        "server.pem": files.certificate,
        "server.key": files.key,
        "clients.pem": files.authority,
        "servers.pem": files.authority,
    }.items():
        assert f"/etc/sparrow/{name}" in printed
        printed = printed.replace(f"/etc/sparrow/{name}", str(file))
    monkeypatch.chdir(tmp_path)
    Path("sparrow.toml").write_text(printed, encoding="utf-8")
    words = ["up", "--console-port", "0", "--data", str(tmp_path / "data"), "--name-server-port", "0", "--port", "0"]
    async with server_process(*words, ready="console ") as said:
        name_server, broker = re.findall(r"127\.0\.0\.1:\d+", "".join(said))[:2]
        tls = Tls(authorities=str(files.authority), certificate=str(files.certificate), key=str(files.key))
        async with aio.Admin(name_server, credentials=OPERATOR, tls=tls) as admin:
            await admin.create_topic("orders", 1)
            web = await admin.issue_token("web", "p")
        async with aio.Producer(name_server, credentials=web, tls=tls) as producer:
            await producer.send(Message("orders", b"a book"))
        async with aio.Producer(name_server, tls=tls, retries=0) as unsigned:
            with pytest.raises(Refused, match="not signed"):
                await unsigned.send(Message("orders", b"forged"))
        for address in map(Address.parse, (name_server, broker)):
            async with open_raw_connection(address) as plain:
                plain.write(RemotingCommand(RequestCode.GET_ROUTEINFO_BY_TOPIC, 1))
                assert await plain.is_closed_by_peer()
            channel = await connect(address, tls=client_context(tls))
            code = RequestCode.GET_ALL_TOPIC_CONFIG if str(address) == broker else RequestCode.DELETE_TOPIC_IN_NAMESRV
            header = EmptyHeader() if str(address) == broker else DeleteTopic("orders")
            replayable = await channel.request(code, sign(header, b"", OPERATOR))
            assert replayable.code == ResponseCode.NO_PERMISSION, replayable.remark
            channel.close()
        console = next(line.split()[1] for line in said if line.startswith("console "))
        trusted = ssl.create_default_context(cafile=files.authority)
        async with httpx.AsyncClient(base_url=console, verify=trusted, timeout=60, trust_env=False) as browser:
            assert (await browser.get("/api/v1/topics")).status_code == 401
            secret = {"authorization": "Bearer another secret key of 8 characters or more"}
            answer = await browser.get("/api/v1/topics/orders", headers=secret)
            assert answer.status_code == 200, answer.text
