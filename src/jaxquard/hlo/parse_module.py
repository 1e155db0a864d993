"""From the text of a compiled program (`compiled.as_text()`) to a `Module`.

The text is read line by line, as compilers print it: a computation opens with a line that ends in `{` and closes with
a line `}`; in between, each line is `NAME = TYPE OPCODE(ARGUMENTS), ATTRIBUTES`. What stands outside computations
(source files, stack frames) is skipped.
"""

import re
from collections.abc import Mapping

from jaxquard.errors import HloError
from jaxquard.hlo.module import ArrayShape, Computation, Module, Operation
from jaxquard.hlo.opcodes import check_opcode

_HEADER = re.compile(r"^HloModule ([^\s,]+)(.*)")
_OPENING = re.compile(r"^(ENTRY )?%?([^\s(]+) \(.*\{$")
_OPERATION = re.compile(r"^\s+(ROOT )?%?([^\s=]+) = (.*)")
_OPCODE = re.compile(r"\s*([\w-]+)\(")
_ARRAY = re.compile(r"([a-z]\w*)\[([\d,<= ]*)\](?:\{([\d,]*)[^}]*?(?:S\((\d+)\))?\})?")
_NAME = re.compile(r"%([\w.-]+)")
_CALLS = re.compile(
    r"\b(?:calls|to_apply|body|condition|true_computation|false_computation|branch_computations|"
    r"called_computations)=(\{[^}]*\}|%[\w.-]+)"
)
_COMMENT = re.compile(r"/\*.*?\*/")


def parse_module(text: str) -> Module:
    """Reads a module.

    Raises:
        HloError: if the text is not that of an HLO module, or a line of a computation cannot be read.
    """
    header = next(filter(None, map(_HEADER.match, text.splitlines())), None)
    if header is None:
        raise HloError("expected the text of an HLO module, which begins with `HloModule`, but found none.")
    computations, entry = {}, None
    name, operations = None, []
    for line in text.splitlines():
        if name is None:
            opening = _OPENING.match(line)
            if opening:
                name, operations = opening[2], []
                entry = name if opening[1] else entry
        elif line.startswith("}"):
            computations[name], name = Computation(name=name, operations=tuple(operations)), None
        elif line.strip():
            operations.append(_read_line(line))
    if entry is None or name is not None:
        raise HloError("the HLO text is cut off: its ENTRY computation is missing or not closed.")
    _check_names(computations)
    return Module(
        name=header[1],
        entry=entry,
        is_scheduled="is_scheduled=true" in header[2],
        num_replicas=_count(header[2], "replica_count"),
        num_partitions=_count(header[2], "num_partitions"),
        computations=computations,
    )


def _check_names(computations: Mapping[str, Computation]) -> None:
    """Raises an HloError if a line names an operation or a computation that the text does not have."""
    for computation in computations.values():
        for operation in computation.operations:
            check_opcode(operation)
            operands = () if operation.opcode == "constant" else operation.operands
            missing = [name for name in operands if name not in computation.positions]
            # A collective that sums says so by its opcode; its computation may be left out of a text.
            if not operation.opcode.startswith(("all-reduce", "reduce-scatter")):
                missing += [name for name in operation.calls if name not in computations]
            if missing:
                raise HloError(
                    f"expected {missing[0]} in the text, which a line of HLO names, but found it nowhere: "
                    f"{operation.line}"
                )


def _count(header: str, name: str) -> int:
    found = re.search(rf"\b{name}=(\d+)", header)
    return int(found[1]) if found else 1


def _read_line(line: str) -> Operation:
    try:
        return parse_operation(line)
    except HloError:
        raise
    except ValueError as error:
        raise HloError(f"expected sizes as numbers in a line of HLO, but found: {line.strip()[:200]}") from error


def parse_operation(line: str) -> Operation:
    """Reads one line of a computation."""
    found = _OPERATION.match(line)
    if found is None:
        raise HloError(f"expected `NAME = TYPE OPCODE(...)` in a line of HLO, but found: {line.strip()[:200]}")
    rest = _COMMENT.sub("", found[3])
    type_end = _closing(rest, 0) if rest.startswith("(") else rest.find(" ")
    opcode = _OPCODE.match(rest, type_end)
    if opcode is None:
        raise HloError(f"expected an opcode after the type in a line of HLO, but found: {line.strip()[:200]}")
    end = _closing(rest, opcode.end() - 1)
    arguments, attributes = rest[opcode.end() : end - 1], rest[end:].removeprefix(",").strip()
    return Operation(
        name=found[2],
        opcode=opcode[1],
        results=_shapes(rest[:type_end]),
        operands=tuple(_NAME.findall(arguments)),
        calls=tuple(name for names in _CALLS.findall(attributes) for name in _NAME.findall(names)),
        arguments=arguments,
        attributes=attributes,
        is_root=found[1] is not None,
    )


def _closing(text: str, start: int) -> int:
    """The position after the bracket that closes the one at `start`; brackets in quotes do not count."""
    depth, is_quoted = 0, False
    for position in range(start, len(text)):
        character = text[position]
        if character == '"' and text[position - 1] != "\\":
            is_quoted = not is_quoted
        elif not is_quoted:
            depth += (character == "(") - (character == ")")
            if depth == 0:
                return position + 1
    raise HloError(f"a bracket is not closed in a line of HLO: {text[:200]}")


def _shapes(type_text: str) -> tuple[ArrayShape, ...]:
    return tuple(
        ArrayShape(
            dtype=dtype,
            sizes=tuple(int(size.strip(" <=")) for size in sizes.split(",") if size.strip()),
            layout=tuple(int(dim) for dim in layout.split(",") if dim),
            memory_space=int(space or 0),
        )
        for dtype, sizes, layout, space in _ARRAY.findall(type_text)
    )
