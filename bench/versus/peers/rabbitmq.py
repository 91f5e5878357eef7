"""RabbitMQ: quorum queues, which sync to the disk before they confirm, and streams, which do not."""

from __future__ import annotations

import subprocess
from contextlib import ExitStack
from pathlib import Path

from bench.versus.peers.peer import Peer
from tests.support.databases import _find
from tests.support.message_brokers import rabbitmq_server


class RabbitMQ(Peer):
    name = "RabbitMQ"
    measured_program = "beam.smp"

    @property
    def description(self) -> str:
        words = ("dpkg-query", "--showformat=${Version}", "--show", "rabbitmq-server")
        found = subprocess.run(words, capture_output=True, text=True, check=False)
        version = found.stdout if found.returncode == 0 else "of unknown version"
        return f"RabbitMQ {version}, one node, {'quorum queue' if self.flush == 'sync' else 'stream'}"

    @classmethod
    def is_installed(cls) -> bool:
        return _find("rabbitmq-server") is not None

    def _launch(self, folder: Path, running: ExitStack) -> None:
        self.address = running.enter_context(rabbitmq_server(folder)).url
