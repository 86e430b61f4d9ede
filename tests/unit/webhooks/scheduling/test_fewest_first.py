"""In the line, those with the fewest slots come first, and among equals the first to arrive."""

from delivery.webhooks.scheduling import fewest_first


def order(line):
    found = []
    while line:
        found.append(line.first())
        line.discard(found[-1][0])
    return found


def line_of(*held):
    line = fewest_first.FewestFirst()
    for name, slots in held:
        line.put(name, slots)
    return line


def test_the_fewest_slots_come_first_and_among_equals_the_first_to_arrive():
    assert order(line_of(("a", 2), ("b", 1), ("c", 2), ("d", 0))) == [("d", 0), ("b", 1), ("a", 2), ("c", 2)]


def test_a_changed_number_moves_an_item_to_the_end_of_its_equals():
    line = line_of(("a", 2), ("b", 1), ("c", 1))
    line.put("a", 1)
    assert order(line) == [("b", 1), ("c", 1), ("a", 1)]


def test_an_item_may_leave_the_line():
    line = line_of(("a", 1), ("b", 1))
    line.discard("a")
    line.discard("unknown")
    assert ("a" in line, "b" in line, len(line)) == (False, True, 1)
    line.clear()
    assert not line
