"""An index of filters returns every filter that matches, and few others."""

import operator

from hypothesis import given, settings
from hypothesis import strategies as st

from delivery.webhooks.filters import event_pattern
from delivery.webhooks.filters.index import FilterIndex
from delivery.webhooks.filters.intervals import Range, Ranges
from delivery.webhooks.routing import matching
from tests.properties import test_filters as world
from tests.support import builders, thoroughness

unhurried = settings(deadline=None)  # a busy machine is no failure

any_patterns = world.patterns(world.present | st.just(world.ABSENT))
several_patterns = st.lists(any_patterns, min_size=1, max_size=4)
some_text = world.texts.filter(bool)
telling = st.one_of(  # an alternative of which the index knows everything
    world.scalars,
    world.operator("prefix", some_text | world.operator("equals-ignore-case", some_text)),
    world.operator("suffix", some_text | world.operator("equals-ignore-case", some_text)),
    world.operator("equals-ignore-case", world.texts),
    world.operator("numeric", world.comparisons | world.ranges.filter(lambda terms: terms[1] < terms[3])),
)


@st.composite
def with_a_document_near(draw, several):
    patterns = draw(several)
    return patterns, draw(world.documents_near(draw(st.sampled_from(patterns))) | world.documents)


def asked_one_after_the_other(patterns, document):
    return {number for number, pattern in enumerate(patterns) if event_pattern.compile_pattern(pattern).matches(document)}


@settings(unhurried, max_examples=thoroughness.cases(100, thorough=250))
@given(with_a_document_near(several_patterns))
def test_every_filter_that_matches_is_a_candidate(patterns_and_document):
    patterns, document = patterns_and_document
    index = FilterIndex((pattern, number) for number, pattern in enumerate(patterns))

    assert asked_one_after_the_other(patterns, document) <= index.candidates(document)


def similar(literal):
    if isinstance(literal, str):
        return [literal, literal.swapcase(), f"a{literal}", f"{literal}a"]
    return [literal, literal + 1, literal - 1, float(literal)] if isinstance(literal, int | float) else [literal]


@st.composite
def with_values_similar(draw, several):
    alternatives = draw(several)
    literals = [
        value for alternative in alternatives for literal in world.literals_in(alternative) for value in similar(literal)
    ]
    return alternatives, draw(world.maybe_in_arrays(st.sampled_from(literals)))


@settings(unhurried, max_examples=thoroughness.cases(120, thorough=300))
@given(with_values_similar(st.lists(telling, min_size=1, max_size=4)))
def test_a_filter_on_one_field_is_a_candidate_only_if_it_matches(alternatives_and_value):
    alternatives, value = alternatives_and_value
    patterns = [{"p": [alternative]} for alternative in alternatives]
    index = FilterIndex((pattern, number) for number, pattern in enumerate(patterns))

    assert index.candidates({"p": value}) == asked_one_after_the_other(patterns, {"p": value})


@settings(unhurried, max_examples=thoroughness.cases(40, thorough=100))
@given(
    with_a_document_near(st.lists(any_patterns, min_size=1, max_size=3)),
    st.lists(st.integers(0, 2), min_size=matching.MIN_INDEXED_RULES, max_size=12),
)
def test_subscriptions_that_share_filters_are_routed_one_by_one(patterns_and_document, choices):
    patterns, content = patterns_and_document
    chosen = {f"s{number}": {"data": patterns[choice % len(patterns)]} for number, choice in enumerate(choices)}
    rows = (builders.subscription(key, filter_pattern=pattern) for key, pattern in chosen.items())
    router = matching.Router(builders.snapshot(builders.endpoint(), *rows))
    event = builders.event(content=content)

    document = matching.filter_document(event)
    due = [key for key, pattern in chosen.items() if event_pattern.compile_pattern(pattern).matches(document)]
    for _ in range(2):  # the second event finds the filters compiled
        assert sorted(match.subscription.subscription_id for match in router.matches(event)) == sorted(due)


bounds = st.none() | world.numbers
ranges = st.builds(Range, bounds, bounds, st.booleans(), st.booleans()).filter(
    lambda it: None in it or it.lower < it.upper  # what a filter may ask for
)


def holds(range_, number):
    above = range_.lower is None or (operator.ge if range_.has_lower else operator.gt)(number, range_.lower)
    below = range_.upper is None or (operator.le if range_.has_upper else operator.lt)(number, range_.upper)
    return above and below


@unhurried
@given(st.lists(ranges, max_size=20), world.numbers | st.just(2.0**70) | st.just(-(2**70)))
def test_each_range_that_contains_a_number_is_found_once(drawn, number):
    found = [item for items in Ranges(zip(drawn, range(len(drawn)), strict=True)).containing(number) for item in items]

    assert sorted(found) == [index for index, range_ in enumerate(drawn) if holds(range_, number)]
