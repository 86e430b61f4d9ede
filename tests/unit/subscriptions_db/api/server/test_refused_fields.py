"""Messages about wrong fields of bodies and queries say what to send, in no words of Python or of pydantic."""

import typing

import pydantic
import pytest

from subscriptions_db.api.contract import routes
from subscriptions_db.api.deliveries import deliveries, replays, statistics
from subscriptions_db.api.registry import endpoint_bulk
from subscriptions_db.api.server import route_table
from subscriptions_db.manifest import mistakes

WRONG = (
    *("", "hunter2", "hunter2 x", "hunter2" * 5_000, "hunter2\x00", "\ud800hunter2", "1" * 5_000),
    *("2026-01-01", "2026-01-01T00:00:00", "99999-01-01T00:00:00Z", "2026-13-01T00:00:00Z", "2026-01-01T00:00:00+99:00"),
    *(-1, 2.5, 1e20, float("inf"), float("nan"), 10**400, True, None),
    *([], [5], ["hunter2"], [[]], {}, {"hunter2": 5}, {"hunter2": "hunter2"}),
)
FOREIGN_WORDS = ("Input", "Unable", "valid ", "'", "<", "^", "\\x", "Error", "timezone", "pydantic", "None", "required form")
"""Words of pydantic's own messages, of a Python repr, of regular expressions, and of messages that say nothing."""
OWN_WORDS = ("is not a valid ",)
TIME = "must be a time with its offset from UTC, such as 2026-01-31T12:00:00Z"


def models_in(annotation):
    """Yield each type of documents in an annotation, with the types of its fields."""
    if isinstance(annotation, type) and issubclass(annotation, pydantic.BaseModel):
        yield annotation
        for field in annotation.model_fields.values():
            yield from models_in(field.annotation)
    for part in typing.get_args(annotation):
        yield from models_in(part)


DECLARED = [model for route in route_table.ROUTES for model in (route.query, route.body, *dict(route.bodies).values()) if model]
MODELS = sorted(
    {found for model in DECLARED for found in models_in(model)} - {routes.NoParameters}, key=lambda model: model.__name__
)


def problems_of(model, document):
    try:
        model.model_validate(document)
    except pydantic.ValidationError as exc:
        return {mistake.path: mistake.problem for mistake in mistakes.found(exc, model)}
    return {}


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.__name__)
def test_no_field_is_refused_in_words_of_python(model):
    """Regression: customers read `must be one of <Granularity.HOUR: hour>` and `Input should have timezone info`."""
    for name in model.model_fields:
        for wrong in WRONG:
            for path, problem in problems_of(model, {name: wrong}).items():
                rest = problem
                for own in OWN_WORDS:
                    rest = rest.replace(own, "")
                assert not [word for word in FOREIGN_WORDS if word in rest], (name, wrong, path, problem)
                assert "hunter2" not in problem


@pytest.mark.parametrize(
    ("model", "field", "wrong", "said"),
    [
        (statistics.StatisticsQuery, "by", "dai", "must be one of hour, day; did you mean day?"),
        (statistics.StatisticsQuery, "since", "2026-01-01T00:00:00", TIME),
        (replays.NewReplay, "since", "yesterday", TIME),
        (replays.ReplayQuery, "state", "x", "must be one of waiting, running, done, failed, cancelled"),
        (
            deliveries.DeliveryQuery,
            "status",
            "deliverd",
            "must be one of delivered, waiting, dead_lettered, skipped; did you mean delivered?",
        ),
        (
            endpoint_bulk.EndpointsToChange,
            "action",
            "pauze",
            "must be one of pause, resume, rotate_secret, delete; did you mean pause?",
        ),
        (endpoint_bulk.EndpointsToChange, "limit", "1" * 5_000, "has too many digits: use a smaller number"),
    ],
)
def test_a_wrong_value_is_answered_with_the_values_to_send(model, field, wrong, said):
    assert problems_of(model, {field: wrong})[field] == said
