"""Futures of appends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from sparrow.model.errors import SparrowError

_Source = TypeVar("_Source")
_Result = TypeVar("_Result")


def map_future(source: asyncio.Future[_Source], convert: Callable[[_Source], _Result]) -> asyncio.Future[_Result]:
    """Return a future that completes with `convert(result)`, or fails or is cancelled as `source` is."""
    mapped: asyncio.Future[_Result] = asyncio.get_running_loop().create_future()

    def complete(future: asyncio.Future[_Source]) -> None:
        if mapped.done():
            return
        if future.cancelled():
            mapped.cancel()
        elif (failure := future.exception()) is not None:
            mapped.set_exception(failure)
        else:
            try:
                mapped.set_result(convert(future.result()))
            except SparrowError as error:
                mapped.set_exception(error)

    source.add_done_callback(complete)
    return mapped
