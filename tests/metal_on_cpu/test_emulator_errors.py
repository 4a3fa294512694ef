"""Each kind of mistake that a kernel can make, and what the emulator says to it."""

import re

import numpy as np
import pytest

from tests.metal_on_cpu.emulator import CompileError, KernelError, compile_source, typecheck
from tests.metal_on_cpu.emulator.kernels_for_tests import HEADER, run


def zeros(n: int = 32) -> np.ndarray:
    return np.zeros(n, np.float32)


def ones(n: int = 32) -> np.ndarray:
    return np.ones(n, np.float32)


REFUSED = {
    "device pointer for a threadgroup parameter": (
        "void f(threadgroup float* p) { p[0] = 1; } kernel void k(device float* o) { f(o); }",
        "no matching function",
    ),
    "threadgroup pointer for a device parameter": (
        "float f(const device float* p) { return p[0]; }"
        "kernel void k(device float* o, threadgroup float* s [[threadgroup(0)]]) { o[0] = f(s); }",
        "no matching function",
    ),
    "constant pointer for a device parameter": (
        "float f(const device float* p) { return p[0]; }"
        "kernel void k(device float* o, constant float* c) { o[0] = f(c); }",
        "no matching function",
    ),
    "device value for a thread reference": (
        "void f(thread float& x) { x = 1; } kernel void k(device float* o) { f(o[0]); }",
        "no matching function",
    ),
    "write to constant memory": (
        "kernel void k(constant float* c) { c[0] = 1; }",
        "read-only variable",
    ),
    "write to a const buffer": (
        "kernel void k(const device float* a) { a[0] = 1; }",
        "read-only variable",
    ),
    "float to bfloat": (
        "kernel void k(device bfloat* o) { float x = 1; o[0] = x; }",
        "to 'bfloat'",
    ),
    "float to bfloat in a template": (
        "template <typename T> void f(device T* o, float x) { o[0] = x; }"
        "kernel void k(device bfloat* o) { f(o, 1.5f); }",
        "'float' to '__bf16'",
    ),
    "half vector to float vector": (
        "kernel void k(device float4* o, const device half4* a) { o[0] = a[0]; }",
        "no viable",
    ),
    "half vector times float": (
        "kernel void k(device half4* o) { o[0] = o[0] * 2.0f; }",
        "invalid operands",
    ),
    "max of int and uint": (
        "kernel void k(device int* o, uint t [[thread_position_in_grid]]) { o[t] = max(o[0], t); }",
        "ambiguous",
    ),
    "double": (
        "kernel void k(device float* o) { double d = o[0]; o[0] = d; }",
        "no double",
    ),
    "threadgroup variable outside of a kernel": (
        "void f(device float* o) {\n threadgroup float a[4]; a[0] = 1; o[0] = a[0]; }"
        "kernel void k(device float* o) { f(o); }",
        "k.metal:4: error: a threadgroup variable",
    ),
    "pointer without an address space": (
        "kernel void k(device float* o) { float x = 1; float* p = &x; o[0] = *p; }",
        "a pointer must name an address space",
    ),
    "parameter pointer without an address space": (
        "template <typename T> void f(const T* p) {} kernel void k(device float* o) { f(o); }",
        "a pointer must name an address space",
    ),
    "reference without an address space": (
        "void f(int& x) { x = 1; } kernel void k(device int* o) { int x; f(x); o[0] = x; }",
        "a reference must name an address space",
    ),
    "program scope variable outside of constant memory": (
        "namespace n { constexpr int size = 4; } kernel void k(device int* o) { o[0] = n::size; }",
        "at program scope",
    ),
    "two parameters for one buffer": (
        "kernel void k(device int* o [[buffer(0)]], device int* p [[buffer(0)]]) { o[0] = p[0]; }",
        "share a buffer index",
    ),
    "unknown name": ("kernel void k(device int* o) { o[0] = nothing; }", "undeclared"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_no_metal_does_not_compile(case):
    source, message = REFUSED[case]
    with pytest.raises(CompileError, match=re.escape(message)) as raised:
        typecheck(HEADER + source, name="k.metal")
    assert re.search(r"k\.metal:\d+", str(raised.value))


_LANE = "uint t [[thread_index_in_threadgroup]], uint l [[thread_index_in_simdgroup]]"
_COPY = "kernel void k(device float* o, const device float* a, uint t [[thread_position_in_grid]])"

# name: kernel, buffers, options, what the error says
STOPPED = {
    "simd operation in a divergent branch": (
        f"kernel void k(device float* o, {_LANE}) {{ float s = 0; if (l < 16) s = simd_sum(1.0f);\n"
        "o[l] = s; }",
        {0: zeros()},
        {},
        r"thread 16 .*returned while 16 lane\(s\).*simd_sum at k\.metal:3",
    ),
    "different simd operations in two branches": (
        f"kernel void k(device float* o, {_LANE}) {{ float s; if (l < 16) s = simd_sum(1.0f);\n"
        "else s = simd_max(1.0f);\n o[l] = s; }",
        {0: zeros()},
        {},
        r"simd_max at k\.metal:4 while 16 lane\(s\) wait in simd_sum at k\.metal:3",
    ),
    "one simd operation reached from two calls": (
        f"kernel void k(device float* o, {_LANE}) {{ if (l < 16) o[l] = simd_sum(1.0f);\n"
        "else o[l] = simd_sum(1.0f); }",
        {0: zeros()},
        {},
        r"simd_sum at k\.metal:4 while 16 lane\(s\) wait in simd_sum at k\.metal:3",
    ),
    "barrier in a divergent branch": (
        f"kernel void k(device float* o, {_LANE}) {{\n"
        "if (t < 40) threadgroup_barrier(mem_flags::mem_threadgroup); o[t] = 1; }",
        {0: zeros(64)},
        {"threads": 64},
        r"threadgroup_barrier at k\.metal:4 reached by 40 threads while 24 have returned",
    ),
    "simdgroups at different barriers": (
        f"kernel void k(device float* o, {_LANE}) {{\n"
        "if (t < 32) threadgroup_barrier(mem_flags::mem_threadgroup);\n"
        "else threadgroup_barrier(mem_flags::mem_threadgroup);\n o[t] = 1; }",
        {0: zeros(64)},
        {"threads": 64},
        r"barrier at k\.metal:5 while thread 0 waits at the one in k\.metal:4",
    ),
    "return before a barrier": (
        f"kernel void k(device float* o, {_LANE}) {{ if (t >= 60) return;\n"
        "threadgroup_barrier(mem_flags::mem_threadgroup); o[t] = 1; }",
        {0: zeros(64)},
        {"threads": 64},
        r"threadgroup_barrier at k\.metal:4 reached by 60 threads while 4 have returned",
    ),
    "simd operation while lanes wait at a barrier": (
        f"kernel void k(device float* o, {_LANE}) {{\n"
        "if (l < 4) threadgroup_barrier(mem_flags::mem_none); else o[l] = simd_sum(1.0f); }",
        {0: zeros()},
        {},
        r"simd_sum at k\.metal:4 while 4 lane\(s\) of the simdgroup are at a threadgroup_barrier",
    ),
    "read past a buffer's end": (
        _COPY + " { o[t] = a[t + 1]; }",
        {0: zeros(), 1: ones()},
        {},
        r"thread 31 .*illegal read: buffer\(1\) of 128 bytes at byte offset 128 at k\.metal:3",
    ),
    "read before a buffer's start": (
        _COPY + " { o[t] = a[int(t) - 1]; }",
        {0: zeros(), 1: ones()},
        {"guard_at_start": True},
        r"thread 0 .*illegal read: buffer\(1\) of 128 bytes at byte offset -4 at k\.metal:3",
    ),
    "write past the end of a buffer of odd size": (
        _COPY + " { o[t + 1] = a[t]; }",
        {0: zeros(31), 1: ones()},
        {},
        r"illegal write: buffer\(0\) of 124 bytes at byte offset 12[48]",
    ),
    "read past the end of a buffer of odd size, traced": (
        _COPY + " { o[t] = a[t]; }",
        {0: zeros(), 1: ones(31)},
        {"track": [1]},
        r"thread 31 .*illegal read: buffer\(1\) of 124 bytes at byte offset 124 at k\.metal:3",
    ),
    "write before a buffer's start, traced": (
        _COPY + " { o[int(t) - 1] = a[t]; }",
        {0: zeros(), 1: ones()},
        {"track": [1]},
        r"thread 0 .*illegal write: buffer\(0\) of 128 bytes at byte offset -4 at k\.metal",
    ),
    "read 700 MB past a buffer's end": (
        _COPY + " { o[t] = a[175000000u]; }",
        {0: zeros(), 1: ones()},
        {},
        r"buffer\(1\) of 128 bytes at byte offset 700000000",
    ),
    "write through a cast to a const buffer": (
        _COPY + " { ((device float*)a)[t] = o[t]; }",
        {0: zeros(), 1: ones()},
        {},
        r"illegal write: buffer\(1\) of 128 bytes at byte offset 0",
    ),
    "threadgroup array, one too far": (
        f"kernel void k(device float* o, {_LANE}) {{ threadgroup float a[32];\n a[t + 1] = t;\n"
        "threadgroup_barrier(mem_flags::mem_threadgroup); o[t] = a[t]; }",
        {0: zeros()},
        {},
        r"undefined behaviour: Array index out of bounds at k\.metal:4",
    ),
    "threadgroup memory through a pointer, one too far": (
        "float f(threadgroup float* p, uint i) { return p[i]; }\n"
        f"kernel void k(device float* o, {_LANE}) {{ threadgroup float a[32]; a[t] = t;\n"
        "threadgroup_barrier(mem_flags::mem_threadgroup); o[t] = f(a, t + 1); }",
        {0: zeros()},
        {},
        r"illegal read: a threadgroup variable of 128 bytes at byte offset 128",
    ),
    "threadgroup argument, one too far": (
        f"kernel void k(device float* o, threadgroup float* a [[threadgroup(0)]], {_LANE}) {{\n"
        "a[t + 1] = t; o[t] = 0; }",
        {0: zeros()},
        {"threadgroup_memory": {0: 128}},
        r"illegal write: a threadgroup variable of 128 bytes at byte offset 128 at k\.metal:4",
    ),
    "thread array, one too far": (
        f"kernel void k(device float* o, {_LANE}) {{ float a[4] = {{1, 2, 3, 4}};\n"
        "a[t % 5] = t; o[t] = a[t % 3]; }",
        {0: zeros()},
        {},
        r"thread 4 .*Array index out of bounds at k\.metal:4",
    ),
    "misaligned vector load": (
        _COPY + " { o[t] = ((const device float4*)(a + t))->x; }",
        {0: zeros(), 1: zeros(64)},
        {},
        r"thread 1 .*undefined behaviour: .*[aA]lign",
    ),
    "int32 overflow": (
        "kernel void k(device float* o, const device int* n, uint t [[thread_position_in_grid]]) {"
        "\n int i = n[0] * n[1]; o[t] = i; }",
        {0: zeros(), 1: np.array([70000, 70000], np.int32)},
        {},
        r"undefined behaviour: Integer multiplication overflowed at k\.metal:4",
    ),
    "more than 32 KiB of threadgroup memory": (
        f"kernel void k(device float* o, {_LANE}) {{ threadgroup float a[8193]; a[t] = t;"
        "o[t] = a[t]; }",
        {0: zeros()},
        {},
        r"threadgroup memory: 32784 bytes, more than 32768",
    ),
    "threadgroup argument of an odd size": (
        f"kernel void k(device float* o, threadgroup float* a [[threadgroup(0)]], {_LANE}) {{"
        "a[t] = t; o[t] = 0; }",
        {0: zeros()},
        {"threadgroup_memory": {0: 132}},
        r"threadgroup\(0\) has 132 bytes, not a multiple of 16",
    ),
    "shuffle from a lane that is not there": (
        f"kernel void k(device float* o, {_LANE}) {{\n"
        "o[t] = simd_shuffle(float(t), ushort(t + 9)); }",
        {0: zeros()},
        {},
        r"thread 23 .*value of lane 32 read at k\.metal:4",
    ),
    "shuffle from a lane beyond a partial simdgroup": (
        f"kernel void k(device float* o, {_LANE}) {{\n o[t] = simd_shuffle(float(t), 20); }}",
        {0: zeros()},
        {"threads": 16},
        r"value of lane 20 read at k\.metal:4",
    ),
    "unbound buffer": (_COPY + " { o[t] = a[t]; }", {0: zeros()}, {}, r"buffer\(1\) is not bound"),
    "buffer that the kernel does not have": (
        "kernel void k(device float* o) { o[0] = 1; }",
        {0: zeros(), 3: zeros()},
        {},
        r"buffer\(3\) is bound but the kernel has no such parameter",
    ),
    "function constant that was not set": (
        "constant bool on [[function_constant(0)]]; constant bool off [[function_constant(1)]];\n"
        f"kernel void k(device float* o, {_LANE}) {{\n o[t] = on ? 1 : 2; if (off) o[t] = 3; }}",
        {0: zeros()},
        {"function_constants": {1: False}},
        r"undefined behaviour: .*k\.metal:5",
    ),
    "function constant that is not there": (
        "kernel void k(device float* o) { o[0] = 1; }",
        {0: zeros()},
        {"function_constants": {4: 1}},
        r"no function_constant\(4\)",
    ),
    "threadgroup of too many threads": (
        "kernel void k(device float* o) { o[0] = 1; }",
        {0: zeros()},
        {"threads": 1025},
        r"a threadgroup of 1025 threads, more than 1024",
    ),
}


@pytest.mark.parametrize("case", STOPPED)
def test_what_a_gpu_leaves_undefined_stops_the_kernel(case):
    kernel, buffers, options, message = STOPPED[case]
    with pytest.raises(KernelError, match=message):
        run(kernel, buffers, **options)


@pytest.mark.parametrize("case", ["read past a buffer's end", "int32 overflow"])
def test_a_library_runs_again_after_an_error(case):
    kernel, buffers, _, message = STOPPED[case]
    library = compile_source(HEADER + kernel, name="k.metal")
    for _ in range(2):
        with pytest.raises(KernelError, match=message):
            library.dispatch("k", grid=(1, 1, 1), threadgroup=(32, 1, 1), buffers=buffers)
    wider = {0: zeros(128), 1: np.ones(256, buffers[1].dtype)}
    library.dispatch("k", grid=(4, 1, 1), threadgroup=(32, 1, 1), buffers=wider)


def test_one_buffer_in_two_slots_is_refused_where_one_is_written():
    shared = zeros(64)
    with pytest.raises(KernelError, match=r"buffer\(0\), which may be written, shares memory"):
        run(_COPY + " { o[t] = a[t]; }", {0: shared, 1: (shared, 128)})
    both_read = "kernel void k(device float* o, const device float* a, const device float* b) {"
    result = run(both_read + " o[0] = a[0] + b[0]; }", {0: zeros(), 1: shared, 2: (shared, 128)})
    assert result.buffers[0][0] == 0


def test_fresh_threadgroup_memory_and_variables_are_nan():
    kernel = (
        f"kernel void k(device float* o, {_LANE}) {{ threadgroup float a[64]; a[t] = t;"
        "float own[2]; if (t < 8) own[t % 2] = 0; "
        "threadgroup_barrier(mem_flags::mem_threadgroup); o[t] = t < 16 ? own[0] : a[t + 16]; }"
    )
    out = run(kernel, {0: zeros()}, threadgroups=2).buffers[0]
    assert np.isnan(out[9:]).all()
    assert (out[:8:2] == 0).all()


def test_a_dispatch_counts_what_it_used():
    kernel = f"""
    kernel void k(device float* o, const device float* a, {_LANE},
        uint g [[threadgroup_position_in_grid]]) {{
      threadgroup float s[64];
      s[t] = a[t % 8] + a[t % 8];
      for (int i = 0; i < 3; i++) threadgroup_barrier(mem_flags::mem_threadgroup);
      simdgroup_barrier(mem_flags::mem_threadgroup);
      o[g * 64 + t] = s[63 - t];
    }}
    """
    result = run(kernel, {0: zeros(320), 1: ones(64)}, threadgroups=5, threads=64, track=[1])
    assert result.barriers == 15
    assert result.simdgroup_barriers == 10
    assert result.threadgroup_bytes == 256
    assert result.loaded == {1: 5 * 8 * 4}


def test_function_constants_of_every_type():
    kernel = """
    constant bool flag [[function_constant(0)]];
    constant int number [[function_constant(1)]];
    constant float scale [[function_constant(2)]];
    constant uint absent [[function_constant(3)]];
    constant bool has_absent = is_function_constant_defined(absent);
    kernel void k(device float* o, device float* extra [[function_constant(flag)]]) {
      o[0] = (flag ? 100 : 0) + number + scale;
      o[1] = has_absent ? absent : -1.0f;
      if (flag) extra[0] = 5;
    }
    """
    out = run(kernel, {0: zeros()}, function_constants={0: False, 1: -7, 2: 0.5}, threads=1)
    assert out.buffers[0][:2].tolist() == [-6.5, -1]
    constants = {0: True, 1: -7, 2: 0.5, 3: 9}
    out = run(kernel, {0: zeros(), 1: zeros()}, function_constants=constants, threads=1)
    assert out.buffers[0][:2].tolist() == [93.5, 9]
    assert out.buffers[1][0] == 5
    with pytest.raises(KernelError, match=r"buffer\(1\) is not bound"):
        run(kernel, {0: zeros()}, function_constants=constants, threads=1)
