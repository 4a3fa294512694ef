"""Rewrites what Metal and C++ for OpenCL say differently about address spaces."""

import re
from dataclasses import dataclass

from . import tokens

_ATTRIBUTE = re.compile(r"\[\[.*?\]\]", re.DOTALL)
_FUNCTION_CONSTANT = re.compile(
    r"(?:\bstatic\s+)?\bconstant\s+(?:(?:constexpr|const)\s+)*(\w+)\s+(\w+)\s*"
    r"\[\[\s*function_constant\s*\(\s*(\d+)\s*\)\s*\]\]\s*;"
)
_DERIVED_CONSTANT = re.compile(
    r"(?:\bstatic\s+)?\bconstant\s+(?:const\s+)?(\w+)\s+(\w+)\s*=\s*([^;{}]*);"
)
_THREADGROUP_VARIABLE = re.compile(
    r"(?<=[;{}\n])(\s*)(?:alignas\s*\(\s*\d+\s*\)\s*)?\bthreadgroup\s+"
    r"((?:typename\s+)?[\w:]+(?:\s*<[^;{}()]*?>)?)\s+"
    r"(\w+\s*(?:\[[^\];]*\]\s*)*(?:,\s*\w+\s*(?:\[[^\];]*\]\s*)*)*)"
    r"(?:=\s*\{[^;]*\}\s*)?;"
)
_QUALIFIED_MEMBER = re.compile(
    r"(\)\s*(?:const\s+|noexcept\s+)*)(thread|constant)\b(?=\s*(?:[{:;=]|noexcept|const))"
)
# A const thread reference may bind a temporary, which has no address space in OpenCL.
_CONST_THREAD_REFERENCE = re.compile(
    r"\b(?:const\s+thread|thread\s+const)\b(?=[\w\s:<>,]*?&\s*\w*\s*[,)])"
)
_STRUCTURE = re.compile(
    r"\b(?:struct|class)\s+(?:alignas\s*\([^)]*\)\s*)?(\w+)\s*(?:<[^{}]*>\s*)?(?::[^{}()]*)?$"
)
_SUFFIXED_LITERAL = re.compile(r"(?<![\w.])((?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)(h|bf)\b")


@dataclass(frozen=True)
class FunctionConstant:
    index: int
    name: str
    type: str

    @property
    def symbol(self) -> str:
        return f"msl_function_constant_{self.index}"


def take_function_constants(source: str) -> tuple[str, list[FunctionConstant]]:
    """Declares function constants as variables that the registry defines."""
    constants: list[FunctionConstant] = []

    def declare(match: re.Match[str]) -> str:
        constant = FunctionConstant(int(match[3]), match[2], match[1])
        constants.append(constant)
        symbol = constant.symbol
        return (
            f'extern constant {match[1]} {match[2]} __asm__("{symbol}"); '
            f"extern constant unsigned char {match[2]}_msl_defined "
            f'__asm__("{symbol}_defined");' + tokens.blank(match[0])
        )

    source = _FUNCTION_CONSTANT.sub(declare, source)
    source = _expand_derived_constants(source, {constant.name for constant in constants})
    source = re.sub(
        r"\bis_function_constant_defined\s*\(\s*(\w+)\s*\)", r"(\1_msl_defined != 0)", source
    )
    return source, constants


def _expand_derived_constants(source: str, names: set[str]) -> str:
    """Makes constants that are computed from function constants expressions.

    As variables they would get their value once, when the library is loaded.
    """
    position = 0
    while match := _DERIVED_CONSTANT.search(source, position):
        position = match.start() + 1
        if not names & set(re.findall(r"\w+", match[3])):
            continue
        names = names | {match[2]}
        expression = " ".join(match[3].split())
        _, line = tokens.location(source, match.end())
        macro = f"\n#define {match[2]} (({match[1]})({expression}))\n#line {line}\n"
        source = source[: match.start()] + macro + source[match.end() :]
    return source


