"""Count waiting dead letters that match search criteria, and the dead letters of consumers by their state.

Runs in the API and in `fanout` commands. A count examines a bounded number of rows, so it costs no more for a million dead
letters. Above the bound, a count has the matches in the oldest rows only, and `is_exact` is False.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from typing import NamedTuple

from subscriptions_db.archive.search.archived_dead_letters import Among
from subscriptions_db.archive.search.selection import DeadLetterSearch
from subscriptions_db.postgres import connect
from subscriptions_db.postgres.sql import query

MAX_EXAMINED = 100_000
"""Maximum dead letters that a count by search criteria examines. Such a count took 7 to 50 ms with a million dead letters of
one customer, on a shared machine of two cores."""
MAX_EXAMINED_BY_TEXT = 5000
"""Maximum dead letters that a count by a text examines. Each dead letter is read as a whole: 20,000 took 264 ms."""
MAX_EXAMINED_OF_CONSUMER = 10_000
"""Maximum dead letters of each kind that the count of one consumer examines. The kinds: not leased yet, with an ended lease
(expired or nacked), and parked. The count takes 1 to 2 ms. With 10,000 ended leases it takes 14 to 19 ms, with a million
parked ones 14 to 140 ms."""
MAX_EXAMINED_IN_LIST = 1000
"""Maximum dead letters of each kind that the count of each consumer in a list examines. A list of 100 consumers takes 16 to 21
ms, and about 1 ms more for each consumer with 1,000 ended leases."""


class Count(NamedTuple):
    """The number of dead letters that match, among those that were examined."""

    letters: int
    is_exact: bool
    """False: there may be more, because the count stopped at its maximum of examined dead letters."""


class ConsumerCounts(NamedTuple):
    """Numbers of a consumer's dead letters that are not acked, by their state."""

    waiting: Count
    """Dead letters that are not leased yet, that were nacked, or whose lease has expired. Polls lease or park them. Discarded
    and redriven dead letters do not count."""
    leased: int
    """Dead letters with a lease that has not expired, also those that were discarded or redriven since."""
    parked: Count
    """Parked dead letters. Discarded and redriven ones do not count."""


def of_dead_letters(
    connection: connect.Connection, customer_id: str, selection: DeadLetterSearch, *, most: int = MAX_EXAMINED
) -> Count:
    """Return the number of matches among the customer's oldest `most` waiting dead letters.

    With `selection.text`, at most MAX_EXAMINED_BY_TEXT dead letters are examined.
    """
    return _counted(connection, "letters_after", {"customer_id": customer_id}, selection, most)


def of_parked(
    connection: connect.Connection,
    customer_id: str,
    consumer: str,
    selection: DeadLetterSearch,
    *,
    most: int = MAX_EXAMINED_OF_CONSUMER,
) -> Count:
    """Return the number of matches among a consumer's oldest `most` parked dead letters.

    Dead letters that were discarded or redriven since are examined, and do not match. With `selection.text`, at most
    MAX_EXAMINED_BY_TEXT dead letters are examined.
    """
    return _counted(connection, "parked_after", {"customer_id": customer_id, "name": consumer}, selection, most)


def _counted(
    connection: connect.Connection, among: Among, owner: dict[str, str], selection: DeadLetterSearch, most: int
) -> Count:
    """Return the number of matches among the oldest `most` dead letters that the statement `among` examines.

    With `selection.text`, at most MAX_EXAMINED_BY_TEXT dead letters are examined. `owner` has the parameters of the statement
    that name the customer or the consumer.
    """
    most = most if selection.text is None else min(most, MAX_EXAMINED_BY_TEXT)
    asked = owner | {"place": 0, "most": most} | selection.parameters()
    judged = "with looked_at as (" + query(among) + "), judged as (" + query("judged_letters") + ")"
    with connect.translated_errors():
        [row] = connection.execute(judged + query("number_of_letters"), asked).fetchall()
    return Count(row["matching"], row["looked_at"] < most)


def of_consumers(
    connection: connect.Connection,
    customer_id: str,
    names: Sequence[str],
    *,
    now: dt.datetime,
    most_of_one: int = MAX_EXAMINED_OF_CONSUMER,
    most_in_list: int = MAX_EXAMINED_IN_LIST,
) -> dict[str, ConsumerCounts]:
    """Return the counts of consumers, by name. A name without a consumer is left out.

    At most `most_of_one` dead letters of each kind are examined if `names` has one name. Otherwise at most `most_in_list` of
    each kind are examined for each consumer. MAX_EXAMINED_OF_CONSUMER lists the kinds.
    """
    most = most_of_one if len(names) == 1 else most_in_list
    asked = {"customer_id": customer_id, "names": list(names), "now": now, "most": most}
    with connect.translated_errors():
        rows = connection.execute(query("consumer_counts"), asked).fetchall()
    return {
        row["name"]: ConsumerCounts(
            waiting=Count(row["unread"] + row["given_back"], max(row["looked_at"], row["given_back_looked_at"]) < most),
            leased=row["leased"],
            parked=Count(row["parked"], row["parked_looked_at"] < most),
        )
        for row in rows
    }
