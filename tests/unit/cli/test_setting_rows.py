"""The rows of `sparrow settings`."""

import msgspec

from sparrow.cli.settings.command import setting_rows
from sparrow.settings import ConsoleSettings, Settings


def test_settings_with_sections_inside_are_shown_without_secrets() -> None:
    console = ConsoleSettings.model_validate(
        {"tokens": {"olga": {"role": "admin", "secret_key": "very-secret"}}, "masks": [{"body": True}]}
    )
    rows = {row.name: row.value for row in setting_rows(Settings(console=console))}
    assert "very-secret" not in msgspec.json.encode(list(rows.values())).decode()
    assert rows["console.tokens"]["olga"]["role"] == "admin"
    assert rows["console.masks"] == [{"topics": ["*"], "body": True, "fields": [], "properties": []}]
