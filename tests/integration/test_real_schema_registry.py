"""Apicurio Registry, a real one that speaks Confluent's API, answers as our decoder and the other tests' fake registry expect.

Its archive is downloaded once from Maven Central, and compared with its digest. It runs on Java 17, and keeps all in memory.
"""

import contextlib
import hashlib
import json
import subprocess
import tarfile
import time
import uuid
from pathlib import Path
from urllib import error as url_error
from urllib import request

import pytest
from confluent_kafka import schema_registry
from confluent_kafka.schema_registry import Schema, SchemaReference, error

from delivery import errors
from delivery.webhooks.events import parsing
from delivery.webhooks.formats import decoder, registry_client
from fanout.jvm import java
from fanout.local import kafka_server as local_kafka
from tests.support import builders, framing
from tests.support.schema_writers import (
    AVRO,
    MONEY_TEXT,
    ORDER,
    ORDER_TEXT,
    PROTOBUF_ONLY,
    by_avro,
    by_json_schema,
    by_protobuf,
    with_field,
)

pytestmark = [pytest.mark.integration, pytest.mark.slow]

VERSION = "3.0.9"
"""The newest version of Maven Central that runs on Java 17."""
NAME = f"apicurio-registry-app-{VERSION}"
SOURCE = f"https://repo1.maven.org/maven2/io/apicurio/apicurio-registry-app/{VERSION}/{NAME}-all.tar.gz"
SHA256 = "2b28181501a20cbf6efcd77f9b7153908fc01f3d3a7c32024c0bd9e1b04c8a43"
ARCHIVE = Path.home() / ".cache" / "fanout" / f"apicurio-registry-{VERSION}" / f"{NAME}-all.tar.gz"
START_S = 240


@pytest.fixture(scope="module")
def archive():
    """Return the archive; skip all tests if it is missing and cannot be downloaded."""
    if not ARCHIVE.is_file():
        ARCHIVE.parent.mkdir(parents=True, exist_ok=True)
        part = ARCHIVE.with_suffix(".part")
        try:
            with request.urlopen(SOURCE, timeout=60) as answer, part.open("wb") as file:  # a constant address
                while content := answer.read(1024 * 1024):
                    file.write(content)
        except (url_error.URLError, OSError) as exc:
            pytest.skip(f"Apicurio Registry {VERSION} (109 MB) cannot be downloaded from Maven Central: {exc}")
        part.rename(ARCHIVE)
    with ARCHIVE.open("rb") as file:
        assert hashlib.file_digest(file, "sha256").hexdigest() == SHA256, f"{ARCHIVE} has another digest: delete it"
    return ARCHIVE


@pytest.fixture(scope="module")
def url(archive, tmp_path_factory):
    """Yield the URL of Confluent's API of a running registry."""
    folder = tmp_path_factory.mktemp("registry")
    with tarfile.open(archive) as files:
        files.extractall(folder)  # noqa: S202  # the archive has the pinned digest
    port = local_kafka.free_port()
    with (folder / "log").open("wb") as log:
        command = [str(java.find()), "-Xmx384m", "-Dquarkus.http.host=127.0.0.1", f"-Dquarkus.http.port={port}"]
        command += ["-jar", f"{NAME}-runner.jar"]
        process = subprocess.Popen(command, cwd=folder, stdout=log, stderr=subprocess.STDOUT)
    try:
        made = f"http://127.0.0.1:{port}/apis/ccompat/v7"
        _require_answer(made, process, folder / "log")
        yield made
    finally:
        process.kill()
        process.wait()


def _require_answer(url, process, log):
    until = time.monotonic() + START_S
    while time.monotonic() < until and process.poll() is None:
        with contextlib.suppress(OSError), request.urlopen(f"{url}/subjects", timeout=10):  # noqa: S310  # on this machine
            return
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(0.5)
    raise AssertionError(f"the registry has not started: {log.read_text(errors='replace')[-2000:]}")


@pytest.fixture
def client(url):
    with schema_registry.SchemaRegistryClient({"url": url, "timeout": 30}) as made:
        yield made


@pytest.fixture
def topic():
    """Return a topic of the test's own. Apicurio takes schemas of one type only for a subject."""
    return f"events.{uuid.uuid4().hex}"


def access(url):
    return registry_client.Access(url=url, timeout_s=30.0)


def event_of(url, value):
    formats = decoder.Formats(access=access(url), topic_pattern=r"events\..+")
    return decoder.decoder_of(formats, parsing.Layout()).event_now(builders.record(value=value))


@pytest.mark.parametrize(
    ("write", "more"),
    [
        pytest.param(by_avro, {}, id="avro"),
        pytest.param(by_json_schema, {}, id="json schema"),
        pytest.param(by_protobuf, PROTOBUF_ONLY, id="protobuf, registered as descriptors"),
    ],
)
def test_a_real_registry_has_what_confluents_serializers_write(url, client, topic, write, more):
    assert event_of(url, write(client, ORDER, topic=topic)).content == ORDER | more


def test_protobuf_that_was_registered_as_text_is_read(url, client, topic):
    """Serializers in Java register the text. Apicurio returns it, although it is asked for descriptors."""
    body = by_protobuf(client, ORDER, topic=topic)[5:]
    client.register_schema(f"{topic}-money", Schema(MONEY_TEXT, "PROTOBUF"))
    money = SchemaReference("shop/money.proto", f"{topic}-money", 1)
    number = client.register_schema(f"{topic}-order", Schema(ORDER_TEXT, "PROTOBUF", [money]))
    assert event_of(url, framing.framed(number, body)).content == ORDER | PROTOBUF_ONLY


def test_avro_is_read_with_the_schemas_that_it_needs(url, client, topic):
    currency = {"type": "enum", "name": "shop.Currency", "symbols": ["EUR"]}
    money = {"type": "record", "name": "shop.Money", "fields": [{"name": "in", "type": "shop.Currency"}]}
    client.register_schema(f"{topic}-currency", Schema(json.dumps(currency), "AVRO"))
    of_currency = SchemaReference("shop.Currency", f"{topic}-currency", 1)
    client.register_schema(f"{topic}-money", Schema(json.dumps(money), "AVRO", [of_currency]))
    order = json.dumps({**AVRO, "fields": [*AVRO["fields"], {"name": "price", "type": "shop.Money"}]})
    schema = Schema(order, "AVRO", [SchemaReference("shop.Money", f"{topic}-money", 1)])
    event = ORDER | {"price": {"in": "EUR"}}
    assert event_of(url, by_avro(client, event, schema, topic)).content == event


def test_a_missing_schema_is_no_absence_of_the_registry(url):
    assert registry_client.RegistryClient(access(url)).schema(2**31 - 1) is None
    with pytest.raises(errors.EventRejected, match="lacks schema 999999") as rejected:
        event_of(url, framing.framed(999_999, b"x"))
    assert rejected.value.reason == "unknown_schema"


def test_a_real_registry_refuses_an_incompatible_version(url, client, topic):
    paid = ORDER | {"id": "order-18", "paid": True}
    values = [by_avro(client, ORDER, topic=topic)]
    client.set_compatibility(f"{topic}-value", "BACKWARD")
    values.append(by_avro(client, paid, with_field(name="paid", type="boolean", default=False), topic))
    with pytest.raises(error.SchemaRegistryError) as refused:
        by_avro(client, paid | {"currency": "EUR"}, with_field(name="currency", type="string"), topic)
    assert (refused.value.http_status_code, refused.value.error_code) == (409, 409)
    assert [event_of(url, value).content for value in values] == [ORDER, paid]
