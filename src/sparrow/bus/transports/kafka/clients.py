"""Shared by all Kafka clients: translated errors, and a shutdown that does not wait for lost servers.

Only this module uses private attributes of aiokafka (0.14).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterator
from contextlib import contextmanager
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, errors
from aiokafka.admin import AIOKafkaAdminClient

from sparrow.model.errors import (
    Closed,
    ConnectionLost,
    IllegalMessage,
    IllegalName,
    NotPermitted,
    RequestTimeout,
    UnknownTopic,
)

CLOSE_TIMEOUT_S = 3.0

_NOT_PERMITTED = (
    errors.TopicAuthorizationFailedError,
    errors.GroupAuthorizationFailedError,
    errors.ClusterAuthorizationFailedError,
    errors.AuthenticationFailedError,
    errors.SaslAuthenticationFailed,
)
_TOO_LARGE = (errors.MessageSizeTooLargeError, errors.RecordListTooLargeError, errors.RecordTooLargeError)


@contextmanager
def translated_errors(address: str, what: str, timeout_s: float, *, topic: str = "") -> Iterator[None]:
    """Translate aiokafka's errors into those of the model."""
    try:
        yield
    except (errors.CommitFailedError, errors.IllegalStateError):
        raise
    except (TimeoutError, errors.KafkaTimeoutError) as error:
        raise RequestTimeout(address, what, int(timeout_s * 1000)) from error
    except errors.ConsumerStoppedError as error:
        raise Closed("the consumer") from error
    except _NOT_PERMITTED as error:
        raise NotPermitted(what, str(error)) from error
    except _TOO_LARGE as error:
        raise IllegalMessage(f"{what} is larger than Kafka accepts: {error}") from error
    except errors.InvalidTopicError as error:
        raise IllegalName("topic", topic, str(error)) from error
    except errors.UnknownTopicOrPartitionError as error:
        raise UnknownTopic(topic) from error
    except (errors.KafkaError, OSError) as error:
        raise ConnectionLost(address, str(error) or type(error).__name__) from error


async def stop_producer(producer: AIOKafkaProducer, *, keep_trying: bool) -> None:
    """Stop a producer; with `keep_trying` wait for pending records, otherwise fail them at once."""
    if not keep_trying or not await _ends(producer.stop()):
        producer._message_accumulator.fail_all(errors.ProducerClosed())
        await _ends(producer.stop())
        await _drop(producer._sender.sender_task)
        await _ends(producer.client.close())


async def stop_consumer(consumer: AIOKafkaConsumer) -> None:
    """Leave the group if the server answers, and stop."""
    if await _ends(consumer.stop()):
        return
    # stop() gives up at the first task that fails, and may wait forever for the server: cancel the tasks.
    fetcher, coordinator = consumer._fetcher, consumer._coordinator
    if fetcher is not None:
        await _drop(fetcher._fetch_task, *fetcher._pending_tasks)
    if coordinator is not None:
        tasks = (coordinator._coordination_task, coordinator._heartbeat_task, coordinator._commit_refresh_task)
        await _drop(*tasks)
    await _ends(consumer._client.close())


async def stop_admin(admin: AIOKafkaAdminClient) -> None:
    await _ends(admin._client.close())


async def _ends(ending: Awaitable[None]) -> bool:
    """Return whether the awaitable ended without error and in time."""
    try:
        async with asyncio.timeout(CLOSE_TIMEOUT_S):
            await ending
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        return False  # a cancellation of one of the library's own tasks
    except Exception:
        return False
    return True


async def _drop(*tasks: asyncio.Task[Any] | None) -> None:
    running = [task for task in tasks if task is not None and not task.done()]
    for task in running:
        task.cancel()
    await asyncio.wait(running, timeout=CLOSE_TIMEOUT_S) if running else None
