"""Endpoints that are gone or failing are disabled, on a thread that no micro-batch waits for."""

import threading

import pytest

from delivery import errors
from delivery.config import settings
from delivery.registry_model import FAILING, AttemptedEndpoint
from subscriptions_db.following import endpoint_disabler


class Registry:
    """Takes what is written, or is away for some tries."""

    def __init__(self, *failures):
        self.failures = list(failures)
        self.written = []
        self.attempted = []
        self.writes = threading.Semaphore(0)

    def __call__(self, attempted, reason):
        if self.failures:
            raise self.failures.pop(0)
        endpoint_ids = sorted(endpoint.endpoint_id for endpoint in attempted)
        self.written.append((endpoint_ids, reason))
        self.attempted += attempted
        self.writes.release()
        return endpoint_ids

    def wait(self):
        assert self.writes.acquire(timeout=20)
        return self.written[-1]


def attempted(*names):
    return [AttemptedEndpoint(name) for name in names]


@pytest.fixture
def stop():
    asked = threading.Event()
    yield asked
    asked.set()


@pytest.fixture
def now():
    return [0.0]


@pytest.fixture
def disabler(stop, now):
    def make(registry):
        return endpoint_disabler.EndpointDisabler(settings.Settings(), stop, write=registry, clock=lambda: now[0])

    return make


def test_a_disabled_endpoint_is_written_once_with_its_reason(disabler, stop):
    registry = Registry()
    disabler_ = disabler(registry)
    disabler_.disable(attempted("ep1"), "gone")
    assert registry.wait() == (["ep1"], "gone")
    for _ in range(3):
        disabler_.disable(attempted("ep1", "ep2"), FAILING)
    registry.wait()
    stop.set()
    disabler_.close()
    assert registry.written == [(["ep1"], "gone"), (["ep2"], "failing")]


def test_a_registry_that_is_away_is_waited_for_and_nothing_is_forgotten(disabler):
    registry = Registry(errors.RegistryUnavailable("away"), ValueError("a surprise"), errors.RegistryUnavailable("away"))
    disabler(registry).disable(attempted("ep1"), "gone")
    assert registry.wait() == (["ep1"], "gone")


def test_requests_to_disable_that_wait_too_long_for_postgres_are_dropped(disabler, now, caplog):
    """Written hours later it would disable an endpoint that is well, or that an operator has enabled."""
    away, is_back = threading.Event(), threading.Event()

    class Away(Registry):
        def __call__(self, attempted, reason):
            if not is_back.is_set():
                away.set()
                is_back.wait(20)
                raise errors.RegistryUnavailable("away")
            return super().__call__(attempted, reason)

    registry = Away()
    disabler_ = disabler(registry)
    disabler_.disable(attempted("well again", "failing still"), "gone")
    assert away.wait(20)
    now[0] = endpoint_disabler.STALE_S
    disabler_.disable(attempted("failing still"), "gone")
    now[0] = endpoint_disabler.STALE_S + 1
    is_back.set()
    assert registry.wait() == (["failing still"], "gone")
    disabler_.disable(attempted("another"), "gone")
    assert registry.wait() == (["another"], "gone")
    assert len(registry.written) == 2
    assert [record.endpoint_ids for record in caplog.records if "were not disabled" in record.message] == [["well again"]]


def test_an_enabled_endpoint_is_disabled_by_new_failures_and_not_by_late_ones(disabler, now):
    registry = Registry()
    disabler_ = disabler(registry)
    disabler_.disable(attempted("ep1"), "gone")
    registry.wait()
    now[0] = endpoint_disabler.EFFECT_S - 1
    disabler_.disable(attempted("ep1"), "gone")  # from requests made before the workers knew
    now[0] = endpoint_disabler.EFFECT_S + 1
    disabler_.disable(attempted("ep1"), "failing")
    assert registry.wait() == (["ep1"], "failing")


def test_a_late_answer_of_an_earlier_url_hides_no_answer_of_the_new_one(disabler):
    """Regression: for a minute after the earlier URL's 410, the new URL's 410 was ignored."""
    registry = Registry()
    disabler_ = disabler(registry)
    before, after = AttemptedEndpoint("ep1", b"before"), AttemptedEndpoint("ep1", b"after")
    disabler_.disable([before], "gone")
    registry.wait()
    disabler_.disable([before, after], "gone")
    registry.wait()
    assert registry.attempted == [before, after]


def test_the_last_report_is_written_before_the_end(disabler, stop):
    held = threading.Event()

    class Slow(Registry):
        def __call__(self, attempted, reason):
            held.wait(20)
            return super().__call__(attempted, reason)

    registry = Slow()
    disabler_ = disabler(registry)
    disabler_.disable(attempted("ep1"), "gone")
    stop.set()
    disabler_.disable(attempted("ep2"), "gone")
    held.set()
    disabler_.close()
    assert sorted(name for names, _ in registry.written for name in names) == ["ep1", "ep2"]


def test_a_request_that_is_not_written_before_the_end_is_logged(disabler, stop, caplog):
    """Regression: the request was dropped without a word if Postgres was away when the job stopped."""
    asked = threading.Event()

    class Away(Registry):
        def __call__(self, *_):
            asked.set()
            raise errors.RegistryUnavailable("away")

    disabler_ = disabler(Away())
    disabler_.disable(attempted("ep1"), "gone")
    assert asked.wait(20)
    stop.set()
    disabler_.close()
    assert "1 endpoints were not disabled before the job stopped (away)" in caplog.text
