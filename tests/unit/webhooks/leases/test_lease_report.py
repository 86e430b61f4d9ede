"""The report of a lease has what the responses of its endpoint ask for."""

import pytest

from delivery.model import Attempt, OutcomeKind
from delivery.webhooks.leases import lease_report
from delivery.webhooks.leases.lease_triage import Disposition
from delivery.webhooks.routing import registries
from tests.support import builders
from tests.support.leases import NOW_MS, lease

LAST_ATTEMPT = Disposition(OutcomeKind.DEAD_LETTERED, None, is_unhealthy=True, is_refusal=False)
"""Its entry is not requeued."""


def report(*attempts):
    made = lease_report.LeaseReport(lease(), registries.Destination(builders.endpoint(), {}, ()))
    for error_class, retry_after_s in attempts:
        made.count_failure(LAST_ATTEMPT, Attempt(8, NOW_MS, 5.0, None, error_class, retry_after_s=retry_after_s))
    return made.build(NOW_MS)


def test_failures_of_poison_are_counted_apart():
    made = lease_report.LeaseReport(lease(), registries.Destination(builders.endpoint(), {}, ()))
    for is_poison in (True, False, True):
        made.count_failure(LAST_ATTEMPT._replace(is_poison=is_poison), Attempt(8, NOW_MS, 5.0, 500, "server_error"))
    assert (made.build(NOW_MS).failed, made.build(NOW_MS).poison) == (3, 2)


@pytest.mark.parametrize(
    ("attempts", "is_throttled"),
    [([], False), ([("unavailable", None)], False), ([("throttled", None), ("unavailable", None)], True)],
)
def test_a_429_is_reported_even_at_the_last_attempt(attempts, is_throttled):
    """Regression: only the attempts of requeued entries were looked at."""
    made = report(*attempts)
    assert (made.is_throttled, made.failed, made.requeued) == (is_throttled, len(attempts), [])


def test_the_longest_wait_that_a_response_asks_for_is_reported():
    assert report(("unavailable", 3.0), ("unavailable", 30.0), ("throttled", None)).retry_after_s == 30.0
