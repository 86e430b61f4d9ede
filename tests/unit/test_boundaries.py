"""The rules of imports between packages, and of objects that go to another process."""

import ast
import graphlib
import inspect
import pickle
import re
import subprocess
import sys
from pathlib import Path

import pytest

from delivery import errors
from delivery.config import plan_builder, settings
from delivery.webhooks.lanes import worker_plan
from delivery.webhooks.routing.registry_snapshot import SnapshotChanges
from fanout.documents import folder_map
from tests.support import builders

ROOT = Path(__file__).parents[2]
PACKAGES = ("delivery", "subscriptions_db", "fanout")
PATHS = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py") if path.name != "__init__.py"]
MODULES = sorted(".".join(path.relative_to(ROOT).with_suffix("").parts) for path in PATHS)
CORE = [path for path in (ROOT / "delivery" / "webhooks").rglob("*.py") if path.name != "__init__.py"]
ALLOWED_IN_CORE = {
    *sys.stdlib_module_names, "aiohttp", "cachetools", "confluent_kafka", "cryptography", "fastavro", "google", "httptools",
    "msgspec", "orjson", "prometheus_client", "pyarrow", "tenacity", "uvloop", "yarl",
}  # fmt: skip
JSON_READERS = {
    "delivery/stages/checkpoint_lock/cluster.py:_call": "answers of the Kubernetes API server",
    "delivery/stages/checkpoint_lock/cluster.py:_message": "answers of the Kubernetes API server",
    "delivery/stages/checkpoint/offset_log.py:_read": "files of the checkpoint",
    "delivery/stages/checkpoint/offset_log.py:_write": "files of the checkpoint",
    "delivery/stages/checkpoint/paused_topics.py:valid": "a file of the checkpoint",
    "delivery/stages/checkpoint/recovery.py:_logged": "files of the checkpoint",
    "delivery/stages/checkpoint/left_out_topics.py:_kept": "files of the checkpoint",
    "delivery/stages/checkpoint/shards.py:require_kept": "files of the checkpoint",
    "delivery/stages/lanes/streaming_lane.py:positions": "Spark's report of its progress",
    "delivery/stages/realtime/start_offsets.py:_positions": "files of the checkpoint",
    "delivery/stages/realtime/start_offsets.py:_started_ms": "files of the checkpoint",
    "delivery/stages/tasks/deliver_events.py:_headers": "headers of a Kafka record, in a column of Spark",
    "delivery/webhooks/events/opaque.py:as_bytes": "a payload",
    "delivery/webhooks/events/parsing.py:_loads": "an event: its producer chooses the form",
    "delivery/webhooks/formats/avro.py:compiled": "schemas",
    "delivery/webhooks/sending/batch_payload.py:rejected_events": "the response of an endpoint",
    "delivery/webhooks/sending/oauth.py:_parsed": "the response of a token server",
    "fanout/cli/event_types.py:try_": "the payload of an example",
    "fanout/demo/over_http.py:post": "answers of the HTTP API",
    "fanout/documents/chart_reference.py:schema": "a schema in the chart",
    "fanout/kafka/publishing.py:from_lines": "a line of standard input",
    "fanout/local/receiver.py:_batch": "the body of a request",
    "fanout/terminal/listing.py:show": "rows that were just written as JSON",
    "subscriptions_db/archive/ingest/archived_rows.py:topic_record": "a column of Postgres",
    "subscriptions_db/archive/search/archived_dead_letters.py:payload_bytes": "a column of Postgres",
    "subscriptions_db/archive/search/statistics.py:bucket_of": "a column of Postgres",
}
"""Functions that parse JSON without a type, and what they parse. A function that parses a record of our topics does not belong
here."""
ALLOWED_OF_OURS = {*folder_map.GROUND, "delivery.webhooks"}


def imports(path):
    """Return pairs of the module that a file imports, and the name that it takes from there."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names)
        if isinstance(node, ast.ImportFrom):
            yield from ((node.module, alias.name) for alias in node.names)


def tops(package):
    """Return the top-level packages that a package imports."""
    return {module.split(".")[0] for path in (ROOT / package).rglob("*.py") for module, _ in imports(path)}


@pytest.mark.parametrize("path", CORE, ids=lambda path: path.name)
def test_the_delivery_core_imports_nothing_that_an_executor_lacks(path):
    for module, name in imports(path):
        if module.split(".")[0] == "delivery":
            assert any(f"{module}.{name}".startswith(allowed) for allowed in ALLOWED_OF_OURS), (module, name)
        else:
            assert module.split(".")[0] in ALLOWED_IN_CORE, module


def test_delivery_imports_neither_subscriptions_db_nor_the_commands():
    """`fanout run` passes the access to the registry, so the two packages do not import each other."""
    assert tops("delivery").isdisjoint({"subscriptions_db", "fanout", "load_tests"})
    assert tops("subscriptions_db").isdisjoint({"fanout", "load_tests", "pyspark"})


def test_the_delivery_core_loads_neither_spark_nor_postgres():
    absent = {"pyspark", "psycopg", "pydantic", "fastavro", "google.protobuf", "confluent_kafka.schema_registry"}
    code = f"import sys, delivery.webhooks.lanes.worker; sys.exit(bool({absent} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_every_module_can_be_imported_first():
    """A module that is imported first works if all can be imported, and none imports another in a circle."""
    graph = folder_map.module_imports(ROOT)
    assert graph.keys() >= set(MODULES)
    graphlib.TopologicalSorter(graph).prepare()  # raises CycleError, which names the modules
    code = "import importlib, sys\nfor name in sys.argv[1:]: importlib.import_module(name)"
    done = subprocess.run([sys.executable, "-c", code, *MODULES], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_only_what_the_driver_has_broadcast_or_sealed_is_ever_unpickled():
    """Neither Kafka's records, nor state, nor requests can become code."""
    loaders = {"pickle", "cloudpickle", "dill", "marshal", "shelve", "jsonpickle"}
    assert {path.name for path in PATHS for module, _ in imports(path) if module.split(".")[0] in loaders} == {"pickling.py"}
    packers = {path for path in PATHS for names in imports(path) if "pickling" in ".".join(names).split(".")}
    assert {str(path.relative_to(ROOT)) for path in packers} == {
        "delivery/stages/registry/task_delta.py",
        "delivery/stages/realtime/channel.py",
        "delivery/stages/realtime/realtime_task.py",
        "delivery/stages/registry/base_packer.py",
        "delivery/stages/registry/broadcasts.py",
        "delivery/webhooks/routing/registries.py",
        "subscriptions_db/following/registry_follower.py",  # the size of a delta only
    }


