"""A signing secret is rotated without a request that the customer cannot verify."""

import datetime as dt
import json
import os
import subprocess
import sys
import time

import pytest
import standardwebhooks

from delivery import errors
from delivery.registry_model import SignatureScheme
from delivery.webhooks.http import guard
from delivery.webhooks.sending import signing
from subscriptions_db.manifest import manifest
from subscriptions_db.registration import apply, rotation
from subscriptions_db.snapshot import registry_reader
from tests.support import waiting

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("first")]

GUARD = guard.Guard()
DAY = dt.timedelta(days=1)
HMAC = SignatureScheme.HMAC


@pytest.fixture
def first(connection, ring):
    """Return the text of the signing secret with which `ep1` was registered."""
    document = {"customers": [{"id": "c1"}], "endpoints": [{"id": "ep1", "customer": "c1", "url": "https://example.com/"}]}
    return apply.apply(connection, manifest.check(document, GUARD), ring).new_secrets["ep1"]


@pytest.fixture
def rotate(connection, ring):
    def call(endpoint_id="ep1", *, overlap=DAY, scheme=HMAC):
        return rotation.rotate(connection, ring, endpoint_id, scheme=scheme, overlap=overlap)

    return call


@pytest.fixture
def keys(connection, ring):
    """Return the signing keys of `ep1` as the job reads them."""
    return lambda: registry_reader.read_full(connection, ring, GUARD).endpoints["ep1"].signing_keys


def verifies(text, keys, at):
    """Return True if a customer with this secret can verify a signature made with `keys` at this time."""
    now = int(at)
    signature = signing.sign(keys, "msg_1", now, b"{}")
    headers = {"webhook-id": "msg_1", "webhook-timestamp": str(now), "webhook-signature": signature}
    expected = standardwebhooks.Webhook(text).sign("msg_1", dt.datetime.fromtimestamp(now, dt.UTC), "{}")
    return expected in headers["webhook-signature"].split()


def test_both_secrets_verify_until_the_overlap_ends(first, rotate, keys):
    new = signing.to_text(rotate(overlap=dt.timedelta(hours=1)).key)
    assert [signing.to_text(key) for key in keys()] == [new, first]
    now = time.time()
    assert [verifies(text, keys(), now) for text in (new, first)] == [True, True]
    assert [verifies(text, keys(), now + 3590) for text in (new, first)] == [True, True]
    assert [verifies(text, keys(), now + 3610) for text in (new, first)] == [True, False]


def test_rotations_at_once_leave_one_secret_without_an_end(connection, other, ring, rotate, in_background):
    """Regression: the command did not wait for a rotation by the API, whose new secret then signed without an end."""
    with other.transaction():
        rotation.rotate_in_transaction(other, ring, "ep1", scheme=HMAC, overlap=DAY)
        command = in_background(rotate)
        waiting.for_a_lock(other)
    command.result(60)
    without_end = "select count(*) from secrets where endpoint_id = 'ep1' and expires_at is null"
    assert connection.execute(without_end).fetchone()["count"] == 1


def test_a_repeated_rotation_extends_no_secret(first, rotate, keys):
    rotate(overlap=dt.timedelta(hours=1))
    before = {signing.to_text(key): key.expires_at_s for key in keys()}
    again = rotate(overlap=DAY)
    after = {signing.to_text(key): key.expires_at_s for key in keys()}
    assert after[first] == before[first]
    assert len(after) == 3
    assert after[signing.to_text(again.key)] is None
    assert [end.timestamp() for end in again.others_end_at] == sorted(end for end in after.values() if end is not None)


def test_a_shorter_overlap_ends_earlier_secrets_sooner(rotate, keys):
    rotate(overlap=DAY)
    rotate(overlap=dt.timedelta(minutes=1))
    assert all(key.expires_at_s < time.time() + 70 for key in keys()[1:])


def test_without_overlap_earlier_secrets_end_at_once(rotate, keys):
    rotate(overlap=DAY)
    alone = rotate(overlap=dt.timedelta(0))
    assert (keys(), alone.others_end_at) == ((alone.key,), ())


def test_ten_rotations_leave_a_valid_secret_at_every_moment(first, connection, ring, rotate):
    current = registry_reader.read_full(connection, ring, GUARD)
    known = first
    for _ in range(10):
        new = signing.to_text(rotate(overlap=dt.timedelta(seconds=30)).key)
        changes = registry_reader.read_changes(connection, ring, GUARD, since=current.revision)
        sent_with = changes.endpoints["ep1"].signing_keys
        assert verifies(known, sent_with, time.time())
        assert verifies(new, sent_with, time.time())
        known = new
        # Half a minute passes.
        connection.execute("update secrets set expires_at = now() where expires_at is not null")


def test_a_rotation_beyond_the_maximum_is_refused(first, rotate, keys):
    for _ in range(4):
        rotate()
    before = keys()
    with pytest.raises(errors.RegistrationError, match="ep1: has 5 signing secrets, the maximum, and nothing") as refused:
        rotate(overlap=dt.timedelta(hours=1))
    assert keys() == before
    assert verifies(first, before, time.time())
    # Regression: the message named the end of the refused rotation, in an hour, in place of the stored one, in a day.
    stored = min(key.expires_at_s for key in before if key.expires_at_s is not None)
    assert dt.datetime.fromtimestamp(int(stored), dt.UTC).isoformat() in str(refused.value)


def test_secrets_without_an_end_are_not_waited_for(connection, rotate):
    """Regression: with five secrets that never end, the message advised to wait."""
    for _ in range(4):
        rotate()
    connection.execute("update secrets set expires_at = null")
    with pytest.raises(errors.RegistrationError, match=r"none of them has an end\. End them all now with an overlap of 0 s"):
        rotate()


def test_a_secret_that_does_not_open_is_replaced(connection, ring, rotate):
    connection.execute("update secrets set key_id = 'lost'")
    rotate(overlap=dt.timedelta(0))
    assert registry_reader.read_full(connection, ring, GUARD).quarantined() == {}


def test_a_missing_endpoint_is_named(rotate):
    with pytest.raises(errors.RegistrationError, match="nobody: there is no such endpoint"):
        rotate("nobody")


def test_a_manifest_without_secrets_keeps_a_rotation(connection, ring, rotate, keys):
    rotate()
    before = keys()
    document = {"endpoints": [{"id": "ep1", "customer": "c1", "url": "https://example.com/moved"}]}
    apply.apply(connection, manifest.check(document, GUARD), ring)
    assert keys() == before


class TestCommand:
    @pytest.fixture
    def run(self, database, ring_key, tmp_path):
        environment = os.environ | {"FANOUT_DATABASE_URL": database, "FANOUT_KEYS_RING": f"k1={ring_key}"}

        def call(*words):
            command = [sys.executable, "-m", "fanout.cli.main", "endpoints", "rotate-secret", "ep1", *words]
            return subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=True).stdout

        return call

    def test_it_shows_the_secret_that_the_customer_needs(self, run, keys):
        shown = json.loads(run("--overlap", "15m", "--json"))
        assert shown["secret"] == signing.to_text(keys()[0])
        [end] = map(dt.datetime.fromisoformat, shown["others_end_at"])
        assert 14 * 60 < end.timestamp() - time.time() <= 15 * 60

    def test_of_an_ed25519_key_it_shows_the_public_part_only(self, run, keys):
        shown = run("--scheme", "v1a")
        new = keys()[0]
        assert new.scheme is SignatureScheme.ED25519
        assert signing.public_text(new) in shown
        assert "whsk_" not in shown + run("--scheme", "v1a", "--json")
