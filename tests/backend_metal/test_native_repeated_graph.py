"""Graphs that are built once and made again for other inputs."""

from __future__ import annotations

import io
import re
from collections import Counter

import mlx.core as mx
import numpy as np
import pytest

from backend_metal import native
from backend_metal.native import RepeatedGraph

Arrays = list[mx.array]


def floats(*values: float) -> mx.array:
    return mx.array(values, mx.float32)


def nodes_of(*arrays: mx.array) -> Counter[str]:
    """By name, of graphs that are not evaluated yet."""
    text = io.StringIO()
    mx.export_to_dot(text, *arrays)
    return Counter(re.findall(r'\[label ="(\w+)", shape=rectangle\]', text.getvalue()))


def test_it_computes_what_was_built_for_other_inputs_and_is_built_once() -> None:
    built = 0

    def build(arrays: Arrays) -> Arrays:
        nonlocal built
        built += 1
        x, y = arrays
        # Two outputs of one node, the second used first; a result that is also used.
        low, high = mx.split(x, 2)
        products = high * y
        return [low + products, products, high]

    graph = RepeatedGraph(build, [floats(1, 2, 3, 4), floats(5, 6)])
    for number in range(3):
        inputs = [floats(1, 2, 3, 4) + number, floats(5, 6) - number]
        found = graph(inputs)
        for one, expected in zip(found, build(inputs), strict=True):
            np.testing.assert_array_equal(np.asarray(one), np.asarray(expected))
        built -= 1
    assert built == 1


def test_it_has_the_nodes_that_were_built() -> None:
    """So nothing was fused: that takes a compiler on a CPU, and may change bits."""

    def build(arrays: Arrays) -> Arrays:
        (x,) = arrays
        return [mx.exp(x) * mx.exp(x) + mx.abs(x).reshape(2, 2).T.flatten()]

    x = floats(1, 2, 3, 4)
    assert nodes_of(*RepeatedGraph(build, [x])([x])) == nodes_of(*build([x]))


def test_of_shapes_that_follow_one_another_the_last_is_made() -> None:
    def build(arrays: Arrays) -> Arrays:
        (x,) = arrays
        same = x[:, None].squeeze(1)
        rows = same.reshape(12, 2)
        narrow = rows[:, None].flatten().reshape(3, 8)
        return [narrow * 2, rows, x.reshape(24)[None], same.T.reshape(8, 3)]

    x = mx.array(np.arange(24.0, dtype=np.float32).reshape(2, 3, 4))
    graph = RepeatedGraph(build, [x])
    for array in (x, mx.array(np.arange(24.0, dtype=np.float32).reshape(4, 3, 2)).T):
        mx.eval(array)
        found = graph([array])
        nodes = nodes_of(*found)
        # Of the number, at first.
        nodes.pop("Broadcast", None)
        assert nodes == {"Multiply": 1, "Reshape": 4, "Transpose": 1}
        for one, expected in zip(found, build([array]), strict=True):
            np.testing.assert_array_equal(np.array(one), np.array(expected))


def test_a_result_may_be_an_input_or_need_none() -> None:
    graph = RepeatedGraph(lambda arrays: [arrays[1], mx.ones(2), arrays[1]], [floats(1)] * 2)
    first, ones, second = graph([floats(2), floats(3)])
    assert (first.item(), ones.tolist(), second.item()) == (3, [1, 1], 3)


def test_what_needs_no_input_is_computed_once() -> None:
    graph = RepeatedGraph(lambda arrays: [arrays[0] + mx.exp(mx.zeros(2)) * 2], [floats(1, 1)])
    (first,) = graph([floats(1, 2)])
    assert nodes_of(first)["Exp"] == 1
    mx.eval(first)
    (second,) = graph([floats(3, 4)])
    assert nodes_of(second) == {"Add": 1}
    assert second.tolist() == [5, 6]


def test_caches_are_written_where_they_are() -> None:
    keys, values = (native.zeros((2, 4, 1, 8), mx.float32) for _ in range(2))

    def build(arrays: Arrays) -> Arrays:
        rows, slots, *caches = arrays
        for _ in range(2):
            caches = list(native.reshape_and_cache(rows, rows, *caches, slots))
            rows, slots = rows + 1, slots + 1
        return caches

    inputs = [mx.ones((1, 1, 8)), mx.array([2], mx.int32)]
    graph = RepeatedGraph(build, [*inputs, keys, values])
    address = np.asarray(memoryview(keys)).__array_interface__["data"][0]
    for number in range(3):
        inputs[1] = mx.array([2 * number], mx.int32)
        keys, values = graph([*inputs, keys, values])
    mx.eval(keys, values)
    assert np.asarray(memoryview(keys)).__array_interface__["data"][0] == address
    assert np.asarray(values)[..., 0].ravel().tolist() == [1, 2, 1, 2, 1, 2, 0, 0]


def test_a_graph_may_be_as_deep_as_it_likes() -> None:
    def build(arrays: Arrays) -> Arrays:
        (x,) = arrays
        for _ in range(20_000):
            x = x + 1
        return [x]

    graph = RepeatedGraph(build, [floats(0)])
    assert graph([floats(1)])[0].item() == 20_001


def test_other_shapes_and_dtypes_are_refused() -> None:
    graph = RepeatedGraph(lambda arrays: arrays, [floats(1, 2)])
    with pytest.raises(ValueError, match="must be 1 arrays, not 2"):
        graph([floats(1, 2)] * 2)
    for other in (floats(1), floats(1, 2)[None], mx.array([1, 2])):
        with pytest.raises(ValueError, match="input 0 has another shape or dtype"):
            graph([other])


def test_who_looks_at_an_input_is_told() -> None:
    for look in (mx.array.item, np.asarray, mx.array.tolist):
        with pytest.raises(RuntimeError, match="without a primitive"):
            RepeatedGraph(lambda arrays, look=look: [mx.array(look(arrays[0]))], [floats(1)])


def test_what_fails_to_be_built_raises_what_it_raised() -> None:
    def build(arrays: Arrays) -> Arrays:
        raise KeyError("no such layer")

    with pytest.raises(KeyError, match="no such layer"):
        RepeatedGraph(build, [floats(1)])
