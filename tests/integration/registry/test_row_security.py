"""A login from which row-level security hides the customers is refused: it would read an empty registry without an error."""

import contextlib
import threading
import uuid

import pytest
import tenacity

from delivery import errors
from delivery.config import service_settings, settings
from delivery.webhooks.http import guard
from fanout.admin import registry_commands
from subscriptions_db.api.server import transactions
from subscriptions_db.following import lookup_source
from subscriptions_db.postgres import connect, migrate
from subscriptions_db.snapshot import lookup
from tests.e2e.conftest import assert_eventually
from tests.integration.registry.documents import DOCUMENT, applied
from tests.integration.registry.test_follower import config, following

pytestmark = pytest.mark.integration
REFUSED = "because the login inherits from the role fanout_api"
GRANTS = """
create role {role} login {options};
grant select on all tables in schema public to {role};
grant update on secrets to {role}
"""


@pytest.fixture
def login(connection, database):
    """Return a function: it creates a login that may do what the job may do, and returns its role and its URL."""
    made = []

    def create(options=""):
        role = f"job_{uuid.uuid4().hex[:8]}"
        connection.execute(GRANTS.format(role=role, options=options))
        made.append(role)
        return role, database.replace("://postgres:", f"://{role}:")

    yield create
    for role in made:
        connection.execute(f"drop owned by {role}; drop role {role}")


@pytest.fixture(autouse=True)
def _registered(connection, ring):
    applied(connection, ring, DOCUMENT)


@contextlib.contextmanager
def opened_by(url):
    with connect.connect(settings.DatabaseSettings(url=url)) as opened:
        yield opened


def test_a_login_that_inherits_the_role_of_customers_is_refused(login):
    """Regression: it saw no customer. Every event matched nothing and was committed, and retries ended as endpoint_deleted."""
    role, url = login("in role fanout_api")
    with opened_by(url) as opened:
        assert opened.execute("select from endpoints").fetchall() == []
        with pytest.raises(errors.RegistryUnavailable, match=f"from the login {role}, {REFUSED}"):
            migrate.require_current(opened)


@pytest.mark.parametrize(
    "options", ["", "superuser in role fanout_api", "bypassrls in role fanout_api", "in role fanout_operator"]
)
def test_a_login_that_sees_all_customers_is_accepted(login, options):
    with opened_by(login(options)[1]) as opened:
        assert opened.execute("select from endpoints").fetchall() != []
        migrate.require_current(opened)


def test_look_ups_of_such_a_login_are_refused(login, ring, ring_key, monkeypatch):
    _, url = login("in role fanout_api")
    monkeypatch.setattr(
        connect, "retry_until_available", lambda *_: tenacity.Retrying(stop=tenacity.stop_after_attempt(1), reraise=True)
    )
    reader = lookup.PostgresReader(settings.DatabaseSettings(url=url), ring, guard.Guard())
    with pytest.raises(errors.RegistryUnavailable, match=REFUSED):
        reader.candidates("order", None)
    lookups = lookup_source.Lookups(config(url, {"k1": ring_key}), stop=threading.Event())
    with pytest.raises(errors.RegistryUnavailable, match=REFUSED):
        lookups.source(None, "direct")
    assert REFUSED in lookups.pause_reason()


def test_keys_are_not_rotated_by_such_a_login(login, ring_key):
    """Regression: it re-sealed 0 secrets, and the operator removed the key that still sealed all of them."""
    _, url = login("in role fanout_api")
    with pytest.raises(errors.RegistryUnavailable, match=REFUSED):
        registry_commands.rotate_keys(config(url, {"k1": ring_key}))


def test_a_running_job_keeps_its_registry_until_the_role_is_revoked(connection, login, ring_key):
    role, url = login()
    known = config(url, {"k1": ring_key})
    known = known.model_copy(update={"snapshot": known.snapshot.model_copy(update={"max_age_s": 1})})
    with following(known) as follower:
        before = follower.current()
        connection.execute(f"grant fanout_api to {role}")
        connection.execute("update endpoints set url = 'https://example.com/moved' where endpoint_id = 'ep1'")
        assert_eventually(follower.pause_reason, lambda reason: reason is not None and REFUSED in reason)
        assert (follower.newest.base, follower.newest.changes) == (before.base, before.changes)
        connection.execute(f"revoke fanout_api from {role}")
        assert_eventually(follower.pause_reason, lambda reason: reason is None)
        assert follower.current().changes.endpoints["ep1"].url == "https://example.com/moved"


def test_an_api_without_its_roles_asks_for_a_login_of_its_own(login, ring_key):
    """Regression: the message asked to grant the roles to the login, which the job has too."""
    _, url = login()
    api = service_settings.ApiSettings(database_url=url)
    known = config(url, {"k1": ring_key}).model_copy(update={"api": api})
    with (
        transactions.Store(known) as store,
        pytest.raises(errors.RegistryUnavailable, match=r"Create a login of the API's own"),
    ):
        store.require_ready()