def test_records_of_our_topics_are_read_by_their_types_only():
    """Regression: two modules read log entries as dictionaries. One failed at kinds of entries without a reason.

    `webhooks/results` and `webhooks/retries` have the types, and the only functions that read the records' bytes. Of
    `subscriptions_db` only the archive gets records of these topics.
    """
    readers = {reader for path in PATHS for reader in json_readers(path)}
    elsewhere = {reader for reader in readers if re.match("subscriptions_db/(?!archive/)", reader)}
    assert readers - elsewhere == JSON_READERS.keys()


def json_readers(path):
    """Yield the file and the name of each function that calls `loads` of json or orjson."""
    for function in ast.walk(ast.parse(path.read_text())):
        if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        called = {ast.unparse(node.func) for node in ast.walk(function) if isinstance(node, ast.Call)}
        if called & {"json.loads", "orjson.loads"}:
            yield f"{path.relative_to(ROOT)}:{function.name}"


def test_no_folder_imports_from_its_own_floor_or_from_above():
    """The floors are those of docs/folders.md."""
    floors = {folder: floor for floor, folders in enumerate(folder_map.FLOORS) for folder in folders.split()}
    found = folder_map.module_imports(ROOT)
    assert floors.keys() == set(map(folder_map.folder_of, found))
    upwards = set()
    for module, imported in found.items():
        folder = folder_map.folder_of(module)
        for target in imported:
            beneath = folder_map.folder_of(target)
            if beneath != folder and floors[beneath] >= floors[folder]:
                upwards.add((module, target))
    assert upwards == set()


def all_errors(root=errors.FanoutError):
    return [root, *(found for child in root.__subclasses__() for found in all_errors(child))]


@pytest.mark.parametrize("kind", [kind for kind in all_errors() if kind.__module__ == "delivery.errors"])
def test_every_error_survives_pickling_with_its_text(kind):
    if kind is errors.ManifestRefused:
        raised = kind([errors.RegistrationError("first", "second"), errors.FilterError("third", "fourth")])
        assert str(pickle.loads(pickle.dumps(raised))) == str(raised)
        return
    if kind is errors.BatchFound:
        read = pickle.loads(pickle.dumps(kind(2, 700)))
        assert (str(read), read.events, read.written_bytes) == (str(kind(2, 700)), 2, 700)
        return
    words = ["first", "second"][: len(inspect.signature(kind).parameters) if "__init__" in vars(kind) else 1]
    words = ["first", "second"] if issubclass(kind, errors.RegistrationError | errors.EventRejected) else words
    raised = kind(*words)
    assert str(pickle.loads(pickle.dumps(raised))) == str(raised)


@pytest.mark.parametrize(
    "shipped",
    [
        pytest.param(builders.snapshot(builders.endpoint(), builders.subscription()), id="snapshot"),
        pytest.param(
            SnapshotChanges(since=1, revision=2, endpoints={"ep1": builders.endpoint()}, subscriptions={"s1": None}),
            id="changes",
        ),
    ],
)
def test_what_is_broadcast_survives_pickling(shipped):
    assert pickle.loads(pickle.dumps(shipped)) == shipped


def test_a_plan_survives_pickling_and_finds_its_worker_again():
    made = plan_builder.plan_of(settings.Settings())
    assert pickle.loads(pickle.dumps(made)) == made
    assert hash(pickle.loads(pickle.dumps(made))) == hash(made)
    assert isinstance(made, worker_plan.Plan)


def test_health_hints_are_frequent_enough_for_the_time_to_disable():
    config = settings.Settings.model_validate({"retry": {"disable_after_s": 800}, "snapshot": {"max_age_s": 70}})
    assert (plan_builder.plan_of(config).report_accepting_every_s, plan_builder.plan_of(config).registry_max_age_s) == (100, 70)
    config = settings.Settings.model_validate({"snapshot": {"source": "lookup", "lookup_ttl_s": 20}})
    assert plan_builder.plan_of(config).registry_max_age_s == 20


def test_the_job_stays_a_table_of_contents():
    assert len((ROOT / "delivery" / "job.py").read_text().splitlines()) <= 60
