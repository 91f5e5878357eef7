"""RocketMQ's remoting protocol without a socket: encode a request to bytes and decode it to typed values."""

from sparrow.wire import frame, headers
from sparrow.wire.codes import RequestCode
from sparrow.wire.connection import Connection

asked = headers.QueryOffset(group="billing", topic="orders", queue_id=3)
request = frame.RemotingCommand(RequestCode.QUERY_CONSUMER_OFFSET, opaque=7, ext=headers.write(asked))
data = frame.encode(request)
print(len(data), "bytes:", data[:60], "...")

# A connection accepts the bytes of a socket in chunks of any size and returns complete commands.
connection = Connection()
(command,) = connection.feed(data[:10]) + connection.feed(data[10:])
print(headers.read(headers.request_header_type(command.code), command.ext))

answer = frame.response_to(command, ext=headers.write(headers.OffsetResponse(offset=4711)))
print(frame.encode(answer))
