"""Filters run in order around the handler, may replace payload and result, and never swallow a cancellation."""

import asyncio

import pytest

from sparrow.bus.codec.headers import Headers
from sparrow.bus.errors import SubscriptionError
from sparrow.bus.handlers.filters import FilterContext, chain_filters, to_filter


def context(payload=1):
    return FilterContext(event=None, headers=Headers(), payload=payload)


async def doubled(ctx):
    return ctx.payload * 2


async def failing(ctx):
    raise ValueError("no")


def noting(name, notes):
    async def note(ctx, call_next):
        notes.append(f"{name} before")
        await call_next(ctx)
        notes.append(f"{name} after {ctx.result}")

    return note


async def test_the_first_filter_is_the_outermost():
    notes = []
    assert await chain_filters([noting("a", notes), noting("b", notes)], doubled)(context()) == 2
    assert notes == ["a before", "b before", "b after 2", "a after 2"]


async def test_without_filters_only_the_handler_runs():
    ctx = context()
    assert await chain_filters([], doubled)(ctx) == 2
    assert ctx.result == 2


async def test_a_filter_replaces_payload_and_result():
    async def change(ctx, call_next):
        ctx.payload = 10
        answer = await call_next(ctx)
        ctx.result = answer + 1

    assert await chain_filters([change], doubled)(context()) == 21


async def test_a_filter_that_does_not_call_next_replaces_the_handler():
    async def known(ctx, call_next):
        ctx.result = "cached"

    assert await chain_filters([known], failing)(context()) == "cached"


async def test_a_filter_that_raises_fails_the_message():
    async def guard(ctx, call_next):
        raise PermissionError

    with pytest.raises(PermissionError):
        await chain_filters([guard], doubled)(context())


class Three:
    def __init__(self, handled=False):
        self.notes, self._handled = [], handled

    def executing(self, ctx):
        self.notes.append("executing")

    async def executed(self, ctx):
        self.notes.append(f"executed {ctx.result}")
        ctx.result += 1

    def exception(self, ctx):
        self.notes.append(f"exception {ctx.error}")
        ctx.handled, ctx.result = self._handled, "instead"


async def test_the_three_methods_may_be_sync_or_async():
    three = Three()
    assert await chain_filters([to_filter(three)], doubled)(context()) == 3
    assert three.notes == ["executing", "executed 2"]


async def test_an_exception_propagates_unless_a_filter_handles_it():
    three = Three()
    with pytest.raises(ValueError, match="no"):
        await chain_filters([to_filter(three)], failing)(context())
    assert three.notes == ["executing", "exception no"]
    ctx = context()
    assert await chain_filters([to_filter(Three(handled=True))], failing)(ctx) == "instead"
    assert ctx.error is None


async def test_the_handled_flag_is_reset_for_each_exception():
    class Both(Three):
        def exception(self, ctx):
            assert not ctx.handled

    ctx = context()
    ctx.handled = True
    with pytest.raises(ValueError):
        await chain_filters([to_filter(Both())], failing)(ctx)


async def test_a_filter_cannot_handle_a_cancellation():
    async def cancelled(ctx):
        raise asyncio.CancelledError

    three = Three(handled=True)
    with pytest.raises(asyncio.CancelledError):
        await chain_filters([to_filter(three)], cancelled)(context())
    assert three.notes == ["executing"]


async def test_one_method_is_enough_and_a_class_is_instantiated():
    class OnlyAfter:
        def executed(self, ctx):
            ctx.result = "after"

    assert await chain_filters([to_filter(OnlyAfter)], doubled)(context()) == "after"


async def test_a_callable_object_is_a_filter():
    class Adding:
        async def __call__(self, ctx, call_next):
            await call_next(ctx)
            ctx.result += 5

    assert await chain_filters([to_filter(Adding())], doubled)(context()) == 7


def test_an_invalid_filter_is_refused():
    class NeedsMuch:
        def __init__(self, much):
            pass

    for wrong in (lambda ctx, call_next: None, "filter", object()):
        with pytest.raises(SubscriptionError, match="is not a filter"):
            to_filter(wrong)
    with pytest.raises(SubscriptionError, match="pass an instance"):
        to_filter(NeedsMuch)
