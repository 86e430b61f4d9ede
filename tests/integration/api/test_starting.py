"""With a key ring that does not fit the registry the API serves nothing: the job could not open what the API seals."""

import asyncio
import os
import re
import socket
import subprocess
import sys
import threading
import urllib.request

import pytest

from delivery import errors
from delivery.config import service_settings, settings
from subscriptions_db.api.server import run
from subscriptions_db.postgres import connect, migrate
from subscriptions_db.secrets import keyring
from tests.integration.api import world

pytestmark = pytest.mark.integration
NOT_SET_UP = (
    "the service is misconfigured, and nothing was changed: ask the operator, whose log names the setting, then try again"
)


def with_ring(config, key_id="k1"):
    return config.model_copy(update={"keys": settings.KeysSettings(ring={key_id: keyring.generate()})})


def start(config):
    """Start the API, and stop it."""

    async def serve():
        async with run.serving(config, threading.Event()):
            pass

    asyncio.run(serve())


@pytest.mark.parametrize("key_id", ["k1", "another"])
def test_a_wrong_key_ring_is_refused_at_the_start(served, key_id):
    wrong = with_ring(served.config, key_id)
    with served.registry() as opened, pytest.raises(errors.SettingsError) as of_the_job:
        keyring.require_fits(opened, keyring.KeyRing.from_settings(wrong.keys))
    with pytest.raises(errors.SettingsError, match=re.escape(str(of_the_job.value))):
        start(wrong)
    start(served.config)


def test_a_wrong_key_ring_ends_the_command_with_one_line(served):
    variables = os.environ | {
        "FANOUT_DATABASE_URL": served.database,
        "FANOUT_API_DATABASE_URL": world.login_of(served.database),
        "FANOUT_KEYS_RING": f"k1={keyring.generate()}",
        "FANOUT_API_PORT": "0",
    }
    command = [sys.executable, "-m", "fanout.cli.main", "serve"]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith("fanout: setting keys.ring does not fit the registry: ")


def test_an_empty_registry_accepts_any_key_ring(served, database):
    api = served.config.api.model_copy(
        update={"database_url": service_settings.ApiSettings(database_url=world.login_of(database)).database_url}
    )
    start(with_ring(served.config).model_copy(update={"api": api}))


def test_the_api_starts_without_postgres_and_checks_the_ring_later(own_postgres):
    with world.served(own_postgres) as served:
        own_postgres.kill()
        with world.running(with_ring(served.config)) as port:
            own_postgres.start()
            wrong = world.Client(port, served.keys["acme"])
            asked = ("POST", "/v1/endpoints", {"url": "https://hooks.example.com/"})
            answers = (wrong.get("/readyz") for _ in range(50))  # each waits for Postgres itself
            first = next(answer for answer in answers if "cannot be read" not in answer.json["detail"])
            for answer in (first, wrong.ask(*asked)):
                assert (answer.status, answer.json["detail"]) == (503, NOT_SET_UP)
        with world.running(served.config) as port:
            right = world.Client(port, served.keys["acme"])
            assert right.get("/readyz").status == 200
            assert right.ask(*asked).status == 201


def test_the_api_starts_before_the_first_migration_of_a_server(own_postgres):
    """Regression: the command ended, because the roles of the API did not exist, and asked to correct a value."""
    config = settings.Settings(
        database=settings.DatabaseSettings(url=own_postgres.url), keys=settings.KeysSettings(ring={"k1": keyring.generate()})
    )
    with world.running(config) as port:
        client = world.Client(port, "none")
        answer = client.get("/readyz")
        assert (answer.status, "fanout db migrate" in answer.json["detail"]) == (503, True)
        with connect.connect(config.database) as connection:
            migrate.migrate(connection)
        assert next(answer.status for answer in (client.get("/readyz") for _ in range(50)) if answer.status == 200) == 200


def test_a_request_before_a_migration_that_adds_a_column_gets_503(own_postgres):
    """Regression: the answer was 500, and the log had a traceback, not the advice to migrate."""
    with world.served(own_postgres) as served, served.registry() as opened:
        acme = served.client(served.keys["acme"])
        assert acme.get("/v1/endpoints").status == 200
        opened.execute("alter table endpoints rename column description to not_yet_described")
        answer = acme.get("/v1/endpoints")
        assert (answer.status, "retry-after" in answer.headers) == (503, True)


def test_the_api_works_without_the_owners_login(served):
    """Regression: the chart gave API pods the login that owns the tables. `fanout serve` needs its own login only."""
    nowhere = settings.DatabaseSettings(url="postgresql://owner@127.0.0.1:1/none")
    with world.running(served.config.model_copy(update={"database": nowhere})) as port:
        operator = world.Client(port, served.keys["operator"])
        assert operator.get("/readyz").status == 200
        assert operator.get("/v1/endpoints").status == 200
        created = {"customer": "acme", "url": "https://hooks.acme.example.com/own-login"}
        assert operator.ask("POST", "/v1/endpoints", created).status == 201


def test_the_api_is_served_by_ipv6_and_by_ipv4_at_one_address(served):
    """Regression: with `api.host = "::"` the API took connections by IPv6 only, whatever the system lets one socket take."""
    api = served.config.api.model_copy(update={"host": "::"})
    with world.running(served.config.model_copy(update={"api": api})) as port:
        for address in ("[::1]", "127.0.0.1"):
            with urllib.request.urlopen(f"http://{address}:{port}/readyz", timeout=10) as answer:
                assert answer.status == 200


def test_an_address_of_ipv6_in_use_is_named_with_the_way_out(served):
    with socket.create_server(("::1", 0), family=socket.AF_INET6) as other:
        port = other.getsockname()[1]
        api = served.config.api.model_copy(update={"host": "::1", "port": port})
        with pytest.raises(errors.SettingsError, match=f"api.host and api.port: ::1:{port} cannot be opened"):
            start(served.config.model_copy(update={"api": api}))


def test_an_open_address_guard_is_warned_of(served, caplog):
    """Regression: a registry in production accepted endpoints in private networks, and `fanout serve` did not warn."""
    opened = settings.DeliverySettings(allow_networks=("10.0.0.0/8",), allow_http=True)
    start(served.config.model_copy(update={"delivery": opened}))
    assert "the address guard is OPEN for development: networks 10.0.0.0/8, plain http" in caplog.text
    caplog.clear()
    start(served.config.model_copy(update={"delivery": settings.DeliverySettings()}))
    assert "OPEN" not in caplog.text
