"""Change and show the registry, for `fanout apply`, `get`, `endpoints …`, `keys rotate`, `doctor`, the smoke test and the demo.

Runs in `fanout` commands, the tests and the load tests. Each function that opens a connection raises RegistryOutdated if the
schema in Postgres is not current, and RegistryUnavailable if Postgres does not answer. Each function that seals or opens
secrets raises SettingsError if there is no valid key ring.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import gc
import hashlib
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import rich.console
import rich.markup
from confluent_kafka import KafkaException

from delivery import errors
from delivery.config import kafka_clients, plan_builder, settings, topic_pattern
from delivery.registry_model import SignatureScheme
from delivery.webhooks.http import guard, transport
from delivery.webhooks.sending import handshake
from fanout.terminal import times
from subscriptions_db.manifest import manifest, yaml_document
from subscriptions_db.postgres import audit_entries, connect, migrate
from subscriptions_db.postgres.sql import query
from subscriptions_db.registration import apply, endpoint_status, receiver_permission, registered_rows, rotation
from subscriptions_db.secrets import keyring

KAFKA_TIMEOUT_S = 3
"""Seconds to wait for Kafka's list of topics. Without an answer, event types are compared with the catalogue only."""


class Listed(NamedTuple):
    """A kind of row that `fanout get` lists, and the columns of the kind's table without `-o wide`."""

    kind: registered_rows.RowKind
    brief: tuple[str, ...]

    @property
    def plural(self) -> str:
        """Return the name of the kind for `fanout get`, such as `event-types`."""
        return self.singular + "s"

    @property
    def singular(self) -> str:
        """Return the name of one row's kind, such as `event-type`."""
        return self.kind.replace("_", "-")


LISTED = (
    Listed("tenant", ("id", "name", "status")),
    Listed("customer", ("id", "name")),
    Listed("endpoint", ("id", "customer", "mode", "status", "disabled_reason", "url")),
    Listed("subscription", ("id", "endpoint", "event_type", "status")),
    Listed("event_type", ("id", "deprecated", "description")),
)
"""The kinds that `fanout get` lists."""


def apply_file(config: settings.Settings, file: Path, *, dry_run: bool, prune: bool, strict: bool = False) -> apply.Result:
    """Change the registry to match the manifest in `file`; return the changes. Warnings name lines of the file.

    The file `-` is the standard input.

    With `dry_run`, change nothing, and return the changes without new secrets. With `prune`, also delete endpoints and
    subscriptions that the manifest does not name, if they belong to the manifest's customers or to owners of the manifest's
    endpoints. `strict` refuses a manifest with warnings.

    Raise RegistrationError if the manifest cannot be read or is refused, with the line if the mistake has one. Raise
    SettingsError if there is no valid key ring, or if it does not open the stored secrets. Raise RegistryUnavailable also if
    another transaction changes the same rows.
    """
    with _garbage_collection_paused():
        return _apply_file(config, file, dry_run=dry_run, prune=prune, strict=strict)


