"""Why a lane ended, in one line."""

import pytest

from delivery.stages import query

JVM = """[STREAM_FAILED] it ended: Task failed
\tat a.b.C(D.java:1)
Caused by: java.lang.ArithmeticException: long overflow
\tat java.base/java.lang.Math.multiplyExact(Math.java:1)
\t... 3 more
"""
WITH_CODES = JVM + "\n SQLSTATE: 39000 SQLSTATE: XXKST\n=== Streaming Query ===\n"
PYTHON = """[STREAM_FAILED] it ended
Traceback (most recent call last):
  File "a.py", line 1
ValueError: no

"""


@pytest.mark.parametrize(
    ("failure", "line"),
    [
        ("[STREAM_FAILED] terminated: boom\n=== Streaming Query ===\nId: 1", "[STREAM_FAILED] terminated: boom"),
        (JVM, "Caused by: java.lang.ArithmeticException: long overflow"),
        (WITH_CODES, "Caused by: java.lang.ArithmeticException: long overflow"),
        (PYTHON, "ValueError: no"),
        ("", ""),
    ],
)
def test_the_line_that_says_why_is_no_line_of_a_stack(failure, line):
    assert query.cause_of(failure) == line
