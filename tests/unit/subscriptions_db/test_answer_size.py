"""An answer holds as many items as fit into it, and at least one."""

import pytest

from subscriptions_db import answer_size

FULL = answer_size.MAX_BYTES


@pytest.mark.parametrize(
    ("sizes", "held", "count"),
    [
        ([], 0, 0),
        ([FULL], 0, 1),
        ([FULL * 40, 1], 0, 1),  # who reads on must get on
        ([FULL - 1, 1, 1], 0, 2),
        ([1, FULL * 40], 0, 1),
        ([FULL * 40], 1, 0),  # but not beside others
        ([1, 1], FULL, 0),
        ([0, 0], FULL, 2),  # what is gone takes no room
    ],
)
def test_an_answer_takes_the_items_that_fit_and_at_least_one(sizes, held, count):
    assert answer_size.count(sizes, held=held) == count