@contextlib.contextmanager
def _garbage_collection_paused() -> Iterator[None]:
    """Pause Python's garbage collection: at 50,000 rows it takes two thirds of the command's CPU, and finds no garbage.

    Rows and changes have no reference cycles, so memory is freed as before.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _apply_file(config: settings.Settings, file: Path, *, dry_run: bool, prune: bool, strict: bool) -> apply.Result:
    try:
        text = sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()
    except OSError as exc:
        raise errors.RegistrationError(str(file), f"cannot be read ({exc.strerror}): name a readable file") from exc
    document = yaml_document.read(text, str(file))
    if document.root is None:
        raise errors.RegistrationError(str(file), "is empty: name a document with customers, endpoints and subscriptions")
    with document.naming_lines(str(file)):
        wanted = manifest.check(document.value, plan_builder.guard_of(config.delivery))
        ring = keyring.KeyRing.from_settings(config.keys)
        known = known_types(config) if wanted.subscriptions else ()
        with connect.connect(config.database) as connection:
            _require_usable(connection, ring)
            result = apply.apply(connection, wanted, ring, dry_run=dry_run, prune=prune, known_types=known, strict=strict)
    warnings = tuple(warning.at(str(file), document.line_of(warning.path)) for warning in result.warnings)
    return replace(result, warnings=warnings)


def known_types(config: settings.Settings) -> frozenset[str]:
    """Return the event types that have a topic: the names of the event topics, without `source.topic_prefix`.

    The set is empty if Kafka does not answer within KAFKA_TIMEOUT_S or refuses the request, or if the Kafka client cannot be
    created from the settings.
    """
    try:
        names = kafka_clients.admin(config.kafka).list_topics(timeout=KAFKA_TIMEOUT_S).topics
    except (KafkaException, errors.SettingsError):
        return frozenset()
    prefix = config.source.topic_prefix
    taken = (name for name in names if topic_pattern.matches(config.source.topic_pattern, name))
    return frozenset(name.removeprefix(prefix) for name in taken)


def apply_manifest(
    config: settings.Settings, wanted: manifest.Manifest, *, dry_run: bool = False, prune: bool = False
) -> apply.Result:
    """Change the registry to match a checked manifest; return the changes and the new signing secrets.

    `dry_run` and `prune` have the same effect as in `apply_file`. For warnings, an event type is known only if the catalogue
    has it. Raise RegistrationError if the manifest is refused, and the other errors of `apply_file`.
    """
    ring = keyring.KeyRing.from_settings(config.keys)
    with connect.connect(config.database) as connection:
        _require_usable(connection, ring)
        return apply.apply(connection, wanted, ring, dry_run=dry_run, prune=prune)


def delete_endpoints(config: settings.Settings, endpoint_ids: list[str]) -> None:
    """Delete endpoints with their subscriptions; write an audit entry for each endpoint. Ids of no endpoint are ignored."""
    with connect.connect(config.database) as connection, connect.translated_errors():
        migrate.require_current(connection)
        with apply.exclusive(connection), connection.transaction():
            connection.execute("set transaction isolation level repeatable read")
            rows = registered_rows.rows_of(connection, {"endpoint": endpoint_ids})["endpoint"]
            connection.execute(query("delete_endpoints"), {"ids": list(rows)})
            entries = [
                audit_entries.entry(
                    audit_entries.COMMAND, "delete", "endpoint", row_id, customer_id=row["customer"], before=row
                )
                for row_id, row in rows.items()
            ]
            audit_entries.note_many(connection, entries)


def _require_usable(connection: connect.Connection, ring: keyring.KeyRing) -> None:
    """Raise RegistryOutdated if the schema is not current, and SettingsError if the key ring does not fit the stored secrets.

    Without this check, a secret could be sealed with another key of the same id, and the job would quarantine the endpoint.
    """
    with connect.translated_errors():
        migrate.require_current(connection)
        keyring.require_fits(connection, ring)


def show(console: rich.console.Console, result: apply.Result, *, dry_run: bool) -> None:
    """Print the changes of `fanout apply`, the new secrets, the endpoints that still get nothing, and the warnings.

    With `dry_run`, nothing was changed, and no secret is printed.
    """
    marks = {"create": "[green]+[/]", "update": "[yellow]~[/]", "delete": "[red]-[/]"}
    for change in result.changes:
        console.print(f"{marks[change.action]} {change.kind} {rich.markup.escape(change.id)}", markup=True)
        if change.action == "update":
            for name, before, after in change.fields:
                console.print(f"    {name}: {_short(_plain(before))} → {_short(_plain(after))}")
    done = "would change" if dry_run else "changed"
    rows = "1 row" if len(result.changes) == 1 else f"{len(result.changes)} rows"
    console.print(f"{rows} {done}" if result.changes else "nothing to change")
    if result.new_secrets and not dry_run:
        console.print("New signing secrets. Keep them now; they are not shown again:")
        for endpoint_id, text in result.new_secrets.items():
            console.print(f"  {endpoint_id}  {text}")
    for endpoint_id in result.awaiting_permission:
        console.print(
            f"{endpoint_id} gets nothing until its receiver permits deliveries: run `fanout endpoints validate {endpoint_id}`"
        )
    for endpoint_id, reason in result.still_disabled.items():
        console.print(
            f"{endpoint_id} stays disabled ({reason}): add `status: active`, or run `fanout endpoints enable {endpoint_id}`"
        )
    for warning in result.warnings:
        console.print(f"warning: {warning}")
    if result.warnings:
        console.print("These warnings do not stop the change. With --strict they do.")


def as_document(result: apply.Result) -> dict[str, Any]:
    """Return the result of `fanout apply` for JSON output. The keys are the fields of Result. New secrets are plain text."""
    changes = [
        {
            "action": change.action,
            "kind": change.kind,
            "id": change.id,
            "fields": {name: {"before": _plain(before), "after": _plain(after)} for name, before, after in change.fields},
        }
        for change in result.changes
    ]
    return {
        "changes": changes,
        "new_secrets": result.new_secrets,
        "still_disabled": result.still_disabled,
        "awaiting_permission": result.awaiting_permission,
        "warnings": [{"path": warning.path, "line": warning.line, "problem": warning.problem} for warning in result.warnings],
    }


def kind_of(text: str) -> Listed:
    """Return the kind with this name: plural or singular, with `-` or `_`. Raise RegistrationError for another name."""
    named = text.replace("_", "-")
    for listed in LISTED:
        if named in {listed.plural, listed.singular}:
            return listed
    kinds = ", ".join(kind.plural for kind in LISTED)
    raise errors.RegistrationError(text, f"is not a kind of row, so nothing is shown; the kinds are {kinds}")


def get(config: settings.Settings, listed: Listed, row_id: str | None) -> list[dict[str, Any]]:
    """Return the rows of a kind in the order of their ids, without secrets: all, or only the row with the id `row_id`.

    Raise RegistrationError if no row has this id.
    """
    with connect.connect(config.database) as connection, connect.translated_errors():
        migrate.require_current(connection)
        rows = registered_rows.document(connection)[listed.kind]
    if row_id is not None:
        if row_id not in rows:
            raise errors.RegistrationError(
                row_id, f"there is no such {listed.singular}, so nothing is shown; `fanout get {listed.plural}` lists them"
            )
        rows = {row_id: rows[row_id]}
    return [{"id": key, **{name: _plain(value) for name, value in row.items()}} for key, row in sorted(rows.items())]


def shortened(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row for a person: each text in PEM is replaced by the beginning of the SHA-256 digest of the text.

    The digest is not the fingerprint of a certificate.
    """
    return {name: _short(value) for name, value in row.items()}


