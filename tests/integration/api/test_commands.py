"""The commands of the API: `fanout api-keys`, `dead-letters consumers`, `openapi`, `replays` and `serve`."""

import contextlib
import datetime as dt
import json
import os
import signal
import socket
import subprocess
import sys
import time

import pytest
from typer.testing import CliRunner

from fanout.cli import main
from subscriptions_db.api.documents import openapi
from subscriptions_db.api.server.route_table import ROUTES
from subscriptions_db.archive.ingest import writer
from subscriptions_db.archive.ingest.archived_rows import ArchivedRecord
from subscriptions_db.archive.ingest.hourly_counts import HourCounts
from subscriptions_db.archive.search import consumers, counts
from subscriptions_db.archive.search.selection import DeadLetterSearch
from subscriptions_db.replays import requests
from tests.integration.api import world
from tests.integration.api.world import Client
from tests.support import archive

pytestmark = pytest.mark.integration


@pytest.fixture
def environment(served, monkeypatch):
    ring = ",".join(f"{name}={key.get_secret_value()}" for name, key in served.config.keys.ring.items())
    values = {
        "FANOUT_DATABASE_URL": served.database,
        "FANOUT_KEYS_RING": ring,
        "FANOUT_API_DATABASE_URL": world.login_of(served.database),
        "FANOUT_LOGS_FORMAT": "json",
    }
    for name, value in values.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("delivery.observability.logs.configure", lambda *_: None)  # the runner's standard error ends with it
    return values


def fanout(*words, code=0):
    done = CliRunner().invoke(main.app, [*words, "--json"])
    assert done.exit_code == code, done.output
    return json.loads(done.output)


@pytest.mark.usefixtures("environment")
def test_a_publishers_key_may_name_its_tenants():
    made = fanout("api-keys", "create", "--scope", "publisher", "--tenant", "t2", "--tenant", "t1")
    assert (made["customer"], made["tenants"]) == (None, ["t2", "t1"])
    assert {row["key_id"]: row["tenants"] for row in fanout("api-keys", "list")}[made["key_id"]] == ["t1", "t2"]


@pytest.mark.usefixtures("environment")
def test_a_customers_key_may_be_limited_to_endpoints(served):
    made = fanout("api-keys", "create", "--scope", "read_only", "--customer", "other", "--endpoint", "other-orders")
    assert made["endpoints"] == ["other-orders"]
    assert [item["id"] for item in served.client(made["key"]).get("/v1/endpoints").json["items"]] == ["other-orders"]


@pytest.mark.parametrize(("words", "days"), [((), 30), (("--expires", "never"), None), (("--expires", "7d"), 7)])
@pytest.mark.usefixtures("environment")
def test_a_key_expires_unless_it_never_is_to(monkeypatch, words, days):
    monkeypatch.setenv("FANOUT_API_KEY_LIFETIME_DAYS", "30")
    made = fanout("api-keys", "create", "--scope", "operator", *words)
    [row] = [row for row in fanout("api-keys", "list") if row["key_id"] == made["key_id"]]
    assert row["state"] == ("expiring" if days == 7 else "active")
    if days is None:
        assert made["expires_at"] is row["expires_at"] is None
    else:
        left = dt.datetime.fromisoformat(row["expires_at"]) - dt.datetime.now(dt.UTC)
        assert dt.timedelta(days=days - 1) < left <= dt.timedelta(days=days)


@pytest.mark.usefixtures("environment")
def test_a_key_is_created_used_listed_and_revoked(served):
    made = fanout("api-keys", "create", "--scope", "customer_admin", "--customer", "acme", "--name", "mine", "--expires", "90d")
    client = served.client(made["key"])
    assert client.get("/v1/customers/acme").status == 200
    [row] = [row for row in fanout("api-keys", "list", "--customer", "acme") if row["key_id"] == made["key_id"]]
    assert (row["name"], row["scope"], row["revoked_at"]) == ("mine", "customer_admin", None)
    assert fanout("api-keys", "revoke", made["key_id"]) == {"key_id": made["key_id"], "revoked": True}
    deadline = time.monotonic() + 5  # what is promised
    while client.get("/v1/customers/acme").status != 401:
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.mark.parametrize("public_url", ["", "https://fanout.example.com"])
@pytest.mark.usefixtures("environment")
def test_the_openapi_document_is_printed_with_the_public_url(monkeypatch, public_url):
    """Regression: the printed document had `/` as its server, whatever `api.public_url` was."""
    monkeypatch.setenv("FANOUT_API_PUBLIC_URL", public_url)
    done = CliRunner().invoke(main.app, ["openapi"])
    assert json.loads(done.output) == json.loads(json.dumps(openapi.document(ROUTES, public_url)))


