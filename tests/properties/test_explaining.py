"""The explanation of a match agrees with the router."""

from hypothesis import given, settings
from hypothesis import strategies as st

from delivery.webhooks.routing import explain, matching
from tests.properties.test_matching import events, subscriptions
from tests.support import builders, thoroughness


@settings(max_examples=thoroughness.cases(120, thorough=300), deadline=None)
@given(st.lists(subscriptions(), max_size=6, unique_by=lambda row: row.subscription_id), events)
def test_an_explanation_agrees_with_the_router(rows, event):
    router = matching.Router(builders.snapshot(builders.endpoint(), *rows))
    matched = {match.subscription.subscription_id for match in router.matches(event)}
    explained = {row.subscription_id for row in rows if explain.explain(event, row, builders.endpoint()).is_due}
    assert explained == matched
