"""What MSL forbids and clang's C++ for OpenCL would take."""

import re
from dataclasses import dataclass

from . import tokens

_ADDRESS_SPACES = {"device", "constant", "thread", "threadgroup", "threadgroup_imageblock"}

_SCALARS = (
    *("bool", "char", "uchar", "short", "ushort", "int", "uint", "long", "ulong"),
    *("half", "float", "bfloat"),
)
_BUILT_IN_TYPES = {
    "void",
    "auto",
    "size_t",
    *(f"{sign}int{bits}_t" for sign in ("", "u") for bits in (8, 16, 32, 64)),
    *_SCALARS,
    *(f"{scalar}{n}" for scalar in _SCALARS for n in (2, 3, 4)),
}
_DECLARED_TYPE = re.compile(
    r"\b(?:struct|class|enum|typename|using)\s+(?:alignas\s*\([^)]*\)\s*)?(\w+)\s*(?=[={,>:;]|final)"
    r"|\btypedef\b[^;]*?(\w+)\s*;"
)
_DEPENDENT_TYPE = re.compile(r"\btypename\s+(\w+)")
_TOKEN = re.compile(r'"(?:[^"\\\n]|\\.)*"|\w+|::|&&|\+\+|--|->|[*/+-]=|#line[^\n]*|\S')


@dataclass(frozen=True)
class _Token:
    text: str
    offset: int


def check(source: str) -> None:
    """Raises CompileError where `source`, preprocessed, is no MSL."""
    words = [
        _Token(match[0], match.start())
        for match in _TOKEN.finditer(source)
        if not match[0].startswith("#line")
    ]
    for word in words:
        if word.text == "double":
            raise tokens.error(source, word.offset, "MSL has no double")
    _pointers_name_an_address_space(source, words)
    _program_scope_is_constant(source, words)


def _pointers_name_an_address_space(source: str, words: list[_Token]) -> None:
    types = _BUILT_IN_TYPES | {name for pair in _DECLARED_TYPE.findall(source) for name in pair}
    types.discard("")
    dependent = set(_DEPENDENT_TYPE.findall(source))
    for i, word in enumerate(words):
        if word.text not in ("*", "&") or i == 0:
            continue
        begin = _type_begin(words, i - 1)
        if begin is None or words[begin].text not in types:
            continue
        if word.text == "&" and words[begin].text in dependent:
            continue  # a reference to a deduced type takes the address space of what it binds
        specifiers = _specifiers(words, begin) | {w.text for w in words[begin:i]}
        if not specifiers & _ADDRESS_SPACES and not _is_operator(words, i):
            kind = "pointer" if word.text == "*" else "reference"
            raise tokens.error(source, word.offset, f"a {kind} must name an address space")


def _type_begin(words: list[_Token], end: int) -> int | None:
    """The index of the type name that ends at `end`, over template arguments and qualifiers."""
    i = end
    while i >= 0 and words[i].text in _ADDRESS_SPACES | {"const", "volatile"}:
        i -= 1
    if i >= 0 and words[i].text == ">":
        depth = 0
        while i >= 0:
            depth += (words[i].text == ">") - (words[i].text == "<")
            if words[i].text in ";{}":
                return None
            if depth == 0:
                break
            i -= 1
        i -= 1
    if i < 0 or not re.match(r"[A-Za-z_]", words[i].text):
        return None
    return i


def _specifiers(words: list[_Token], begin: int) -> set[str]:
    """The words before a type name that belong to its declaration."""
    found = set()
    i = begin - 1
    while i >= 0 and (re.match(r"\w", words[i].text) or words[i].text in ("::", "]")):
        found.add(words[i].text)
        i -= 1
    return found


def _is_operator(words: list[_Token], i: int) -> bool:
    return words[i - 1].text == "operator"


def _program_scope_is_constant(source: str, words: list[_Token]) -> None:
    """constexpr and static data outside of functions lives in the constant address space."""
    functions = _function_bodies(source)
    for i, word in enumerate(words):
        if word.text not in ("constexpr", "static"):
            continue
        if any(begin < word.offset < end for begin, end in functions):
            continue
        declaration = []
        for following in words[i:]:
            if following.text in ("(", "=", ";", "{"):
                break
            declaration.append(following.text)
        else:
            continue
        is_data = following.text in ("=", ";", "{") and "operator" not in declaration
        before = _specifiers(words, i)
        if is_data and not ({"constant"} & (set(declaration) | before)):
            raise tokens.error(
                source, word.offset, "a variable at program scope must be in constant"
            )


def _function_bodies(source: str) -> list[tuple[int, int]]:
    bodies = []
    for begin, end, head in tokens.scopes(source):
        if not re.search(r"\b(?:struct|class|namespace|enum|union)\b[^()]*$", head):
            bodies.append((begin, end))
    return bodies