def rotate_secret(
    config: settings.Settings, endpoint_id: str, *, scheme: SignatureScheme, overlap: dt.timedelta
) -> dict[str, Any]:
    """Create a new signing secret for an endpoint; return `rotation.secret_document`, with the customer's secret or public key.

    Older secrets still sign for `overlap`, or until an earlier end that is set already. Raise RegistrationError if there is no
    such endpoint, or if the endpoint would have too many valid secrets.
    """
    ring = keyring.KeyRing.from_settings(config.keys)
    with connect.connect(config.database) as connection:
        _require_usable(connection, ring)
        return rotation.secret_document(
            endpoint_id, rotation.rotate(connection, ring, endpoint_id, scheme=scheme, overlap=overlap)
        )


def show_rotation(console: rich.console.Console, rotated: dict[str, Any]) -> None:
    """Print the result of `rotate_secret`: the secret or public key for the customer, and the end of the older secrets."""
    if rotated["public_key"]:
        console.print(f"{rotated['endpoint']} now signs with a new key. Give the public key to its customer:")
    else:
        console.print(f"{rotated['endpoint']} now signs with a new secret. Give it to its customer; it is not shown again:")
    console.print(f"  {rotated['public_key'] or rotated['secret']}")
    ends = rotated["others_end_at"]
    console.print(f"Older secrets that still sign: {len(ends)}" + (f", the last until {ends[-1]}" if ends else ""))


def overlap_of(text: str) -> dt.timedelta:
    """Return the duration of a text such as `24h`. Raise RegistrationError if it is no duration, or exceeds MAX_OVERLAP."""
    overlap = times.duration(text)
    if overlap is None or overlap > rotation.MAX_OVERLAP:
        raise errors.RegistrationError(
            "--overlap",
            f"must be a number with s, m, h or d, such as 24h, up to {rotation.MAX_OVERLAP.days}d; {text!r} is not. "
            "No secret was created",
        )
    return overlap


def enable(config: settings.Settings, endpoint_id: str) -> None:
    """Make an endpoint active, whatever its status, and clear the reason why it was disabled.

    Raise RegistrationError if the endpoint does not exist, or needs its receiver's permission and does not have it.
    """
    with connect.connect(config.database) as connection:
        migrate.require_current(connection)
        endpoint_status.enable(connection, endpoint_id)


