"""A registry of a given size in a real Postgres, and the events that go through it.

With the same seed it has the same rows, except for the secrets.

30,000 tenants with three departments each, 10,000 endpoints of 2,000 customers, 500 event types. Of the subscriptions 2 % are
about everything, 55 % about five tenants, 8 % about a hundred, 35 % about one or two departments; 3 % take a whole family of
types, 25 % have a filter. Tenants and types of events follow Zipf's law: the busiest tenant sends 9 % of all.
"""

from __future__ import annotations

import itertools
import random
import uuid
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeAlias, TypeVar

from delivery.webhooks.sending import signing
from subscriptions_db.postgres import connect
from subscriptions_db.secrets import keyring

TENANTS = [f"tenant-{number:05}" for number in range(30_000)]
DEPARTMENTS = ("sales", "stock", "service")
ENDPOINTS = 10_000
CUSTOMERS = 2_000
FAMILIES = 50
TYPES = [f"family{family:02}.event{number}" for family in range(FAMILIES) for number in range(10)]
FILTERS = (
    *(f'{{"data": {{"amount": [{{"numeric": [">=", {limit}]}}]}}}}' for limit in range(10, 100, 10)),
    '{"data": {"status": ["paid", "sent"]}}',
    '{"data": {"country": [{"anything-but": ["de", "fr"]}]}}',
)
COPY_LINES = 50_000
NULL = "\\N"
"""Null in the text format of COPY."""
BYTEA = "\\\\x"
"""Begins a bytea in hexadecimal digits, with its backslash escaped for the text format of COPY."""
Choice = TypeVar("Choice")
EventRow: TypeAlias = tuple[str, str, str | None, int]


def load(connection: connect.Connection, ring: keyring.KeyRing, subscriptions: int, rng: random.Random) -> None:
    """Fill an empty registry.

    The triggers are off while it is filled, because they would log a revision for each row. One revision is written at the end.
    """
    connection.execute("set session_replication_role = replica; set statement_timeout = 0")
    _copy(connection, "tenants (tenant_id)", ((tenant,) for tenant in TENANTS))
    _copy(connection, "sub_tenants (tenant_id, sub_tenant_id)", itertools.product(TENANTS, DEPARTMENTS))
    _copy(connection, "customers (customer_id)", ((_customer(number),) for number in range(CUSTOMERS)))
    endpoints = range(min(ENDPOINTS, subscriptions))
    _copy(
        connection,
        "endpoints (endpoint_id, customer_id, url)",
        ((f"ep{number}", _customer(number), f"https://hooks{number}.example.com/in/{number}") for number in endpoints),
    )
    _copy(connection, "secrets (secret_id, endpoint_id, customer_id, purpose, key_id, sealed)", _secrets(endpoints, ring))
    rows = [_subscription(number, len(endpoints), rng) for number in range(subscriptions)]
    _copy(connection, "subscriptions (subscription_id, endpoint_id, customer_id, event_type, scope)", rows)
    _copy(connection, "scopes (subscription_id, scope, effect, tenant_id, sub_tenant_id)", _scopes(rows, rng))
    filtered = ((row[0], rng.choice(FILTERS)) for row in rows if rng.random() < 0.25)
    _copy(connection, "filters (subscription_id, pattern)", filtered)
    connection.execute("set session_replication_role = origin")
    connection.execute("insert into revisions (entity, entity_id, change) values ('tenant', %s, 'insert')", [TENANTS[0]])
    connection.execute("vacuum (analyze)")


def events(count: int, rng: random.Random) -> list[EventRow]:
    """Return the type, tenant, sub-tenant and amount of events by Zipf's law.

    About a third belong to no department, the others to the first two of a tenant's three departments.
    """
    departments: list[str | None] = [*DEPARTMENTS[:2], None]
    return [
        (event_type, tenant, rng.choice(departments), rng.randrange(100))
        for event_type, tenant in zip(zipf(TYPES, count, rng), zipf(TENANTS, count, rng), strict=True)
    ]


def zipf(choices: Sequence[Choice], count: int, rng: random.Random) -> list[Choice]:
    """Return a sample in which the n-th choice comes 1/n times as often as the first."""
    weights = list(itertools.accumulate(1 / rank for rank in range(1, len(choices) + 1)))
    return rng.choices(choices, cum_weights=weights, k=count)


def _customer(number: int) -> str:
    """Return the customer with this number. The number of an endpoint gives the owner of the endpoint."""
    return f"c{number % CUSTOMERS}"


def _secrets(endpoints: Iterable[int], ring: keyring.KeyRing) -> Iterator[tuple[str, ...]]:
    for number in endpoints:
        row = keyring.SecretRow(
            customer_id=_customer(number), endpoint_id=f"ep{number}", purpose="signing", secret_id=str(uuid.uuid4())
        )
        sealed = ring.seal(signing.generate().secret, row).hex()
        yield row.secret_id, row.endpoint_id, row.customer_id, row.purpose, ring.active, f"{BYTEA}{sealed}"


def _subscription(number: int, endpoints: int, rng: random.Random) -> tuple[str, ...]:
    endpoint = rng.randrange(endpoints)
    event_type = f"family{rng.randrange(FAMILIES):02}.*" if rng.random() < 0.03 else rng.choice(TYPES)
    scope = "everything" if rng.random() < 0.02 else "selected"
    return f"sub-{number:07}", f"ep{endpoint}", _customer(endpoint), event_type, scope


def _scopes(subscriptions: Iterable[tuple[str, ...]], rng: random.Random) -> Iterator[tuple[str, ...]]:
    for subscription_id, *_, scope in subscriptions:
        if scope == "everything":
            continue
        chance = rng.random() * 0.98
        if chance < 0.35:
            for tenant in rng.sample(TENANTS, rng.randint(1, 2)):
                yield subscription_id, scope, "include", tenant, rng.choice(DEPARTMENTS)
        else:
            for tenant in rng.sample(TENANTS, 100 if chance < 0.43 else 5):
                yield subscription_id, scope, "include", tenant, NULL


def _copy(connection: connect.Connection, into: str, rows: Iterable[tuple[str, ...]]) -> None:
    remaining = iter(rows)
    with connection.cursor().copy(f"copy {into} from stdin") as copy:  # type: ignore[arg-type]  # names of ours
        while block := list(itertools.islice(remaining, COPY_LINES)):
            copy.write("".join("\t".join(row) + "\n" for row in block))
