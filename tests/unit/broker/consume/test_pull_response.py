"""Response frames of pulls: the template and the encoder agree."""

import pytest

from sparrow.broker.consume.pull_response import FOUND, encode_found, encode_pull
from sparrow.model.errors import TooLarge
from sparrow.model.queue import QueueBounds, QueueOffset
from sparrow.store.spi import Slice
from sparrow.wire.codes import RequestCode
from sparrow.wire.frame import FRAME_BYTES_MAX, ONE_WAY_FLAG, RemotingCommand, Serialization
from sparrow.wire.headers import PullMessage

REQUEST = PullMessage("group", "topic", 1, 40, 32, 0, 0, 0, 0, "*", "TAG")
RECORDS = [memoryview(b"first record"), memoryview(b"second")]


def found_records(buffers: list[memoryview]) -> Slice:
    bounds = QueueBounds(QueueOffset(7), QueueOffset(1 << 40))
    return Slice(buffers, [len(each) for each in buffers], QueueOffset(42), bounds)


@pytest.mark.parametrize("serialization", list(Serialization))
@pytest.mark.parametrize("opaque", [0, 5, (1 << 31) - 1, -1])
def test_a_response_with_records_is_what_the_encoder_of_all_responses_makes(serialization, opaque):
    command = RemotingCommand(RequestCode.PULL_MESSAGE, opaque, serialization=serialization)
    expected = encode_pull(command, 1, FOUND, 42, 7, 1 << 40, RECORDS)
    assert encode_found(REQUEST, command, 1, found_records(RECORDS)) == expected


def test_a_one_way_pull_gets_no_response():
    command = RemotingCommand(RequestCode.PULL_MESSAGE, 1, ONE_WAY_FLAG)
    assert encode_found(REQUEST, command, 0, found_records(RECORDS)) is None


def test_records_that_do_not_fit_into_a_frame_are_refused():
    command = RemotingCommand(RequestCode.PULL_MESSAGE, 1)
    with pytest.raises(TooLarge):
        encode_found(REQUEST, command, 0, found_records([memoryview(bytes(FRAME_BYTES_MAX))]))
