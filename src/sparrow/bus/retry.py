"""Retry policies: when a failed attempt is repeated, and when not. Pure: time and randomness are arguments."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from sparrow.bus.errors import NoSubscriber, Reject, RetryAfter, Undecodable

Backoff = Callable[[int, float], float]
"""Maps the number of the retry (1 is the first) and a random number in [0, 1) to seconds after the time of adding."""


def quartic(retry: int, chance: float) -> float:
    """Return CAP's first formula: 15 to 44 s for the first retry, about 8 h for the 14th."""
    return round((retry - 1) ** 4 + 15 + chance * 29 * retry)


@dataclass(frozen=True)
class RetryDelays:
    """Delays in seconds after the attempt that failed; the last entry repeats.

    A `Backoff` counts from the time of adding.
    """

    seconds: Sequence[float]

    def __post_init__(self) -> None:
        if not self.seconds:
            raise ValueError("RetryDelays needs at least one delay")

    def after(self, retry: int) -> float:
        return self.seconds[min(retry, len(self.seconds)) - 1]


def fixed(seconds: float) -> RetryDelays:
    """Return a policy with the same delay before every attempt."""
    return RetryDelays((seconds,))


def exponential(first_s: float = 1.0, *, factor: float = 2.0, max_s: float = 3600.0) -> RetryDelays:
    """Return delays that grow by a factor, up to a maximum."""
    pauses = [first_s]
    while pauses[-1] < max_s and factor > 1 and len(pauses) < 64:
        pauses.append(min(pauses[-1] * factor, max_s))
    return RetryDelays(tuple(pauses))


@dataclass(frozen=True)
class NextAttempt:
    """The message is Scheduled again for another attempt."""

    base: Literal["added", "now"]
    seconds: float


class NoRetry:
    """The message is Failed: no further attempt until it is requeued."""


NO_RETRY = NoRetry()


@dataclass(frozen=True)
class Retry:
    """How often and how long apart attempts are made; used for sends and for handlers.

    ```python
    @bus.subscribe("mail.wanted", retry=Retry(max=5, backoff=exponential(2), give_up_on=(AddressUnknown,)))
    ```
    """

    max: int = 15
    """Failed attempts until the message is Failed."""
    backoff: Backoff | RetryDelays = field(default=quartic)
    retry_on: tuple[type[BaseException], ...] = (BaseException,)
    give_up_on: tuple[type[BaseException], ...] = ()
    immediate_retries: int = 0
    """How many retries follow without a delay."""

    def __post_init__(self) -> None:
        if self.max < 1:
            raise ValueError(f"Retry(max={self.max}) allows no attempt: use 1 for a single attempt")

    def after(self, error: BaseException, failures: int, chance: float, *, rounds: int = 0) -> NextAttempt | NoRetry:
        """Return what follows a failed attempt.

        `failures` counts the failed attempts including this one, `rounds` the retry rounds before the current one.
        """
        if isinstance(error, (Reject, Undecodable, NoSubscriber)) or failures >= self.max:
            return NO_RETRY
        if isinstance(error, RetryAfter):
            return NextAttempt("now", error.seconds)
        if isinstance(error, self.give_up_on) or not isinstance(error, self.retry_on):
            return NO_RETRY
        if failures <= self.immediate_retries:
            return NextAttempt("now", 0.0)
        if isinstance(self.backoff, RetryDelays):
            return NextAttempt("now", self.backoff.after(failures))
        if rounds == 0:
            return NextAttempt("added", self.backoff(failures, chance))
        # In a later round the time of adding is long past: use the distance between two attempts.
        before = self.backoff(failures - 1, chance) if failures > 1 else 0.0
        return NextAttempt("now", max(1.0, self.backoff(failures, chance) - before))


CAP_RETRY = Retry(max=50, backoff=fixed(60), immediate_retries=2)
"""The policy of current CAP versions: three attempts at once, then one a minute, fifty in all."""
