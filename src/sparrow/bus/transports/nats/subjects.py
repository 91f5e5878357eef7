"""Names and patterns of the bus in the words of NATS.

In a subscription `*` means one word for both. `#` means any number of words, none too; NATS' `>` means one or more, and
only at the end. A pattern that NATS cannot say is read too broadly there, and narrowed where it arrives.
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
    """One thing to subscribe to."""

    subject: str | None
    """None: whatever its stream holds, and in every stream, since the pattern says nothing about the first word."""
    label: str
    """What the durable consumer is called after."""
    pattern: str | None = None
    """If set, the subject is too broad: only names that match this are wanted."""


def check_event_subject(name: str) -> None:
    """Whether an event may be called so."""
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
    """What a name or AMQP pattern of a subscription takes."""
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
    """Whether a stream of these subjects can hold a name that matches. Those with `$` are the server's own."""
    words = pattern.split(".")
    start = words[: words.index("#")] if "#" in words else words
    forms = [".".join(start)] if start else []
    forms += [".".join([*start, ">"])] if "#" in words else []
    return any(overlap(form, subject) for form in forms for subject in present if not subject.startswith("$"))


def durable_name(group: str, label: str) -> str:
    """As CAP calls it, so that its services and ours share one."""
    return f"{queue_group(group)}-{_UNFIT_FOR_DURABLES.sub('_', label)}"


def queue_group(group: str) -> str:
    return _UNFIT_FOR_DURABLES.sub("_", group)


def first_word(subject: str) -> str:
    return subject.split(".", 1)[0]


def covers(broad: str, narrow: str) -> bool:
    """Whether everything that fits `narrow` fits `broad`; both are subjects of NATS."""
    left, right = broad.split("."), narrow.split(".")
    for index, word in enumerate(left):
        if word == ">":
            return len(right) > index
        if index >= len(right) or right[index] == ">" or word not in ("*", right[index]):
            return False
    return len(left) == len(right)


def overlap(one: str, other: str) -> bool:
    """Whether some name fits both."""
    left, right = one.split("."), other.split(".")
    for a, b in zip(left, right, strict=False):
        if ">" in (a, b):
            return True
        if a != b and "*" not in (a, b):
            return False
    return len(left) == len(right)


def merge_subjects(present: Sequence[str], added: Iterable[str]) -> list[str]:
    """The subjects of a stream after more were added: it takes all it took before. NATS wants no two that overlap."""
    subjects = list(present)
    for new in added:
        if any(covers(old, new) for old in subjects):
            continue
        subjects = [old for old in subjects if not covers(new, old)]
        crossing = [old for old in subjects if overlap(old, new)]
        if crossing:
            # `a.*.x` and `a.y.*`: neither holds the other, so what holds both takes their place.
            new = f"{first_word(new)}.>"
            subjects = [old for old in subjects if not covers(new, old)]
        subjects.append(new)
    return subjects
