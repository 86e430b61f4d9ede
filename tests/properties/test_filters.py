"""A compiled filter matches the same documents as a naive interpreter, and never raises an error.

The interpreter works the other way round from the code: it expands `$or` into plain patterns, flattens the document into
values that know in which element of which array they stand, and then tries every choice of one value for each field.
"""

import contextlib
import fnmatch
import ipaddress
import itertools
import re

from hypothesis import given, settings
from hypothesis import strategies as st

from delivery import errors
from delivery.webhooks.filters import event_pattern
from tests.support import thoroughness

# --- documents and patterns of a small world, where things meet often ---------------------------------------------------

texts = st.text("aAbß*\\", max_size=4) | st.sampled_from(["10.1.2.3", "10.1.9.9", "::1", "fe80::9"])
numbers = st.integers(-3, 3) | st.sampled_from([-1.5, 0.0, 1.0, 2.5, 3.0e0])
scalars = st.none() | st.booleans() | numbers | texts
names = st.sampled_from(["p", "q", "r", "s"])
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=4),
    max_leaves=12,
)
documents = st.dictionaries(names, values, max_size=4)


def one_or_several(strategy):
    return strategy | st.lists(strategy, min_size=1, max_size=3)


wildcards = st.lists(st.sampled_from(["a", "A", "b", "ß", r"\*", r"\\", "*"]), max_size=6).map("".join)
wildcards = wildcards.map(lambda text: re.sub(r"(?<!\\)((?:\\\\)*)\*+", r"\1*", text))


def operator(name, operand):
    return operand.map(lambda value: {name: value})


texts_tests = st.one_of(
    operator("prefix", texts), operator("suffix", texts), operator("equals-ignore-case", texts), operator("wildcard", wildcards)
)
comparisons = st.tuples(st.sampled_from(["=", "<", "<=", ">", ">="]), numbers).map(list)
ranges = st.tuples(st.sampled_from([">", ">="]), numbers, st.sampled_from(["<", "<="]), numbers).map(list)
ALTERNATIVES = [
    scalars,
    texts_tests,
    operator("prefix", operator("equals-ignore-case", texts)),
    operator("suffix", operator("equals-ignore-case", texts)),
    operator("anything-but", one_or_several(texts)),
    operator("anything-but", one_or_several(numbers)),
    operator("anything-but", operator("prefix", one_or_several(texts))),
    operator("anything-but", operator("suffix", one_or_several(texts))),
    operator("anything-but", operator("equals-ignore-case", one_or_several(texts))),
    operator("anything-but", operator("wildcard", one_or_several(wildcards))),
    operator("numeric", comparisons | ranges.filter(lambda terms: terms[1] < terms[3])),
    operator("cidr", st.sampled_from(["10.1.0.0/16", "10.1.2.0/24", "10.1.2.3/32", "0.0.0.0/1", "::/120", "fe80::/10"])),
    st.just({"exists": True}),
]
present = st.one_of(ALTERNATIVES)
several_of_one_operator = st.one_of([st.lists(alternative, min_size=2, max_size=8) for alternative in ALTERNATIVES])
ABSENT = {"exists": False}


@st.composite
def patterns(draw, alternatives, depth=3, available=("p", "q", "r", "s")):
    """Draw a pattern whose `$or` shares no field with the pattern around it: there, EventBridge differs."""
    chosen = draw(st.lists(st.sampled_from(available), min_size=1, max_size=2, unique=True))
    pattern = {}
    for name in chosen:
        if depth > 1 and draw(st.booleans()):
            pattern[name] = draw(patterns(alternatives, depth - 1))
        else:
            pattern[name] = draw(st.lists(alternatives, min_size=1, max_size=3))
    others = tuple(name for name in available if name not in chosen)
    if depth > 1 and others and draw(st.booleans()):
        # Absence stays out of branches: the interpreter would look for one branch that is absent throughout an array.
        branch = patterns(present, depth - 1, others)
        pattern["$or"] = draw(st.lists(branch, min_size=2, max_size=3))
    return pattern


def literals_in(pattern):
    """Return the literals of a pattern or of a part of it: what a document needs in order to match."""
    if isinstance(pattern, dict | list):
        inner = pattern.values() if isinstance(pattern, dict) else pattern
        return [literal for part in inner for literal in literals_in(part)]
    if isinstance(pattern, str):
        return [pattern, pattern.replace("*", "a"), pattern.removesuffix("/32")]
    return [pattern]


def maybe_in_arrays(strategy):
    return strategy | st.lists(strategy | st.lists(strategy, max_size=2), max_size=3)


@st.composite
def documents_near(draw, pattern):
    """Draw a document that has the fields of `pattern`, mostly, and often a value that it accepts."""
    document = {}
    for name, wanted in pattern.items():
        if name == "$or":
            for branch in wanted:
                document |= draw(documents_near(branch))
        elif draw(st.integers(0, 7)):  # else the field is missing
            near = documents_near(wanted) if isinstance(wanted, dict) else st.sampled_from(literals_in(wanted)) | scalars
            document[name] = draw(maybe_in_arrays(near))
    return document


def with_document(pattern):
    return st.tuples(st.just(pattern), documents_near(pattern) | documents)


# --- the interpreter ----------------------------------------------------------------------------------------------------


def interpret(pattern, document):
    leaves = list(flatten(document))
    return any(holds(rule, leaves) for rule in expand(pattern))


