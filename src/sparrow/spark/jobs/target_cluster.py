"""Jobs that read from one cluster and write to another: which brokers are the target, and whether they are others."""

from __future__ import annotations

from sparrow.model.errors import UnknownTopic
from sparrow.spark.client_pool import CLIENT_POOL
from sparrow.spark.options import ClientOptions


def is_same_cluster(topic: str, source: ClientOptions, target: ClientOptions) -> bool:
    """Return whether both name servers lead to the same brokers for the topic: an address can be written in many ways.

    A topic that the target does not have is in another cluster.
    """
    if source.name_servers == target.name_servers:
        return True
    return not _master_addresses(topic, source).isdisjoint(_master_addresses(topic, target))


def _master_addresses(topic: str, options: ClientOptions) -> set[str]:
    client = CLIENT_POOL.get(options)
    try:
        return {str(address) for address in client.run(client.session.route(topic, is_fresh=True)).masters.values()}
    except UnknownTopic:
        return set()
