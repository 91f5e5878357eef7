"""When a failed attempt is made again, and when not. Pure: times and chance are arguments."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from sparrow.bus.errors import NoSubscriber, Reject, RetryAfter, Undecodable

Backoff = Callable[[int, float], float]
"""From the number of the retry (1 is the first) and a chance in [0, 1): seconds after the message was added."""


def quartic(retry: int, chance: float) -> float:
    """15 to 44 s for the first, about 8 h for the 14th: CAP's first formula."""
    return round((retry - 1) ** 4 + 15 + chance * 29 * retry)


@dataclass(frozen=True)
class RetryDelays:
    """Seconds between an attempt and the next: a table, whose last entry goes on. Unlike a `Backoff` it counts from
    the attempt that failed."""

    seconds: Sequence[float]

    def __post_init__(self) -> None:
        if not self.seconds:
            raise ValueError("Delays needs at least one pause")

    def after(self, retry: int) -> float:
        return self.seconds[min(retry, len(self.seconds)) - 1]


def fixed(seconds: float) -> RetryDelays:
    """The same pause before every attempt."""
    return RetryDelays((seconds,))


def exponential(first_s: float = 1.0, *, factor: float = 2.0, max_s: float = 3600.0) -> RetryDelays:
    """Each pause is longer than the one before, up to a longest one."""
    pauses = [first_s]
    while pauses[-1] < max_s and factor > 1 and len(pauses) < 64:
        pauses.append(min(pauses[-1] * factor, max_s))
    return RetryDelays(tuple(pauses))


@dataclass(frozen=True)
class NextAttempt:
    """Scheduled: the next attempt."""

    base: Literal["added", "now"]
    seconds: float


class NoRetry:
    """Failed: no further attempt until it is enqueued anew."""


NO_RETRY = NoRetry()


@dataclass(frozen=True)
class Retry:
    """How often, and how long apart. The same object serves sends and handlers.

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
    """So many of the attempts follow without a pause: CAP makes three today."""

    def __post_init__(self) -> None:
        if self.max < 1:
            raise ValueError(f"Retry(max={self.max}) makes no attempt at all: 1 means no second one")

    def after(self, error: BaseException, failures: int, chance: float, *, rounds: int = 0) -> NextAttempt | NoRetry:
        """What follows the failure that makes it so many, in the message's first or a later round."""
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
        # In a later round the time it was added is long ago: only the distance between two attempts is of use.
        before = self.backoff(failures - 1, chance) if failures > 1 else 0.0
        return NextAttempt("now", max(1.0, self.backoff(failures, chance) - before))


CAP_RETRY = Retry(max=50, backoff=fixed(60), immediate_retries=2)
"""What CAP does today: three attempts at once, then one a minute, fifty in all."""
