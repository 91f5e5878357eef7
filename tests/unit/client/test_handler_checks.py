"""Handlers that would do nothing, or block the event loop, are recognised before they are used."""

import functools
import inspect

import pytest

from sparrow.client.handler_checks import refuse_awaitable, require_coroutine_function, require_plain_function


def plain(message):
    return message


async def coroutine(message):
    return message


class Plain:
    def __call__(self, message):
        return message

    def method(self, message):
        return message


class Coroutine:
    async def __call__(self, message):
        return message

    async def method(self, message):
        return message


def generator(message):
    yield message


async def async_generator(message):
    yield message


PLAIN = [plain, lambda message: message, Plain(), Plain().method, functools.partial(plain), functools.partial(Plain())]
COROUTINES = [coroutine, Coroutine(), Coroutine().method, functools.partial(coroutine), functools.partial(Coroutine())]


@pytest.mark.parametrize("function", COROUTINES)
def test_a_coroutine_function_is_refused_by_the_blocking_client(function):
    with pytest.raises(TypeError, match=r"the handler .* is a coroutine function.* use the client of sparrow\.aio"):
        require_plain_function(function, "the handler")
    require_coroutine_function(function, "the handler")


@pytest.mark.parametrize("function", PLAIN)
def test_a_plain_function_is_refused_by_the_asyncio_client(function):
    with pytest.raises(TypeError, match=r"the handler .* is a plain function.*write `async def`.* sparrow\.Consumer"):
        require_coroutine_function(function, "the handler")
    require_plain_function(function, "the handler")


@pytest.mark.parametrize("require", [require_plain_function, require_coroutine_function])
@pytest.mark.parametrize("function", [generator, async_generator])
def test_a_generator_function_is_refused_by_both(require, function):
    with pytest.raises(TypeError, match=r"contains `yield`, so a call of it runs nothing"):
        require(function, "the handler")


@pytest.mark.parametrize("require", [require_plain_function, require_coroutine_function])
@pytest.mark.parametrize("thing", [None, "print", 7])
def test_what_cannot_be_called_is_refused_by_both(require, thing):
    with pytest.raises(TypeError, match=r"cannot be called: pass a function of one argument"):
        require(thing, "the handler")


def test_a_coroutine_that_a_plain_function_returns_is_refused_and_closed():
    returned = coroutine("x")
    with pytest.raises(TypeError, match=r"the handler returned the coroutine coroutine"):
        refuse_awaitable(returned, "the handler")
    assert inspect.getcoroutinestate(returned) == inspect.CORO_CLOSED
    refuse_awaitable(None, "the handler")
