"""SQL92 selectors: which messages a consumer wants, said about their properties.

`compile_selector` reads an expression once; the `Selector` then answers for one property string or for a whole column
of them,
and both answers agree with RocketMQ's.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

from sparrow.broker.sql92.lexer import InvalidSelector
from sparrow.broker.sql92.parser import EXPRESSION_CHARS_MAX, parse
from sparrow.broker.sql92.row_evaluator import build_matcher

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["EXPRESSION_CHARS_MAX", "SELECTOR_CACHE_MAX", "InvalidSelector", "Selector", "compile_selector"]

SELECTOR_CACHE_MAX = 512
"""How many compiled selectors are kept. A group's members all send the same one, with every heartbeat and pull."""


class Selector:
    """A compiled expression. It never changes, so all subscriptions with the same text share one."""

    __slots__ = ("condition", "expression", "matches")

    def __init__(self, expression: str) -> None:
        self.expression = expression
        self.condition = parse(expression)
        self.matches = build_matcher(self.condition)
        """Whether a message with this property string (bytes, as in a record) is wanted."""

    def __repr__(self) -> str:
        return f"Selector({self.expression!r})"

    def mask(self, property_strings: Any) -> NDArray[np.bool_]:
        """The same for each of many property strings: an Arrow array, chunked or not, of binary or string."""
        from sparrow.broker.sql92.column_evaluator import (
            matching_mask,  # Arrow and NumPy only for those who have columns
        )

        return matching_mask(self.condition, property_strings)


@lru_cache(maxsize=SELECTOR_CACHE_MAX)
def compile_selector(expression: str) -> Selector:
    """The selector an expression stands for, or `InvalidSelector`."""
    return Selector(expression)
