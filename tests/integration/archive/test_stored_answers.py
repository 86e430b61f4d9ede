"""`fanout archive` deletes answers to an `Idempotency-Key` after a day, also of customers that use no such keys any more."""

import threading

import pytest

from delivery.config import settings
from fanout.archiver import main_loop
from subscriptions_db.postgres import stored_answers

pytestmark = pytest.mark.integration

PUT = """
insert into idempotency_keys (customer_id, idempotency_key, request_digest, created_at)
select customer, 'old' || n, sha256(''), now() - interval '25 hours'
from unnest(array['c1', null]) as customer, generate_series(1, 3) as n
union all select 'c2', 'new', sha256(''), now() - interval '23 hours'
"""
PUT_MORE = """
insert into idempotency_keys (customer_id, idempotency_key, request_digest, created_at)
select 'c1', 'more' || n, sha256(''), now() - interval '25 hours' from generate_series(1, %s) n
"""


def kept(connection):
    return [row["key"] for row in connection.execute("select idempotency_key as key from idempotency_keys order by created_at")]


@pytest.fixture(autouse=True)
def _answers(connection):
    connection.execute(PUT)


def test_maintenance_deletes_the_old_answers_of_all_customers(connection):
    """Regression: only a request with an `Idempotency-Key` of the same customer deleted them, all in one statement."""
    connection.execute(PUT_MORE, [stored_answers.MAX_DELETED])
    main_loop.Archiver(settings.Settings(), threading.Event())._maintain(connection)
    assert kept(connection) == ["new"]


def test_one_run_deletes_a_bounded_number_of_answers(connection):
    stored_answers.delete_remaining(connection, max_statements=2, max_deleted=2)
    assert len(kept(connection)) == 3
    stored_answers.delete_remaining(connection, max_statements=2, max_deleted=2)
    assert kept(connection) == ["new"]


def test_an_answer_that_a_request_has_locked_stays(connection, opened):
    with connection.transaction():
        connection.execute("select from idempotency_keys where idempotency_key = 'old1' for update")
        stored_answers.delete_remaining(opened())
        assert kept(connection) == ["old1", "old1", "new"]
