"""Cursors are opaque, say on which side of a row their page is, and cursors of the version before are still read."""

import pytest

from subscriptions_db.api.contract import cursors
from subscriptions_db.api.contract.cursors import Place


def test_a_cursor_leads_to_the_place_that_it_was_made_of():
    assert cursors.place(cursors.encode("ep_1")) == Place("ep_1")
    assert cursors.place(cursors.encode_previous("ep_1")) == Place("ep_1", is_end=True)
    assert cursors.place(None) == cursors.place("") == cursors.START


def test_a_page_may_end_with_a_row():
    """The page has the row, and none of the rows whose ids begin with the id of the row."""
    end = cursors.end_after("ep_1")
    assert "ep_1" < end.row_id < "ep_1-"
    assert cursors.place(cursors.checked(cursors.encode_previous(end.row_id))) == end


def test_a_cursor_of_the_version_before_is_read():
    assert cursors.place("ZXBfMQ") == Place("ep_1")


@pytest.mark.parametrize("text", ["a", "*", "/w", cursors.encode("a\0b")])
def test_another_text_is_refused(text):
    with pytest.raises(ValueError, match="send a cursor of an answer"):
        cursors.checked(text)


@pytest.mark.parametrize(
    ("further", "is_first", "is_backwards", "found"),
    [
        (9, True, False, ("after 9", None)),
        (None, True, False, (None, None)),
        (9, False, False, ("after 9", "before 5")),
        (None, False, False, (None, "before 5")),
        (1, False, True, ("after 5", "before 1")),
        (None, False, True, ("after 5", None)),
    ],
)
def test_a_page_leads_to_its_neighbours(further, is_first, is_backwards, found):
    """Position 5 is nearest to the page's start. A page backwards has its neighbours on the other sides."""
    assert found == cursors.neighbours(
        nearest=5,
        further=further,
        is_first=is_first,
        is_backwards=is_backwards,
        next_of="after {}".format,
        previous_of="before {}".format,
    )
