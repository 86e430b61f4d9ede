"""Values of a YAML document are read as JSON has them, and each keeps its line."""

import pytest

from delivery import errors
from subscriptions_db.manifest import yaml_document


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ("!!timestamp x", "a value does not fit its tag !!timestamp"),
        ("!!timestamp 2024-13-45", "a value does not fit its tag !!timestamp"),
        ("!!bool x", "a value does not fit its tag !!bool"),
        ("!!int ''", "a value does not fit its tag !!int"),
        ("!!float ''", "a value does not fit its tag !!float"),
        ("!!float " + "1:" * 300 + "1", "a value does not fit its tag !!float"),
        ("1" * 5000, "a number has too many digits"),
    ],
)
def test_a_value_that_does_not_fit_its_tag_is_named_by_its_line(value, problem):
    """Regression: `!!timestamp x`, `!!bool x`, an empty `!!int` and a large `!!float` ended in tracebacks."""
    with pytest.raises(errors.RegistrationError, match=rf"^f:2: not YAML: {problem}: "):
        yaml_document.read(f"a: 1\nb: {value}\n", "f")


@pytest.mark.parametrize("tag", ["set", "map"])
def test_a_text_with_the_tag_of_a_mapping_is_named_by_its_line(tag):
    with pytest.raises(errors.RegistrationError, match=r"^f:2: not YAML: expected a mapping node"):
        yaml_document.read(f"a: 1\nb: !!{tag} x\n", "f")


@pytest.mark.parametrize("opened", ["[", "- ", "{a: ", "? "])
def test_a_document_of_many_levels_is_refused_with_the_line(opened):
    """Regression: libyaml ended `fanout apply` with a segmentation fault for 100,000 nested brackets."""
    with pytest.raises(errors.RegistrationError, match=r"^f:2: not YAML that can be read: it is nested deeper than 100"):
        yaml_document.read("# a comment\n" + opened * 100_000, "f")


def test_a_document_of_the_maximum_levels_is_read():
    levels = yaml_document.MAX_LEVELS
    assert yaml_document.read("[" * levels + "]" * levels).value


def test_a_date_is_text_as_in_json():
    assert yaml_document.read("a: [2024-01-01, 2024-13-01]").value == {"a": ["2024-01-01", "2024-13-01"]}


@pytest.mark.parametrize(
    "text",
    ["0301", "010", "1_000", "0x1F", "0b11", "12:30", "+5", "1.", ".5", "1_0.5", "1:30.5", ".inf", ".nan", "12345e6", "1.5e3"],
)
def test_what_is_no_number_in_json_is_text(text):
    """Regression: YAML 1.1 has other numbers. The tenant 0301 became the tenant 193, whose events went to another customer."""
    assert yaml_document.read(f"tenants: [{text}, 7]").value == {"tenants": [text, 7]}


@pytest.mark.parametrize("text", ["NO", "no", "Yes", "on", "off", "y", "n"])
def test_only_true_and_false_are_booleans(text):
    """Regression: a filter for the country NO got the value false, and never matched."""
    assert yaml_document.read(f"country: [{text}, true, False]").value == {"country": [text, True, False]}


def test_numbers_are_read_as_in_json():
    document = yaml_document.read("a: [0, -7, 1.50, -0.5, 3.0e+2, 1.5E-3, 10000000000000000000]")
    assert document.value == {"a": [0, -7, 1.5, -0.5, 300.0, 0.0015, 10**19]}
    assert [type(value) for value in document.value["a"]] == [int, int, float, float, float, float, int]


def test_a_field_whose_name_has_dots_is_found_by_its_line():
    document = yaml_document.read("a:\n  b.c:\n    - x\n    - d: 1\n  b:\n    c: 2\n")
    assert [document.line_of(path) for path in ("a.b.c[1].d", "a.b", "a.b.nothing", "")] == [4, 5, 5, None]


def test_json_is_read_as_json():
    """Regression: YAML had a number with an exponent as text, and refuses a character that JSON escapes as two surrogates."""
    text = '{"a": [3e2, 3.018E2, -1e-3],\n"b": "\\ud83d\\ude80"}'
    document = yaml_document.read(text)

    assert document.value == {"a": [300, 301.8, -0.001], "b": "🚀"}
    assert (document.line_of("a"), document.line_of("b")) == (1, 2)
    assert yaml_document.read(text.encode()).value == document.value
    assert yaml_document.read('{"\\ud83d\\ude80": 1, "\\ud83d\\ude81": 2}').value == {"🚀": 1, "🚁": 2}


@pytest.mark.parametrize("text", ['\ufeff{"a": 7e2}', '\ufeff{"a": 7e2}'.encode()], ids=["text", "bytes"])
def test_json_with_a_byte_order_mark_is_read_as_json(text):
    """Regression: YAML read it, so that the number was text."""
    assert yaml_document.read(text).value == {"a": 700}


@pytest.mark.parametrize("text", ['\t{"a": [1]}', '{\n\t"a":\t[\t1\t]\n}\t'])
def test_json_indented_with_tabs_is_read(text):
    """Regression: a tab before the first brace was refused as in YAML."""
    assert yaml_document.read(text).value == {"a": [1]}


def test_json_with_a_repeated_name_is_refused_as_in_yaml():
    with pytest.raises(errors.RegistrationError, match="a is given twice"):
        yaml_document.read('{"a": 1, "a": 2}')


def test_aliases_that_double_at_each_level_are_refused_at_once():
    """Regression: a filter of 28 such levels took minutes and gigabytes."""
    levels = ["a0: &a0 [x]", *(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]" for n in range(1, 40))]
    with pytest.raises(
        errors.RegistrationError, match=r"^f:\d+: not YAML that can be read: with its aliases \(\*\) written out"
    ):
        yaml_document.read("\n".join(levels), "f")
    assert yaml_document.read("a: &a [x, y]\nb: [*a, *a]").value["b"] == [["x", "y"], ["x", "y"]]
