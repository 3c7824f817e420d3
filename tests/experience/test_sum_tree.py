import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from evorl.experience.sum_tree import SumTree

# Exact in binary: the sums are exact too, and the comparison needs no tolerance.
EXACT = st.integers(0, 64).map(lambda k: k / 8)
WRITE = st.tuples(st.integers(0, 2), st.integers(0, 10), EXACT)


def write(tree, writes):
    agents, leaves, values = zip(*writes, strict=True) if writes else ((), (), ())
    tree.set(np.array(agents, int), np.array(leaves, int), np.array(values, float))


@settings(max_examples=100, deadline=None)
@given(
    calls=st.lists(st.lists(WRITE, max_size=40), min_size=1, max_size=5), seed=st.integers(0, 999)
)
def test_tree_equals_a_list(calls, seed):
    tree, lists = SumTree(3, 11), [[0.0] * 11 for _ in range(3)]
    for writes in calls:
        write(tree, writes)
        for agent, leaf, value in writes:  # in order: the last write stays
            lists[agent][leaf] = value
    rng = np.random.default_rng(seed)
    for agent, values in enumerate(lists):
        assert tree.priorities()[agent].tolist() == values
        assert tree.totals[agent] == sum(values)
        if sum(values) == 0:
            continue
        queries = np.append(np.cumsum([0.0, *values])[:-1], rng.random(20) * sum(values))
        queries = queries[queries < sum(values)]
        expected = [np.flatnonzero(np.cumsum(values) > q)[0] for q in queries]
        found = tree.find(np.full(len(queries), agent), queries)
        assert found.tolist() == [int(leaf) for leaf in expected]


@settings(max_examples=100, deadline=None)
@given(
    leaves=st.lists(st.sampled_from([0.0, 0.1, 1e-12, 0.7, 1e9]), min_size=1, max_size=13).filter(
        any
    ),
    scale=st.sampled_from([0.0, 0.5, 1.0 - 2**-53, 1.0, 1.0 + 1e-9]),
)
def test_no_empty_leaf_is_found_even_at_the_right_edge(leaves, scale):
    tree = SumTree(1, len(leaves))
    write(tree, [(0, place, value) for place, value in enumerate(leaves)])
    found = tree.find(np.array([0, 0]), np.array([tree.totals[0] * scale, -0.0]))
    assert (tree.get(np.array([0, 0]), found) > 0).all()


def test_sums_do_not_drift():
    tree, rng = SumTree(1, 64), np.random.default_rng(0)
    for _ in range(500):
        write(tree, [(0, int(leaf), float(rng.random() * 1e6)) for leaf in rng.integers(0, 64, 9)])
    fresh = SumTree(1, 64)
    write(fresh, [(0, place, value) for place, value in enumerate(tree.priorities()[0])])
    assert tree.totals[0] == fresh.totals[0]


@pytest.mark.parametrize("bad", [np.nan, np.inf, -1.0])
def test_a_bad_priority_is_named_and_changes_nothing(bad):
    tree = SumTree(3, 4)
    write(tree, [(0, 1, 2.0), (2, 3, 5.0)])
    before = tree.priorities().copy()
    with pytest.raises(ValueError, match=f"agent 2 has priority {bad}"):
        write(tree, [(0, 1, 9.0), (2, 0, bad)])
    np.testing.assert_array_equal(tree.priorities(), before)
    assert tree.totals.tolist() == [2.0, 0.0, 5.0]


def test_an_empty_tree_is_refused():
    tree = SumTree(2, 3)
    write(tree, [(0, 0, 1.0)])
    with pytest.raises(ValueError, match="agent 1 has no item"):
        tree.find(np.array([0, 1]), np.array([0.0, 0.0]))
