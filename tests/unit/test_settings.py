"""Settings of version 0.1 are still read under their old names."""

import pytest
from pydantic import BaseModel, ValidationError

from sparrow.settings import BrokerSettings, LogSettings, NameServerSettings, NetSettings, Settings, SqlSettings

SECTIONS = (BrokerSettings, LogSettings, NameServerSettings, NetSettings, SqlSettings)


@pytest.mark.parametrize("section", SECTIONS)
def test_an_old_name_sets_the_field_that_replaced_it(section: type[BaseModel]) -> None:
    for old, new in section.OLD_NAMES.items():  # type: ignore[attr-defined]
        value = section.model_fields[new].default
        changed = f"{value}x" if isinstance(value, str) else not value if isinstance(value, bool) else value + 1
        with pytest.warns(FutureWarning, match=f"{old} is now called {new}"):
            assert getattr(section.model_validate({old: changed}), new) == changed


def test_the_old_section_of_the_name_server_is_read(tmp_path, monkeypatch) -> None:
    (tmp_path / "sparrow.toml").write_text("[naming]\nport = 1234\n[naming.net]\nidle_close_ms = 5\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SPARROW_NAMING__SCAN_INTERVAL_MS", "9")
    with pytest.warns(FutureWarning, match="naming is now called name_server"):
        found = Settings().name_server
    assert (found.port, found.scan_interval_ms, found.net.idle_timeout_ms) == (1234, 9, 5)
    assert found.broker_timeout_ms == NameServerSettings().broker_timeout_ms


def test_an_unknown_setting_is_refused() -> None:
    with pytest.raises(ValidationError, match="extra_forbidden"):
        BrokerSettings.model_validate({"prot": 1})
