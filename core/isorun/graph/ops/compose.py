"""Function bodies for the fused operators of a model, composed from the pieces of a dialect.

A dialect is a chain of texts: its own, then ``primitive.onnxtxt``, which every dialect inherits from, with overrides
for fp16 before each. A text holds functions in ONNX's text form, under one header; calls and numbers may be arguments
(``3`` is an int64 scalar, ``[1, 2]`` an int64 vector, ``0.5`` a float scalar). Five rules make one function from
pieces, for a node and what it has of the operator's optional inputs and attributes:

- ``isorun.fused.X (...)`` calls the first function X in the chain that declares every input and attribute that the call
  has. A function that does not know one of them is skipped, and a body further down the chain answers.
- ``isorun.optional.X (...)`` is an optional step. Where one of its inputs or its attribute ``when`` is absent, it is
  left out and its first inputs are passed on as its outputs. X is a function or an operator of ONNX.
- What only optional steps use, or none, is optional; an optional attribute of 0 is absent. The overload of a composed
  function lists the optional inputs and the attributes that it has: another call may have others, in the same model.
- ``given = isorun.required.These (...)`` makes a function answer only for calls that have these inputs and attributes.
- ``Identity`` is left out.

So a feature of attention is one optional step in ``primitive.onnxtxt`` and the function that it calls, plus an override
in each dialect that has a faster way. A piece means the same in every dialect, so that bodies of different texts can be
combined; what only one dialect reads (a mask in its kernel's own form) is a piece with a name of its own. Overrides
name their inputs as the last definition in the chain does.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Mapping, Sequence
from functools import cache
from itertools import zip_longest

import onnx
import onnx.parser
import onnx_ir as ir

from isorun.errors import did_you_mean

DOMAIN = "isorun.fused"
_OPTIONAL = "isorun.optional"
_REQUIRED = "isorun.required"
_WHEN = "when"  # the attribute of an optional step that decides whether it is taken
_NUMBERS = frozenset(("window", "scale", "norm_epsilon"))  # optional attributes of which 0 is not the same as none
_HEADER = re.compile(r"^opset_import: .*$", re.MULTILINE)
_FUNCTION = re.compile(r"^(?=\w+ *[<(])", re.MULTILINE)
_CALL = re.compile(r"(= [\w.]+ *(?:<[^<>]*> *)?)\(([^()]*)\)")
_ARGUMENT = re.compile(r"(?<=[(,]) *([\w.]+ *(?:<[^<>]*> *)?\([^()]*\))")  # an argument that is a call
_NUMBER = re.compile(r"\[[^\]]*\]|(?<![\w.])-?\d+(?:\.\d+)?(?![\w.])")

Functions = Mapping[str, onnx.FunctionProto]
Identifier = tuple[str, str, str]


@cache
def parse(text: str, domain: str = DOMAIN) -> Functions:
    """The functions of a text by name, in a domain."""
    header = _HEADER.search(text)
    if header is None:
        raise ValueError("The text has no header, expected a line 'opset_import: [...]'")
    functions = {}
    for function in _FUNCTION.split(text[header.end() :])[1:]:
        name = re.split(r"\W", function, maxsplit=1)[0]
        try:
            functions[name] = onnx.parser.parse_function(
                f'<domain: "{domain}", {header.group()}>\n{_in_steps(function)}'
            )
        except onnx.parser.ParseError as error:
            reason = error.args[0].decode() if isinstance(error.args[0], bytes) else str(error)
            raise ValueError(f"function {name}: {reason}") from error
    return functions


def check(text: str, chain: Sequence[str]) -> None:
    """Reject functions that would not do what they say: a misspelt name would be left out without a word.

    Args:
        text: functions that precede a chain.
        chain: the texts of the chain.

    Raises:
        ValueError: a function has a name that nothing calls, has or refers to inputs, attributes or functions that do
            not exist, or uses a domain that the header does not import.
    """
    own = parse(text)
    known = {name: function for base in chain for name, function in parse(base).items()}
    names = {*own, *known}
    steps = [node for function in own.values() for node in function.node]
    called = {node.op_type for node in steps if node.domain in (DOMAIN, _OPTIONAL)}
    if not own:
        raise ValueError("no function, expected 'Name (input, ...) => (output) { ... }'")
    for name, function in own.items():
        if name not in known and name not in called:
            raise ValueError(f"function {name}: nothing calls it{did_you_mean(name, sorted(known))}")
        inputs = known[name].input if name in known else function.input
        if unknown := [input_name for input_name in function.input if input_name not in inputs]:
            raise ValueError(f"function {name}: its inputs must be among {', '.join(inputs)}, got {', '.join(unknown)}")
        declared = [*function.attribute, *(attribute.name for attribute in function.attribute_proto)]
        domains = {entry.domain for entry in function.opset_import}
        for node in function.node:
            for attribute in node.attribute:
                if (refers := attribute.ref_attr_name) and refers not in declared:
                    raise ValueError(f"function {name}: no attribute {refers!r}{did_you_mean(refers, declared)}")
            if node.domain == DOMAIN and node.op_type not in names:
                raise ValueError(f"function {name}: no function {node.op_type!r}{did_you_mean(node.op_type, names)}")
            if node.domain == _OPTIONAL and node.op_type not in names and not onnx.defs.has(node.op_type):
                raise ValueError(f"function {name}: no function or operator {node.op_type!r}")
            if node.domain not in {DOMAIN, _OPTIONAL, _REQUIRED, *domains}:
                raise ValueError(f"function {name}: the header has no opset_import for the domain {node.domain!r}")


def _in_steps(function: str) -> str:
    """The text of a function with a step for each call, and a Constant for each number, among its arguments."""
    names: dict[str, str] = {}

    def named(call: re.Match[str]) -> str:
        arguments = _NUMBER.sub(lambda number: names.setdefault(number[0], f"number_{len(names)}"), call[2])
        return f"{call[1]}({arguments})"

    def constant(number: str) -> str:
        if number.startswith("["):
            return f"int64[{number.count(',') + 1}] {{{number[1:-1]}}}"
        return f"{'float' if '.' in number else 'int64'} {{{number}}}"

    signature, brace, nested = function.partition("{")
    lines = []
    for line in nested.splitlines():
        result, calls = re.split(r"\W", line.strip(), maxsplit=1)[0], itertools.count(1)
        while call := _ARGUMENT.search(line):
            name = f"{result}__{next(calls)}"
            lines.append(f"  {name} = {call[1]}")
            line = f"{line[: call.start(1)]}{name}{line[call.end(1) :]}"
        lines.append(line)
    body = _CALL.sub(named, "\n".join(lines))
    constants = (f"\n  {name} = Constant <value = {constant(number)}> ()" for number, name in names.items())
    return "".join((signature, brace, *constants, body))


def opset(text: str) -> int:
    """The version of ONNX's own operators that a text is written in."""
    function = next(iter(parse(text).values()))
    return next(entry.version for entry in function.opset_import if entry.domain == "")


