"""The scope index finds the same items as a dictionary of lists, in the same order."""

import collections

from hypothesis import given
from hypothesis import strategies as st

from delivery.webhooks.routing import scope_index

tenants = st.sampled_from(["1", "2", "3", "ü"])
keys = st.one_of(st.none(), tenants, st.tuples(tenants, st.sampled_from(["10", "20"])))


class Colliding(str):
    """A tenant id that has the same hash as all other tenant ids."""

    __slots__ = ()
    __hash__ = lambda _: 7  # noqa: E731


@given(st.lists(st.tuples(keys, st.integers(0, 9))), keys)
def test_the_index_finds_the_items_of_a_dictionary_of_lists(entries, key):
    lists = collections.defaultdict(list)
    for known, item in entries:
        lists[known].append(item)
    assert scope_index.ScopeIndex(entries).get(key) == lists[key]


def test_keys_of_the_same_hash_stay_distinct():
    index = scope_index.ScopeIndex([(Colliding("a"), 1), (Colliding("b"), 2), (Colliding("a"), 3)])
    assert index.get(Colliding("a")) == [1, 3]
    assert index.get(Colliding("c")) == []
