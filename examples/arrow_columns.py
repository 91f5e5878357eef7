"""Encode an Arrow table as message records and decode the records into a table, without a loop over messages."""

import pyarrow as pa

from sparrow.wire import columns, record

orders = pa.table(
    {
        "order": ["order-1", "order-2", "order-3"],
        "city": ["Berlin", "Lima", "Oslo"],
        "json": ['{"euros":10}', '{"euros":25}', '{"euros":7}'],
    }
)

encoded = columns.encode(
    orders["json"].combine_chunks().cast(pa.binary()),
    topic="orders",
    keys=orders["order"].combine_chunks(),
    tags=orders["city"].combine_chunks(),
)
print(f"{len(encoded.sizes)} records, {encoded.data.size} bytes, in RocketMQ's own layout")

batch = columns.decode(encoded.data, sizes=encoded.sizes, columns=["keys", "tags", "body"])
print(batch.to_pylist())

# The record codec reads the same bytes message by message: both codecs share one format.
for message in record.decode_all(encoded.data.to_pybytes()):
    print(message.keys, message.tags, message.body)
