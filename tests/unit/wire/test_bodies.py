"""Typed bodies: the texts of the specification, and both forms of registration."""

import base64

import pytest
from tests.support.cases import each_case

from sparrow.model.errors import BadRequest
from sparrow.model.topic import Group, Topic
from sparrow.wire import bodies
from sparrow.wire.bodies import QueueRef

HEARTBEAT = b"""{"clientID":"10.1.1.2@4711#88","consumerDataSet":[{"consumeFromWhere":"CONSUME_FROM_LAST_OFFSET",
 "consumeType":"CONSUME_PASSIVELY","groupName":"g","messageModel":"CLUSTERING","subscriptionDataSet":[
 {"classFilterMode":false,"codeSet":[2598919],"expressionType":"TAG","subString":"TagA","subVersion":1700000000000,
  "tagsSet":["TagA"],"topic":"T"},{"classFilterMode":false,"codeSet":[],"expressionType":"TAG","subString":"*",
  "subVersion":1700000000001,"tagsSet":[],"topic":"%RETRY%g"}],"unitMode":false}],
 "heartbeatFingerprint":0,"producerDataSet":[{"groupName":"CLIENT_INNER_PRODUCER"}],"withoutSub":false}"""

QUEUE = QueueRef("T", "b", 0)


def test_a_java_heartbeat_is_decoded():
    beat = bodies.read(bodies.HeartbeatData, HEARTBEAT)
    assert beat.client_id == "10.1.1.2@4711#88"
    assert beat.producer_data_set == [bodies.ProducerData("CLIENT_INNER_PRODUCER")]
    (consumer,) = beat.consumer_data_set
    assert [subscription.topic for subscription in consumer.subscription_data_set] == ["T", "%RETRY%g"]
    assert consumer.subscription_data_set[0].code_set == [2598919]
    assert bodies.read(bodies.HeartbeatData, bodies.write(beat)) == beat


def test_codes_as_text_from_go_and_null_values_are_decoded():
    go = b'{"topic":"T","subString":"TagA","codeSet":["2598919"],"tagsSet":null,"expressionType":null}'
    subscription = bodies.read(bodies.SubscriptionData, go)
    assert subscription == bodies.SubscriptionData("T", "TagA", code_set=[2598919])


def test_a_route_has_no_spaces_and_quoted_ids_so_that_go_can_parse_it():
    route = bodies.RouteData(
        [bodies.BrokerData("DefaultCluster", "broker-a", {0: "10.0.0.1:10911", 1: "10.0.0.2:10911"})],
        [bodies.QueueData("broker-a", 8, 8, 6)],
    )
    text = bodies.write(route)
    assert b'"brokerAddrs":{"0":"10.0.0.1:10911","1":"10.0.0.2:10911"}' in text
    assert b" " not in text
    assert b"orderTopicConf" not in text, "absent unless set"
    assert bodies.read(bodies.RouteData, text) == route
    assert bodies.read(bodies.RouteData, text.replace(b'"0":', b"0:").replace(b'"1":', b"1:")) == route


def test_tables_keyed_by_queues_have_the_form_that_tools_parse():
    stats = bodies.TopicStats({QUEUE: bodies.TopicOffset(0, 5, 9)})
    text = bodies.write(stats)
    assert text.startswith(b'{"offsetTable":{{"topic":"T","brokerName":"b","queueId":0}:{"minOffset":0')
    assert bodies.read(bodies.TopicStats, text) == stats
    java = b'{"offsetTable":{{"brokerName":"b","queueId":0,"topic":"T"}:5}}'
    assert bodies.read(bodies.OffsetTable, java).offset_table == {QUEUE: 5}


@each_case(
    "body",
    [
        bodies.ConsumeStats({QUEUE: bodies.QueueConsumeStats(9, 5, 1, 6)}, 1.5),
        bodies.ConsumeStatsList([{"g": [bodies.ConsumeStats({QUEUE: bodies.QueueConsumeStats(9, 5)})]}], "a:1", 4, 0),
        bodies.ConsumerStatus({QUEUE: 1}, {"client": {QUEUE: 2}}),
        bodies.LockQueues("g", "c", [QUEUE]),
        bodies.LockedQueues([QUEUE]),
        bodies.ConsumerList(["a", "b"]),
        bodies.ClusterTable({"b": bodies.BrokerData("c", "b", {0: "a:1"})}, {"c": ["b"]}),
        bodies.Assignments([bodies.Assignment(QUEUE, "POP")]),
        bodies.Assignments(None),
        bodies.KvTable({"a": "b"}),
        bodies.ConsumerOffsets({"T@g": {0: 5}}),
        bodies.CorrectedOffsets({0: 7}),
        bodies.GroupTable({"g": bodies.GroupConfig("g")}, bodies.DataVersion(1, 2, 3)),
        bodies.ConsumeDirectlyResult(0),
    ],
)
def test_bodies_round_trip(body):
    assert bodies.read(type(body), bodies.write(body)) == body