@pytest.mark.usefixtures("environment")
def test_registered_rows_are_listed_by_kind_id_and_column(served):
    served.client(served.keys["operator"]).put("/v1/event-types/order.listed", {"description": "For a list."})
    [row] = fanout("get", "event-types", "order.listed")
    assert row["description"] == "For a list."
    assert fanout("get", "event-type/order.listed") == [row]
    names = CliRunner().invoke(main.app, ["get", "endpoints", "-o", "name"]).output.split()
    assert names == sorted(names)
    assert "endpoint/acme-orders" in names
    fields = {"description": "For a list.", "metadata": {"team": "billing"}}
    changed = served.client(served.keys["acme"]).patch("/v1/endpoints/acme-orders", fields).json
    [row] = fanout("get", "endpoint/acme-orders")
    assert {name: row[name] for name in fields} == fields
    assert dt.datetime.fromisoformat(row["updated_at"]) == dt.datetime.fromisoformat(changed["updated_at"])
    table = CliRunner().invoke(main.app, ["get", "endpoint/acme-orders"]).output
    assert "url" in table
    assert "retry_schedule_s" not in table


@pytest.mark.usefixtures("environment")
def test_a_replay_is_listed_shown_and_cancelled(served):
    now = dt.datetime.now(dt.UTC)
    with served.registry() as opened, opened.transaction():
        opened.execute("delete from replays")
        asked = requests.ask(opened, "acme", "acme-orders", requests.ReplayRange(since=now - dt.timedelta(hours=1), until=now))
    name = f"replay/{asked.replay_id}"
    assert CliRunner().invoke(main.app, ["replays", "list", "--endpoint", "acme-orders", "-o", "name"]).output == f"{name}\n"
    assert fanout("replays", "list", "--endpoint", "another") == []
    assert fanout("replays", "show", name)["state"] == "waiting"
    assert fanout("replays", "cancel", name)["state"] == "cancelled"
    [noted] = served.audit(asked.replay_id)
    assert (noted["action"], noted["key_id"], noted["after"]) == ("cancel", "command", {"state": "cancelled"})
    again = CliRunner().invoke(main.app, ["replays", "cancel", asked.replay_id])
    assert "is cancelled already, so there is nothing to cancel" in str(again.exception)
    unknown = CliRunner().invoke(main.app, ["replays", "show", "rpl_0"])
    assert "`fanout replays list` lists the newest" in str(unknown.exception)


@pytest.mark.usefixtures("environment")
def test_an_operator_requests_a_replay_by_command(served):
    with served.registry() as opened:
        opened.execute("delete from replays")
    made = fanout("replays", "ask", "endpoint/acme-orders", "--since", "2h", "--until", "1h", "--event-type", "order.*")
    assert (made["customer"], made["endpoint"], made["state"], made["event_types"]) == (
        "acme", "acme-orders", "waiting", ["order.*"],
    )  # fmt: skip
    span = dt.datetime.fromisoformat(made["until"]) - dt.datetime.fromisoformat(made["since"])
    assert span == dt.timedelta(hours=1)
    assert [(entry["key_id"], entry["action"]) for entry in served.audit(made["id"])] == [("command", "create")]
    for words, said in (
        (["acme-orders", "--since", "2h"], "has an unfinished replay"),
        (["nobodys", "--since", "2h"], "`fanout get endpoints` lists them"),
        (["acme-orders", "--since", "40d"], "--since: is more than 31 days before until"),
        (["acme-orders", "--since", "1h", "--until", "2h"], "--since: must be before until"),
    ):
        assert said in str(CliRunner().invoke(main.app, ["replays", "ask", *words]).exception)