class Composer:
    """Composes the functions that the nodes of a model call.

    Args:
        texts: the chain, a dialect's own text first and the base last.

    Attributes:
        signatures: the last definition of each function in the chain, whose inputs the others' are among.
        functions: those composed so far by identifier, each after those that it calls.
        missing: the operators that no text of the chain has, and those with an attribute that none declares.
    """

    def __init__(self, texts: Sequence[str]) -> None:
        self._layers = [parse(text) for text in texts]
        self.signatures = {name: function for layer in self._layers for name, function in layer.items()}
        for function in (function for layer in self._layers for function in layer.values()):
            if unknown := set(function.input) - set(self.signatures[function.name].input):
                raise ValueError(f"{function.name} has inputs that its last definition does not: {sorted(unknown)}")
        self._optional: dict[str, frozenset[str]] = {}
        self.functions: dict[Identifier, onnx.FunctionProto] = {}
        self.missing: set[str] = set()

    def call(self, node: ir.Node) -> None:
        """Compose the function of a node of the fused form, and point the node to it."""
        if node.op_type not in self.signatures:
            self.missing.add(node.op_type)
            return
        names = self.signatures[node.op_type].input
        features = {name for name, value in zip(names, node.inputs, strict=False) if value is not None}
        may_be_off = self.optional(node.op_type) - _NUMBERS
        features |= {
            name for name, attribute in node.attributes.items() if name not in may_be_off or attribute.value != 0
        }
        try:
            node.overload = self._compose(node.op_type, features, nested=False).overload
        except LookupError as error:
            self.missing.add(str(error))

    def _compose(self, name: str, features: Collection[str], *, nested: bool) -> onnx.FunctionProto:
        signature = self.signatures[name]
        # Any attribute may be absent: operators of a runtime have defaults, and bodies for some features need more.
        may_lack = self.optional(name) | {*signature.attribute}
        parameters = (*signature.input, *signature.attribute)
        optional = [parameter for parameter in parameters if parameter in may_lack and parameter in features]
        # ONNX Runtime does not look for overloads inside a function (1.31): there the name says it.
        identifier = (DOMAIN, "_".join((name, *optional)), "") if nested else (DOMAIN, name, "+".join(optional))
        if identifier not in self.functions:
            source = self._source(name, features)
            domain, called, overload = identifier
            inputs = list(signature.input)
            while inputs and inputs[-1] not in features:
                inputs.pop()  # as many as the call has: ONNX's reference evaluator takes no fewer
            function = onnx.FunctionProto(name=called, domain=domain, overload=overload, input=inputs)
            function.attribute.extend(signature.attribute)
            function.attribute_proto.extend(signature.attribute_proto)
            _Body(self, function, source, features).write()
            self.functions[identifier] = function
        return self.functions[identifier]

    def _source(self, name: str, features: Collection[str]) -> onnx.FunctionProto:
        for source in (layer[name] for layer in self._layers if name in layer):
            unknown = {*features} - {
                *source.input,
                *source.attribute,
                *(attribute.name for attribute in source.attribute_proto),
            }
            if not unknown and _answers(source, features):
                return source
        raise LookupError(f"{name} with {', '.join(sorted(unknown or features))}")

    def optional(self, name: str) -> frozenset[str]:
        """The inputs and attributes of an operator or a piece that are optional, by its last definition."""
        if name not in self._optional:
            needed: set[str] = set()
            signature = self.signatures[name]
            for node in signature.node:
                nested = self.signatures.get(node.op_type) if node.domain == DOMAIN else None
                may_lack = self.optional(node.op_type) if nested else ()
                for index, value in enumerate(node.input):
                    if node.domain == _OPTIONAL:
                        may = index > 0 or len(node.input) == 1
                    else:
                        may = nested is not None and nested.input[index] in may_lack
                    needed.update([] if may else [value])
                for attribute in node.attribute:
                    if attribute.ref_attr_name and attribute.name != _WHEN and attribute.name not in may_lack:
                        needed.add(attribute.ref_attr_name)
            attributes = {*signature.attribute, *(attribute.name for attribute in signature.attribute_proto)}
            self._optional[name] = frozenset({*signature.input, *attributes} - needed)
        return self._optional[name]

    def nested(self, node: onnx.NodeProto) -> onnx.FunctionProto:
        """The function that a node in a body calls."""
        names = self.signatures[node.op_type].input
        features = {name for name, value in zip(names, node.input, strict=False) if value}
        return self._compose(node.op_type, features | {attribute.name for attribute in node.attribute}, nested=True)


