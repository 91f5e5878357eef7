"""The first administrator: made once, kept in a file that only its owner reads, and not if the settings have one."""

import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sparrow.cli.server.first_administrator import ADMINISTRATOR, administrator_environment, with_administrator
from sparrow.model.errors import SettingsError
from sparrow.settings import BrokerSettings, Settings


def settings(**broker: object) -> Settings:
    return Settings(broker=BrokerSettings.model_validate(broker))


def secret_of(made: Settings) -> str:
    return made.broker.admin_tokens[ADMINISTRATOR].get_secret_value()


def test_it_is_made_once_and_found_at_the_next_start(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = with_administrator(settings(auth=True), tmp_path)
    said = capsys.readouterr().out
    assert "made the first administrator: access key administrator, secret key in" in said
    assert secret_of(first) not in said
    (path,) = tmp_path.iterdir()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert secret_of(first) in path.read_text()
    assert len(secret_of(first)) == 64
    again = with_administrator(settings(auth=True), tmp_path)
    assert secret_of(again) == secret_of(first)
    assert capsys.readouterr().out == ""
    assert administrator_environment(again) == {
        "SPARROW_BROKER__ADMIN_TOKENS__ADMINISTRATOR": secret_of(first),
    }


@pytest.mark.parametrize("broker", [{}, {"auth": True, "admin_tokens": {"operator": "a long secret"}}])
def test_it_is_not_made_without_auth_or_beside_an_admin_token(tmp_path: Path, broker: dict[str, object]) -> None:
    given = settings(**broker)
    assert with_administrator(given, tmp_path) is given
    assert list(tmp_path.iterdir()) == []
    assert administrator_environment(given) == {}


def test_processes_that_start_at_the_same_time_have_the_same_one(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda _: with_administrator(settings(auth=True), tmp_path), range(8)))
    assert len({secret_of(one) for one in made}) == 1
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize("text", ["", "access_key = ", 'access_key = "a"'])
def test_an_unreadable_file_stops_the_start_and_is_kept(tmp_path: Path, text: str) -> None:
    (tmp_path / "administrator.toml").write_text(text)
    with pytest.raises(SettingsError, match="the next start makes another administrator"):
        with_administrator(settings(auth=True), tmp_path)
    assert (tmp_path / "administrator.toml").read_text() == text
