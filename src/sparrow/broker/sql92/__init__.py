"""SQL92 selectors: conditions on the properties of messages that a consumer subscribes with.

`compile_selector` parses an expression once. The `Selector` then evaluates one property string, or a column of them,
with the same results as RocketMQ.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

from sparrow.broker.sql92.lexer import InvalidSelector
from sparrow.broker.sql92.parser import EXPRESSION_CHARS_MAX, parse
from sparrow.broker.sql92.row_evaluator import build_matcher
from sparrow.broker.sql92.syntax_tree import count_properties

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["EXPRESSION_CHARS_MAX", "SELECTOR_CACHE_MAX", "InvalidSelector", "Selector", "compile_selector"]

SELECTOR_CACHE_MAX = 512
"""The number of compiled selectors in the cache. All members of a group send the same one with heartbeats and pulls."""


class Selector:
    """A compiled expression. Immutable, so that subscriptions with the same text share one."""

    __slots__ = ("condition", "expression", "matches", "property_reads")

    def __init__(self, expression: str) -> None:
        self.expression = expression
        self.condition = parse(expression)
        self.matches = build_matcher(self.condition)
        """Returns whether a message with this property string (bytes, as in a record) matches."""
        self.property_reads = max(1, count_properties(self.condition))
        """How often the evaluation of one message may look for a property."""

    def __repr__(self) -> str:
        return f"Selector({self.expression!r})"

    def mask(self, property_strings: Any) -> NDArray[np.bool_]:
        """Evaluate many property strings: an Arrow array, chunked or not, of binary or string."""
        from sparrow.broker.sql92.column_evaluator import (
            matching_mask,  # imported here, so that only columns load Arrow and NumPy
        )

        return matching_mask(self.condition, property_strings)


@lru_cache(maxsize=SELECTOR_CACHE_MAX)
def compile_selector(expression: str) -> Selector:
    """Return the selector of an expression, or raise `InvalidSelector`."""
    return Selector(expression)
