"""Read schemas from a schema registry that speaks the API of Confluent's Schema Registry.

Runs in the executors, the archive, the commands and the driver, never in the event loop: each call may wait. Only two answers
are usable for a record: a schema, and an error code in NOT_FOUND. After every other answer the record waits. So a wrong
password never rejects a record. A refusal concerns one schema only, unless its status is in OF_ALL_SCHEMAS.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

from delivery import errors
from delivery.secret import Secret
from delivery.webhooks.formats import protobuf, schemas

OF_ALL_SCHEMAS = frozenset({401, 407, 408, 429, 502, 503, 504})
"""Statuses by which a schema registry, or a proxy before it, refuses whatever schema is asked for. Any other refusal, such as
403 or 500, counts as the refusal of one schema."""
NOT_FOUND = frozenset({40401, 40402, 40403})
"""Error codes of the schema registry: no such subject, version or schema. A 404 of a proxy has none of them."""
SERIALIZED = "serialized"
"""Format of Protobuf schemas in which Confluent's registry returns descriptors, not the text of the `.proto` file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """Address, login and time limits of a schema registry."""

    url: str
    """URL, or several URLs separated by commas."""
    username: str = ""
    password: Secret = field(default_factory=lambda: Secret(b""))
    ca_file: str = ""
    timeout_s: float = 5.0
    """Seconds for one request."""
    wait_s: float = 3.0
    """Seconds after which a failed read of a schema is not repeated. Then the record waits."""


class RegistryClient:
    """Reads schemas from a schema registry. Thread-safe."""

    def __init__(self, access: Access) -> None:
        import tenacity  # noqa: PLC0415  # for jobs with a registry only

        self._access = access
        self._patiently = tenacity.Retrying(
            retry=tenacity.retry_if_exception(_may_pass),
            wait=tenacity.wait_exponential(multiplier=0.2, max=2),
            stop=tenacity.stop_after_delay(access.wait_s),
            reraise=True,
        )

    def schema(self, schema_id: int) -> schemas.Schema | None:
        """Return a schema with all schemas that decoding needs. None: the schema registry lacks one of these schemas.

        Raise SchemaRegistryUnavailable if there is no usable answer: at once if the schema registry refuses this schema only,
        otherwise when repeated reads have taken `Access.wait_s` seconds.
        """
        return self._patiently.copy()(self._schema, schema_id)

    def require_answer(self) -> bool:
        """Find out whether the schema registry answers: ask for schema 1 and the schemas that schema 1 needs, without retries.

        Return True for a usable answer; the answer that schema 1 does not exist is usable. Return False for status 403: this
        login may not read schema 1, but may be allowed to read other schemas. Raise SchemaRegistryUnavailable for any other
        answer, and for none.
        """
        try:
            self._schema(1)
        except errors.SchemaRegistryUnavailable as exc:
            if exc.is_forbidden:
                return False
            raise
        return True

    def _schema(self, schema_id: int) -> schemas.Schema | None:
        from confluent_kafka.schema_registry import error  # noqa: PLC0415  # takes 0.1 s and 22 MB: for jobs with a registry only

        try:
            found, needed = self._read(schema_id)
        except error.SchemaRegistryError as exc:
            if exc.error_code in NOT_FOUND:
                return None
            status = exc.http_status_code
            failure = _unavailable(schema_id, f"it answered with status {status}", is_of_schema=status not in OF_ALL_SCHEMAS)
            failure.is_forbidden = status == HTTPStatus.FORBIDDEN
            raise failure from None
        except Exception as exc:  # noqa: BLE001  # the client raises errors of many classes; none is the record's fault
            raise _unavailable(schema_id, type(exc).__name__, is_of_schema=False) from None
        if not found.schema_str:
            raise _unavailable(schema_id, "the answer has no schema", is_of_schema=True)
        return schemas.Schema(found.schema_type or schemas.SchemaType.AVRO, found.schema_str, needed)

    def _read(self, schema_id: int) -> tuple[Any, tuple[schemas.Reference, ...]]:
        """Return a schema, and the schemas that decoding by it needs. Values of JSON Schema are JSON, and need none.

        A process reads a schema hardly more than once, so no connection is kept. Registries differ for Protobuf:
        1. Confluent's returns descriptors if asked for SERIALIZED, also of files that were registered as text.
        2. Apicurio 3.0.9 returns a file as it was registered, whatever it is asked for.
        3. Apicurio 3.3.3, asked for SERIALIZED, returns no base64 for a file that was registered as text. For a file that was
           registered as a descriptor, Apicurio fails.
        So this method first asks for the registered form. If this form is text, the method also asks for SERIALIZED. The second
        answer is used only if it is a descriptor.
        """
        with self._client() as client:
            found = client.get_schema(schema_id)
            if found.schema_type == schemas.SchemaType.JSON:
                return found, ()
            if found.schema_type == schemas.SchemaType.PROTOBUF and not protobuf.is_descriptor(found.schema_str or ""):
                with self._client() as other:  # a new client: the first has the schema in its cache, in the other format
                    serialized = _serialized(other, schema_id)
                    if serialized is not None and protobuf.is_descriptor(serialized.schema_str or ""):
                        return serialized, _needed(other, serialized, SERIALIZED)
            return found, _needed(client, found, None)

    def _client(self) -> Any:
        from confluent_kafka import schema_registry  # noqa: PLC0415  # for jobs with a registry only, as in `_schema`

        access = self._access
        # No retries of the client's own: `_patiently` retries, and ends after `wait_s`.
        options: dict[str, Any] = {"url": access.url, "timeout": access.timeout_s, "max.retries": 0}
        if access.username:
            options["basic.auth.user.info"] = f"{access.username}:{access.password.reveal().decode()}"
        if access.ca_file:
            options["ssl.ca.location"] = access.ca_file
        return schema_registry.SchemaRegistryClient(options)


