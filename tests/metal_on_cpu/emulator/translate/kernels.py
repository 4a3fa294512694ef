"""Kernels of a source: their parameters, and the host names under which they are instantiated."""

import re
from dataclasses import dataclass

from . import tokens

MAX_BUFFERS = 31

# The order is that of metal_emulator_parameter_kind.
BUFFER = 0
THREADGROUP_MEMORY = 1
KINDS = {
    "buffer": BUFFER,
    "threadgroup": THREADGROUP_MEMORY,
    "threadgroup_position_in_grid": 2,
    "threadgroups_per_grid": 3,
    "thread_position_in_threadgroup": 4,
    "thread_position_in_grid": 5,
    "threads_per_threadgroup": 6,
    "dispatch_threads_per_threadgroup": 6,
    "threads_per_grid": 7,
    "thread_index_in_threadgroup": 8,
    "thread_index_in_simdgroup": 9,
    "simdgroup_index_in_threadgroup": 10,
    "simdgroups_per_threadgroup": 11,
    "dispatch_simdgroups_per_threadgroup": 11,
    "threads_per_simdgroup": 12,
    "thread_execution_width": 12,
    "quadgroup_index_in_threadgroup": 13,
    "thread_index_in_quadgroup": 14,
}

_ATTRIBUTE = re.compile(r"\[\[(.*?)\]\]", re.DOTALL)
_ATTRIBUTE_ITEM = re.compile(r"\s*(\w+)\s*(?:\((.*)\))?\s*$", re.DOTALL)
_KERNEL = re.compile(
    r"(?:\[\[\s*kernel\s*(?:,[^\]]*)?\]\]|\bkernel\b)\s*(?:\[\[[^\]]*\]\]\s*)*void\s+(\w+)\s*\("
)
_INSTANTIATION = re.compile(r"\btemplate\s*\[\[\s*host_name\s*\(")


@dataclass(frozen=True)
class Parameter:
    kind: int
    index: int
    writable: bool = False
    reference: bool = False
    # The name in [[function_constant(name)]]: bound only where it holds.
    condition: str | None = None


@dataclass(frozen=True)
class Kernel:
    name: str
    parameters: tuple[Parameter, ...]
    is_template: bool


@dataclass(frozen=True)
class Instantiation:
    host_name: str
    kernel: str  # unqualified name
    expression: str  # what C++ calls it: name<arguments>


def find_kernels(source: str) -> dict[str, Kernel]:
    """Kernels by name."""
    kernels = {}
    for match in _KERNEL.finditer(source):
        end = tokens.past_match(source, match.end() - 1, "(", ")")
        name = match[1]
        before = source[: match.start()].rstrip()
        parameters = _parse_parameters(source, match.end(), end - 1)
        kernels[name] = Kernel(name, parameters, is_template=before.endswith(">"))
    return kernels


def take_instantiations(source: str, kernels: dict[str, Kernel]) -> tuple[str, list[Instantiation]]:
    """`source` without its explicit instantiations, and those, plain kernels included."""
    found: list[Instantiation] = []
    kept = []
    position = 0
    while match := _INSTANTIATION.search(source, position):
        kept.append(source[position : match.start()])
        name_end = tokens.past_match(source, match.end() - 1, "(", ")")
        host_name = "".join(re.findall(r'"([^"]*)"', source[match.end() : name_end]))
        end = source.index(";", name_end)
        body = source[source.index("]]", name_end) + 2 : end]
        body = _ATTRIBUTE.sub("", body).strip()
        body = re.sub(r"^(?:kernel\s+)?void\s+|^kernel\s+", "", body)
        if body.startswith("decltype"):
            body = body[tokens.past_match(body, body.index("("), "(", ")") :].strip()
        name = re.match(r"[\w:]+", body)
        if name is None:
            raise tokens.error(source, match.start(), "an instantiation without a name")
        rest = body[name.end() :].lstrip()
        arguments = rest[: tokens.past_match(rest, 0, "<", ">")] if rest[:1] == "<" else ""
        kernel = name[0].split("::")[-1]
        if kernel not in kernels:
            raise tokens.error(source, match.start(), f"no kernel {kernel!r} to instantiate")
        found.append(Instantiation(host_name, kernel, name[0] + arguments))
        kept.append(tokens.blank(source[match.start() : end + 1]))
        position = end + 1
    kept.append(source[position:])
    plain = [
        Instantiation(kernel.name, kernel.name, kernel.name)
        for kernel in kernels.values()
        if not kernel.is_template
    ]
    return "".join(kept), found + plain


def _parse_parameters(source: str, begin: int, end: int) -> tuple[Parameter, ...]:
    parsed = [_parse_parameter(text) for text in tokens.split_commas(source[begin:end])]
    used = {p.index for p in parsed if p.kind == BUFFER}
    parameters = []
    for parameter in parsed:
        if parameter.index < 0:
            # Without an attribute it takes the lowest free index.
            index = next(i for i in range(MAX_BUFFERS) if i not in used)
            used.add(index)
            parameter = Parameter(
                BUFFER, index, parameter.writable, parameter.reference, parameter.condition
            )
        if parameter.kind in (BUFFER, THREADGROUP_MEMORY) and parameter.index >= MAX_BUFFERS:
            raise tokens.error(source, begin, f"buffer index {parameter.index} is above 30")
        parameters.append(parameter)
    indices = [p.index for p in parameters if p.kind == BUFFER]
    if len(set(indices)) != len(indices):
        raise tokens.error(source, begin, "two parameters share a buffer index")
    return tuple(parameters)


def _parse_parameter(text: str) -> Parameter:
    kind, index, condition = BUFFER, -1, None
    for attribute in _ATTRIBUTE.findall(text):
        for item in tokens.split_commas(attribute):
            match = _ATTRIBUTE_ITEM.match(item)
            if match is None:
                continue
            if match[1] == "function_constant":
                condition = match[2].strip()
            elif match[1] in KINDS:
                kind = KINDS[match[1]]
                index = int(match[2] or 0)
    declaration = _ATTRIBUTE.sub("", text)
    return Parameter(
        kind,
        index,
        writable=kind == BUFFER and re.search(r"\b(?:const|constant)\b", declaration) is None,
        reference="&" in declaration,
        condition=condition,
    )
