"""A limited key sees all rows of its customer for a count, and only for the count."""

from types import SimpleNamespace

import pytest
from psycopg.pq import TransactionStatus

from delivery.registry_model import EndpointId
from subscriptions_db.api.contract import crud
from subscriptions_db.api.contract.principals import Principal, Scope

LIMITED = Principal("key", "acme", Scope.CUSTOMER_ADMIN, endpoints=frozenset({EndpointId("e1")}))


class Transaction:
    """A transaction that keeps the limits that are set in it."""

    def __init__(self, status):
        self.info = SimpleNamespace(transaction_status=status)
        self.limits = []

    def execute(self, _, wanted):
        self.limits.append(wanted["endpoint_ids"])


@pytest.mark.parametrize(
    ("status", "limits"),
    [(TransactionStatus.INTRANS, ["", "e1"]), (TransactionStatus.INERROR, [""]), (TransactionStatus.UNKNOWN, [""])],
)
def test_the_limit_of_a_key_returns_after_a_failure(status, limits):
    """Regression: after an exception in the block, the transaction of a limited key went on without its limit."""
    transaction = Transaction(status)
    with pytest.raises(LookupError), crud.of_whole_customer(SimpleNamespace(principal=LIMITED, connection=transaction)):
        raise LookupError
    assert transaction.limits == limits


def test_a_key_without_a_limit_gets_none():
    transaction = Transaction(TransactionStatus.INTRANS)
    with crud.of_whole_customer(SimpleNamespace(principal=LIMITED._replace(endpoints=None), connection=transaction)):
        pass
    assert transaction.limits == []
