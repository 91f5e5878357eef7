"""Name servers are named in one way: by clients, by the bus and by commands."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

import sparrow
from sparrow import aio
from sparrow.bus.transports.sparrow.transport import SparrowTransport
from sparrow.bus.transports.url import transport_from_url
from sparrow.cli.main import app
from sparrow.cli.pipeline.parameters.common import ClientParameters
from sparrow.client.options import default_name_servers

COMMANDS = (
    *("resend", "broker", "token issue", "token list", "token revoke", "dlq list", "dlq show", "dlq redrive"),
    *("pipeline archive", "pipeline replay", "pipeline deadletters", "pipeline stats", "pipeline outbox"),
)


def test_the_environment_names_the_servers_when_a_client_is_constructed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert default_name_servers() == "127.0.0.1:9876"
    monkeypatch.setenv("SPARROW_NAME_SERVERS", "127.0.0.1:1;127.0.0.1:2")
    for client in (
        aio.Producer(),
        aio.Consumer(group="g"),
        aio.PopConsumer(group="g"),
        aio.Admin(),
    ):
        assert [each.port for each in client.session._name_servers] == [1, 2]
    for blocking in (sparrow.Producer(), sparrow.Consumer(group="g"), sparrow.Admin()):
        assert [each.port for each in blocking._client.session._name_servers] == [1, 2]
    assert [each.port for each in aio.Admin("127.0.0.1:3").session._name_servers] == [3]


def test_the_environment_names_the_servers_of_the_bus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARROW_NAME_SERVERS", "mq:9876")
    transport = transport_from_url("sparrow://")
    assert isinstance(transport, SparrowTransport)
    assert (transport._name_servers, SparrowTransport("other:1")._name_servers) == ("mq:9876", "other:1")


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_the_same_option(command: str) -> None:
    done = CliRunner(env={"COLUMNS": "200"}).invoke(app, [*command.split(), "--help"])
    for text in ("--name-servers", "SPARROW_NAME_SERVERS", "127.0.0.1:9876"):
        assert text in done.output


def test_the_old_name_of_the_option_works_with_a_warning(capsys: pytest.CaptureFixture[str]) -> None:
    assert ClientParameters(name_server="mq:9876").name_servers == "mq:9876"
    assert "--name-servers" in capsys.readouterr().err
    assert ClientParameters().name_servers == "127.0.0.1:9876"
    assert capsys.readouterr().err == ""
