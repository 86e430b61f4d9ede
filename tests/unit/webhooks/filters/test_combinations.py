"""Every operator is shown on every kind of value, and with every kind of operand.

tests/integration/test_event_ruler.py asks the matcher of AWS about the same combinations.
"""

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