def expand(pattern, path=()):
    """Yield plain rules, each a list of (path, alternatives), one for each way through the `$or`s."""
    choices = []
    for name, wanted in pattern.items():
        if name == "$or":
            choices.append([rule for branch in wanted for rule in expand(branch, path)])
        elif isinstance(wanted, dict):
            choices.append(list(expand(wanted, (*path, name))))
        else:
            choices.append([[((*path, name), wanted)]])
    for combination in itertools.product(*choices):
        yield [field for rule in combination for field in rule]


def flatten(value, path=(), place=(), elements=()):
    """Yield (path, value, {array: index}) for every scalar; arrays are distinct by their place in the document."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from flatten(inner, (*path, name), (*place, name), elements)
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            is_container = isinstance(inner, dict | list)
            yield from flatten(inner, path, (*place, index), (*elements, (place, index)) if is_container else elements)
    else:
        yield path, value, dict(elements)


def holds(rule, leaves, chosen=None, absent=()):
    """Return True if a choice of one accepted value, or absence, for each field agrees on the elements of arrays."""
    chosen = chosen or {}
    if not rule:
        return not any(path in absent and agrees(chosen, elements) for path, _, elements in leaves)
    (path, alternatives), *rest = rule
    for at, value, elements in leaves:
        fits_here = at == path and agrees(chosen, elements) and any(accepts(alternative, value) for alternative in alternatives)
        if fits_here and holds(rest, leaves, chosen | elements, absent):
            return True
    return ABSENT in alternatives and holds(rest, leaves, chosen, (*absent, path))


def agrees(chosen, elements):
    return all(chosen.get(array, index) == index for array, index in elements.items())


def accepts(alternative, value):
    if not isinstance(alternative, dict):
        return kind(alternative) == kind(value) and alternative == value
    ((name, operand),) = alternative.items()
    if name == "exists":
        return operand
    if name == "anything-but":
        if not isinstance(operand, dict):
            return not any(accepts(excluded, value) for excluded in several(operand))
        ((inner, excluded),) = operand.items()
        return not any(accepts({inner: text}, value) for text in several(excluded))
    if name == "numeric":
        return kind(value) == "number" and all(compare(value, *operand[at : at + 2]) for at in range(0, len(operand), 2))
    if not isinstance(value, str):
        return False
    if name == "cidr":
        try:
            return ipaddress.ip_address(value) in ipaddress.ip_network(operand)
        except ValueError:
            return False
    if isinstance(operand, dict):
        return accepts({name: operand["equals-ignore-case"].casefold()}, value.casefold())
    return {
        "prefix": lambda: value[: len(operand)] == operand,
        "suffix": lambda: value[::-1][: len(operand)] == operand[::-1],
        "equals-ignore-case": lambda: value.casefold() == operand.casefold(),
        "wildcard": lambda: fits(operand, value),
    }[name]()


def compare(value, symbol, bound):
    order = (value > bound) - (value < bound)
    return {"<": order < 0, "<=": order <= 0, "=": order == 0, ">=": order >= 0, ">": order > 0}[symbol]


def fits(wildcard, value):
    tokens = re.findall(r"\\.|.", wildcard, re.DOTALL)
    return fnmatch.fnmatchcase(value, "".join("*" if token == "*" else f"[{token[-1]}]" for token in tokens))


def several(operand):
    return operand if isinstance(operand, list) else [operand]


def kind(value):
    if isinstance(value, bool):
        return "boolean"
    return "number" if isinstance(value, int | float) else type(value).__name__


# --- the properties -----------------------------------------------------------------------------------------------------

unhurried = settings(deadline=None)  # a busy machine is no failure


@settings(unhurried, max_examples=thoroughness.cases(100, thorough=250))
@given(patterns(present | st.just(ABSENT)).flatmap(with_document))
def test_a_compiled_filter_equals_the_naive_interpreter(pattern_and_document):
    pattern, document = pattern_and_document

    assert event_pattern.compile_pattern(pattern).matches(document) == interpret(pattern, document)


@unhurried
@given((present | st.just(ABSENT)).flatmap(lambda alternative: with_document({"p": [alternative]})))
def test_one_alternative_equals_the_naive_interpreter(pattern_and_document):
    pattern, document = pattern_and_document

    assert event_pattern.compile_pattern(pattern).matches(document) == interpret(pattern, document)


@unhurried
@given(st.lists(present | st.just(ABSENT), min_size=1), present | st.just(ABSENT), values)
def test_one_more_alternative_never_loses_a_match(alternatives, another, value):
    before = event_pattern.compile_pattern({"p": {"q": alternatives}}).matches({"p": value})
    after = event_pattern.compile_pattern({"p": {"q": [*alternatives, another]}}).matches({"p": value})

    assert after or not before


@unhurried
@given(
    several_of_one_operator.flatmap(
        lambda several: st.tuples(st.just(several), st.sampled_from(literals_in(several)) | scalars)
    )
)
def test_alternatives_accept_a_value_if_one_of_them_alone_accepts_it(alternatives_and_value):
    alternatives, value = alternatives_and_value

    one_by_one = [event_pattern.compile_pattern({"p": [alternative]}).matches({"p": value}) for alternative in alternatives]
    assert event_pattern.compile_pattern({"p": alternatives}).matches({"p": value}) is any(one_by_one)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(names | st.text(), inner),
    max_leaves=10,
)


@unhurried
@given(patterns(present | st.just(ABSENT)), st.dictionaries(names | st.text(), json_values))
def test_no_json_document_makes_a_filter_raise(pattern, document):
    assert event_pattern.compile_pattern(pattern).matches(document) in (True, False)


@unhurried
@given(json_values)
def test_any_json_as_a_pattern_is_compiled_or_refused(pattern):
    with contextlib.suppress(errors.FilterError):
        event_pattern.compile_pattern(pattern)
