"""Shared by all RabbitMQ connections: translated errors, and closing."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

import aio_pika
from aio_pika.abc import AbstractConnection
from aiormq.exceptions import ChannelAccessRefused, ChannelClosed, DeliveryError, ProbableAuthenticationError

from sparrow.model.errors import ConnectionLost, NotPermitted, Refused, RequestTimeout


class DeclarationRefused(Refused):
    """An exchange or queue of that name exists with other properties."""

    def __init__(self, what: str, why: str) -> None:
        super().__init__(what, why)
        self.what, self.why = what, why

    def __str__(self) -> str:
        return f"{self.what} cannot be used: {self.why}; delete it on the broker, or choose another name"


@contextmanager
def translated_errors(address: str, what: str, timeout_s: float) -> Iterator[None]:
    """Translate the library's errors into those of the model."""
    try:
        yield
    except DeliveryError:
        raise
    except TimeoutError as error:
        raise RequestTimeout(address, what, int(timeout_s * 1000)) from error
    except ProbableAuthenticationError as error:
        raise NotPermitted(f"the connection to {address}", str(error)) from error
    except ChannelAccessRefused as error:
        raise NotPermitted(what, str(error)) from error
    except (ChannelClosed, ValueError) as error:  # ValueError before anything is sent: not a valid AMQP name
        raise DeclarationRefused(what, str(error)) from error
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        raise ConnectionLost(
            address, "the connection was closed"
        ) from None  # the library cancels waiting tasks when a connection is closed
    except aio_pika.exceptions.CONNECTION_EXCEPTIONS as error:
        raise ConnectionLost(address, str(error) or type(error).__name__) from error


async def close_connection(connection: AbstractConnection) -> None:
    """Close a connection; never fails."""
    try:
        await connection.close()
    except Exception:  # noqa: S110 - the connection is given up anyway
        pass
