"""The examples in the documents hold, and what is generated is current."""

import functools
import importlib
import re
import time
import tomllib
import typing

import msgspec
import orjson
import pytest
import yaml
from typer.testing import CliRunner

from delivery import errors
from delivery.config import settings, settings_loader
from delivery.registry_model import ContentMode
from delivery.webhooks.batching import batcher
from delivery.webhooks.http import guard
from delivery.webhooks.policy import error_classes, retry_reasons
from delivery.webhooks.retries import shard_scheduler
from delivery.webhooks.sending import batch_payload, payload, signing
from fanout.cli import command_groups, main
from fanout.demo import expected_account
from fanout.documents import folder_map, generate, lane_pictures, links, record_formats
from subscriptions_db import disclosure
from subscriptions_db.api.contract import problem_types, problems
from subscriptions_db.api.documents import problem_pages
from subscriptions_db.manifest import manifest, parts
from tests.support import builders, reading

ROOT = reading.ROOT
GROUPS = {group.name for group in main.app.registered_groups} | command_groups.MODULES.keys()
DOCUMENTS = links.documents(ROOT)
PRESENT = [path for path in DOCUMENTS if path.name != "CHANGELOG.md" and path.parent.name != "benchmarks"]
TOP_FOLDERS = "delivery|subscriptions_db|fanout|load_tests|tests|deploy"
MODULES = r"delivery\.webhooks|delivery\.stages|subscriptions_db|load_tests|tests"
"""Other names with dots are settings and topics."""
MADE_LATER = {"deploy/compose/secrets", "fanout/driver"}
"""A folder that a script of the document makes, and a label of Kubernetes."""


def test_the_configuration_document_is_the_settings():
    assert (ROOT / "docs" / "configuration.md").read_text() == generate.configuration(), "run `make docs`"


def test_documented_urls_of_postgres_name_the_file_of_authorities():
    """Regression: `verify-full` alone, and `sslrootcert=system`, find no authority in the libpq of psycopg's package."""
    named = re.findall(r"sslmode=verify-full[^'\s]*'", "".join(path.read_text() for path in PRESENT))
    assert named
    assert all("&sslrootcert=/" in options for options in named), named


def test_the_defaults_in_the_configuration_document_are_toml():
    r"""Regression: they were Python. `'events\\..+'` copied from there is TOML for a pattern that matches no topic."""
    lines, area = [], ""
    for line in generate.configuration().splitlines():
        if line.startswith("## `["):
            area = line.strip("#` ")
            lines.append(area)
        elif area and (row := re.match(r"\| `(\w+)` \| `(.*?)` \|", line)):
            lines.append(f"{row[1]} = {row[2]}")
    assert len(lines) == len(settings.areas()) + len(settings.known_names())
    assert settings.Settings.model_validate(tomllib.loads("\n".join(lines))) == settings.Settings()


def test_the_metrics_document_is_the_declarations():
    assert (ROOT / "docs" / "metrics.md").read_text() == generate.metrics_table(), "run `make docs`"


def test_the_record_formats_are_the_types_of_the_records():
    assert (ROOT / "docs" / "record-formats.md").read_text() == record_formats.document(), "run `make docs`"


def test_the_problems_documents_are_the_types_of_problems():
    assert (ROOT / "docs" / "problems.md").read_text() == problem_pages.markdown_list(), "run `make docs`"
    pages = {path.stem: path.read_text() for path in (ROOT / "docs" / "problems").iterdir()}
    assert pages == {code: problem_pages.markdown(code) for code in problem_types.TYPES}, "run `make docs`"
    assert problem_types.TYPES.keys() == {code for code, _ in problems.TITLES.values()} | problems.OTHER_TITLES.keys()


@pytest.mark.parametrize(("code", "described"), problem_types.TYPES.items())
def test_the_example_of_a_problem_has_its_code(code, described):
    assert described.example.problem.code == code


def test_the_folders_document_is_the_imports():
    assert (ROOT / "docs" / "folders.md").read_text() == folder_map.document(ROOT), "run `make docs`"


def test_the_versions_of_stored_bytes_are_those_of_the_code():
    rows = re.findall(
        r"^\| .+ \| (\d+) \| .+ \| `([\w/]+)\.py` \|$", (ROOT / "docs/storage-formats.md").read_text(), re.MULTILINE
    )
    described = {path.replace("/", "."): int(version) for version, path in rows}
    writers = [path for path in (ROOT / "delivery").rglob("*.py") if re.search(r"^VERSION = ", path.read_text(), re.MULTILINE)]
    assert described.keys() == {".".join(path.relative_to(ROOT).with_suffix("").parts) for path in writers}
    assert {name: importlib.import_module(name).VERSION for name in described} == described


