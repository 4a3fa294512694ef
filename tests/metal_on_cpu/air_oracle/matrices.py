"""AIR's operations on 8x8 matrices, in LLVM IR.

A matrix is `<64 x T>`, and a lane's elements are the first two. C++ has no such values, so that
these functions hand pointers to the two elements to what runtime.cpp defines.
"""

from __future__ import annotations

import re

TYPES = {"f32": "float", "f16": "half", "bf16": "bfloat"}
_DECLARATION = re.compile(
    r"^declare [^\n]*@(air\.simdgroup_matrix_8x8_(\w+)\.([\w.]+))\([^\n]*$", re.MULTILINE
)


def define_matrix_operations(text: str) -> str:
    """`text` with definitions in place of declarations."""
    functions: list[str] = []

    def define(match: re.Match[str]) -> str:
        name, operation = match[1], match[2]
        types = re.findall(r"b?f\d+$", match[3].replace(".", "\n"), re.MULTILINE)
        definition, function = _OPERATIONS[operation](name, types)
        functions.append(function)
        return definition

    text = _DECLARATION.sub(define, text)
    return text + "\n" + "\n".join(sorted(set(functions))) + "\n"


def _multiply_accumulate(name: str, types: list[str]) -> tuple[str, str]:
    result, a, b, c = types
    function = f"air_multiply_accumulate_{'_'.join(types)}"
    body = [
        *_spill("a", a, "%a"),
        *_spill("b", b, "%b"),
        *_spill("c", c, "%c"),
        f"  %d = alloca <2 x {TYPES[result]}>",
        f"  call void @{function}(ptr %d, ptr %a.lane, ptr %b.lane, ptr %c.lane)",
        *_widen("d", result),
    ]
    parameters = ", ".join(f"{_matrix(t)} %{n}" for t, n in ((a, "a"), (b, "b"), (c, "c")))
    return (
        _function(_matrix(result), name, parameters, body),
        f"declare void @{function}(ptr, ptr, ptr, ptr) convergent",
    )


def _init_filled(name: str, types: list[str]) -> tuple[str, str]:
    element = TYPES[types[0]]
    body = [
        f"  %v0 = insertelement {_matrix(types[0])} poison, {element} %value, i32 0",
        f"  %v1 = insertelement {_matrix(types[0])} %v0, {element} %value, i32 1",
        f"  ret {_matrix(types[0])} %v1",
    ]
    return _function(_matrix(types[0]), name, f"{element} %value", body), ""


def _load(name: str, types: list[str]) -> tuple[str, str]:
    function = f"air_matrix_load_{types[0]}"
    space = _space(name)
    body = [
        f"  %d = alloca <2 x {TYPES[types[0]]}>",
        *_place(space),
        f"  call void @{function}(ptr %d, ptr %p, i64 %stride, i64 %x, i64 %y, i1 zeroext %t)",
        *_widen("d", types[0]),
    ]
    parameters = f"ptr addrspace({space}) %memory, i64 %stride, <2 x i64> %origin, i1 %t"
    return (
        _function(_matrix(types[0]), name, parameters, body),
        f"declare void @{function}(ptr, ptr, i64, i64, i64, i1 zeroext) convergent",
    )


def _store(name: str, types: list[str]) -> tuple[str, str]:
    function = f"air_matrix_store_{types[0]}"
    space = _space(name)
    body = [
        *_spill("m", types[0], "%m"),
        *_place(space),
        f"  call void @{function}(ptr %m.lane, ptr %p, i64 %stride, i64 %x, i64 %y, i1 zeroext %t)",
        "  ret void",
    ]
    parameters = f"{_matrix(types[0])} %m, ptr addrspace({space}) %memory, "
    parameters += "i64 %stride, <2 x i64> %origin, i1 %t"
    return (
        _function("void", name, parameters, body),
        f"declare void @{function}(ptr, ptr, i64, i64, i64, i1 zeroext) convergent",
    )


_OPERATIONS = {
    "multiply_accumulate": _multiply_accumulate,
    "init_filled": _init_filled,
    "load": _load,
    "store": _store,
}


def _matrix(element: str) -> str:
    return f"<64 x {TYPES[element]}>"


def _space(name: str) -> str:
    match = re.search(r"\.p(\d)b?f\d+", name)
    assert match is not None
    return match[1]


def _place(space: str) -> list[str]:
    return [
        f"  %p = addrspacecast ptr addrspace({space}) %memory to ptr",
        "  %x = extractelement <2 x i64> %origin, i32 0",
        "  %y = extractelement <2 x i64> %origin, i32 1",
    ]


def _spill(name: str, element: str, value: str) -> list[str]:
    """A lane's two elements in memory, at %name.lane."""
    pair = f"<2 x {TYPES[element]}>"
    matrix = _matrix(element)
    first = "<2 x i32> <i32 0, i32 1>"
    return [
        f"  %{name}.two = shufflevector {matrix} {value}, {matrix} poison, {first}",
        f"  %{name}.lane = alloca {pair}",
        f"  store {pair} %{name}.two, ptr %{name}.lane",
    ]


def _widen(name: str, element: str) -> list[str]:
    """Returns the matrix whose elements of this lane lie at %name."""
    pair = f"<2 x {TYPES[element]}>"
    indices = ", ".join(["i32 0", "i32 1"] + ["i32 poison"] * 62)
    return [
        f"  %{name}.two = load {pair}, ptr %{name}",
        f"  %{name}.all = shufflevector {pair} %{name}.two, {pair} poison, <64 x i32> <{indices}>",
        f"  ret {_matrix(element)} %{name}.all",
    ]


def _function(result: str, name: str, parameters: str, body: list[str]) -> str:
    head = f"define internal {result} @{name}({parameters}) alwaysinline convergent {{"
    return "\n".join([head, *body, "}"])
