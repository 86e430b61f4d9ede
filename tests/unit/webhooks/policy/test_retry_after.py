"""The wait that a response asks for by `Retry-After`."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from delivery.webhooks.policy import retry_after

NOW = 1_700_000_000.0  # Tue, 14 Nov 2023 22:13:20 GMT


@pytest.mark.parametrize(
    ("value", "wait_s"),
    [
        # Seconds (RFC 9110, section 10.2.3).
        ("0", 0.0),
        ("1", 1.0),
        ("120", 120.0),
        ("  7\t", 7.0),
        ("0010", 10.0),
        # Not in the grammar, but unambiguous.
        ("1.5", 1.5),
        ("2.", 2.0),
        ("+3", 3.0),
        ("-1", 0.0),
        ("-1e400", 0.0),
        # Beyond the cap.
        ("1000000000", retry_after.MAX_RETRY_AFTER_S),
        ("1e9", retry_after.MAX_RETRY_AFTER_S),
        ("1e400", retry_after.MAX_RETRY_AFTER_S),
        ("9" * 5000, retry_after.MAX_RETRY_AFTER_S),
        ("Fri, 31 Dec 9999 23:59:59 GMT", retry_after.MAX_RETRY_AFTER_S),
        # A date in each of the three forms of section 5.6.7.
        ("Tue, 14 Nov 2023 22:13:50 GMT", 30.0),
        ("Tuesday, 14-Nov-23 22:13:50 GMT", 30.0),
        ("Tue Nov 14 22:13:50 2023", 30.0),
        ("Wed Nov  1 00:00:00 2023", 0.0),
        ("Tue, 14 Nov 2023 22:13:60 GMT", 40.0),  # a leap second
        ("Tue, 14 Nov 2023 23:13:50 +0100", 30.0),  # not an HTTP date, but unambiguous
        # In the past: no wait.
        ("Tue, 14 Nov 2023 22:13:19 GMT", 0.0),
        ("Sunday, 06-Nov-94 08:49:37 GMT", 0.0),
        ("Thu, 01 Jan 1970 00:00:00 GMT", 0.0),
        # Unreadable.
        ("", None),
        ("   ", None),
        ("soon", None),
        ("nan", None),
        ("inf", None),
        ("1_000", None),
        ("0x10", None),
        ("5, 10", None),
        ("5 seconds", None),
        ("１２", None),
        ("٣", None),
        ("\udcff\udcfe", None),
        ("Tue, 14 Nov 12023 22:13:50 GMT", None),
    ],
)
def test_a_retry_after_is_read_as_seconds_from_now_up_to_the_cap(value, wait_s):
    assert retry_after.retry_after_s(value, NOW) == wait_s


def test_the_caller_sets_the_cap():
    assert retry_after.retry_after_s("100", NOW, 60.0) == 60.0
    assert retry_after.longest_retry_after_s([(b"Retry-After", b"100")], NOW, 60.0) == 60.0


@given(st.one_of(st.text(), st.text("0123456789.eE+-, :GMTJanFebSuo", max_size=40), st.from_regex(r"[A-Z][a-z]{2},? .*")))
@example("Tue, 14 Nov 2023 99:99:99 GMT")
@example("Tue, 99 Nov 2023 22:13:50 GMT")
@example("Tue, 14 Nov 2023 22:13:50 +99999999999999999999")
def test_any_retry_after_is_a_bounded_wait_or_unreadable(value):
    wait_s = retry_after.retry_after_s(value, NOW)
    assert wait_s is None or 0.0 <= wait_s <= retry_after.MAX_RETRY_AFTER_S


@pytest.mark.parametrize(
    ("headers", "wait_s"),
    [
        ([], None),
        ([(b"retry-after", b"5")], 5.0),
        ([(b"RETRY-AFTER", b"5")], 5.0),
        ([(b"Retry-After", b"5"), (b"Retry-After", b"10"), (b"Retry-After", b"soon")], 10.0),
        ([(b"Retry-After", b"soon")], None),
        ([(b"X-Retry-After", b"5")], None),
    ],
)
def test_of_several_headers_the_longest_wait_counts(headers, wait_s):
    assert retry_after.longest_retry_after_s(headers, NOW) == wait_s