def _answers(source: onnx.FunctionProto, features: Collection[str]) -> bool:
    """Whether a call has what a function requires."""
    for node in source.node:
        if node.domain == _REQUIRED:
            names = [*node.input, *(attribute.ref_attr_name for attribute in node.attribute)]
            if not (all if node.op_type == "These" else any)(name in features for name in names):
                return False
    return True


class _Body:
    """Writes one body from its source. ``_passed`` holds the value that replaces one that is no longer computed; empty
    for one that is absent."""

    def __init__(
        self, composer: Composer, function: onnx.FunctionProto, source: onnx.FunctionProto, features: Collection[str]
    ) -> None:
        self._composer = composer
        self._made = function
        self._source = source
        self._given = {*features, *(attribute.name for attribute in source.attribute_proto)}
        self._passed = {name: "" for name in source.input if name not in features}

    def write(self) -> None:
        for original in self._source.node:
            self._write(original)
        for name in self._source.output:
            output = self._passed.get(name, name)
            if output in self._made.input and self._made.node:
                self._made.node.append(onnx.NodeProto(op_type="Identity", input=[output], output=[name]))
                output = name
            self._made.output.append(output)
        used = {node.domain for node in self._made.node}
        self._made.opset_import.extend(entry for entry in self._source.opset_import if entry.domain in {"", *used})

    def _write(self, original: onnx.NodeProto) -> None:
        if original.domain == _REQUIRED:
            return
        node = onnx.NodeProto()
        node.CopyFrom(original)
        del node.input[:], node.attribute[:]
        node.input.extend(self._passed.get(name, name) for name in original.input)
        absent = [
            attribute
            for attribute in original.attribute
            if attribute.ref_attr_name and attribute.ref_attr_name not in self._given
        ]
        node.attribute.extend(
            attribute for attribute in original.attribute if attribute not in absent and attribute.name != _WHEN
        )
        if node.domain == _OPTIONAL:
            if not all(node.input) or any(attribute.name == _WHEN for attribute in absent):
                self._pass(node, node.input)
                return
            node.domain = DOMAIN if node.op_type in self._composer.signatures else ""
        while node.input and not node.input[-1]:
            del node.input[-1]
        if node.domain == "" and node.op_type == "Identity":
            self._pass(node, node.input)
            return
        if node.domain == DOMAIN:
            nested = self._composer.nested(node)
            node.op_type = nested.name
            if not nested.node:
                values = dict(zip(nested.input, node.input, strict=False))
                self._pass(node, [values[name] for name in nested.output])
                return
        self._made.node.append(node)

    def _pass(self, node: onnx.NodeProto, values: Sequence[str]) -> None:
        self._passed.update(zip_longest(node.output, list(values)[: len(node.output)], fillvalue=""))