@pytest.mark.usefixtures("environment")
def test_a_schema_of_the_catalogue_is_tried_on_an_event():
    event = {"id": "e1", "type": "order.created", "tenant_id": "t1", "amount": 5}
    assert fanout("event-type", "try", "--event", json.dumps(event))["keeps_to_schema"]
    broken = json.dumps({name: value for name, value in event.items() if name != "amount"})
    assert not fanout("event-type", "try", "--event", broken, code=1)["keeps_to_schema"]
    unknown = CliRunner().invoke(main.app, ["event-type", "try", "--event", json.dumps(event | {"type": "order.lost"})])
    assert "order.lost is not in the catalogue" in str(unknown.exception)


@pytest.mark.usefixtures("environment")
def test_consumers_are_listed_with_their_counts(served):
    [row] = [row for row in fanout("dead-letters", "consumers", "acme") if row["name"] == world.CONSUMER]
    assert (row["waiting"], row["waiting_is_exact"], row["leased"], row["parked"]) == (1, True, 0, 0)
    assert fanout("dead-letters", "consumers", "nobody") == []
    world.write(served, counts.MAX_EXAMINED_IN_LIST, customer="other", endpoint="other-orders")
    with served.registry() as opened:
        assert all(consumers.create(opened, "other", name, DeadLetterSearch()) for name in ("first", "second"))
    assert CliRunner().invoke(main.app, ["dead-letters", "consumers", "other"]).output.count("1000+") == 2


def test_serve_ends_in_order_and_logs_no_secret(served, environment):
    with contextlib.closing(socket.socket()) as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "fanout.cli.main", "serve"]
    variables = os.environ | environment | {"FANOUT_API_PORT": str(port)}
    with subprocess.Popen(command, env=variables, stderr=subprocess.PIPE) as server:
        client = Client(port, served.keys["acme"])
        deadline = time.monotonic() + 30
        while True:
            with contextlib.suppress(ConnectionError):
                if client.get("/readyz").status == 200:
                    break
            assert server.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
        body = {"url": "https://hooks.example.com/?token=hunter4"}
        made = client.post("/v1/endpoints", body, x_request_id="order-17").json
        assert made["signing_secret"]
        server.send_signal(signal.SIGTERM)
        _, log = server.communicate(timeout=30)
    assert server.returncode == 0
    answered = [json.loads(line) for line in log.splitlines() if b"api.answered" in line]
    named = {"method": "POST", "route": "/v1/endpoints", "status": 201, "request_id": "order-17"}
    assert named.items() <= answered[-1].items()
    for secret in (made["signing_secret"], served.keys["acme"], "hunter4"):
        assert secret.encode() not in log


@pytest.mark.usefixtures("environment")
def test_the_statistics_of_an_endpoint_are_shown(served):
    now = dt.datetime.now(dt.UTC)
    counts = HourCounts(delivered=3, attempts=4, error_classes={"timeout": 1}, durations={20: 4})
    by_hour = {("acme", "acme-orders", int(now.timestamp()) // 3600): counts}
    record = ArchivedRecord(topic="counted", partition=0, offset=0, statistics=by_hour)
    with served.registry() as opened:
        writer.write(opened, [record], archive.KEPT, now=now)
    shown = fanout("endpoints", "statistics", "endpoint/acme-orders", "--by", "day")
    assert (shown["by"], shown["total"]["delivered"], shown["total"]["error_classes"]) == ("day", 3, {"timeout": 1})
    done = CliRunner().invoke(main.app, ["endpoints", "statistics", "acme-orders"])
    assert done.exit_code == 0
    assert all(word in done.output for word in ("total", "29.3", "failed with timeout: 1"))


@pytest.mark.usefixtures("environment")
@pytest.mark.parametrize(
    ("words", "problem"), [(["nobodys"], "no such endpoint"), (["acme-orders", "--since", "8d"], "in the last 7 days")]
)
def test_statistics_that_there_are_not_are_refused(words, problem):
    done = CliRunner().invoke(main.app, ["endpoints", "statistics", *words])
    assert (done.exit_code, problem in str(done.exception)) == (1, True)
