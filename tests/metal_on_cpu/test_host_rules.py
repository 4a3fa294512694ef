"""The stand-in for MLX's Metal device: what it runs, and what it refuses."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from tests.metal_on_cpu import host

SCATTER = """
#include <metal_stdlib>
using namespace metal;

constant bool adds [[function_constant(0)]];

// table[rows[i]] = values[i], or += with `adds`; one thread an element, one row of the grid a row.
[[kernel]] void scatter_rows(
    device float* table [[buffer(0)]],
    const device float* values [[buffer(1)]],
    const device int* rows [[buffer(2)]],
    constant int& width [[buffer(3)]],
    uint2 position [[thread_position_in_grid]]) {
  long target = long(rows[position.y]) * width + position.x;
  float value = values[position.y * width + position.x];
  table[target] = adds ? table[target] + value : value;
}

// out[i] = sum of row i of the table, staged through threadgroup memory.
[[kernel]] void sum_rows(
    const device float* table [[buffer(0)]],
    device float* out [[buffer(1)]],
    constant int& width [[buffer(2)]],
    threadgroup float* staged [[threadgroup(0)]],
    uint row [[threadgroup_position_in_grid]],
    uint lane [[thread_index_in_threadgroup]]) {
  staged[lane] = lane < uint(width) ? table[row * width + lane] : 0.0f;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (lane == 0) {
    float sum = 0;
    for (int i = 0; i < width; i++) {
      sum += staged[i];
    }
    out[row] = sum;
  }
}

// Rows of four, copied as a whole.
[[kernel]] void copy_rows(
    const device uint4* from [[buffer(0)]],
    device uint4* to [[buffer(1)]],
    uint row [[thread_position_in_grid]]) {
  to[row] = from[row];
}

