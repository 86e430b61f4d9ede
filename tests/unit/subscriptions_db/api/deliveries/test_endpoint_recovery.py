"""The answer to the recovery of an endpoint says why redriven deliveries wait."""

import pytest

from delivery.registry_model import EndpointStatus
from subscriptions_db.api.deliveries import endpoint_recovery


@pytest.mark.parametrize(
    ("status", "awaits_permission", "said"),
    [
        (EndpointStatus.PAUSED, True, "the endpoint is paused"),
        (EndpointStatus.DISABLED, False, "the endpoint is disabled"),
        # Regression: the detail was empty although the deliveries wait.
        (EndpointStatus.ACTIVE, True, "the receiver has not permitted deliveries: redriven deliveries wait until it does"),
    ],
)
def test_the_detail_says_why_deliveries_wait(status, awaits_permission, said):
    assert endpoint_recovery.detail_of(status, awaits_permission=awaits_permission).startswith(said)


def test_an_active_endpoint_with_permission_has_no_detail():
    assert endpoint_recovery.detail_of(EndpointStatus.ACTIVE, awaits_permission=False) == ""
