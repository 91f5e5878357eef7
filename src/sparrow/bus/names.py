"""The names of events and groups: what may be one, what a pattern takes, and what they are called on a broker.

Wildcards follow AMQP on every transport: words are anything between dots, `*` stands for exactly one word, `#` for any
number of words, also none. A wildcard is a whole word.
"""

from __future__ import annotations

import re

from sparrow.model.errors import IllegalName

NAME_CHARS_MAX = 200
"""Half of what the Name column holds: brokers add prefixes, groups and retry marks of their own to it."""
GROUP_CHARS_MAX = 200
"""The width of the Group column."""

_ONE, _ANY = "*", "#"
_UNSEEN = re.compile(r"[\x00-\x20\x7f-\xa0\u2028\u2029\ud800-\udfff]")
"""Blanks, control characters and half characters: no broker takes them all, and no log shows them."""


def is_pattern(name: str) -> bool:
    return any(word in (_ONE, _ANY) for word in name.split("."))


def matches(pattern: str, name: str) -> bool:
    """Whether the pattern takes the name. Letter case counts.

    Going back to the last `#` is enough: an earlier one could only take what the last one may take as well. So the
    time is bounded by the product of both lengths, whoever chose the name.
    """
    wanted, words = pattern.split("."), name.split(".")
    at = word = 0
    last_any, last_word = -1, 0
    while word < len(words):
        if at < len(wanted) and wanted[at] == _ANY:
            last_any, last_word = at, word
            at += 1
        elif at < len(wanted) and wanted[at] in (_ONE, words[word]):
            at, word = at + 1, word + 1
        elif last_any >= 0:
            last_word += 1
            at, word = last_any + 1, last_word
        else:
            return False
    return all(left == _ANY for left in wanted[at:])


def specificity(pattern: str) -> tuple[bool, int, int, int, int, str]:
    """Sorts the most specific first: exact names, then more literal words, then fewer `#`.

    Of two patterns of which one takes all that the other takes, the narrower one always comes first.
    """
    words = _tidy(pattern.split("."))
    literals = [word for word in words if word not in (_ONE, _ANY)]
    return (
        len(literals) < len(words),
        -len(literals),
        words.count(_ANY),
        -words.count(_ONE),  # beside the same number of `#`, each `*` demands one word more
        -sum(map(len, literals)),
        pattern,
    )


def pattern_regex(pattern: str) -> str:
    """The same as `matches`, as an anchored regular expression; Kafka subscribes by one."""
    words = _tidy(pattern.split("."))
    if words == [_ANY]:
        return "^.*$"
    # Every word brings the dot before it, so that `#` may be nothing. The first word has none before it: a leading
    # `#`, which is followed by a literal once tidy, brings the dots after its words instead.
    parts = [_REGEX.get(word) or r"\." + re.escape(word) for word in words]
    if words[0] == _ANY:
        parts[:2] = [r"(?:[^.]*\.)*", parts[1].removeprefix(r"\.")]
    else:
        parts[0] = parts[0].removeprefix(r"\.")
    return "^" + "".join(parts) + "$"


def checked_event_name(name: str) -> str:
    """The name, if an event can be published under it; else `IllegalName`."""
    if "*" in name or "#" in name:
        raise IllegalName("event", name, "* and # are for subscriptions only")
    return _checked("event", name, NAME_CHARS_MAX)


def checked_topic(topic: str) -> str:
    """The name or pattern, if one can subscribe to it; else `IllegalName`."""
    for word in topic.split("."):
        if word not in (_ONE, _ANY) and ("*" in word or "#" in word):
            raise IllegalName("topic", topic, "a wildcard is a whole word, as in order.* or order.#")
    return _checked("topic", topic, NAME_CHARS_MAX)


def broker_event_name(name: str, prefix: str | None) -> str:
    """What the broker calls it."""
    return f"{prefix}.{name}" if prefix else name


def broker_group_name(group: str | None, *, app: str, prefix: str | None, version: str) -> str:
    """What the broker calls the group, e.g. `cap.queue.orders.v1` for the unnamed group of the application Orders."""
    name = f"{broker_event_name(group or f'cap.queue.{app.lower()}', prefix)}.{version}"
    return _checked("group", name, GROUP_CHARS_MAX)


def _checked(kind: str, name: str, chars_max: int) -> str:
    if not name:
        raise IllegalName(kind, name, "it is empty")
    if len(name) > chars_max:
        raise IllegalName(kind, name, f"it has {len(name)} characters, {chars_max} are allowed")
    if _UNSEEN.search(name):
        raise IllegalName(kind, name, "blanks and control characters are not allowed")
    if "" in name.split("."):
        raise IllegalName(kind, name, "a dot separates two words, and one of them is empty")
    return name


def _tidy(words: list[str]) -> list[str]:
    """The same pattern with every run of wildcards in one form: first each `*`, then at most one `#`."""
    tidy: list[str] = []
    for word in words:
        if word == _ANY and tidy[-1:] == [_ANY]:
            continue
        if word == _ONE and tidy[-1:] == [_ANY]:
            tidy.insert(-1, _ONE)
        else:
            tidy.append(word)
    return tidy


_REGEX = {_ONE: r"\.[^.]*", _ANY: r"(?:\.[^.]*)*"}