[[kernel]] void subtract(
    const device float* a [[buffer(0)]],
    const device float* b [[buffer(1)]],
    device float* out [[buffer(2)]],
    uint i [[thread_position_in_grid]]) {
  out[i] = a[i] - b[i];
}
"""
TABLE = np.arange(24, dtype=np.float32).reshape(6, 4)
VALUES = np.array([[1, 2, 3, 4], [5, 6, 7, 8]], np.float32)
ROWS = np.array([4, 1], np.int32)
WIDTH = ("bytes", np.int32(4).tobytes(), 3)
WRITTEN = TABLE.copy()
WRITTEN[ROWS] = VALUES
IN_PLACE = [((6, 4), mx.float32, 0)]

Command = tuple[Any, ...]


def pipeline(kernel: str = "scatter_rows", key: str | None = None, **changed: Any) -> Command:
    constants = changed.get("constants", {0: False})
    key = key or f"{kernel}_{sorted(constants.items())}"
    return (
        "pipeline",
        changed.get("library", "rows"),
        changed.get("source", SCATTER),
        kernel,
        key,
        constants,
    )


def scatter_commands() -> dict[str, Command]:
    """By what they bind; in order."""
    return {
        "pipeline": pipeline(),
        "table": ("output", 0, 0, 0),
        "values": ("input", 1, 1, 0),
        "rows": ("input", 2, 2, 0),
        "width": WIDTH,
        "dispatch": ("dispatch_threads", (4, 2, 1), (4, 1, 1)),
    }


def run(commands: list[Command], outputs: Any = IN_PLACE, *, inputs: Any = None) -> list[mx.array]:
    module = host.extension()
    module.end_encoding()
    module.take_launches()
    arrays = [mx.array(TABLE), mx.array(VALUES), mx.array(ROWS)] if inputs is None else inputs
    results = module.run_script(arrays, outputs, commands)
    mx.eval(results)
    return results


def scatter(**changed: Command | None) -> np.ndarray:
    commands = scatter_commands() | changed
    (table,) = run([command for command in commands.values() if command is not None])
    return np.array(table)


def refused(match: str) -> Any:
    return pytest.raises(RuntimeError, match=match)


def test_a_kernel_writes_in_place_through_the_lazy_graph() -> None:
    module = host.extension()
    table = mx.array(TABLE)
    mx.eval(table)
    # Inputs that are still to be computed, and a reader of the result in the same graph.
    inputs = [table, mx.array(VALUES) * 2 / 2, mx.array(ROWS)]
    (written,) = module.run_script(inputs, IN_PLACE, list(scatter_commands().values()))
    doubled = written * 2
    mx.eval(doubled, written)
    np.testing.assert_array_equal(np.array(doubled), WRITTEN * 2)
    np.testing.assert_array_equal(np.array(table), WRITTEN)


def test_what_was_dispatched_is_on_record() -> None:
    np.testing.assert_array_equal(scatter(), WRITTEN)
    (launch,) = host.take_launches()
    assert launch.primitive == "ScriptedPrimitive"
    (dispatch,) = launch.dispatches
    assert dispatch.kernel == "scatter_rows"
    assert dispatch.grid == (4, 2, 1)
    assert dispatch.grid_is_threads
    assert dispatch.threadgroup == (4, 1, 1)
    assert dispatch.function_constants == {0: 0}
    assert dispatch.inputs_of_slot == {0: (0,), 1: (1,), 2: (2,)}
    assert dispatch.threadgroup_memory == 0


def test_function_constants_specialise_a_pipeline() -> None:
    added = TABLE.copy()
    added[ROWS] += VALUES
    np.testing.assert_array_equal(scatter(pipeline=pipeline(constants={0: True})), added)
    np.testing.assert_array_equal(scatter(), WRITTEN)


def test_offsets_are_bytes_into_the_array() -> None:
    commands = scatter_commands() | {
        "values": ("input", 1, 1, 16),
        "rows": ("input", 2, 2, 4),
        "dispatch": ("dispatch_threadgroups", (1, 1, 1), (4, 1, 1)),
    }
    (table,) = run(list(commands.values()))
    expected = TABLE.copy()
    expected[1] = VALUES[1]
    np.testing.assert_array_equal(np.array(table), expected)


SUM_OUTPUTS = [((6, 4), mx.float32, 0), ((6,), mx.float32, -1)]


def sum_commands(**changed: Command) -> list[Command]:
    return list(
        (
            {
                "pipeline": pipeline("sum_rows"),
                "table": ("input", 0, 0, 0),
                "out": ("output", 1, 1, 0),
                "width": ("bytes", np.int32(4).tobytes(), 2),
                "memory": ("threadgroup_memory", 128, 0),
                "dispatch": ("dispatch_threadgroups", (6, 1, 1), (32, 1, 1)),
            }
            | changed
        ).values()
    )


def test_a_reader_of_what_was_written_waits_behind_a_barrier() -> None:
    commands = [*scatter_commands().values(), *sum_commands()]
    for reverse in (False, True):
        with host.execution(reverse_unordered=reverse):
            table, sums = run(commands, SUM_OUTPUTS)
        np.testing.assert_array_equal(np.array(sums), WRITTEN.sum(axis=1))
        np.testing.assert_array_equal(np.array(table), WRITTEN)
        (launch,) = host.take_launches()
        assert [dispatch.barrier_before for dispatch in launch.dispatches] == [False, True]
        assert launch.barriers == 1
        assert launch.dispatches[1].threadgroup_memory == 128
        assert launch.dispatches[1].threadgroup_barriers == 6


def test_a_writer_of_what_was_read_waits_behind_a_barrier() -> None:
    run([*sum_commands(), *scatter_commands().values()], SUM_OUTPUTS)
    (launch,) = host.take_launches()
    assert launch.barriers == 1


def test_dispatches_without_a_hazard_have_no_order() -> None:
    """Two writers of one row: whoever runs last wins, and MLX sees a hazard between them."""
    again = scatter_commands() | {"values": ("input", 3, 1, 0)}
    inputs = [mx.array(a) for a in (TABLE, VALUES, ROWS, VALUES + 1)]
    run([*scatter_commands().values(), *again.values()], inputs=inputs)
    assert host.take_launches()[0].barriers == 1
    concurrent = [
        ("concurrent", 1),
        *scatter_commands().values(),
        *again.values(),
        ("concurrent", 0),
    ]
    results = []
    for reverse in (False, True):
        inputs = [mx.array(a) for a in (TABLE, VALUES, ROWS, VALUES + 1)]
        with host.execution(reverse_unordered=reverse):
            (table,) = run(concurrent, inputs=inputs)
        results.append(np.array(table)[ROWS])
    np.testing.assert_array_equal(results[0], VALUES + 1)
    np.testing.assert_array_equal(results[1], VALUES)


def test_hazards_are_seen_from_one_primitive_to_the_next() -> None:
    module = host.extension()
    module.end_encoding()
    module.take_launches()
    table = mx.array(TABLE)
    (written,) = module.run_script(
        [table, mx.array(VALUES), mx.array(ROWS)], IN_PLACE, list(scatter_commands().values())
    )
    commands = sum_commands(out=("output", 0, 1, 0))
    (sums,) = module.run_script([written], [((6,), mx.float32, -1)], commands)
    mx.eval(sums)
    first, second = host.take_launches()
    assert not first.dispatches[0].barrier_before
    assert second.dispatches[0].barrier_before


def test_a_barrier_can_be_asked_for() -> None:
    run([("barrier",), *scatter_commands().values()])
    assert host.take_launches()[0].dispatches[0].barrier_before


@pytest.mark.parametrize("name", ["table", "values", "rows", "width"])
def test_an_argument_that_is_not_bound(name: str) -> None:
    with refused(r"scatter_rows: buffer\(\d\) is not bound"):
        scatter(**{name: None})


def test_bindings_do_not_outlive_a_dispatch() -> None:
    commands = scatter_commands()
    with refused("is not bound"):
        run([*commands.values(), commands["pipeline"], commands["dispatch"]])


def test_one_buffer_in_two_slots_of_which_one_is_written() -> None:
    with refused(r"buffer\(1\) is the memory of buffer\(0\)"):
        scatter(values=("input", 0, 1, 0))


def test_one_buffer_may_be_read_through_two_slots() -> None:
    commands = [
        pipeline("subtract"),
        ("input", 0, 0, 16),
        ("input", 0, 1, 0),
        ("output", 0, 2, 0),
        ("dispatch_threads", (20, 1, 1), (4, 1, 1)),
    ]
    (differences,) = run(commands, [((20,), mx.float32, -1)])
    np.testing.assert_array_equal(np.array(differences), np.full(20, 4.0))


def test_a_slot_that_the_kernel_does_not_have() -> None:
    with refused(r"scatter_rows has no buffer\(7\)"):
        scatter(values=("input", 1, 7, 0))


def test_an_output_that_is_not_declared() -> None:
    with refused(r"buffer\(0\) is written by the kernel, but not declared"):
        scatter(table=("input", 0, 0, 0))
    # Bound as an input and registered as an output is the same to MLX.
    registered = [
        ("register_output", 0),
        *(scatter_commands() | {"table": ("input", 0, 0, 0)}).values(),
    ]
    np.testing.assert_array_equal(np.array(run(registered)[0]), WRITTEN)


def test_a_buffer_bound_by_itself_is_to_be_declared() -> None:
    by_itself = ("buffer", 0, 0, 0)
    with refused(r"buffer\(0\) is bound by itself, and has not been declared"):
        scatter(table=by_itself)
    with refused(r"buffer\(0\) is written by the kernel, but not declared"):
        run([("input", 0, 0, 0), *(scatter_commands() | {"table": by_itself}).values()])
    declared = [("output", 0, 0, 0), *(scatter_commands() | {"table": by_itself}).values()]
    np.testing.assert_array_equal(np.array(run(declared)[0]), WRITTEN)


def test_a_buffer_bound_by_itself_orders_nothing() -> None:
    """What has declared it does, once for all dispatches that follow."""
    by_itself = list((scatter_commands() | {"table": ("buffer", 0, 0, 0)}).values())
    run([*sum_commands(), ("output", 0, 0, 0), *by_itself, *by_itself], SUM_OUTPUTS)
    (launch,) = host.take_launches()
    assert [dispatch.barrier_before for dispatch in launch.dispatches] == [False, True, False]


def test_elements_that_count_towards_the_end_of_a_command_buffer() -> None:
    """Each buffer once, with the whole array, unless it has been bound by itself before."""
    counted = []
    for first in ([], [("buffer", 0, 0, 0)]):
        run([*first, *scatter_commands().values(), *scatter_commands().values()])
        counted.append(host.take_launches()[0].counted_elements)
    small = VALUES.size + ROWS.size
    assert counted == [TABLE.size + small, small]


def test_memory_that_nobody_keeps() -> None:
    commands = sum_commands(out=("scratch", 24, 1))
    with refused(r"buffer\(1\) is neither an input's nor an output's memory"):
        run(commands, SUM_OUTPUTS)


@pytest.mark.parametrize("length", [0, 17, 130])
def test_threadgroup_memory_that_is_not_a_multiple_of_16(length: int) -> None:
    with refused("not a multiple of 16"):
        run(sum_commands(memory=("threadgroup_memory", length, 0)), SUM_OUTPUTS)


def test_threadgroup_memory_that_no_core_has() -> None:
    run(sum_commands(memory=("threadgroup_memory", 32768, 0)), SUM_OUTPUTS)
    with refused("32784 bytes of threadgroup memory are more than 32768"):
        run(sum_commands(memory=("threadgroup_memory", 32784, 0)), SUM_OUTPUTS)


def test_threadgroup_memory_without_a_length() -> None:
    with refused(r"threadgroup\(0\) has no length"):
        run(sum_commands(memory=("barrier",)), SUM_OUTPUTS)


def test_more_threads_than_the_pipeline_takes() -> None:
    commands = sum_commands(dispatch=("dispatch_threadgroups", (6, 1, 1), (32, 2, 1)))
    with host.gpu(max_threads_per_threadgroup=32), refused("64 threads are more than"):
        run(commands, SUM_OUTPUTS)


def test_a_grid_without_threads() -> None:
    with refused("has no threads"):
        scatter(dispatch=("dispatch_threads", (4, 0, 1), (4, 1, 1)))


def test_bytes_beyond_four_kilobytes() -> None:
    scatter(width=("bytes", WIDTH[1] + bytes(4092), 3))
    with refused("at most 4096 bytes"):
        scatter(width=("bytes", WIDTH[1] + bytes(4093), 3))


def test_a_pipeline_key_without_a_function_constant() -> None:
    scatter(pipeline=pipeline(key="ambiguous", constants={0: False}))
    with refused("does not encode"):
        scatter(pipeline=pipeline(key="ambiguous", constants={0: True}))
    with refused("does not encode"):
        scatter(pipeline=pipeline("sum_rows", key="ambiguous", constants={0: False}))


def test_a_library_name_for_two_texts() -> None:
    with refused("stands for two texts"):
        scatter(pipeline=pipeline(source=SCATTER + "// another\n"))


def test_a_function_constant_of_another_type() -> None:
    with refused(r"function_constant\(0\) is bool, and given as int"):
        scatter(pipeline=pipeline(constants={0: 1}))


def test_a_function_constant_without_a_value() -> None:
    with refused(r"function_constant\(0\), adds, is given no value"):
        scatter(pipeline=pipeline(constants={}))


def test_temporaries() -> None:
    with refused("add_temporary"):
        run([("temporary", 1), *scatter_commands().values()])


def test_a_slot_that_does_not_exist() -> None:
    with refused("buffer index 31"):
        scatter(values=("input", 1, 31, 0))


def test_an_offset_outside_of_the_buffer() -> None:
    with refused(r"offset 4096 of buffer\(1\)"):
        scatter(values=("input", 1, 1, 4096))


def test_arguments_without_a_dispatch() -> None:
    with refused("nothing dispatched"):
        run([*scatter_commands().values(), ("input", 1, 1, 0)])


def test_a_dispatch_without_a_pipeline() -> None:
    with refused("without a pipeline"):
        scatter(pipeline=None)


def test_a_source_that_does_not_compile() -> None:
    with refused("Unable to build metal library"):
        scatter(pipeline=pipeline(library="broken", source="kernel void broken( {"))


def test_a_kernel_that_does_not_exist() -> None:
    with refused("Unable to load function absent"):
        scatter(pipeline=pipeline("absent"))


@pytest.mark.parametrize("guard_at_start", [False, True])
def test_an_access_outside_of_a_buffer(guard_at_start: bool) -> None:
    row = -1 if guard_at_start else 6
    inputs = [mx.array(TABLE), mx.array(VALUES), mx.array([row, 0], mx.int32)]
    with (
        host.execution(guard_at_start=guard_at_start),
        refused(r"scatter_rows: .*buffer\(0\)"),
    ):
        run(list(scatter_commands().values()), inputs=inputs)


def test_distinct_bytes_that_threadgroups_load() -> None:
    """Each counts what it reads once; what two read counts twice."""
    commands = [
        pipeline("subtract"),
        ("input", 0, 0, 0),
        ("input", 1, 1, 0),
        ("output", 0, 2, 0),
        ("dispatch_threads", (8, 1, 1), (4, 1, 1)),
    ]
    with host.execution(track_loads=True):
        run(commands, [((8,), mx.float32, -1)])
        (launch,) = host.take_launches()
        assert launch.dispatches[0].loaded_bytes == {0: 32, 1: 32}
        assert launch.loaded_bytes(frozenset({0})) == 32
        # Every threadgroup reads the width; two rows each read their own four values.
        run(list(scatter_commands().values()))
        (launch,) = host.take_launches()
        assert launch.dispatches[0].loaded_bytes == {0: 0, 1: 32, 2: 8}
        run(sum_commands(table=("input", 0, 0, 0)), SUM_OUTPUTS)
        (launch,) = host.take_launches()
        assert launch.loaded_bytes(frozenset({0})) == TABLE.nbytes
        copied = [
            pipeline("copy_rows"),
            ("input", 0, 0, 0),
            ("output", 0, 1, 0),
            ("dispatch_threads", (6, 1, 1), (2, 1, 1)),
        ]
        run(copied, [((6, 4), mx.float32, -1)])
        (launch,) = host.take_launches()
        assert launch.dispatches[0].loaded_bytes == {0: TABLE.nbytes}
    run(list(scatter_commands().values()))
    assert not any(host.take_launches()[0].dispatches[0].loaded_bytes.values())


def test_the_stand_in_goes_on_after_an_error() -> None:
    with refused("is not bound"):
        scatter(values=None)
    np.testing.assert_array_equal(scatter(), WRITTEN)
