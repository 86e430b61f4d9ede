"""The pictures of docs/architecture.md are small, tell a story in order, and differ from the code nowhere.

tests/unit/test_documents.py compares the pictures in the document with those that are drawn.
"""

import pytest

from fanout.documents import flowchart, lane_pictures
from fanout.documents.flowchart import Arrow, Code, Outside, Picture, Topics, calls, passes
from tests.support import reading

PICTURES = lane_pictures.PICTURES
PLANS_QUERY = "delivery.stages.lanes.batch_query"
each_picture = pytest.mark.parametrize("picture", PICTURES.values(), ids=PICTURES)


@pytest.fixture(scope="module")
def known():
    """The facts about the code. Not at import: each worker imports this file, and one runs it."""
    return flowchart.known(reading.ROOT)


@each_picture
def test_each_box_and_each_arrow_of_a_picture_is_in_the_code(picture, known):
    assert list(flowchart.contradictions(picture, known)) == []


@each_picture
def test_a_picture_has_at_most_twelve_boxes_and_each_has_an_arrow(picture):
    assert len(picture.boxes) <= 12
    assert {name for arrow in picture.arrows for name in (arrow.source, arrow.target)} == picture.boxes.keys()
    assert set(picture.frame.boxes if picture.frame else ()) <= picture.boxes.keys()


@each_picture
def test_the_arrows_of_a_picture_follow_the_data(picture):
    """Every box but the first ones is reached before data leaves it. Only a picture's sources have no arrow to them."""
    sources = set(picture.boxes) - {arrow.target for arrow in picture.arrows}
    reached = set(sources)
    late = []
    for arrow in picture.arrows:
        late += [arrow] if arrow.source not in reached else []
        reached.add(arrow.target)
    assert [arrow for arrow in late if not comes_back(arrow, picture)] == []


def comes_back(arrow: Arrow, picture: Picture) -> bool:
    """True if the arrow belongs to a circle, such as that of wake-ups."""
    reached, found = {arrow.target}, {arrow.target}
    while found:
        found = {other.target for other in picture.arrows if other.source in found} - reached
        reached |= found
    return arrow.source in reached


BOXES = {
    "topics": Topics(("delivery.retries_topic",)),
    "collect": Code(("delivery.stages.tasks.collect_segments",)),
    "shard": Code(("delivery.stages.tasks.batch_shard",)),
    "intake": Code(("delivery.webhooks.routing",)),
    "tables": Outside("Postgres", is_store=True),
}


@pytest.mark.parametrize(
    ("arrow", "reason"),
    [
        (calls("collect", "intake"), None),
        (calls("intake", "collect"), "does not import"),
        (calls("collect", "shard"), "does not import"),
        (calls("collect", "topics"), "does not import"),
        (passes("collect", "shard", "Spark", PLANS_QUERY), None),
        (passes("collect", "shard", "Spark", "delivery.webhooks.batching.batcher"), "neither belongs to"),
        (passes("collect", "shard", "Spark", "delivery.stages.lanes.of_batches"), "no module delivery.stages.lanes.of_batches"),
        (passes("collect", "shard", "Kafka", PLANS_QUERY), "needs a box of topics at one end"),
        (passes("shard", "topics", "Kafka", "delivery.stages.tasks.batch_shard"), "does not read delivery.retries_topic"),
        (passes("shard", "tables", "Postgres", PLANS_QUERY), "does not import subscriptions_db.postgres.connect"),
    ],
)
def test_an_arrow_that_the_code_does_not_have_is_named(arrow, reason, known):
    found = list(flowchart.contradictions(Picture(BOXES, (arrow,)), known))
    assert [reason in text for text in found] == ([True] if reason else [])


@pytest.mark.parametrize(
    ("box", "reason"),
    [
        (Code(("delivery.stages.tasks.collect",)), "box: there is no module delivery.stages.tasks.collect"),
        (Code(("delivery.stages.tasks", "delivery.stages.task")), "box: there is no module delivery.stages.task"),
        (Topics(("delivery.retry_topic",)), "box: there is no setting delivery.retry_topic"),
    ],
)
def test_no_picture_is_drawn_with_a_box_that_the_code_does_not_have(box, reason, known):
    with pytest.raises(ValueError, match=f"differs from the code:\n{reason}$"):
        flowchart.drawn(Picture({"box": box}, ()), known)


def test_a_picture_shows_paths_topics_calls_and_handovers(known):
    arrows = (calls("collect", "intake", "records"), passes("collect", "shard", "Spark", PLANS_QUERY, "segments"))
    boxes = {name: BOXES[name] for name in ("collect", "intake", "shard", "topics")}
    assert flowchart.drawn(Picture(boxes, arrows, direction="LR"), known).splitlines() == [
        "```mermaid",
        "flowchart LR",
        'collect["stages/tasks/collect_segments.py"]',
        'intake["webhooks/routing"]',
        'shard["stages/tasks/batch_shard.py"]',
        'topics[("retries topic")]',
        'collect -- "records" --> intake',
        'collect -. "Spark: segments" .-> shard',
        "```",
    ]


def test_a_document_without_a_place_for_a_picture_is_refused(tmp_path):
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / lane_pictures.DOCUMENT).write_text("# Architecture\n")
    with pytest.raises(ValueError, match="has no picture of the direct lane: write"):
        lane_pictures.document(tmp_path)
