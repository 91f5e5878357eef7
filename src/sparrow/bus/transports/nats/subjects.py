"""Event names and patterns as NATS subjects.

`*` matches one word in both notations. `#` matches any number of words, also none; NATS' `>` matches one or more, and
only at the end. A pattern that NATS cannot express is subscribed to more broadly, and filtered on arrival.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from sparrow.model.errors import IllegalName

_UNFIT_FOR_DURABLES = re.compile(r"[>. *]")
_BLANK = re.compile(r"\s")
_UNFIT_FOR_STREAMS = re.compile(r"[/\\]")


class SubjectFilter(NamedTuple):
    """A subject to subscribe to."""

    subject: str | None
    """None: all subjects of all streams, since the pattern does not fix the first word."""
    label: str
    """The base of the durable consumer's name."""
    pattern: str | None = None
    """If set, the subject is too broad: only names that match this pattern are delivered."""


def check_event_subject(name: str) -> None:
    """Raise `IllegalName` if NATS does not accept the event name."""
    words = name.split(".")
    if not all(words):
        raise IllegalName("event", name, "a NATS subject has no empty words")
    if _BLANK.search(name):
        raise IllegalName("event", name, "a NATS subject has no blanks")
    if any(word in ("*", ">", "#") for word in words):
        raise IllegalName("event", name, "wildcards are for subscriptions")
    if _UNFIT_FOR_STREAMS.search(words[0]):
        raise IllegalName("event", name, "the first word is the name of a NATS stream, which has no slashes")


def subject_filters(name: str) -> list[SubjectFilter]:
    """Return the subjects for an event name or AMQP pattern."""
    words = name.split(".")
    check_event_subject(".".join("any" if word in ("*", "#") else word for word in words))
    if words[0] in ("*", "#"):
        return [SubjectFilter(None, name, name)]
    if "#" not in words:
        return [SubjectFilter(name, name)]
    start = words[: words.index("#")]
    bare, broad = ".".join(start), ".".join([*start, ">"])
    if any(word != "#" for word in words[len(start) :]):
        return [SubjectFilter(broad, name, name)]
    return [SubjectFilter(bare, bare), SubjectFilter(broad, broad)]


def may_hold(present: Iterable[str], pattern: str) -> bool:
    """Return whether a stream with these subjects can hold a matching name. Subjects with `$` belong to the server."""
    words = pattern.split(".")
    start = words[: words.index("#")] if "#" in words else words
    forms = [".".join(start)] if start else []
    forms += [".".join([*start, ">"])] if "#" in words else []
    return any(overlap(form, subject) for form in forms for subject in present if not subject.startswith("$"))


def durable_name(group: str, label: str) -> str:
    """Return the name that CAP uses, so that its services and ours share a consumer."""
    return f"{queue_group(group)}-{_UNFIT_FOR_DURABLES.sub('_', label)}"


def queue_group(group: str) -> str:
    return _UNFIT_FOR_DURABLES.sub("_", group)


def first_word(subject: str) -> str:
    return subject.split(".", 1)[0]


def covers(broad: str, narrow: str) -> bool:
    """Return whether `broad` matches everything that `narrow` matches; both are NATS subjects."""
    left, right = broad.split("."), narrow.split(".")
    for index, word in enumerate(left):
        if word == ">":
            return len(right) > index
        if index >= len(right) or right[index] == ">" or word not in ("*", right[index]):
            return False
    return len(left) == len(right)


def overlap(one: str, other: str) -> bool:
    """Return whether some name matches both subjects."""
    left, right = one.split("."), other.split(".")
    for a, b in zip(left, right, strict=False):
        if ">" in (a, b):
            return True
        if a != b and "*" not in (a, b):
            return False
    return len(left) == len(right)


def merge_subjects(present: Sequence[str], added: Iterable[str]) -> list[str]:
    """Return the subjects of a stream after an addition; NATS does not allow subjects that overlap."""
    subjects = list(present)
    for new in added:
        if any(covers(old, new) for old in subjects):
            continue
        subjects = [old for old in subjects if not covers(new, old)]
        crossing = [old for old in subjects if overlap(old, new)]
        if crossing:
            # `a.*.x` and `a.y.*`: neither covers the other, so a subject that covers both replaces them.
            new = f"{first_word(new)}.>"
            subjects = [old for old in subjects if not covers(new, old)]
        subjects.append(new)
    return subjects
