"""Schemas are read with all schemas that they need, and a schema that needs too many rejects its events."""

import types

import pytest
from confluent_kafka.schema_registry import error

from delivery import errors
from delivery.webhooks.events import parsing
from delivery.webhooks.formats import decoder, registry_client, schemas
from tests.support import builders, framing


class Client:
    """Confluent's client, for schemas by number: schema 0 is read, and each of the others is a reference."""

    def __init__(self, *references):
        self.asked = []
        self._references = references

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def get_schema(self, _):
        return self._schema(0)

    def get_version(self, subject, version, *, deleted, fmt):
        assert (version, deleted, fmt) == (1, True, None)
        return types.SimpleNamespace(schema=self._schema(int(subject)))

    def _schema(self, number):
        self.asked.append(number)
        needed = [types.SimpleNamespace(name=str(it), subject=str(it), version=1) for it in self._references[number]]
        return types.SimpleNamespace(schema_type=None, schema_str=f'{{"number": {number}}}', references=needed)


def chain(length):
    return Client(*([number + 1] for number in range(length)), [])


def star(length):
    return Client(range(1, length + 1), *([[]] * length))


@pytest.fixture
def reader(monkeypatch):
    """Return a function that returns a RegistryClient with this client."""

    def made(client, wait_s=0.0):
        monkeypatch.setattr(registry_client.RegistryClient, "_client", lambda _: client)
        return registry_client.RegistryClient(registry_client.Access(url="http://registry.example.com", wait_s=wait_s))

    return made


class Refusing(Client):
    """Confluent's client, with a login that gets this status for schema 1, because it belongs to others."""

    def __init__(self, status):
        super().__init__([])
        self._status = status

    def get_schema(self, number):
        if number == 1:
            self.asked.append(number)
            raise error.SchemaRegistryError(self._status, self._status * 100, "refused")
        return super().get_schema(number)


def test_a_login_limited_to_other_schemas_shows_that_the_registry_answers(reader):
    limited = reader(Refusing(403))
    assert not limited.require_answer()
    assert limited.schema(57) is not None
    with pytest.raises(errors.SchemaRegistryUnavailable, match="status 403"):
        limited.schema(1)  # a record with this schema waits, until the operator grants the right


@pytest.mark.parametrize("status", [401, 429, 500])
def test_any_other_refusal_is_an_outage(reader, status):
    with pytest.raises(errors.SchemaRegistryUnavailable, match=f"status {status}"):
        reader(Refusing(status)).require_answer()


@pytest.mark.parametrize("status", [403, 404, 500])
def test_a_refused_schema_is_asked_for_once_and_says_nothing_of_others(reader, status):
    """Regression: each refused schema was asked for again for `wait_s`, and all records of a task waited meanwhile."""
    client = Refusing(status)
    with pytest.raises(errors.SchemaRegistryUnavailable, match="records with this schema wait") as refused:
        reader(client, wait_s=1.0).schema(1)
    assert refused.value.is_of_schema
    assert client.asked == [1]


@pytest.mark.parametrize("status", [401, 429, 502, 503])
def test_some_refusals_say_that_no_schema_can_be_read(reader, status):
    with pytest.raises(errors.SchemaRegistryUnavailable, match="records whose schema is not cached wait") as refused:
        reader(Refusing(status)).schema(1)
    assert not refused.value.is_of_schema


def test_an_answer_without_a_schema_says_nothing_of_other_schemas(reader):
    """Regression: such an answer counted as an outage, so other schemas were not asked for."""
    client = Client([])
    client.get_schema = lambda _: types.SimpleNamespace(schema_type=None, schema_str=None, references=[])
    with pytest.raises(errors.SchemaRegistryUnavailable, match="the answer has no schema") as refused:
        reader(client).schema(7)
    assert refused.value.is_of_schema


def test_each_schema_comes_once_after_those_that_it_needs(reader):
    """1 needs 3, 2 needs 1 and 3, and 3 needs 1 again."""
    read = reader(Client([1, 2], [3], [1, 3], [1])).schema(7)
    assert [reference.name for reference in read.references] == ["3", "1", "2"]


@pytest.mark.parametrize("shape", [chain, star])
def test_a_schema_may_need_many_others(reader, shape):
    """Regression: a long chain of references counted as an outage, because the chain was read by recursion."""
    assert len(reader(shape(schemas.MAX_REFERENCES)).schema(7).references) == schemas.MAX_REFERENCES


@pytest.mark.parametrize("shape", [chain, star])
def test_a_schema_that_needs_too_many_others_rejects_its_events(reader, shape):
    """Regression: such a schema counted as an outage, so its partition waited for ever."""
    client = shape(2 * schemas.MAX_REFERENCES)
    here = decoder.Decoder(framing.FORMATS, parsing.Layout(), reader(client))
    for _ in range(2):
        with pytest.raises(errors.EventRejected, match="schema 7 cannot be used: it needs more than 1000 other") as rejected:
            here.event_now(builders.record(value=framing.framed(7, b"x")))
        assert rejected.value.reason == "undecodable"
    assert len(client.asked) == 1 + schemas.MAX_REFERENCES + 1
