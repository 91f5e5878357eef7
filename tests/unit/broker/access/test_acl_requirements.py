"""Requests of users with an ACL: which resource and which action each needs. Pure, without a socket."""

import msgspec
import pytest
from pydantic import SecretStr

from sparrow.broker.access.acl_requirements import SUPER_CODES, acl_actions
from sparrow.broker.access.audited_requests import AUDITED_CODES, describe_targets
from sparrow.broker.access.authorizer import RequestAuthorizer
from sparrow.broker.access.requirements import READ_CODES, REQUIREMENTS
from sparrow.model.access.acl import as_super, parse_entry, with_entries
from sparrow.model.access.acl_entry import AclAction
from sparrow.model.access.permissions import TokenAction
from sparrow.model.access.token import Credentials, Token, parse_password
from sparrow.model.errors import NotPermitted
from sparrow.wire import bodies, headers
from sparrow.wire.bodies import AclInfo, PolicyEntryInfo, PolicyInfo, UserInfo
from sparrow.wire.codes import RequestCode
from sparrow.wire.frame import RemotingCommand
from sparrow.wire.headers import Header
from sparrow.wire.signing import sign

PASSWORD = "correct horse"
USER = Token(id=1, name="web", kind="p", secret=parse_password(PASSWORD), created_ms=1)
HERE = "10.0.0.1"


class Guarded:
    """An authorizer that knows one user."""

    def __init__(self, *entries: str, user: Token = USER, cluster: str = "DefaultCluster") -> None:
        parsed = []
        for text in entries:
            decision, actions, resource, *addresses = text.split()
            parsed.append(parse_entry(None, resource, actions.split(","), addresses, decision))
        self.tokens = {user.name: with_entries(user, parsed)}
        self.guard = RequestAuthorizer(self.tokens, {"operator": SecretStr("a long secret")}, cluster=cluster)

    def refusal(self, code: int, header: Header | None = None, body: bytes = b"", host: str = HERE) -> str | None:
        command = RemotingCommand(code, ext=headers.write(sign(header, body, Credentials("web", PASSWORD))), body=body)
        try:
            self.guard.check(command, None, host)
        except NotPermitted as refusal:
            return str(refusal)
        return None

    def may_send(self, topic: str, host: str = HERE) -> bool:
        header = headers.SendMessageV2("g", topic, "TBW102", 4, 0, 0, 1, 0, "")
        return self.refusal(RequestCode.SEND_MESSAGE_V2, header, host=host) is None

    def may_pull(self, topic: str, group: str) -> bool:
        header = headers.QueryOffset(group, topic, 0)
        return self.refusal(RequestCode.QUERY_CONSUMER_OFFSET, header) is None

    def may(self, code: int, header: Header | None = None, body: bytes = b"") -> bool:
        return self.refusal(code, header, body) is None


def test_a_user_without_entries_may_do_nothing():
    guarded = Guarded()
    assert not guarded.may_send("orders")
    assert not guarded.may_pull("orders", "billing")
    assert not guarded.may(RequestCode.GET_BROKER_CONFIG)


def test_sending_needs_pub_on_the_topic():
    guarded = Guarded("Allow Pub Topic:orders", "Allow Sub Topic:invoices")
    assert guarded.may_send("orders")
    assert guarded.may_send("RMQ_SYS_TRACE_TOPIC")
    assert guarded.refusal(
        RequestCode.SEND_MESSAGE_V2, headers.SendMessageV2("g", "invoices", "TBW102", 4, 0, 0, 1, 0, "")
    ) == (
        "SEND_MESSAGE_V2 is not permitted: the ACL of user 'web' does not allow Pub on Topic:invoices from this "
        "address: an administrator can change it"
    )


