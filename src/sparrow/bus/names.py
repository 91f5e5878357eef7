"""Event and group names: validation, wildcard patterns, and the names used on the broker.

Wildcards follow AMQP on every transport. Words stand between dots; `*` matches exactly one word, `#` any number of
words, also none. A wildcard is a whole word.
"""

from __future__ import annotations

import re

from sparrow.model.errors import IllegalName

NAME_CHARS_MAX = 200
"""Half the width of the Name column: brokers add prefixes, groups and retry markers."""
GROUP_CHARS_MAX = 200
"""The width of the Group column."""

_ONE, _ANY = "*", "#"
_UNSEEN = re.compile(r"[\x00-\x20\x7f-\xa0\u2028\u2029\ud800-\udfff]")
"""Whitespace, control characters and lone surrogates: some brokers refuse them, and logs do not show them."""


def is_pattern(name: str) -> bool:
    return any(word in (_ONE, _ANY) for word in name.split("."))


def matches(pattern: str, name: str) -> bool:
    """Return whether the pattern matches the name; letter case counts.

    Backtracking to the last `#` is enough: an earlier one could only match what the last one can match as well. So the
    time is bounded by the product of both lengths.
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
    """Return a sort key that puts the most specific pattern first: exact names, more literal words, fewer `#`.

    If one pattern matches everything that another matches, the narrower one comes first.
    """
    words = _tidy(pattern.split("."))
    literals = [word for word in words if word not in (_ONE, _ANY)]
    return (
        len(literals) < len(words),
        -len(literals),
        words.count(_ANY),
        -words.count(_ONE),  # with the same number of `#`, each `*` requires one more word
        -sum(map(len, literals)),
        pattern,
    )


def pattern_regex(pattern: str) -> str:
    """Return the pattern as an anchored regular expression, for Kafka."""
    words = _tidy(pattern.split("."))
    if words == [_ANY]:
        return "^.*$"
    # Every word includes the dot before it, so that `#` can match nothing. The first word has no dot before it: a
    # leading `#`, which is followed by a literal after normalisation, includes the dots after its words instead.
    parts = [_REGEX.get(word) or r"\." + re.escape(word) for word in words]
    if words[0] == _ANY:
        parts[:2] = [r"(?:[^.]*\.)*", parts[1].removeprefix(r"\.")]
    else:
        parts[0] = parts[0].removeprefix(r"\.")
    return "^" + "".join(parts) + "$"


def checked_event_name(name: str) -> str:
    """Return the name if an event can be published under it; raise `IllegalName` otherwise."""
    if "*" in name or "#" in name:
        raise IllegalName("event", name, "* and # are for subscriptions only")
    return _checked("event", name, NAME_CHARS_MAX)


def checked_topic(topic: str) -> str:
    """Return the name or pattern if it can be subscribed to; raise `IllegalName` otherwise."""
    for word in topic.split("."):
        if word not in (_ONE, _ANY) and ("*" in word or "#" in word):
            raise IllegalName("topic", topic, "a wildcard must be a whole word, as in order.* or order.#")
    return _checked("topic", topic, NAME_CHARS_MAX)


def broker_event_name(name: str, prefix: str | None) -> str:
    """Return the name of the event on the broker."""
    return f"{prefix}.{name}" if prefix else name


def broker_group_name(group: str | None, *, app: str, prefix: str | None, version: str) -> str:
    """Return the name of the group on the broker, such as `cap.queue.orders.v1` for the default group of `orders`."""
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
    """Normalise every run of wildcards: first each `*`, then at most one `#`."""
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
