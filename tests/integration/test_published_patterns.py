"""The cases of event patterns that LocalStack has published differ from ours as docs/filters.md lists, and in nothing else.

LocalStack has the verdicts from the service EventBridge. The test needs the folder that the environment variable
EVENT_PATTERN_TEMPLATES names.
"""

import re

import pytest

from tests.support import filter_tables, published_patterns

pytestmark = [
    pytest.mark.integration,
    pytest.mark.slow,
    pytest.mark.skipif(not published_patterns.FOLDER, reason=published_patterns.MISSING),
]

DIFFERING = {
    "content_anything_prefix_empty_EXC": '{"x": [{"anything-but": {"prefix": ""}}]}',
    "content_anything_suffix_empty_EXC": '{"x": [{"anything-but": {"suffix": ""}}]}',
    "content_wildcard_complex_EXC": '{"x": [{"wildcard": "*:*:*:*:*:orders/*"}]}',
    "dot_joining_event": '{"a": {"b": [1]}}',
    "dot_joining_pattern": '{"a.b": [1]}',
}
"""Name of a published case → the filter of the listed difference that the case shows."""


def test_the_published_cases_differ_as_listed_and_in_nothing_else():
    cases = published_patterns.cases()
    differing = [name for name, (pattern, event, said) in cases.items() if filter_tables.verdict(pattern, event) is not said]

    assert sorted(differing) == sorted(DIFFERING)
    listed = {filter_tables.code(pattern) for pattern, *_ in filter_tables.differences()}
    assert set(DIFFERING.values()) <= listed
    [counted] = re.findall(r"(\d+) cases.*?(\d+) differ", filter_tables.PAGE, re.DOTALL)
    assert counted == (str(len(cases)), str(len(differing)))
