"""Looks for reached quotas take a bounded share of the archiver's time, and a failed look does not stop it."""

import prometheus_client
import psycopg
import pytest

from delivery import errors
from delivery.config import settings
from fanout.archiver import quota_step
from subscriptions_db.archive.notifications import quotas
from tests.support.fakes import Clock


class Connection:
    """A connection to Postgres, which a test loses."""

    closed = False


class Postgres:
    """Looks of a scripted length and end."""

    def __init__(self, clock):
        self.looks, self.takes_s, self.error, self.cause = 0, 1.0, None, None
        self._clock = clock

    def record(self, *_, **__):
        self.looks += 1
        self._clock.now += self.takes_s
        if self.error:
            raise errors.RegistryUnavailable(self.error) from self.cause
        return {quotas.Quota.ENDPOINTS: 4}


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def postgres(monkeypatch, clock):
    made = Postgres(clock)
    monkeypatch.setattr(quotas, "record", made.record)
    return made


@pytest.fixture
def looks(clock):
    return quota_step.QuotaLooks(quota_step.defaults_of(settings.Settings()), None, clock=clock)


@pytest.mark.parametrize("error", [None, "timeout"])
def test_looks_take_their_share_of_the_time(looks, postgres, clock, error):
    """Only a successful look set the time of the next one, so the archive began with the same failing look again and again."""
    postgres.error, began = error, clock.now
    looks.run(Connection())
    clock.now = began + 49.9  # a look of 1 s is 2 % of 50 s
    looks.run(Connection())
    assert postgres.looks == 1
    clock.now = began + 50
    looks.run(Connection())
    assert postgres.looks == 2


def test_a_failure_is_logged_once_for_each_reason(looks, postgres, clock, caplog):
    for error in ("timeout", "timeout", "denied", None, "denied"):
        postgres.error = error
        looks.run(Connection())
        clock.now += 1000
    reasons = [message.partition("quotas: ")[2].partition(".")[0] for message in caplog.messages]
    assert reasons == ["timeout", "denied", "denied"]
    assert prometheus_client.REGISTRY.get_sample_value("fanout_archive_quotas_reached", {"quota": "endpoints"}) == 4


def test_refused_prepared_statements_make_the_archiver_connect_again(looks, postgres):
    """Regression: after a migration changed a column's type, each look failed until the restart of the archive."""
    postgres.error, postgres.cause = "the tables changed", psycopg.errors.FeatureNotSupported()
    with pytest.raises(errors.RegistryUnavailable, match="the tables changed"):
        looks.run(Connection())


def test_a_lost_connection_makes_the_archiver_pause(looks, postgres, caplog):
    lost = Connection()
    lost.closed, postgres.error = True, "gone"
    with pytest.raises(errors.RegistryUnavailable, match="gone"):
        looks.run(lost)
    assert caplog.messages == []
