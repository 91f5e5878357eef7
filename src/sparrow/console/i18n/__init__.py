"""The texts of the console in English and Chinese: one TOML file a language, one section a page.

A key is `section.name`. Both files have the same keys and the same placeholders; a test compares them. Only
`setting_meaning` is in the Chinese file alone: in English, the settings describe themselves.
"""

from __future__ import annotations

import tomllib
from functools import cache
from importlib import resources

DEFAULT_LANGUAGE = "en"
LANGUAGES = {"en": "English", "zh": "中文"}
HTML_LANGUAGES = {"en": "en", "zh": "zh-CN"}
"""The `lang` attribute of a page, by which browsers choose fonts and screen readers a voice."""


@cache
def load_texts(language: str) -> dict[str, str]:
    """Return the texts of a language by key."""
    source = resources.files(__package__).joinpath(f"{language}.toml").read_text(encoding="utf-8")
    return {
        f"{section}.{name}": text for section, texts in tomllib.loads(source).items() for name, text in texts.items()
    }


class Translator:
    """The texts of one language; calling it with a key and values returns a sentence."""

    def __init__(self, language: str) -> None:
        self.language = language
        self._texts = load_texts(language)

    def __call__(self, key: str, **values: object) -> str:
        text = self._texts[key]
        return text.format_map(values) if values else text

    def known(self, key: str, otherwise: str) -> str:
        """Return the text of a key that comes from data, such as a state; `otherwise` if there is none."""
        return self._texts.get(key, otherwise)


def choose_language(cookie: str | None, accepted: str) -> str:
    """Return the language of the cookie, else the first of the `Accept-Language` header that the console has."""
    if cookie in LANGUAGES:
        return cookie
    weighted = []
    for position, part in enumerate(accepted.split(",")):
        name, _, weight = part.strip().partition(";q=")
        try:
            quality = float(weight or 1)
        except ValueError:
            continue
        weighted.append((-quality, position, name.partition("-")[0].lower()))
    return next((name for _, _, name in sorted(weighted) if name in LANGUAGES), DEFAULT_LANGUAGE)
