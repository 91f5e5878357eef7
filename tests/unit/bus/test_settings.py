"""The settings of the bus are those that the manual lists."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest

from sparrow.bus.settings import BusOptions, BusSettings, apply_options, cap_settings
from sparrow.model.errors import SettingsError

MANUAL = Path(__file__).parents[3] / "docs" / "event-bus.md"


def test_the_manual_lists_every_setting_and_no_other() -> None:
    table = MANUAL.read_text().partition("## Settings")[2]
    listed = re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)
    assert listed == [field.name for field in fields(BusSettings)]


@pytest.mark.parametrize(
    ("name", "value"), [("relay_batch", 0), ("lease_s", 0), ("concurrency", -1), ("succeeded_spelling", "Done")]
)
def test_an_invalid_value_is_refused_with_the_name_of_the_setting(name: str, value: object) -> None:
    with pytest.raises(SettingsError, match=name):
        BusSettings(**{name: value})


def test_cap_settings_follow_the_defaults_of_cap() -> None:
    settings = cap_settings(app="shop")
    assert (settings.retry.max, settings.retry.immediate_retries) == (50, 2)
    assert settings.retry_round_interval_s is None
    assert settings.cleanup_interval_s == 300
    assert settings.app == "shop"


def test_the_options_of_a_bus_are_the_fields_of_its_settings() -> None:
    options = BusOptions.__annotations__
    assert list(options) == [field.name for field in fields(BusSettings)]


def test_the_old_name_of_a_setting_works_for_one_version() -> None:
    with pytest.warns(DeprecationWarning, match="breaker is now circuit_breaker"):
        settings = apply_options(BusSettings(), {"breaker": True})  # type: ignore[typeddict-unknown-key]
    assert settings.circuit_breaker
