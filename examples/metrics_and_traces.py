"""Scrape a broker's metrics, and follow one message through producer, broker and consumer with OpenTelemetry.

It needs the packages opentelemetry-sdk and sparrowmq[server].
"""

import threading
import urllib.request

from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from sparrow import Consumer, Message, Producer, RetryLater
from sparrow.testing import run_platform

exporter = InMemorySpanExporter()  # an application exports to its collector instead
provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(exporter))
trace.set_tracer_provider(provider)

attempts = []
is_handled = threading.Event()


def handle(message):
    attempts.append(message.properties["traceparent"])
    if len(attempts) == 1:
        raise RetryLater(1)  # the retry keeps the context of the trace
    is_handled.set()


with run_platform(telemetry={"metrics_port": 0}) as platform:
    with Consumer(platform.name_servers, group="billing", consume_from="first") as consumer:
        with trace.get_tracer("shop").start_as_current_span("checkout"), Producer(platform.name_servers) as producer:
            producer.send(Message("orders", b"a book", keys="order-7"))
        consumer.subscribe("orders")
        consumer.start(handle)
        assert is_handled.wait(50), "the message was not delivered again"
    text = urllib.request.urlopen(f"http://{platform.metrics_address}/metrics").read().decode()

provider.force_flush()
spans = exporter.get_finished_spans()
checkout = next(span for span in spans if span.name == "checkout")
for span in spans:
    is_same = span.context.trace_id == checkout.context.trace_id
    print(f"{span.name:16} {span.kind.name:9} {'in the trace of the checkout' if is_same else ''}")
for line in text.splitlines():
    if line.startswith(("rocketmq_messages_in_total", "sparrow_retry_messages_total")):
        print(line)
assert {"checkout", "send orders", "store orders"} <= {span.name for span in spans}
assert len(set(attempts)) == 1, "every attempt has the same context"
