"""The limits of publishing requests: their bytes, before a body is read, and the rates of their tenants."""

import asyncio
import contextlib
import json
import threading
from types import SimpleNamespace

import pytest

from delivery.config import settings
from delivery.webhooks.scheduling import limits
from subscriptions_db.api.admission import admission
from subscriptions_db.api.contract import problems
from subscriptions_db.api.publishing import bodies, checks, tenant_rates
from subscriptions_db.api.server import publish_handler
from tests.support.fakes import Clock


@pytest.fixture
def publisher():
    config = settings.Settings.model_validate({"api": {"max_body_bytes": 6000}})
    made = publish_handler.Publishing(config, None, None, None, max_bytes=10_000)
    yield made
    made.close()


def request(size, **headers):
    return SimpleNamespace(content_length=size, headers={name.replace("_", "-"): value for name, value in headers.items()})


@pytest.mark.parametrize(
    ("size", "headers", "taken"),
    [(5000, {}, 5000), (None, {}, 6000), (10, {"content_encoding": "gzip"}, 6000), (2**40, {}, 6000)],
)
def test_publishing_requests_share_a_bounded_number_of_bytes(publisher, size, headers, taken):
    with contextlib.ExitStack() as stack:
        stack.enter_context(publisher._room(request(size, **headers), "one"))
        stack.enter_context(publisher._room(request(10_000 - taken), "two"))
        with pytest.raises(problems.Refused) as refused, publisher._room(request(1), "three"):
            pytest.fail("it has no room")
        assert refused.value.problem.status == 503
        assert refused.value.headers == {"retry-after": "2"}
    with publisher._room(request(5000), "three"):
        pass


def test_one_key_cannot_occupy_the_bytes_of_all(publisher):
    with contextlib.ExitStack() as stack:
        for _ in range(2):
            stack.enter_context(publisher._room(request(1250), "one"))
        with pytest.raises(problems.Refused) as refused, publisher._room(request(1), "one"):
            pytest.fail("it has no room")
        assert refused.value.problem.status == 429
        assert refused.value.headers == {"retry-after": "2"}
        with publisher._room(request(5000), "two"):  # one body of a key is always read
            pass
    assert not publisher._bytes


def test_a_body_that_trickles_in_is_refused_with_408(publisher, monkeypatch):
    monkeypatch.setattr(publisher, "_body_s", 0.01)
    with pytest.raises(problems.Refused) as refused:
        asyncio.run(publisher._body(SimpleNamespace(read=asyncio.Event().wait)))
    assert refused.value.problem.status == 408


class Posted:
    """A request with a body, and the pace of its key."""

    def __init__(self, body):
        self.content_type, self.raw_headers, self.content_length = bodies.PLAIN, (), len(body)
        self._body = body
        self._clock = Clock()
        self._pace = limits.Pace(1000, admission.BURST_SHARE)
        self.charge = admission.EventCharge(self._pace, self._clock)

    async def read(self):
        assert self.counted >= min(self.content_length, 6000) // 1024  # before the body arrives
        return self._body

    @property
    def counted(self):
        """Return the events that are counted beside the first one."""
        return round(self._pace.room(self._clock.now).full_in_s * 800)


@pytest.mark.parametrize("is_large", [False, True])
@pytest.mark.parametrize("tenant", ["t1", None])
def test_large_bodies_are_checked_beside_the_event_loop_and_refused_ones_count(publisher, monkeypatch, is_large, tenant):
    threads, check = [], checks.checked

    def checked(*found, **by):
        threads.append(threading.current_thread())
        return check(*found, **by)

    monkeypatch.setattr(checks, "checked", checked)
    padding = "x" * (publish_handler.MAX_BYTES_ON_LOOP if is_large else 1)
    found = [{"id": "1", "type": "order", "tenant_id": tenant, "padding": padding}, *[{"id": "2", "tenant_id": "t1"}] * 300]
    posted = Posted(json.dumps(found).encode())
    with contextlib.nullcontext() if tenant else pytest.raises(problems.Refused, match="tenant_id"):
        asyncio.run(publisher._checked(posted, "events.order", posted.charge))
    assert [thread is threading.main_thread() for thread in threads] == [not is_large]
    assert posted.counted >= 300


@pytest.fixture
def of_tenants():
    """Return a publisher with 15 events a second for each tenant, of which 3 may come at once."""
    config = settings.Settings.model_validate({"api": {"max_tenant_events_per_s": 15}})
    made = publish_handler.Publishing(config, None, None, None)
    made._tenants = tenant_rates.TenantRates(15, admission.BURST_SHARE, Clock())
    yield made
    made.close()


def sent(publisher, tenants, key_events_per_s=1000):
    """Count one event for each tenant; return the problem's code, and limit and remaining of the headers."""
    key_rate = admission.KeyRate((limits.Pace(key_events_per_s, admission.BURST_SHARE),), Clock(), None)
    asked, code = {admission.KEY_RATE: key_rate}, None
    publisher._note_limits(asked, frozenset(tenants))
    try:
        publisher._tenants.spend(tenants)
    except problems.Refused as exc:
        code = exc.problem.code
    headers = admission.key_headers(asked)
    return code, headers["ratelimit-limit"], headers["ratelimit-remaining"]


def test_the_headers_show_the_rate_of_a_tenant_that_refuses_first(of_tenants):
    """Regression: `RateLimit-Remaining` was that of the key, and above 0 at the 429 for the tenant."""
    assert [sent(of_tenants, ["t2", "t1"]) for _ in range(4)] == [
        (None, "3", "2"), (None, "3", "1"), (None, "3", "0"), ("tenant_rate_limited", "3", "0"),
    ]  # fmt: skip
    assert sent(of_tenants, ["t1"]) == ("tenant_rate_limited", "3", "0")
    assert sent(of_tenants, ["t3", "t3"]) == (None, "3", "1")
    assert sent(of_tenants, ["t4", "t1"]) == ("tenant_rate_limited", "3", "0")


def test_the_headers_show_the_rate_of_a_key_that_refuses_before_its_tenant(of_tenants):
    assert sent(of_tenants, ["t1"], key_events_per_s=5) == (None, "1", "1")
    assert sent(of_tenants, []) == (None, "200", "200")
