"""The whole platform with workers that look up the registry themselves."""

import pytest

from tests.e2e.conftest import assert_eventually

pytestmark = [
    pytest.mark.e2e,
    # In the gate tests/spark/test_sources.py shows that the setting chooses look-ups, and that records end in the same way with
    # them. tests/integration/registry/test_sources.py shows that a change is in effect once the answers have expired.
    pytest.mark.slow,
]


def test_a_job_with_a_lookup_registry_follows_changes_within_the_time_to_live(platform):
    platform.register(
        [{}, {"endpoint": "ep2", "event_type": "*", "everything": False, "tenants": ["t1"]}], endpoints=("ep1", "ep2")
    )
    platform.publish(3)
    job = platform.start("--lanes", "direct", snapshot={"source": "lookup", "lookup_ttl_s": 0.5})
    assert_eventually(lambda: sorted(platform.accepted()), lambda got: got == ["e0", "e1", "e2"])
    assert_eventually(lambda: sorted(platform.accepted("ep2")), lambda got: got == ["e0", "e1", "e2"])

    platform.assert_deletion_takes_effect()
    assert platform.stop(job) == 0, platform.log()
    assert platform.config.keys.ring["test"].get_secret_value() not in platform.log(whole=True)
