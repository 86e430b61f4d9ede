"""Nothing that is shipped, printed or raised shows a secret by its `repr`."""

import base64
import re

import pytest
import typer
from pydantic import SecretStr
from typer.testing import CliRunner

from delivery.config import kafka_clients, plan_builder, settings, settings_loader
from delivery.registry_model import Auth, AuthKind
from delivery.secret import Secret
from delivery.stages.kafka import record_reader, sink
from delivery.stages.tasks import deliver_events, observer, task_context
from delivery.webhooks.http import guard
from delivery.webhooks.results.counters import Counters
from delivery.webhooks.routing import published_registry, registries
from delivery.webhooks.routing.registry_snapshot import SnapshotChanges
from delivery.webhooks.sending import request
from fanout.cli import main
from subscriptions_db.following import lookup_source
from tests.support import builders

CANARY = "canary-of-a-secret"
KEY = base64.b64encode(f"{CANARY:<32}".encode()).decode()
ENVIRON = {
    "FANOUT_DATABASE_URL": f"postgresql://fanout:{CANARY}@db/fanout",
    "FANOUT_API_DATABASE_URL": f"postgresql://fanout_serve:{CANARY}@db/fanout",
    "FANOUT_KEYS_RING": f"k1={KEY}",
    "FANOUT_KAFKA_SASL_MECHANISM": "PLAIN",
    "FANOUT_KAFKA_SASL_PASSWORD": CANARY,
    "FANOUT_KAFKA_SPARK_OPTIONS": f"ssl.key.password={CANARY}",
    "FANOUT_KAFKA_LIBRDKAFKA_OPTIONS": f"ssl.key.password={CANARY}",
    "FANOUT_SCHEMA_REGISTRY_PASSWORD": CANARY,
    "FANOUT_SPARK_CONF": f"spark.hadoop.fs.s3a.secret.key={CANARY}",
}
ENDPOINT = builders.endpoint(
    url=f"https://hooks.example.com/{CANARY}?token={CANARY}",
    signing_keys=(Secret(CANARY.encode()),),
    auth=Auth(kind=AuthKind.BEARER, secret=Secret(CANARY.encode())),
)
BASE = builders.snapshot(ENDPOINT)
SOURCE = registries.BroadcastSource(
    base_id="b", broadcast=None, delta=SnapshotChanges(since=1, revision=2, endpoints={"ep1": ENDPOINT})
)
CONFIG = settings_loader.read(ENVIRON)
LOOK_UP = lookup_source.LookupSource(
    database=CONFIG.database, keys=CONFIG.keys, guard=guard.Guard(), ttl_s=1.0, max_answers=1, revision=1
)
OBSERVER = observer.Observer(
    total=Counters(), gone=frozenset(), unresponsive=frozenset(), level="INFO", format="json", attempt_sample=0.0
)
REGISTRY = CONFIG.schema_registry.model_copy(update={"url": "https://registry.example.com", "topic_pattern": "events[.].+"})
PLAN = plan_builder.plan_of(CONFIG.model_copy(update={"schema_registry": REGISTRY}))
TOOLS = task_context.Tools(plan=PLAN, observe=OBSERVER, sink=sink.to(kafka_clients.for_librdkafka(CONFIG.kafka)))
READER = record_reader.to(kafka_clients.for_reading(CONFIG.kafka), with_keys=True)


def test_a_plan_wraps_the_password_of_the_schema_registry():
    assert PLAN.formats.access.password == Secret(CANARY.encode())


@pytest.mark.parametrize(
    "shown",
    [
        pytest.param(CONFIG, id="settings"),
        pytest.param(BASE, id="snapshot"),
        pytest.param(SOURCE, id="what a task gets"),
        pytest.param(LOOK_UP, id="what a task that looks up gets"),
        pytest.param(
            published_registry.Published(base_id="b", base=BASE, changes=SOURCE.delta, confirmed_at=0.0), id="published"
        ),
        pytest.param(
            deliver_events.DeliverAssignment(assignments=[], tools=TOOLS, source=SOURCE, read=READER), id="task function"
        ),
        pytest.param(builders.delivery(endpoint=ENDPOINT), id="delivery"),
        pytest.param(request.prepare(ENDPOINT, guard.Guard()), id="target"),
    ],
)
def test_a_repr_shows_no_secret(shown):
    assert "canary" not in repr(shown)
    assert KEY not in repr(shown)


def test_the_command_shows_every_setting_and_no_secret():
    shown = CliRunner().invoke(main.app, ["config", "--json"], env=ENVIRON)
    assert shown.exit_code == 0
    assert '"setting": "database.url"' in shown.output
    assert not [secret for secret in (CANARY, KEY) if secret in shown.output]


def test_every_setting_that_may_hold_a_secret_is_planted_here():
    secret = {
        f"FANOUT_{area}_{field}".upper()
        for area, model in settings.areas().items()
        for field, info in model.model_fields.items()
        if info.annotation in {SecretStr, dict[str, SecretStr]}
    }
    assert secret | {"FANOUT_KAFKA_SASL_MECHANISM"} == set(ENVIRON)


def test_the_clients_get_what_is_hidden():
    assert kafka_clients.for_spark(CONFIG.kafka)["kafka.ssl.key.password"] == CANARY
    assert kafka_clients.for_librdkafka(CONFIG.kafka)["ssl.key.password"] == CANARY


def test_no_option_of_the_job_takes_a_secret():
    """A user who may list processes or describe a container reads their arguments."""
    commands = typer.main.get_command(main.app).commands
    options = {option.name for name in ("run", "serve", "archive") for option in commands[name].params}
    assert "once" in options
    assert not {name for name in options if re.search("secret|password|token|key|ring|url", name)}
