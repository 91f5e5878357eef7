"""A table of cases for one claim about one function: one test instead of one test per case."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from functools import wraps
from typing import Any


def each_case(names: str | Sequence[str], cases: Iterable[Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Call a test for every case and report all cases that fail.

    Use it like `pytest.mark.parametrize`, for functions without side effects: fixtures are created once for all cases.
    """
    wanted = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
    table = [case if len(wanted) > 1 else (case,) for case in cases]
    assert table, "the table must have at least one case"

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        @wraps(test)
        def run(**fixtures: Any) -> None:
            failures = []
            for case in table:
                arguments = dict(zip(wanted, case, strict=True))
                try:
                    test(**arguments, **fixtures)
                except Exception as failure:
                    failure.add_note(f"case: {arguments!r}")
                    failures.append(failure)
            if failures:
                raise ExceptionGroup(f"{len(failures)} of {len(table)} cases fail", failures)

        parameters = inspect.signature(test).parameters
        rest = [parameter for name, parameter in parameters.items() if name not in wanted]
        run.__signature__ = inspect.Signature(rest)  # type: ignore[attr-defined]
        return run

    return decorate
