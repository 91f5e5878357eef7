"""Settings are shown without secrets."""

from sparrow.console.api.settings import _describe
from sparrow.console.masks import HIDDEN
from sparrow.settings import ConsoleSettings


def test_secrets_and_passwords_are_hidden() -> None:
    settings = ConsoleSettings.model_validate(
        {
            "tokens": {"olga": {"role": "admin", "secret_key": "very-secret"}},
            "bus_database": "postgresql://shop:very-secret@db/shop",
            "auth": True,
        }
    )
    shown = {each["name"]: each for each in _describe(settings, "console", {"console.auth": "sparrow.toml"})}
    assert "very-secret" not in str(shown)
    assert shown["console.tokens"]["value"] == f"olga: role=admin, secret_key={HIDDEN}"
    assert shown["console.bus_database"]["value"] == f"postgresql://{HIDDEN}@db/shop"
    assert (shown["console.auth"]["value"], shown["console.auth"]["is_default"]) == ("true", False)
    assert shown["console.port"]["is_default"]
    origins = {name: each["origin"] for name, each in shown.items()}
    assert (origins["console.auth"], origins["console.port"]) == ("sparrow.toml", "default")
    assert origins["console.tokens"] == "program"
