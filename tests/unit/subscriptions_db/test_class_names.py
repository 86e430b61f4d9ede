"""No class name occurs twice in subscriptions_db, so that a name says which class it is."""

import ast
import collections

from tests.support import reading


def test_no_class_name_occurs_twice():
    """Regression: `Place` named four classes, and `Which` six. Equal names put modules into the OpenAPI document."""
    places = collections.defaultdict(list)
    for path in (reading.ROOT / "subscriptions_db").rglob("*.py"):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef):
                places[node.name].append(path.name)
    assert {name: found for name, found in places.items() if len(found) > 1} == {}
