"""Subscriptions are declared, checked and found; invalid ones are refused before the start and change nothing."""

import threading
from datetime import timedelta

import msgspec
import pytest

from sparrow.bus.codec.headers import Headers
from sparrow.bus.errors import SubscriptionError
from sparrow.bus.handlers.call_plan import CancelToken
from sparrow.bus.handlers.registry import SubscriptionRegistry, subscribe
from sparrow.bus.handlers.subscription import to_seconds
from sparrow.bus.retry import Retry, RetryDelays

UNNAMED = "cap.queue.shop.v1"


class Order(msgspec.Struct):
    order_id: int


def first(evt: dict): ...


def second(evt: dict): ...


def stoppable(evt: dict, cancel: CancelToken): ...


async def note(ctx, call_next):
    await call_next(ctx)


async def other_note(ctx, call_next):
    await call_next(ctx)


@pytest.fixture
def registry():
    return SubscriptionRegistry()


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A new importable package: `package("a.py", text)` writes one of its modules and returns the package name."""
    name = f"pack_{abs(hash(tmp_path))}"
    (tmp_path / name).mkdir()
    (tmp_path / name / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))

    def write(module, text):
        (tmp_path / name / module).write_text(text)
        return name

    return write


def handler_of(registry, name, group=UNNAMED):
    found = registry.find(group, name)
    return found and found.handler


# -- declarations ----------------------------------------------------------------------------------------------------


def test_the_decorator_returns_the_function_and_may_be_stacked(registry):
    def handler(evt: dict): ...

    decorated = registry.subscribe("a")(registry.subscribe("b", group="other")(handler))
    assert decorated is handler
    registry.check(app="Shop")
    assert {group: plan.topics for group, plan in registry.groups().items()} == {UNNAMED: ("a",), "other.v1": ("b",)}


def test_all_options_of_a_subscription_are_kept(registry):
    retry = Retry(max=3)
    registry.subscribe(
        "a", group="g", concurrency=4, order_by=None, on_failure="park", retry=retry, batch=500, within="2s",
        filters=[note], dedupe=False, timeout=timedelta(minutes=1), max_runtime=5, dead_letter="a.dead",
    )(lambda evts: None)  # fmt: skip
    (made,) = registry.subscriptions
    assert (made.group, made.concurrency, made.order_by, made.on_failure, made.retry) == ("g", 4, None, "park", retry)
    assert (made.batch, made.within_s, made.filters, made.dedupe) == (500, 2.0, (note,), False)
    assert (made.timeout_s, made.max_runtime_s, made.dead_letter, made.executor) == (60.0, 5.0, "a.dead", "thread")


def test_durations_are_numbers_texts_or_timedeltas():
    durations = (2, "2s", "500ms", "1.5m", "1h", "3", timedelta(days=1))
    assert [to_seconds(each) for each in durations] == [2.0, 2.0, 0.5, 90.0, 3600.0, 3.0, 86400.0]
    with pytest.raises(SubscriptionError, match="not a duration"):
        to_seconds("soon")


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"concurrency": 0}, "concurrency"),
        ({"batch": 0}, "batch"),
        ({"within": -1}, "within"),
        ({"timeout": 0}, "timeout"),
        ({"max_runtime": -1}, "max_runtime"),
        ({"order_by": "time"}, "order_by"),
        ({"on_failure": "ignore"}, "on_failure"),
        ({"executor": "fiber"}, "executor"),
        ({"group": ""}, "group"),
        ({"retry": 5}, "retry"),
        ({"concurency": 5}, "concurency"),
        ({"filters": [print]}, "filter"),
        ({"dead_letter": "a b"}, "blanks"),
    ],
)
def test_invalid_options_are_refused_at_once(registry, options, why):
    with pytest.raises(SubscriptionError, match=why):
        registry.add("a", first, **options)
    assert registry.subscriptions == ()


@pytest.mark.parametrize("topic", ["", "a b", "a.b*", ".partial", "a..b"])
def test_an_invalid_topic_is_refused_with_the_name_of_the_handler(registry, topic):
    with pytest.raises(SubscriptionError, match="first"):
        registry.add(topic, first)


def test_a_decorator_without_a_topic_is_refused(registry):
    for decorate in (registry.subscribe, registry.router("a").subscribe, subscribe):
        with pytest.raises(SubscriptionError, match="needs a topic"):
            decorate(first)


def test_an_object_that_is_not_callable_is_refused(registry):
    with pytest.raises(SubscriptionError, match="not callable"):
        registry.add("a", 5)


# -- routers ---------------------------------------------------------------------------------------------------------


def test_a_router_joins_partial_topics_of_a_class(registry):
    @registry.router("order", group="billing", filters=[note])
    class Orders:
        @subscribe(".cancelled", filters=[other_note])
        @subscribe(".refused", group="mail")
        def ended(self, evt: dict):
            return type(self), evt

        @subscribe("invoice.paid")
        @staticmethod
        async def paid(evt: dict): ...

        @property
        def expensive(self):
            raise AssertionError("a scan for handlers must not evaluate properties")

    registry.check(app="Shop")
    assert {name: group.topics for name, group in registry.groups().items()} == {
        "billing.v1": ("invoice.paid", "order.cancelled"),
        "mail.v1": ("order.refused",),
    }
    found = registry.find("billing.v1", "order.cancelled")
    assert found.handler(1) == (Orders, 1)
    assert found.filters == (note, other_note)
    assert registry.find("billing.v1", "invoice.paid").plan.is_async


def test_a_router_takes_functions_and_instances(registry):
    class Orders:
        def __init__(self, shop):
            self.shop = shop

        @subscribe(".created")
        def created(self, evt):
            return self.shop

    orders = registry.router("order")
    assert orders.subscribe(".paid")(first) is first
    with pytest.raises(SubscriptionError, match=r"bus\.router\('order'\)\(.*Orders\(\.\.\.\)\)"):
        orders(Orders)
    orders(Orders("north"))
    registry.check(app="Shop")
    assert handler_of(registry, "order.paid") is first
    assert handler_of(registry, "order.created")(None) == "north"


def test_a_class_without_subscribed_methods_is_refused(registry):
    class Empty:
        pass

    with pytest.raises(SubscriptionError, match="marked with @subscribe"):
        registry.router("a")(Empty)


# -- the check -------------------------------------------------------------------------------------------------------


def test_no_subscription_is_found_before_the_check(registry):
    registry.add("a", first)
    assert (registry.groups(), registry.find(UNNAMED, "a")) == ({}, None)


def test_prefixes_and_version_are_part_of_the_wire_names(registry):
    registry.add("a.*", first, group="g", concurrency=3)
    registry.add("b", second, group="g")
    registry.check(app="Shop", prefix="north", group_prefix="team", version="v2")
    group = registry.groups()["team.g.v2"]
    assert (group.group, group.topics, group.concurrency) == ("team.g.v2", ("north.a.*", "north.b"), 3)
    assert [each.handler for each in group.subscriptions] == [first, second]
    assert handler_of(registry, "north.a.x", "team.g.v2") is first
    assert handler_of(registry, "a.x", "team.g.v2") is None


def test_the_exact_name_wins_then_the_most_specific_pattern(registry):
    handlers = {}
    for topic in ("#", "order.#", "order.*", "order.created"):
        handlers[topic] = lambda evt: None
        registry.add(topic, handlers[topic])
    registry.check(app="Shop")
    names = ("order.created", "order.paid", "order.a.b", "order", "Order.created")
    found = [registry.find(UNNAMED, name).topic for name in names]
    assert found == ["order.created", "order.*", "order.#", "order.#", "#"]
    assert registry.find(UNNAMED, "order.paid").topic == "order.*"  # also from the cache
    assert registry.find("unknown.v1", "order.created") is None


def test_a_topic_subscribed_twice_in_a_group_is_refused_or_the_first_wins_if_allowed(registry):
    registry.add("a", first)
    registry.add("a", second)
    with pytest.raises(SubscriptionError, match=r"first and .*second both take 'a'"):
        registry.check(app="Shop")
    registry.remove("a", second)
    registry.add("a", second, allow_duplicates=True)
    registry.check(app="Shop")
    assert handler_of(registry, "a") is first
    assert registry.groups()[UNNAMED].topics == ("a",)


def test_a_topic_may_be_subscribed_in_two_groups(registry):
    registry.add("a", first)
    registry.add("a", second, group="other")
    registry.check(app="Shop")
    assert (handler_of(registry, "a"), handler_of(registry, "a", "other.v1")) == (first, second)


def test_different_concurrency_values_for_a_group_are_refused(registry):
    registry.add("a", first, concurrency=2)
    registry.add("b", second, concurrency=3)
    with pytest.raises(SubscriptionError, match=r"2 by .*first, 3 by .*second"):
        registry.check(app="Shop")


def test_the_check_reports_all_errors_and_can_be_repeated(registry):
    def impossible(evt: dict, mail: SubscriptionRegistry): ...

    registry.add("a", impossible)
    registry.add("b", "no_such_module:handler")
    registry.add("c", first)
    registry.add("c", second)
    for _ in range(2):
        with pytest.raises(SubscriptionError) as caught:
            registry.check(app="Shop")
        assert [word in str(caught.value) for word in ("'mail'", "no_such_module", "'c'")] == [True] * 3
    assert registry.groups() == {}


def test_a_process_handler_must_be_a_plain_picklable_function(registry):
    async def later(evt: dict): ...

    registry.add("a", later, executor="process")
    registry.add("d", stoppable, executor="process")
    registry.add("b", lambda evt: None, executor="process")
    registry.add("c", first, executor="process")
    with pytest.raises(SubscriptionError) as caught:
        registry.check(app="Shop")
    assert len(str(caught.value).splitlines()) == 3


def test_the_batch_option_reaches_the_call_plan(registry):
    def many(evts: list[dict], headers: list[Headers]): ...

    registry.add("a", many, batch=10)
    registry.add("b", many)
    with pytest.raises(SubscriptionError, match="one message"):
        registry.check(app="Shop")
    registry.remove("b", many)
    registry.check(app="Shop")
    assert registry.find(UNNAMED, "a").plan.is_batch


def test_a_second_check_builds_new_call_plans(registry):
    def handler(evt: Order): ...

    registry.add("a", handler)
    registry.check(app="Shop")
    registry.check(app="Shop", naming="pascal")
    assert registry.find(UNNAMED, "a").plan.decode(b'{"OrderId":3}') == Order(3)


# -- changes at run time ---------------------------------------------------------------------------------------------


def test_changes_at_run_time_take_effect_and_call_on_change(registry):
    told = []
    registry.on_change.append(lambda: told.append(sorted(registry.groups())))
    registry.add("a", first)
    registry.check(app="Shop")
    assert told == []
    registry.add("b", second, group="other")
    assert handler_of(registry, "b", "other.v1") is second
    registry.remove("a", first)
    assert registry.find(UNNAMED, "a") is None
    assert told == [[UNNAMED, "other.v1"], ["other.v1"]]


def test_an_invalid_change_is_refused_and_changes_nothing(registry):
    registry.add("a", first)
    registry.check(app="Shop")
    with pytest.raises(SubscriptionError):
        registry.add("a", second)
    with pytest.raises(SubscriptionError, match="not subscribed"):
        registry.remove("a", second)
    assert handler_of(registry, "a") is first
    assert len(registry.subscriptions) == 1


def test_on_change_may_wait_for_a_change_in_another_thread(registry):
    def ask_elsewhere():
        asking = threading.Thread(target=lambda: registry.add("c", second, group="from-thread"))
        registry.on_change.clear()
        asking.start()
        asking.join(timeout=10)
        assert not asking.is_alive()

    registry.check(app="Shop")
    registry.on_change.append(ask_elsewhere)
    registry.add("a", first)
    assert "from-thread.v1" in registry.groups()


def test_bound_methods_can_be_removed(registry):
    class Orders:
        def on(self, evt): ...

    orders = Orders()
    registry.add("a", orders.on)
    registry.remove("a", orders.on)
    assert registry.subscriptions == ()


# -- files and packages ----------------------------------------------------------------------------------------------


def test_the_check_imports_the_handlers_that_a_file_names(registry, package, tmp_path):
    name = package("billing.py", "def on_order(evt: dict): ...\nasync def log(ctx, call_next): await call_next(ctx)\n")
    path = tmp_path / "bus.toml"
    path.write_text(
        f'[[subscription]]\ntopic = "order.*"\nhandler = "{name}.billing:on_order"\ngroup = "billing"\n'
        f'within = "2s"\nfilters = ["{name}.billing:log"]\nretry = {{ max = 5, delays_s = [1, 10] }}\n'
    )
    registry.load(path)
    assert registry.subscriptions == ()
    registry.check(app="Shop")
    found = registry.find("billing.v1", "order.created")
    assert (found.handler.__name__, found.within_s) == ("on_order", 2.0)
    assert found.retry == Retry(max=5, backoff=RetryDelays((1, 10)))
    assert [each.__name__ for each in found.filters] == ["log"]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("= nonsense", "cannot read subscriptions"),
        ("[subscriptions]\n", r"\[\[subscription\]\]"),
        ("[subscription]\n", r"\[\[subscription\]\]"),
        ('[[subscription]]\ntopic = "a"\n', "entry 1 .* needs a topic and a handler"),
        ('[[subscription]]\ntopic = "a"\nhandler = "b:c"\ncolour = 1\n', "colour"),
        ('[[subscription]]\ntopic = "a"\nhandler = "b:c"\nretry = { times = 1 }\n', "times"),
        ('[[subscription]]\ntopic = "a"\nhandler = "b:c"\nretry = { delays_s = [] }\n', "delays_s"),
        ('[[subscription]]\ntopic = "a"\nhandler = "b:c"\nretry = 5\n', "entry 1"),
    ],
)
def test_an_invalid_file_is_refused_with_the_position_of_the_error(registry, tmp_path, text, why):
    path = tmp_path / "bus.toml"
    path.write_text(text)
    with pytest.raises(SubscriptionError, match=why):
        registry.load(path)


def test_a_missing_file_is_refused(registry, tmp_path):
    with pytest.raises(SubscriptionError, match=r"missing\.toml"):
        registry.load(tmp_path / "missing.toml")


def test_a_handler_text_without_a_colon_is_refused_by_the_check(registry):
    registry.add("a", "module.function")
    with pytest.raises(SubscriptionError, match="module:name"):
        registry.check(app="Shop")


def test_a_scan_imports_modules_and_adds_their_subscriptions(registry, package):
    package("one.py", "from sparrow.bus.handlers.router import subscribe\n@subscribe('a.b')\ndef on(evt: dict): ...\n")
    name = package("two.py", "from .one import on\n")
    registry.scan(name)
    registry.scan(name)
    registry.check(app="Shop")
    assert handler_of(registry, "a.b").__module__ == f"{name}.one"
    assert len(registry.subscriptions) == 1


def test_a_module_that_cannot_be_imported_is_named_in_the_error(registry, package):
    name = package("broken.py", "raise RuntimeError('oh')")
    with pytest.raises(SubscriptionError, match=r"broken cannot be imported: RuntimeError: oh"):
        registry.scan(name)