def test_the_described_elements_of_state_are_those_of_the_code():
    """The first table of each lane is its index; the second of the retry lane is an endpoint in it."""
    _, batch, retry, *_ = re.split("^### ", (ROOT / "docs" / "storage-formats.md").read_text(), flags=re.MULTILINE)
    indexes = type(batcher.decoded(None)), type(shard_scheduler.decoded(None))
    _, entry = typing.get_args(typing.get_type_hints(indexes[1])["endpoints"])
    described = [elements(batch)[0], *elements(retry)[:2]]
    assert described == [list(range(len(msgspec.structs.fields(layout)))) for layout in (*indexes, entry)]


def elements(section):
    """Return for each table of elements their numbers. `1 to 4` are four of them, `5, 6` two."""
    tables = []
    for table in section.split("| element | content |")[1:]:
        named = re.findall(r"^\| ([\d, to]+) \|", table.partition("\n\n")[0], re.MULTILINE)
        spans = [[int(number) for number in re.findall(r"\d+", name)] for name in named]
        tables.append([number for span in spans for number in range(span[0], span[-1] + 1)])
    return tables


def test_every_field_of_a_record_is_described():
    """A field without a text, or with a type that nobody can look up, would be in the table all the same."""
    shown = {record.__name__: record_formats.fields(record) for *_, records in record_formats.GROUPS for record in records}
    assert [(name, field.name) for name, found in shown.items() for field in found if not field.meaning] == []
    named = {name for found in shown.values() for field in found for name in re.findall(r"\[(\w+)\]", field.type)}
    assert named <= shown.keys()


