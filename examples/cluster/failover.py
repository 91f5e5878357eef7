"""A replica set of three brokers on this machine: hand the leadership over, kill the leader, lose nothing.

Needs etcd on the PATH (`apt-get install etcd-server`). Run it with `python examples/cluster/failover.py`; the data goes
to ./replica-set-data. `sparrow up --replicas 3` alone starts the same set for trying it by hand.
"""

import json
import os
import re
import signal
import subprocess
import sys
import threading
from contextlib import suppress

from sparrow import Consumer, Message, Producer
from sparrow.model.errors import SparrowError

SPARROW = (sys.executable, "-m", "sparrow")
COMMAND = (*SPARROW, "up", "--replicas", "3", "--data", "replica-set-data", "--port", "0", "--name-server-port", "0")


def cluster(etcd: str, *words: str) -> str:
    """Run a command of `sparrow cluster`, and return what it prints."""
    done = subprocess.run([*SPARROW, "cluster", *words, "--etcd", etcd], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def leader_of(etcd: str, but: int = 0) -> int:
    """Wait until a replica leads, another one than `but`, and return its number."""
    while True:
        leader = json.loads(cluster(etcd, "status", "--json"))["leader"]
        if leader is not None and leader["replica_id"] != but:
            return int(leader["replica_id"])


def main() -> None:
    platform = subprocess.Popen(COMMAND, stdout=subprocess.PIPE, text=True)
    assert platform.stdout is not None
    name_servers = etcd = ""
    processes: dict[int, int] = {}
    try:
        for line in platform.stdout:
            if found := re.match(r"name server (\S+)", line):
                name_servers = found[1]
            elif found := re.match(r"etcd (\S+)", line):
                etcd = found[1]
            elif found := re.match(r"replica (\d+) is process (\d+)", line):
                processes[int(found[1])] = int(found[2])
            elif line.startswith("ready"):
                break
        threading.Thread(target=platform.stdout.read, daemon=True).start()
        acknowledged: set[str] = set()
        with Producer(name_servers) as producer:

            def send(prefix: str) -> None:
                for number in range(50):
                    body = f"{prefix} {number}"
                    while body not in acknowledged:
                        with suppress(SparrowError):  # no leader for a moment: send again
                            producer.send(Message("orders", body))
                            acknowledged.add(body)

            first = leader_of(etcd)
            send("before")
            print(cluster(etcd, "transfer"))
            second = leader_of(etcd, but=first)
            send("after the hand-over")
            os.kill(processes[second], signal.SIGKILL)
            print(f"replica {second} is killed")
            third = leader_of(etcd, but=second)
            send("after the kill")
            print(f"replica {third} leads")
        received: set[str] = set()
        with Consumer(name_servers, group="billing") as consumer:
            consumer.subscribe("orders")
            for message in consumer:
                received.add(message.body.decode())
                if acknowledged <= received:
                    break
        print(f"{len(acknowledged)} messages acknowledged, {len(acknowledged - received)} lost")
    finally:
        platform.send_signal(signal.SIGINT)
        platform.wait()


if __name__ == "__main__":
    main()
