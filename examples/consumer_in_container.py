"""A consumer as a container runs it: SIGTERM lets the handler in progress finish, commits, and exits with status 0.

`python consumer_in_container.py NAME_SERVERS` is what a container starts. Without an argument this program shows what
happens: it runs a broker, starts the consumer as a process, and stops it while a message is being handled.
"""

import signal
import subprocess
import sys
import threading
import time

import sparrow.testing
from sparrow import Admin, Consumer, HealthServer, Message, Producer, StoredMessage

HEALTH_PORT = 0  # any free one; a container uses a fixed one, for example 8080


def consume(name_servers: str) -> None:
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())

    def charge(message: StoredMessage) -> None:
        print("charging", message.body.decode(), flush=True)
        time.sleep(1)  # work that must not be interrupted
        print("charged", message.body.decode(), flush=True)

    # Leave less time to the handlers (`grace_s`) than the platform gives the process: Kubernetes kills after 30 s.
    consumer = Consumer(name_servers, group="billing")
    with HealthServer(consumer, port=HEALTH_PORT):
        try:
            consumer.subscribe("orders")
            consumer.start(charge, workers=4)
            stop.wait()
        finally:
            consumer.close(grace_s=25)
    print("stopped", flush=True)


def main() -> None:
    with sparrow.testing.run_platform() as platform:
        with Producer(platform.name_servers) as producer:
            producer.send(Message("orders", "order 1"))
        command = [sys.executable, __file__, platform.name_servers]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as consumer:
            assert consumer.stdout is not None
            print(consumer.stdout.readline().strip())  # the handler has begun
            consumer.send_signal(signal.SIGTERM)
            print(consumer.stdout.read().strip())
        with Admin(platform.name_servers) as admin:
            lag = admin.progress("billing", "orders").lag
        print(f"exit status {consumer.returncode}, {lag} messages left")
        assert (consumer.returncode, lag) == (0, 0)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        consume(sys.argv[1])
    else:
        main()
