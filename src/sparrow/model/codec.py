"""Codecs: how a value becomes the body of a message and back. JSON is built in; any object with two methods is another.

```python
class Text:
    def encode(self, value: str) -> bytes:
        return value.encode()

    def decode(self, body: bytes) -> str:
        return body.decode()


message = Message.encode("orders", "a book", Text())
message.decode(Text())
```
"""

from __future__ import annotations

from typing import Any, Generic, Protocol, TypeVar

import msgspec

T = TypeVar("T")


class Codec(Protocol[T]):
    """Turns values into bodies and back. Whatever `decode` raises reaches the caller as `UnreadableBody`."""

    def encode(self, value: T) -> bytes:
        """Return the body for a value."""
        ...

    def decode(self, body: bytes) -> T:
        """Return the value of a body; raise an exception if it has none."""
        ...


class JsonCodec(Generic[T]):
    """JSON, in and out. With a type (a dataclass, a `msgspec.Struct`, `list[int]` …) bodies are checked against it.

    ```python
    orders = JsonCodec(Order)
    producer.send(Message.encode("orders", Order("a book", 3), orders))
    ```
    """

    def __init__(self, type: type[T] | Any = Any) -> None:
        """Create a codec; without a type it returns dicts, lists, texts and numbers."""
        self._decoder: msgspec.json.Decoder[T] = msgspec.json.Decoder(type)

    def encode(self, value: T) -> bytes:
        """Return the value as JSON."""
        return msgspec.json.encode(value)

    def decode(self, body: bytes) -> T:
        """Return the value; raise `msgspec.DecodeError` if the body is no JSON, or not of the type."""
        return self._decoder.decode(body)


ANY_JSON: JsonCodec[Any] = JsonCodec()