def test_consuming_needs_sub_on_the_topic_and_the_group():
    assert Guarded("Allow Sub Topic:orders", "Allow Sub Group:billing").may_pull("orders", "billing")
    assert not Guarded("Allow Sub Topic:orders").may_pull("orders", "billing")
    assert not Guarded("Allow Sub Group:billing").may_pull("orders", "billing")
    assert not Guarded("Allow Pub Topic:orders", "Allow Sub Group:billing").may_pull("orders", "billing")
    assert Guarded("Allow Sub Topic:orders").may_pull("orders", "TOOLS_CONSUMER")


def test_a_request_that_names_nothing_needs_its_action_somewhere():
    assert Guarded("Allow Pub Topic:orders").may(RequestCode.END_TRANSACTION)
    assert not Guarded("Allow Sub *").may(RequestCode.END_TRANSACTION)
    assert not Guarded("Deny Pub Topic:orders").may(RequestCode.END_TRANSACTION)


def test_topics_of_a_group_need_the_group():
    guarded = Guarded("Allow All Topic:*", "Allow Sub Group:billing")
    assert guarded.may_send("%RETRY%billing")
    assert guarded.may_pull("%RETRY%billing", "billing")
    assert guarded.may_pull("%RETRY%billing_orders", "billing"), "the retry topic of a popping group"
    assert not guarded.may_send("%RETRY%shipping")
    recall = headers.RecallMessage("%DLQ%billing", "handle")
    assert "Pub on Group:billing" in (guarded.refusal(RequestCode.RECALL_MESSAGE, recall) or "")


def test_a_heartbeat_needs_sub_on_its_consumer_groups_and_their_topics():
    def heartbeat(topic: str) -> bytes:
        subscription = bodies.SubscriptionData(topic=topic, sub_string="*")
        consumer = msgspec.structs.replace(bodies.ConsumerData("billing"), subscription_data_set=[subscription])
        return bodies.write(bodies.HeartbeatData("id", [bodies.ProducerData("p")], [consumer]))

    guarded = Guarded("Allow Sub Topic:orders", "Allow Sub Group:billing", "Allow Pub Topic:invoices")
    assert guarded.may(RequestCode.HEART_BEAT, body=heartbeat("orders"))
    assert not guarded.may(RequestCode.HEART_BEAT, body=heartbeat("invoices"))
    producer = bodies.write(bodies.HeartbeatData("id", [bodies.ProducerData("p")], []))
    assert guarded.may(RequestCode.HEART_BEAT, body=producer)


def test_administration_needs_the_action_of_the_request():
    create = headers.UpdateTopic("orders", "TBW102", 1, 1, 6, "SINGLE_TAG", False)
    delete, show = headers.DeleteTopic("orders"), headers.TopicRequest("orders")
    for action, expected in {
        "Create": (True, False, False),
        "Delete": (False, True, False),
        "Get": (False, False, True),
        "Pub,Sub,Update,List": (False, False, False),
        "All": (True, True, True),
    }.items():
        guarded = Guarded(f"Allow {action} Topic:orders")
        assert (
            guarded.may(RequestCode.UPDATE_AND_CREATE_TOPIC, create),
            guarded.may(RequestCode.DELETE_TOPIC_IN_BROKER, delete),
            guarded.may(RequestCode.GET_TOPIC_STATS_INFO, show),
        ) == expected


def test_requests_for_the_whole_broker_need_its_cluster():
    assert Guarded("Allow Get Cluster:DefaultCluster").may(RequestCode.GET_BROKER_CONFIG)
    assert not Guarded("Allow Get Cluster:DefaultCluster").may(RequestCode.UPDATE_BROKER_CONFIG)
    assert Guarded("Allow Update Cluster:Def*").may(RequestCode.UPDATE_BROKER_CONFIG)
    assert not Guarded("Allow All Cluster:Other").may(RequestCode.GET_BROKER_CONFIG)
    assert not Guarded("Allow All Topic:*", "Allow All Group:*").may(RequestCode.GET_BROKER_CONFIG)


@pytest.mark.parametrize("code", [*sorted(SUPER_CODES), 9999])
def test_tokens_users_acls_and_unknown_requests_need_a_super_user(code):
    guarded = Guarded("Allow All *")
    assert "is no Super user, and this request needs one" in (guarded.refusal(code) or "")
    guarded.tokens["web"] = as_super(guarded.tokens["web"])
    assert guarded.may(code)


