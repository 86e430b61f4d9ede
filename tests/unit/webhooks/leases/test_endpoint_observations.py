"""Attempts of leases show which endpoints are gone, and whether our own network works."""

import pytest

from delivery.model import Attempt
from delivery.webhooks.leases.endpoint_observations import EndpointObservations
from delivery.webhooks.scheduling import outage_detection
from tests.support import builders
from tests.support.leases import lease, waiting

ENDPOINT = builders.endpoint()


def observed(*attempts, reason="server_error", **fields):
    found, of = EndpointObservations(), lease(waiting(reason=reason), **fields)
    for error_class, status in attempts:
        found.record(of, of.entries[0], ENDPOINT, Attempt(1, 0, 1.0, status, error_class))
    return found


@pytest.mark.parametrize(
    ("attempts", "fields", "asked", "unreachable"),
    [
        ([(None, 200)], {}, 1, 0),
        ([("server_error", 500)], {}, 1, 0),
        ([("connect", None)], {}, 1, 1),
        ([("connect", None), (None, 200)], {}, 1, 0),
        ([(None, 200), ("connect", None)], {}, 1, 0),
        ([("connect", None)], {"is_probe": True}, 0, 0),
        ([("connect", None)], {"reason": "timeout"}, 0, 0),
        ([(None, 200)], {"reason": "timeout", "is_probe": True}, 1, 0),
        ([("configuration", None)], {}, 0, 0),
    ],
)
def test_an_endpoint_responded_or_was_unreachable(attempts, fields, asked, unreachable):
    found = observed(*attempts, **fields)
    seen = found.drain_reachability()
    assert (seen.asked, seen.unreachable) == (asked, unreachable)
    assert found.drain_reachability() == outage_detection.NOTHING_ASKED


def test_an_endpoint_that_is_gone_is_drained_once():
    found = observed(("gone", 410))
    assert found.has_gone
    assert found.drain_gone() == {builders.endpoint().as_attempted()}
    assert (found.has_gone, found.drain_gone()) == (False, frozenset())
    assert found.drain_reachability().asked == 1


@pytest.mark.parametrize(
    ("attempts", "failed"),
    [([(None, 200)], set()), ([("server_error", 500), (None, 200)], {"ep1"}), ([("dns", None)], {"ep1"})],
)
def test_an_endpoint_that_failed_is_drained_once(attempts, failed):
    found = observed(*attempts)
    assert (found.drain_failed(), found.drain_failed()) == (failed, frozenset())