def disable(config: settings.Settings, endpoint_id: str, reason: str) -> None:
    """Disable an endpoint, whatever its status, and store `reason`. Raise RegistrationError if there is no such endpoint."""
    with connect.connect(config.database) as connection:
        migrate.require_current(connection)
        endpoint_status.disable(connection, endpoint_id, reason)


def validate(config: settings.Settings, endpoint_id: str) -> handshake.Reply:
    """Ask the receiver of an endpoint for permission to deliver, record a permission, and return the receiver's reply.

    A missing answer counts as a refusal. In two cases the returned reply differs from the receiver's answer:

    1. The answer is a permission, but meanwhile the endpoint got another URL, was asked again or ceased to need permission.
       Then record no permission, and return a refusal.
    2. The answer is a refusal, but meanwhile the receiver has permitted deliveries by a request to the callback URL. Then
       return a permission.

    The callback URL of an earlier request becomes invalid. An earlier permission stays valid, even if the reply is a refusal.
    Write the reply to the audit log, unless the endpoint was deleted meanwhile.

    Raise RegistrationError if there is no such endpoint, if it needs no permission or cannot be used, or if
    `delivery.webhook_origin` is empty.
    """
    ring, address_guard = keyring.KeyRing.from_settings(config.keys), plan_builder.guard_of(config.delivery)
    with connect.connect(config.database) as connection, connect.translated_errors():
        migrate.require_current(connection)
        row = registered_rows.rows_of(connection, {"endpoint": [endpoint_id]})["endpoint"].get(endpoint_id)
        if row is None:
            raise errors.RegistrationError(
                endpoint_id, "there is no such endpoint, so no receiver was asked; `fanout get endpoints` lists them"
            )
        asked = {"origin": config.delivery.webhook_origin, "public_url": config.api.public_url}
        asking = receiver_permission.prepare(connection, ring, address_guard, endpoint_id, row, **asked)
        receiver_permission.record(connection, asking)
        answer = asyncio.run(_answer(asking, address_guard, config.delivery.attempt_timeout_s))
        with connection.transaction():
            reply = receiver_permission.finish(connection, asking, answer)
            for after in registered_rows.rows_of(connection, {"endpoint": [endpoint_id]})[
                "endpoint"
            ].values():  # empty if the endpoint was deleted meanwhile
                entry = {"customer_id": after["customer"], "after": receiver_permission.audit_fields(reply, after)}
                audit_entries.note(connection, audit_entries.COMMAND, "validate", "endpoint", endpoint_id, **entry)
            return reply


async def _answer(
    asking: receiver_permission.ReceiverQuestion, address_guard: guard.Guard, timeout_s: float
) -> transport.Response | errors.AttemptFailed:
    network = transport.Transport(address_guard, max_connections=1)
    try:
        return await network.post(asking.to, b"", b"", timeout_s)
    except errors.AttemptFailed as exc:
        return exc
    finally:
        await network.close()


def show_reply(console: rich.console.Console, endpoint_id: str, reply: handshake.Reply) -> None:
    """Print the reply to a request for permission: its state, the permitted requests a minute, and the reason, if any.

    If the reply is no permission, also print what this means for the endpoint's deliveries.
    """
    rate = "" if reply.per_minute is None else f", at most {reply.per_minute} requests a minute"
    console.print(f"{endpoint_id}: {reply.state}{rate}{reply.reason and f' ({reply.reason})'}")
    if reply.state is not handshake.HandshakeState.PERMITTED:
        console.print(
            f"An earlier permission of {endpoint_id} stays valid. Without one, its deliveries wait until its receiver permits "
            "them: ask the owner of the receiver"
        )


def rotate_keys(config: settings.Settings) -> int:
    """Encrypt again, with the active key, every secret that is encrypted with another key. Return the number of these secrets.

    Raise RegistryUnavailable if the login does not see all secrets. Raise SettingsError, and change nothing, if secrets were
    sealed with a different key that has the same id as the active key. Raise SealError at the end if some secrets could not be
    opened: these secrets stay unchanged.
    """
    with connect.connect(config.database) as connection:
        migrate.require_current(connection)
        return keyring.rotate(connection, keyring.KeyRing.from_settings(config.keys))


def _plain(value: Any) -> Any:
    return sorted(map(list, value), key=str) if isinstance(value, frozenset) else value


def _short(value: Any) -> Any:
    is_pem = isinstance(value, str) and "-----BEGIN" in value
    return f"PEM, sha256 {hashlib.sha256(value.encode()).hexdigest()[:16]}" if is_pem else value
