"""Every operator is shown on every kind of value, and with every kind of operand.

tests/integration/test_event_ruler.py asks the matcher of AWS about the same combinations.
"""

import gc
import json

from delivery.webhooks.filters import event_pattern
from delivery.webhooks.filters.index import FilterIndex
from tests.support import filter_combinations
from tests.support.filter_tables import verdict


def test_each_operator_has_its_verdict_on_each_kind_of_value():
    found = [
        (alternative, event)
        for alternative, event, is_match in filter_combinations.cases()
        if verdict(f'{{"x": [{alternative}]}}', event) is not is_match
    ]
    assert found == []


def test_an_alternative_beside_another_adds_its_own_matches():
    matching = {alternative: event for alternative, event, is_match in filter_combinations.cases() if is_match}
    found = [
        (alternative, another, event)
        for alternative, event in matching.items()
        for another in matching
        if not verdict(f'{{"x": [{another}, {alternative}]}}', event)
    ]
    assert found == []


def test_each_operator_takes_its_kinds_of_operand_and_no_others():
    found = [
        alternative
        for alternative, is_accepted in filter_combinations.compilations()
        if (verdict(f'{{"x": [{alternative}]}}', "{}") is None) is is_accepted
    ]
    assert found == []


def test_a_dropped_filter_is_freed_without_a_garbage_collection():
    """Regression: each compiled filter was a reference cycle, so memory grew with each change of a subscription."""
    alternatives = {alternative for alternative, _, _ in filter_combinations.cases()}
    documents = [{"x": {"y": value}} for value in ("a", [1, ["a"]], {})] + [{"x": [{"y": "a"}, {}]}]
    patterns = [json.loads(f'{{"$or": [{{"x": {{"y": [{text}]}}}}, {{"x": [{text}]}}]}}') for text in alternatives]
    gc.freeze()  # leaves out what earlier tests have dropped
    gc.disable()
    try:
        for pattern in patterns:
            compiled, index = event_pattern.compile_pattern(pattern), FilterIndex([(pattern, "s1")])
            for document in documents:
                compiled.matches(document)
                index.candidates(document)
        del compiled, index

        assert gc.collect() == 0
    finally:
        gc.enable()
        gc.unfreeze()