@pytest.mark.parametrize("path", ["README.md", *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").glob("*.md"))])
def test_every_row_of_a_table_has_the_cells_of_its_head(path):
    """Regression: two rows of docs/faults.md had five cells for four columns, so the tests stood beside the table."""
    cells, uneven = 0, []
    for line in (ROOT / path).read_text().splitlines():
        found = len(re.findall(r"(?<!\\)\|", line)) if line.startswith("|") else 0
        uneven += [line] if cells and found and found != cells else []
        cells = cells if cells and found else found
    assert uneven == []


@pytest.mark.parametrize("path", ["docs/configuration.md", "docs/operations.md"])
def test_the_examples_of_settings_are_accepted(path, tmp_path):
    [example] = reading.blocks(path, "toml")
    (tmp_path / "fanout.toml").write_text(example)
    assert settings_loader.read({}, root=tmp_path) != settings.Settings()


def test_the_readmes_manifest_is_accepted():
    [example] = reading.blocks("README.md", "yaml")
    development = guard.Guard(allow_networks=("127.0.0.0/8",), allow_http=True, allow_ports=())
    assert len(manifest.load(example, development).subscriptions) == 2


def test_the_document_with_every_field_is_accepted():
    assert len(manifest.load(reading.registering(), guard.Guard()).endpoints) == 3


@pytest.mark.parametrize(
    ("kind", "part", "type_"),
    [
        ("tenants", None, manifest.ManifestTenant),
        ("customers", None, manifest.ManifestCustomer),
        ("endpoints", None, manifest.ManifestEndpoint),
        ("endpoints", "auth", parts.AuthFields),
        ("endpoints", "tls", parts.TlsFields),
        ("endpoints", "batch", parts.BatchFields),
        ("endpoints", "retry", parts.RetryFields),
        ("subscriptions", None, manifest.ManifestSubscription),
    ],
)
def test_the_document_with_every_field_leaves_none_out(kind, part, type_):
    rows = yaml.safe_load(reading.registering())[kind]
    shown = {name for row in rows for name in (row.get(part, {}) if part else row)}
    assert shown == set(type_.model_fields)


def test_the_contracts_example_body_is_what_is_sent():
    example, _ = reading.blocks("docs/delivery-contract.md", "json")
    wanted = orjson.loads(example)
    event = builders.event(
        event_id=wanted["id"],
        time=wanted["timestamp"],
        tenant_id=wanted["tenant_id"],
        sub_tenant_id=wanted["sub_tenant_id"],
        content=wanted["data"],
    )
    assert list(orjson.loads(payload.content(event, ContentMode.STANDARD).body).items()) == list(wanted.items())


def test_the_contracts_example_of_an_answer_rejects_what_it_names():
    _, example = reading.blocks("docs/delivery-contract.md", "json")
    assert batch_payload.rejected_events(example.encode(), 4) == {3: "no such order"}


def test_the_contract_names_the_class_of_every_failure():
    text = (ROOT / "docs" / "delivery-contract.md").read_text()
    by_status = {error_classes.error_class_of(status) for status in range(700)} - {None}
    classes = by_status | {disclosure.word(failure.error_class) for failure in errors.AttemptFailed.__subclasses__()}
    for error_class in classes | {retry_reasons.CONFIGURATION, retry_reasons.LANE_DEADLINE}:
        assert f"`{error_class}`" in text, error_class


def test_the_contracts_way_to_verify_verifies():
    [example] = reading.blocks("docs/delivery-contract.md", "python")
    event = builders.event()
    body, webhook_id, now = payload.content(event, ContentMode.STANDARD).body, payload.webhook_id(event, "s1"), int(time.time())
    headers = {
        "webhook-id": webhook_id,
        "webhook-timestamp": str(now),
        "webhook-signature": signing.sign([builders.KEY], webhook_id, now, body),
    }
    exec(example, {"body": body, "headers": headers})  # noqa: S102  # the document's own lines


def test_the_contracts_webhook_id_is_the_platforms():
    event = builders.event()
    assert expected_account.webhook_id(event.source, event.event_id, "s1") == payload.webhook_id(event, "s1")


def test_the_pictures_of_the_architecture_are_the_code():
    text = (ROOT / "docs" / "architecture.md").read_text()
    assert text == lane_pictures.document(ROOT), "run `make docs`"
    assert text.count("```mermaid") == len(lane_pictures.PICTURES)


def plain(text):
    """Return words in lower case, as `RetryEntry`, `retry_entries` and `Retry entry` are the same word."""
    return re.sub(r"[_\-\s]+", " ", re.sub(r"(?<=[a-z])(?=[A-Z])", " ", text)).lower()


def test_every_word_of_the_glossary_is_used():
    glossary = ROOT / "docs" / "glossary.md"
    words = re.findall(r"\*\*(.+?)\*\*", glossary.read_text())
    code = [path for package in folder_map.PACKAGES for path in (ROOT / package).rglob("*.py")]
    pages = [path for path in PRESENT if path.parent.name != "adr" and path != glossary]
    used = plain(" ".join(path.read_text() for path in [*code, *pages]))
    assert [word for word in words if plain(word).removesuffix("y") not in used] == []
    assert len(set(words)) == len(words)


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_every_link_inside_the_project_leads_somewhere(path):
    """To a file, and to a heading where the link names one."""
    assert list(links.broken(path)) == []


@pytest.mark.parametrize("path", PRESENT, ids=lambda path: path.name)
def test_every_path_and_module_that_a_document_names_exists(path):
    """The history is left out: benchmarks and the changelog name what there was."""
    text = path.read_text()
    paths = re.findall(rf"(?<![\w./~:-])((?:{TOP_FOLDERS})/[\w./-]*\w)", text)
    assert [name for name in paths if not (ROOT / name).exists() and name not in MADE_LATER] == []
    modules = [name.replace(".", "/") for name in re.findall(rf"`((?:{MODULES})(?:\.[a-z_]+)+)`", text)]
    assert [name for name in modules if not any((ROOT / f"{name}{end}").exists() for end in ("", ".py"))] == []


@functools.cache
def help_of(*command):
    """Return the help of a command. Documents name most commands many times."""
    shown = CliRunner().invoke(main.app, [*command, "--help"])
    assert shown.exit_code == 0, command
    return shown.output


@pytest.mark.parametrize(
    "path",
    [
        "README.md",
        "docs/operations.md",
        "docs/registering.md",
        "docs/api.md",
        "docs/first-ten-minutes.md",
        "deploy/helm/fanout/README.md",
    ],
)
def test_every_command_that_a_document_names_exists(path):
    named = re.findall(r"`(fanout [a-z][^`]*)`", (ROOT / path).read_text())
    for line in [*"\n".join(reading.blocks(path, "sh")).splitlines(), *named]:
        words = line.split("#")[0].split()
        if words[:1] == ["fanout"]:
            command = words[1:3] if words[1] in GROUPS else words[1:2]
            shown = help_of(*command)
            for option in (word for word in words if word.startswith("--")):
                assert option in shown, line
