"""A broker with very many topics registers them in parts, with Apache's name servers too."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from tests.interop import official, platforms
from tests.support.platforms import running_broker

from sparrow import aio
from sparrow.broker import registration
from sparrow.model.topic import Topic


@pytest.mark.parametrize("version", ["4.9.7", "5.5.0"])
async def test_apache_s_name_server_has_the_topics_of_every_part(
    version: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registration, "_PART_TOPICS", 50)
    topics = {f"topic-{number}": Topic(name=f"topic-{number}") for number in range(320)}
    (tmp_path / "name-server").mkdir()
    with platforms.apache_name_server(official.kit(version), tmp_path / "name-server") as address:
        async with (
            running_broker(tmp_path / "broker", name_servers=address) as server,
            aio.Admin(address) as admin,
        ):
            server.broker.topics.replace_all(topics)
            await server._registration.register()
            assert topics.keys() <= set(await admin.topics())
            changed = {name: msgspec.structs.replace(topics[name], write_queues=3) for name in ("topic-0", "topic-319")}
            server.broker.topics.replace_all({**topics, **changed})
            await server._registration.register()
            for name in changed:
                assert len((await admin.session.route(name)).write_queues) == 3