def place_threadgroup_variables(source: str) -> str:
    """Makes each threadgroup variable a reference into the runtime's threadgroup memory.

    Raises:
        CompileError: a function that is no kernel declares one.
    """
    bodies = [
        (begin, end)
        for begin, end, head in tokens.scopes(source)
        if re.search(r"\bkernel\b", head) and "(" in head
    ]
    count = 0

    def place(match: re.Match[str]) -> str:
        nonlocal count
        if not any(begin < match.start(2) < end for begin, end in bodies):
            raise tokens.error(
                source,
                match.start(2),
                "a threadgroup variable may be declared in a kernel only",
            )
        references = []
        for declarator in tokens.split_commas(match[3]):
            parts = re.match(r"\s*(\w+)\s*(.*)$", declarator, re.DOTALL)
            assert parts is not None
            name, extents = parts[1], parts[2].strip()
            count += 1
            references.append(
                f"threadgroup {match[2]} (&{name}){extents} = "
                f"*::msl_threadgroup_memory<{match[2]}{extents}, {count}>();"
            )
        return match[1] + " ".join(references) + tokens.blank(match[0][len(match[1]) :])

    return _THREADGROUP_VARIABLE.sub(place, source)


def strip_attributes(source: str) -> str:
    source = _ATTRIBUTE.sub(lambda match: tokens.blank(match[0]), source)
    return re.sub(r"\bkernel\s+void\b", "void", source)


def qualify_members(source: str) -> str:
    """`constant` members keep their qualifier; `thread` ones lose it where OpenCL refuses it.

    A constructor's or conversion's object may be a temporary, which is generic there.
    """
    classes = set(re.findall(r"\b(?:struct|class)\s+(?:alignas\s*\([^)]*\)\s*)?(\w+)", source))
    kept = []
    position = 0
    for match in _QUALIFIED_MEMBER.finditer(source):
        kept.append(source[position : match.start()])
        position = match.end()
        if match[2] == "constant":
            kept.append(match[1] + "MSL_CONSTANT")
        elif _makes_temporaries(source[: _parameters_begin(source, match.start())], classes):
            kept.append(match[1])
        else:
            kept.append(match[0])
    return "".join(kept) + source[position:]


def _parameters_begin(source: str, closing: int) -> int:
    depth = 0
    i = closing
    while True:
        depth += (source[i] == ")") - (source[i] == "(")
        if depth == 0:
            return i
        i -= 1


def _makes_temporaries(head: str, classes: set[str]) -> bool:
    head = head[-160:].rstrip()
    if re.search(r"\boperator\s+[\w:<>, ]+$", head):
        return True
    name = re.search(r"(\w+)$", head)
    return (
        name is not None
        and name[1] in classes
        and re.search(r"(^|[;{}>:)]|\b(constexpr|explicit|inline))\s*$", head[: name.start()])
        is not None
    )


def copy_from_constant(source: str) -> str:
    """Lets structures without constructors of their own be copied out of the constant space.

    Metal's implicit copies do that. The constructors added here are defaulted, so the structure
    stays an aggregate.
    """
    insertions = []
    for begin, end, head in tokens.scopes(source):
        name = _STRUCTURE.search(head)
        if name is None or re.search(rf"(?<![\w:~]){name[1]}\s*\(", source[begin:end]):
            continue
        text = "{0}() = default; {0}(const {0}&) = default; {0}(const MSL_CONSTANT {0}&) = default;"
        if not re.search(r"\boperator\s*=(?!=)", source[begin:end]):
            text += " {0}& operator=(const {0}&) = default;"
            text += " {0}& operator=(const MSL_CONSTANT {0}&) = default;"
        access = "public: " if "class" in name[0] else ""
        insertions.append((begin + 1, access + text.format(name[1])))
    for offset, text in sorted(insertions, reverse=True):
        source = source[:offset] + text + source[offset:]
    return source


def relax_const_references(source: str) -> str:
    return _CONST_THREAD_REFERENCE.sub("const", source)


def cast_literals(source: str) -> str:
    """1.0h and 1.0bf."""
    types = {"h": "half", "bf": "bfloat"}
    return _SUFFIXED_LITERAL.sub(lambda m: f"(({types[m[2]]}){m[1]})", source)