def test_irregular_wire_names_are_used():
    assert bodies.write(bodies.LockedQueues()) == b'{"lockOKMQSet":[]}'
    assert b'"clientID":"c"' in bodies.write(bodies.HeartbeatData("c"))


@each_case("sent, name", [("0", "CR_SUCCESS"), ("4", "CR_THROW_EXCEPTION"), ('"CR_LATER"', "CR_LATER"), ("6", 6)])
def test_results_that_go_clients_send_as_numbers_get_their_names(sent, name):
    result = bodies.read(bodies.ConsumeDirectlyResult, f'{{"consumeResult":{sent},"order":false}}'.encode())
    assert result.consume_result == name


def test_cpp_clients_get_a_list_of_offsets():
    listed = bodies.OffsetList.of(bodies.OffsetTable({QUEUE: 5}))
    assert bodies.write(listed) == b'{"offsetTable":[{"brokerName":"b","topic":"T","queueId":0,"offset":5}]}'


def test_topics_and_groups_round_trip_through_the_model():
    topic = Topic(name="T", read_queues=3, write_queues=4, permission=2, is_ordered=True, attributes={"a": "b"})
    assert bodies.TopicConfig.of(topic).topic() == topic
    group = Group(name="g", may_consume=False, retries_max=3, is_ordered=True)
    assert bodies.GroupConfig.of(group).group() == group
    assert b'"groupRetryPolicy":{"type":"CUSTOMIZED"}' in bodies.write(bodies.GroupConfig("g"))


@pytest.mark.parametrize("is_compressed", [False, True])
def test_a_registration_round_trips(is_compressed):
    topics = {"T": bodies.TopicConfig("T", 4, 5, 6), "U": bodies.TopicConfig("U", attributes={"+x": "y z"})}
    registration = bodies.BrokerRegistration(bodies.TopicTable(topics, bodies.DataVersion(3, 1700000000000)), ["f:1"])
    body = bodies.write_registration(registration, is_compressed=is_compressed)
    assert bodies.read_registration(body, is_compressed=is_compressed) == registration


@pytest.mark.parametrize(
    "body", [b"", b"nonsense", bodies.write_registration(bodies.BrokerRegistration(), is_compressed=True)[:-4]]
)
def test_a_damaged_compressed_registration_is_a_bad_request(body):
    with pytest.raises(BadRequest):
        bodies.read_registration(body, is_compressed=True)


def test_acked_offsets_are_the_set_bits():
    bits = bodies.encode_bitset([0, 3, 9])
    assert base64.b64decode(bits) == bytes([0b1001, 0b10])
    ack = bodies.Ack("g", "T", "0", 100, 1, 2, 5, 6, bits)
    assert ack.offsets == [100, 103, 109]
    assert bodies.read(bodies.Ack, bodies.write(ack)) == ack
    with pytest.raises(BadRequest):
        bodies.Ack("g", "T", "0", 100, 1, 2, 5, 6, "AAAA" * 1000).offsets  # noqa: B018
    with pytest.raises(BadRequest):
        bodies.Ack("g", "T", "0", 100, 1, 2, 5, 6, "?").offsets  # noqa: B018


def test_queues_sort_as_in_clients():
    queues = [QueueRef("T", "b", 1), QueueRef("T", "a", 10), QueueRef("S", "z", 0), QueueRef("T", "a", 9)]
    assert sorted(queues) == [queues[2], queues[3], queues[1], queues[0]]


@pytest.mark.parametrize("text", [b"", b"[]", b'{"clientID":5}', b"\xff", b"{{}:1}", b"[" * 10_000])
def test_invalid_text_is_a_bad_request(text):
    with pytest.raises(BadRequest):
        bodies.read(bodies.HeartbeatData, text)


def test_a_large_body_of_a_request_must_be_plain_json():
    plain = b'{"clientID":"c","x":[%b]}' % b",".join([b'{"0":1}'] * 20_000)
    dialect = plain.replace(b'"0"', b"0", 1)
    assert len(dialect) > bodies.REQUEST_DIALECT_BYTES_MAX
    assert bodies.read_request(bodies.HeartbeatData, plain).client_id == "c"
    assert bodies.read_request(bodies.HeartbeatData, b'{"clientID":"c","x":{0:1}}').client_id == "c"
    with pytest.raises(BadRequest, match=f"above {bodies.REQUEST_DIALECT_BYTES_MAX} it must be plain JSON"):
        bodies.read_request(bodies.HeartbeatData, dialect)


def test_a_large_table_keyed_by_queues_is_read_from_a_server():
    table = bodies.OffsetTable({QueueRef("T", "b", queue): queue for queue in range(2_000)})
    assert len(bodies.write(table)) > bodies.REQUEST_DIALECT_BYTES_MAX
    assert bodies.read(bodies.OffsetTable, bodies.write(table)) == table
