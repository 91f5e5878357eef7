"""Old names of settings are still read, and docs/broker.md lists every setting with its default."""

import re
from pathlib import Path

import pytest
from pydantic import BaseModel, ValidationError

from sparrow.settings import (
    GIB,
    KIB,
    MIB,
    BrokerSettings,
    ConsoleSettings,
    LogSettings,
    NameServerSettings,
    NetSettings,
    ReplicationSettings,
    Settings,
    SqlSettings,
)

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


PAGE = (Path(__file__).resolve().parents[2] / "docs" / "broker.md").read_text(encoding="utf-8")
UNITS = {"KiB": KIB, "MiB": MIB, "GiB": GIB}


def documented_defaults(title: str) -> dict[str, object]:
    found = re.search(rf"^### {re.escape(title)}\n(.*?)^#", PAGE, re.MULTILINE | re.DOTALL)
    assert found, f"docs/broker.md has no section {title}"
    rows = re.findall(r"^\| `(\w+)` \| (.+?) \| .+ \|$", found[1], re.MULTILINE)
    defaults = {name: read_default(text) for name, text in rows}
    assert len(defaults) == len(rows), f"{title} lists a setting twice"
    return defaults


def read_default(text: str) -> object:
    """Return a default as the page writes it: `none`, `empty`, a name or a truth value in backticks, or a number."""
    if text in ("none", "empty"):
        return None
    if text.startswith("`"):
        return {"true": True, "false": False}.get(text.strip("`"), text.strip("`"))
    number, _, unit = text.replace(",", "").partition(" ")
    return float(number) * UNITS.get(unit, 1)


@pytest.mark.parametrize(
    ("title", "section"),
    [
        ("`[broker]`", BrokerSettings),
        ("`[name_server]`", NameServerSettings),
        ("`[broker.net]`, `[name_server.net]`", NetSettings),
        ("`[log]`", LogSettings),
        ("`[sql]`", SqlSettings),
        ("`[replication]`", ReplicationSettings),
        ("`[console]`", ConsoleSettings),
    ],
)
def test_the_page_lists_every_setting_with_its_default(title: str, section: type[BaseModel]) -> None:
    fields = {name: field.get_default(call_default_factory=True) for name, field in section.model_fields.items()}
    fields.pop("net", None)  # a section of its own
    assert documented_defaults(title) == {
        name: None if value in ("", {}, []) else value for name, value in fields.items()
    }
