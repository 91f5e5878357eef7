"""Values as message bodies: JSON, checked against a type, and a codec for the wire form of a schema registry."""

import struct
from dataclasses import dataclass

import sparrow.testing
from sparrow import Consumer, JsonCodec, Message, Producer, UnreadableBody


@dataclass
class Order:
    item: str
    amount: int


class RegistryCodec:
    """The wire form of schema registries: a zero byte, the id of the schema in four bytes, then the encoded value.

    Here the value is JSON. With Avro or Protobuf only the two lines that call `JsonCodec` differ.
    """

    def __init__(self, schema_ids: dict[int, type]) -> None:
        """Create a codec for these types; in production a registry's client looks them up."""
        self._codecs = {number: JsonCodec(kind) for number, kind in schema_ids.items()}
        self._numbers = {kind: number for number, kind in schema_ids.items()}

    def encode(self, value: object) -> bytes:
        number = self._numbers[type(value)]
        return struct.pack(">bI", 0, number) + self._codecs[number].encode(value)

    def decode(self, body: bytes) -> object:
        if len(body) < 5 or body[0] != 0:
            raise ValueError("no schema id before the value")
        (number,) = struct.unpack_from(">I", body, 1)
        return self._codecs[number].decode(body[5:])


with sparrow.testing.run_platform() as platform, Producer(platform.name_servers) as producer:
    registry = RegistryCodec({7: Order})
    producer.send(Message.json("orders", {"item": "a book", "amount": 1}, tags="json"))
    producer.send(Message.encode("orders", Order("a pen", 3), registry, tags="registry"))
    producer.send(Message("orders", "a lamp", tags="text"))

    with Consumer(platform.name_servers, group="billing") as consumer:
        consumer.subscribe("orders")
        for count, message in enumerate(consumer, start=1):
            try:
                print(message.tags, message.decode(registry) if message.tags == "registry" else message.json(Order))
            except UnreadableBody as error:
                print(error)
            if count == 3:
                break