def _may_pass(failure: BaseException) -> bool:
    """Return True if a repeated read may succeed soon.

    After the refusal of one schema the read is not repeated. Otherwise records with many refused schemas would keep all other
    records of a task waiting, each for `Access.wait_s`.
    """
    return isinstance(failure, errors.SchemaRegistryUnavailable) and not failure.is_of_schema


def _unavailable(schema_id: int, cause: str, *, is_of_schema: bool) -> errors.SchemaRegistryUnavailable:
    if is_of_schema:
        effect = (
            "records with this schema wait. Let the login of schema_registry.username read this schema, or repair the schema "
            "in the schema registry. If every schema is refused, correct schema_registry.url, username and password"
        )
    else:
        effect = (
            "records whose schema is not cached wait. Start the schema registry, or correct schema_registry.url, username, "
            "password and ca_file"
        )
    failure = errors.SchemaRegistryUnavailable(
        f"the schema registry gave no usable answer when it was asked for schema {schema_id} ({cause}): {effect}"
    )
    failure.is_of_schema = is_of_schema
    return failure


def _serialized(client: Any, schema_id: int) -> Any:
    """Return a Protobuf schema in the format SERIALIZED. None: the schema registry refuses the format.

    The statuses 400 to 499 refuse the format, except 401, 403 and 429. After any other status, the client's
    SchemaRegistryError is raised.
    """
    from confluent_kafka.schema_registry import error  # noqa: PLC0415  # as in `_schema`

    try:
        return client.get_schema(schema_id, fmt=SERIALIZED)
    except error.SchemaRegistryError as exc:
        if exc.http_status_code in {401, 403, 429} or not 400 <= exc.http_status_code < 500:  # noqa: PLR2004
            raise
        return None


def _needed(client: Any, schema: Any, form: str | None) -> tuple[schemas.Reference, ...]:
    """Return the schemas that `schema` needs, in such an order that no schema needs a later one.

    `form` is the format to ask for. None: the schema as it was registered. If `schema` needs more than MAX_REFERENCES schemas,
    return MAX_REFERENCES + 1 of them: then `schemas.compiled` refuses `schema`.
    """
    needed: list[schemas.Reference] = []
    begun: set[tuple[str, int]] = set()
    unread: list[tuple[schemas.Reference | None, Iterator[Any]]] = [(None, iter(schema.references or ()))]
    """The chain of schemas from `schema` to the one that is read now, each with its unread references."""
    while unread:
        whose, references = unread[-1]
        reference = next(references, None)
        if reference is None:
            unread.pop()
            if whose is not None:
                needed.append(whose)
            continue
        key = (reference.subject, reference.version)
        if key not in begun and len(begun) <= schemas.MAX_REFERENCES:
            begun.add(key)
            # Deleted too: a schema that was deleted softly still describes the records that were written by it.
            found = client.get_version(*key, deleted=True, fmt=form).schema
            unread.append((schemas.Reference(reference.name, found.schema_str), iter(found.references or ())))
    return tuple(needed)
