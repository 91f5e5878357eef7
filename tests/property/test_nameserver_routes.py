"""Routes against a list of facts, under any operations of brokers, connections and tools.

The model keeps plain facts (the members, and the queues of each broker) and answers questions by a loop over them.
"""

from dataclasses import dataclass

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from sparrow.model.errors import BadRequest
from sparrow.nameserver.routes import RouteTable
from sparrow.wire import bodies
from sparrow.wire.bodies import DataVersion, QueueData, RouteData, TopicConfig, TopicTable

NAMES = ("a", "b")
TOPICS = ("T", "U", "V")
CLUSTERS = ("one", "two")
CONNECTIONS = (1, 2, 3)

names, topics, clusters = st.sampled_from(NAMES), st.sampled_from(TOPICS), st.sampled_from(CLUSTERS)
numbers, connections = st.integers(0, 2), st.sampled_from(CONNECTIONS)
addresses = st.sampled_from(("x:1", "y:1", "z:1"))
tables = st.dictionaries(topics, st.tuples(st.integers(1, 3), st.sampled_from((2, 4, 6))), max_size=3)


@dataclass
class Fact:
    address: str
    version: DataVersion
    connection: int
    last_seen_ms: int
    heartbeat_timeout_ms: int


class RoutesAgainstFacts(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.routes = RouteTable()
        self.now_ms = 0
        self.members: dict[tuple[str, int], Fact] = {}
        self.groups: dict[str, tuple[str, bool]] = {}  # name -> cluster, acting master
        self.queues: dict[tuple[str, str], QueueData] = {}  # (topic, name)

    def numbers_of(self, name):
        return sorted(number for owner, number in self.members if owner == name)

    def drop(self, leaves):
        self.members = {key: fact for key, fact in self.members.items() if not leaves(key, fact)}
        self.groups = {name: some for name, some in self.groups.items() if self.numbers_of(name)}
        self.queues = {key: some for key, some in self.queues.items() if key[1] in self.groups}

    @rule(
        name=names,
        number=numbers,
        address=addresses,
        cluster=clusters,
        table=tables,
        counter=st.integers(1, 2),
        state=st.sampled_from((None, 0, 1)),
        acting=st.sampled_from((None, False, True)),
        connection=connections,
        heartbeat_timeout_ms=st.sampled_from((5, 50)),
    )
    def register(self, name, number, address, cluster, table, counter, state, acting, connection, heartbeat_timeout_ms):
        version = DataVersion(counter, 7, state)
        configs = {topic: TopicConfig(topic, queues, queues, perm) for topic, (queues, perm) in table.items()}
        before = self.members.get((name, number))
        try:
            self.routes.register(
                broker_name=name,
                broker_id=number,
                address=address,
                ha_address="ha",
                cluster=cluster,
                topics=TopicTable(configs, version),
                acting_master=acting,
                heartbeat_timeout_ms=heartbeat_timeout_ms,
                connection=connection,
                now_ms=self.now_ms,
            )
        except BadRequest:
            assert before is None
            assert len(table) == 1
            return
        assert before is not None or len(table) != 1
        if before and before.address != address and (before.version.state_version or 0) > (state or 0):
            return
        self.members = {key: fact for key, fact in self.members.items() if key[0] != name or fact.address != address}
        self.members[name, number] = Fact(address, version, connection, self.now_ms, heartbeat_timeout_ms)
        self.groups[name] = cluster, bool(acting)
        is_news = (
            before is None
            or before.address != address
            or (before.version.counter, before.version.state_version or 0) != (counter, state or 0)
        )
        if number == 0 or (acting is not None and number == min(self.numbers_of(name))):
            for topic, (queues, perm) in table.items():
                if is_news or (topic, name) not in self.queues:
                    self.queues[topic, name] = QueueData(name, queues, queues, perm)

    @rule(name=names, address=addresses, connection=connections)
    def heartbeat(self, name, address, connection):
        known = self.routes.touch(name, address, connection=connection, now_ms=self.now_ms)
        fact = next((f for (owner, _), f in self.members.items() if owner == name and f.address == address), None)
        assert known == (fact.version if fact else None)
        if fact:
            fact.last_seen_ms, fact.connection = self.now_ms, connection

    @rule(connection=connections)
    def close(self, connection):
        gone = self.routes.connection_closed(connection)
        assert len(gone) == sum(fact.connection == connection for fact in self.members.values())
        self.drop(lambda _, fact: fact.connection == connection)

    @rule(name=names, address=addresses)
    def unregister(self, name, address):
        self.routes.unregister(name, address)
        self.drop(lambda key, fact: key[0] == name and fact.address == address)

    @rule(passing_ms=st.integers(0, 30))
    def time_passes(self, passing_ms):
        self.now_ms += passing_ms
        self.routes.expire(self.now_ms)
        self.drop(lambda _, fact: fact.last_seen_ms + fact.heartbeat_timeout_ms < self.now_ms)

    @rule(name=names, allows=st.booleans())
    def change_writes(self, name, allows):
        count = (self.routes.allow_writes if allows else self.routes.forbid_writes)(name)
        mine = [key for key in self.queues if key[1] == name]
        assert count == len(mine)
        for key in mine:
            some = self.queues[key]
            perm = 6 if allows else some.perm & ~2
            self.queues[key] = QueueData(name, some.read_queue_nums, some.write_queue_nums, perm)

    @rule(topic=topics, cluster=st.none() | clusters)
    def delete_topic(self, topic, cluster):
        self.routes.delete_topic(topic, cluster)
        self.queues = {
            key: some
            for key, some in self.queues.items()
            if key[0] != topic or (cluster is not None and self.groups[key[1]][0] != cluster)
        }

    @rule(topic=topics, brokers=st.sets(names, min_size=1))
    def register_topic(self, topic, brokers):
        queues = {name: QueueData(name, 9, 9, 6) for name in brokers}
        is_taken = self.routes.register_topic(topic, queues.values())
        assert is_taken == (brokers <= self.groups.keys())
        if is_taken:
            self.queues |= {(topic, name): some for name, some in queues.items()}

    @invariant()
    def every_route_follows_from_the_facts_whether_kept_or_made(self):
        for topic in TOPICS:
            expected = self.expected(topic)
            assert self.routes.route(topic) == expected
            body = self.routes.encoded_route(topic)
            assert (None if body is None else bodies.read(RouteData, body)) == expected

    @invariant()
    def lists_follow_from_the_facts(self):
        assert self.routes.topics() == sorted({topic for topic, _ in self.queues})
        table = self.routes.clusters()
        assert table.broker_addr_table.keys() == self.groups.keys()
        for cluster in CLUSTERS:
            here = sorted(name for name, (of, _) in self.groups.items() if of == cluster)
            assert table.cluster_addr_table.get(cluster, []) == here
            assert self.routes.topics_of_cluster(cluster) == sorted({t for t, name in self.queues if name in here})

    def expected(self, topic):
        holders = sorted(name for some, name in self.queues if some == topic)
        if not holders:
            return None
        brokers, queues = [], []
        for name in holders:
            cluster, acting = self.groups[name]
            shown = {number: self.members[name, number].address for number in self.numbers_of(name)}
            some = self.queues[topic, name]
            if acting and 0 not in shown:
                shown[0] = shown.pop(min(shown))
                some = QueueData(name, some.read_queue_nums, some.write_queue_nums, some.perm & ~2)
            brokers.append(bodies.BrokerData(cluster, name, shown, acting))
            queues.append(some)
        return RouteData(brokers, queues)


TestRoutesAgainstFacts = RoutesAgainstFacts.TestCase
