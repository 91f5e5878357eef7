"""Authentication: issue tokens for a producer and a consumer, then revoke one."""

import sparrow.testing
from sparrow import Admin, Consumer, Credentials, Message, Producer
from sparrow.model.errors import Refused

OPERATOR = Credentials("operator", "keep this one safe")
AUTH = {"auth": True, "admin_tokens": {OPERATOR.access_key: OPERATOR.secret_key}}

with sparrow.testing.run_platform(broker=AUTH) as platform, Admin(platform.name_servers, credentials=OPERATOR) as admin:
    shop = admin.issue_token("shop", "p")
    billing = admin.issue_token("billing", "c")
    with Producer(platform.name_servers, credentials=shop, retries=0) as producer:
        producer.send(Message("orders", "order-7"))

        with Consumer(platform.name_servers, group="billing", credentials=billing) as consumer:
            consumer.subscribe("orders")
            print("received", next(iter(consumer)).body.decode())

        admin.revoke_token("shop")
        try:
            producer.send(Message("orders", "order-8"))
        except Refused as refusal:
            print(refusal)

    for token in admin.tokens():
        print(token.name, token.type, "revoked" if token.revoked_ms is not None else "in use")