def test_a_super_user_is_not_limited_by_its_entries():
    guarded = Guarded("Deny All *")
    assert not guarded.may_send("orders")
    guarded.tokens["web"] = as_super(guarded.tokens["web"])
    assert guarded.may_send("orders")
    assert guarded.may(RequestCode.UPDATE_BROKER_CONFIG)


def test_an_entry_with_addresses_counts_for_each_peer_anew():
    guarded = Guarded("Allow Pub Topic:* 10.0.0.0/8", "Deny Pub Topic:orders 10.0.0.2")
    for _ in range(2):  # the second time, what was allowed is remembered
        assert guarded.may_send("orders", "10.0.0.1")
        assert not guarded.may_send("orders", "10.0.0.2")
        assert not guarded.may_send("orders", "192.168.0.1")


def test_a_disabled_user_is_refused_until_it_is_enabled():
    guarded = Guarded("Allow All *")
    enabled = guarded.tokens["web"]
    guarded.tokens["web"] = msgspec.structs.replace(enabled, disabled_ms=5)
    assert "token 'web' is disabled" in (guarded.refusal(RequestCode.GET_BROKER_CONFIG) or "")
    guarded.tokens["web"] = enabled
    assert guarded.may(RequestCode.GET_BROKER_CONFIG)


def test_a_topic_that_only_the_handler_knows_is_compared_with_the_entries():
    guarded = Guarded("Allow Pub Topic:orders 10.0.0.0/8", "Allow Sub Topic:invoices", "Allow Sub Group:billing")
    command = RemotingCommand(RequestCode.END_TRANSACTION, ext={"AccessKey": "web"})
    assert guarded.guard.may(command, TokenAction.PUBLISH, "orders", host=HERE)
    assert not guarded.guard.may(command, TokenAction.PUBLISH, "orders", host="192.168.0.1")
    assert not guarded.guard.may(command, TokenAction.PUBLISH, "invoices", host=HERE)
    assert guarded.guard.may(command, TokenAction.SUBSCRIBE, "invoices", "billing", HERE)


def test_every_request_has_actions_and_what_only_reads_does_not_need_to_update():
    for code, need in REQUIREMENTS.items():
        actions = acl_actions(code, need.actions)
        assert actions, code
        assert AclAction.ALL not in actions
        if code in READ_CODES:
            assert AclAction.GET in actions
        elif need.actions == (TokenAction.ADMINISTER,):
            assert actions <= {AclAction.CREATE, AclAction.UPDATE, AclAction.DELETE}


def test_the_audit_log_has_users_and_entries_and_no_password():
    changing = {code for code in RequestCode if code.name.startswith("AUTH_")} - READ_CODES
    assert len(changing) == 6
    assert changing <= AUDITED_CODES
    user = bodies.write(UserInfo("web", "Super", "disable", PASSWORD))
    said = describe_targets(RemotingCommand(RequestCode.AUTH_UPDATE_USER, ext={"username": "web"}, body=user))
    assert said == "user 'web', type 'Super', status 'disable'"
    acl = AclInfo("User:web", [PolicyInfo(None, [PolicyEntryInfo("Topic:a", ["Pub", "Sub"], ["10.0.0.1"], "Deny")])])
    command = RemotingCommand(RequestCode.AUTH_CREATE_ACL, ext={"subject": "User:web"}, body=bodies.write(acl))
    assert describe_targets(command) == (
        """subject 'User:web', entry "Deny ['Pub', 'Sub'] on Topic:a from ['10.0.0.1']\""""
    )
    command = RemotingCommand(RequestCode.AUTH_DELETE_ACL, ext={"subject": "User:web", "resource": "Topic:a"})
    assert describe_targets(command) == "subject 'User:web', resource 'Topic:a'"
    assert PASSWORD not in repr(UserInfo("web", "Super", "disable", PASSWORD))
