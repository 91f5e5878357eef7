"""The settings of a command: flags over the environment over `sparrow.toml` over defaults."""

from sparrow.cli.settings.loader import (
    DEFAULT_DATA_FOLDER,
    UnknownSetting,
    UnusablePath,
    load_settings,
    usable_folder,
)

__all__ = ["DEFAULT_DATA_FOLDER", "UnknownSetting", "UnusablePath", "load_settings", "usable_folder"]
