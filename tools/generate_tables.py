"""Turn the TOML tables of ``ep/spec`` into C++ headers.

Called by CMake: ``python generate_tables.py FOLDER_OF_TABLES FOLDER_OF_HEADERS``. Only the standard library is needed.
What is wrong with a table is one sentence that names table, row and key.
"""

from __future__ import annotations

import itertools
import math
import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from formulas import names_in, to_cpp
from table_rows import Row, Table, TableError, quoted

MAX_PARAMS = 2
MAX_AXES = 4
MAX_VALUES = 3
LEVELS = ("1_0", "2_0", "2_1", "3_0", "3_1", "4_0", "4_1", "5_0", "5_1", "5_2", "6_0", "6_1", "6_2", "6_3", "6_4")
LAST_VERSION = 9999


# C++


def camel(snake: str) -> str:
    """Return a name as an enumerator has it: "d3d12_library" -> "D3d12Library", "inv_std_dev" -> "InvStdDev"."""
    return "".join(part[:1].upper() + part[1:] for part in snake.split("_"))


def text(value: str) -> str:
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'


def number(value: float) -> str:
    if math.isinf(value):
        return ("-" if value < 0 else "") + "std::numeric_limits<float>::infinity()"
    return repr(value) + "f"


def boolean(value: bool) -> str:
    return "true" if value else "false"


def braces(values: Iterable[object], empty: str = "") -> str:
    """Return an initialiser list; an array of unused elements has ``empty`` in it."""
    return "{" + (", ".join(map(str, values)) or empty) + "}"


def enumeration(name: str, values: Sequence[str]) -> list[str]:
    return [f"enum class {name} : int {{", *[f"  k{value} = {i}," for i, value in enumerate(values)], "};"]


def array(declaration: str, rows: Iterable[str]) -> list[str]:
    return [f"inline constexpr {declaration}[] = {{", *[f"  {row}," for row in rows], "};"]


# element types

TYPE_KINDS = ("other", "float", "integer", "float8")
TYPE_CODE = [
    *enumeration("TypeKind", [camel(kind) for kind in TYPE_KINDS]),
    "struct ElementTypeSpec {",
    "  const char* name;",
    "  int tensor_proto;  // number in TensorProto.DataType",
    "  int bits;          // of one element; 0: no operator of ours takes the type",
    "  TypeKind kind;",
    "};",
]


class ElementType(NamedTuple):
    name: str
    number: int
    """Of DataType."""
    stored: tuple[str, ...]
    """The steps whose argument `type` may name it."""
    row: str


def element_type_of(name: str, row: Row) -> ElementType:
    proto = row.integer("number")
    number = row.integer("ort", proto)
    bits, kind = row.integer("bits", 0), row.text("kind", "other", TYPE_KINDS)
    stored = row.names("stored", ())
    row.end()
    return ElementType(name, number, stored, f"{{{text(name)}, {proto}, {bits}, TypeKind::k{camel(kind)}}}")


def element_types_of(table: Table) -> list[ElementType]:
    types = [element_type_of(name, row) for name, row in table.rows("type")]
    table.top.end()
    return sorted(types, key=lambda each: each.number)


def element_type_list(types: Sequence[ElementType]) -> list[str]:
    slots = types[-1].number + 1
    numbers = [("Undefined", 0), *((camel(each.name), each.number) for each in types)]
    rows = {each.number: each.row for each in types} | {0: '{"undefined", 0, 0, TypeKind::kOther}'}
    unknown = '{"an unknown type", 0, 0, TypeKind::kOther}'
    return [
        "// Numbered as ONNX Runtime's ONNXTensorElementDataType.",
        "enum class DataType : int32_t {",
        *[f"  k{name} = {number}," for name, number in numbers],
        "};",
        f"inline constexpr int kTypeSlots = {slots};  // DataType as an index",
        *TYPE_CODE,
        "// By number of DataType. The last row is what holds of any other number.",
        *array("ElementTypeSpec kElementTypes", (rows.get(number, unknown) for number in range(slots + 1))),
    ]


def type_bits(row: Row, key: str, names: Iterable[str], types: Sequence[ElementType]) -> int:
    """Return element types as a bit set of DataType."""
    numbers = {each.name: each.number for each in types}
    for name in names:
        if name not in numbers:
            raise row.error(f"key '{key}' has '{name}', which is not in element_types.toml")
    return sum(1 << numbers[name] for name in names)


# prices

PRICE_KEYS = ("ort", "avx512", "avx2", "baseline")
PRICE_CODE = [
    "// Nanoseconds per element: on ONNX Runtime's own kernels, and on ours for each instruction set.",
    "struct Price {",
    "  double ort;",
    "  double avx512;",
    "  double avx2;",
    "  double baseline;",
    "};",
]


def price(row: Row) -> str:
    values = [row.number(key) for key in PRICE_KEYS]
    row.end()
    if any(not 0 <= value < math.inf for value in values):
        raise row.error("a price is negative or infinite")
    return braces(map(repr, values))


def price_code(table: Table) -> list[str]:
    out = []
    for name, row in table.rows("price"):
        row.text("doc")
        out.append(f"inline constexpr Price k{camel(name)}Price = {price(row)};")
    for name, row in table.rows("call"):
        out.append(f"inline constexpr double k{camel(name)}Nanoseconds = {row.number('nanoseconds')!r};")
        row.text("doc")
        row.end()
    for name, row in table.rows("limit"):
        out.append(f"inline constexpr double k{camel(name)}Limit = {row.number('chains_and_nodes')!r};")
    for name, row in table.rows("typical"):
        out.append(f"inline constexpr int64_t kTypical{camel(name)} = {row.integer('size')};")
    table.rows("product")
    table.top.end()
    return out


# activations


class Parameter(NamedTuple):
    name: str
    default: float
    low: float
    high: float
    nonzero: bool


class Activation(NamedTuple):
    name: str
    since: int
    kernel: str
    row: str
    spellings: list[str]
    formula: str


ACTIVATION_CODE = [
    "struct DirectMlActivation {",
    '  const char* op;      // DML_OPERATOR_ACTIVATION_<op>, "" where DirectML has none',
    "  int type;            // DML_OPERATOR_TYPE",
    "  int level;           // feature level of the operator, 0xMmmm as DML_FEATURE_LEVEL; 0 = none",
    "  int fused_level;     // from which MVN1 takes it as FusedActivation; 0 = never",
    "  int field_count;",
    "  int fields[kMaxActivationParams];  // parameter index of each float field",
    "};",
    "struct ActivationParameter {",
    "  const char* name;",
    "  float low;           // tests draw from here",
    "  float high;          // to here",
    "  bool nonzero;        // the formula divides by it",
    "};",
    "struct ActivationSpec {",
    "  const char* name;",
    "  int param_count;",
    "  ActivationParameter params[kMaxActivationParams];",
    "  float defaults[kMaxActivationParams];",
    "  bool has_slope;",
    "  Price price;",
    "  DirectMlActivation directml;",
    "};",
]
SPELLING_CODE = [
    "// A standard node that means an activation.",
    "struct ActivationSpelling {",
    "  Activation activation;",
    "  const char* domain;",
    "  const char* op_type;",
    "  int since;",
    "  int until;",
    '  const char* when_attribute;  // "" = no condition',
    "  const char* when_value;",
    '  const char* attributes[kMaxActivationParams];  // attribute that holds each parameter, "" = none',
    "  float defaults[kMaxActivationParams];",
    "  int input_param_count;       // parameters given as inputs 1, 2 ...",
    "  int input_params[kMaxActivationParams];",
    "  bool has_bias;               // input 1 is a bias added before the activation",
    "  bool is_part;                // formulas are written with it: it begins no chain, and ends few",
    "};",
]


def level(row: Row, key: str, optional: bool = False) -> str:
    value = row.text(key, among=("", *LEVELS) if optional else LEVELS)
    if not value:
        return "0"
    major, minor = value.split("_")
    return f"0x{major}{minor}00"


def parameters_of(row: Row) -> list[Parameter]:
    found = []
    for each in row.rows("params"):
        name, default = each.text("name"), each.number("default")
        each.where = f"{row.where}: params: {name}"
        bounds = each.elements("range")
        if len(bounds) != 2 or not all(isinstance(b, int | float) for b in bounds) or not bounds[0] < bounds[1]:
            raise each.error(f"key 'range' is {bounds!r}, which is not a lower and a higher number")
        low, high = map(float, bounds)
        found.append(Parameter(name, default, low, high, each.flag("nonzero", False)))
        each.end()
        if found[-1].nonzero and (low <= 0 <= high or default == 0):
            raise each.error("its range and default must leave 0 out: the formula divides by it")
    if len(found) > MAX_PARAMS:
        raise row.error(f"at most {MAX_PARAMS} parameters")
    return found


def directml_of(row: Row, names: Sequence[str]) -> str:
    if not row.has("directml"):
        raise row.error('no key \'directml\'; where DirectML has no such operator it is "composed" or "not there"')
    given = row.either("directml")
    if isinstance(given, str):
        if given not in ("composed", "not there"):
            raise row.error(f"key 'directml' is '{given}', which is not a table, 'composed' or 'not there'")
        return '{"", 0, 0, 0, 0, {0}}'
    if not isinstance(given, dict):
        raise row.error(f"key 'directml' is {given!r}, which is not a table, 'composed' or 'not there'")
    each = Row(f"{row.where}: directml", given)
    op, kind, since, fused = each.text("op"), each.integer("type"), level(each, "level"), level(each, "fused", True)
    fields = each.names("fields")
    each.end()
    positions = braces((position(each, field, names) for field in fields), "0")
    return f"{{{text(op)}, {kind}, {since}, {fused}, {len(fields)}, {positions}}}"


def position(row: Row, name: str, names: Sequence[str]) -> int:
    if name not in names:
        raise row.error(f"'{name}' is not a parameter; the row has {quoted(names) if names else 'none'}")
    return names.index(name)


def spelling_of(activation: str, row: Row, parameters: Sequence[Parameter]) -> str:
    names = [each.name for each in parameters]
    op, domain, since, until = row.text("op"), row.text("domain", ""), row.integer("since"), row.integer("until", 9999)
    when = list(row.texts("when").items()) or [("", "")]
    attributes = {position(row, param, names): name for name, param in row.texts("attributes").items()}
    inputs = [position(row, name, names) for name in row.names("inputs", ())]
    differing = {names[position(row, name, names)]: float(value) for name, value in row.texts("defaults").items()}
    defaults = [number(differing.get(each.name, each.default)) for each in parameters]
    by_parameter = [text(attributes.get(i, "")) for i in range(MAX_PARAMS)]
    bias, part = row.flag("bias", False), row.flag("part", False)
    row.end()
    if len(when) > 1:
        raise row.error("key 'when' has more than one attribute")
    return (
        f"{{Activation::k{activation}, {text(domain)}, {text(op)}, {since}, {until}, {text(when[0][0])}, "
        f"{text(when[0][1])}, {braces(by_parameter)}, {braces(defaults, '0')}, {len(inputs)}, "
        f"{braces(inputs, '0')}, {boolean(bias)}, {boolean(part)}}}"
    )


def check_body(row: Row, names: Sequence[str], in_onnx: bool) -> None:
    """Refuse a body that is no expression, and an activation that no function can be written for."""
    bodies = row.rows("body")
    if not bodies and not in_onnx:
        raise row.error("no key 'body', and no node of ONNX's own domain that it could be written with")
    for each in bodies:
        nodes = each.text("nodes")
        each.integer("since", 1)
        each.flag("defaults", False)
        each.end()
        try:
            unknown = names_in(nodes) - {"x", "slope", "pi", *names}
        except ValueError as error:
            raise each.error(f"key 'nodes': {error}") from None
        if unknown:
            raise each.error(f"key 'nodes': {quoted(sorted(unknown))} is neither x nor a parameter")


def formula_of(row: Row, key: str, names: dict[str, str]) -> str:
    """Take an expression and return it in C++."""
    formula = row.text(key)
    try:
        return to_cpp(formula, {"pi": "3.14159265358979323846", **names})
    except ValueError as error:
        raise row.error(f"key '{key}': {error}") from None


def activation_of(name: str, row: Row) -> Activation:
    if not re.fullmatch(r"[A-Z][A-Za-z0-9]*", name):
        raise row.error("its name is not an identifier in CamelCase")
    since = since_of(row)
    parameters = parameters_of(row)
    names = [each.name for each in parameters]
    slope = row.flag("slope", False)
    in_formula = {each: f"p[{i}]" for i, each in enumerate(names)} | ({"slope": "slope"} if slope else {})
    formula = formula_of(row, "formula", {"x": "x", **in_formula})
    formula_of(row, "lipschitz", {"x": "x", **in_formula})
    kernel = row.text("kernel")
    cost = price(row.row("price"))
    spellings, lasting = [], False
    for each in row.rows("onnx"):
        lasting |= not each.has("domain") and not each.has("until")
        spellings.append(spelling_of(name, each, parameters))
    check_body(row, names, lasting)
    directml = directml_of(row, names)
    row.end()
    params = braces(f"{{{text(p.name)}, {number(p.low)}, {number(p.high)}, {boolean(p.nonzero)}}}" for p in parameters)
    code = (
        f"{{{text(name)}, {len(names)}, {params}, {braces((number(p.default) for p in parameters), '0')}, "
        f"{boolean(slope)}, {cost}, {directml}}}"
    )
    return Activation(name, since, kernel, code, spellings, formula)


def activation_list(activations: Sequence[Activation]) -> list[str]:
    return [
        f"inline constexpr int kMaxActivationParams = {MAX_PARAMS};",
        *enumeration("Activation", [each.name for each in activations]),
        f"inline constexpr int kActivationCount = {len(activations)};",
        "// X(name, kernel functor) for each activation, in the order of the enumeration.",
        "#define NORMFUSE_FOR_EACH_ACTIVATION(X) \\",
        *[f"  X({each.name}, {each.kernel}) \\" for each in activations],
    ]


def activation_code(activations: Sequence[Activation]) -> list[str]:
    return [
        *ACTIVATION_CODE,
        *array("ActivationSpec kActivations", (each.row for each in activations)),
        *SPELLING_CODE,
        *array("ActivationSpelling kActivationSpellings", (row for each in activations for row in each.spellings)),
    ]


def formula_code(activations: Sequence[Activation]) -> list[str]:
    return [
        "namespace formula {",
        "// What std::max and std::min give, but NaN where any of the two is.",
        "inline double Max(double a, double b) { return std::isnan(a) || a > b ? a : b; }",
        "inline double Min(double a, double b) { return std::isnan(a) || a < b ? a : b; }",
        "inline double Softplus(double v) { return Max(v, 0.0) + std::log1p(std::exp(-std::fabs(v))); }",
        "}  // namespace formula",
        "",
        "// The formula of the table, in float64.",
        "inline double FormulaOf(Activation activation, double x, double slope, const float* params) {",
        f"  double p[{MAX_PARAMS}];",
        f"  for (int i = 0; i < {MAX_PARAMS}; ++i) p[i] = static_cast<double>(params[i]);",
        "  switch (activation) {",
        *[
            line
            for each in activations
            for line in (f"    case Activation::k{each.name}:", f"      return {each.formula};")
        ],
        "  }",
        '  return std::nan("");',
        "}",
    ]


# operators, functions

ATTRIBUTE_TYPES = ("int", "string")
PLACES = ("first", "before", "core", "behind", "last", "beside")
OTHER_STEPS = ("Activate", "Mask", "FakeQuantize")
ARGUMENT_TYPES = ("tensor", "int", "ints", "float", "flag", "word", "type")
STEP_CODE = [
    "// A kind of step of a program (attribute `steps`), and an argument of steps.",
    "struct StepSpec {",
    "  const char* name;",
    "  StepPlace place;",
    "  bool has_operand;",
    "  StepKind kind;         // of a step beside the core",
    '  const char* directml;  // DML_OPERATOR_<directml>, of a step with an operand; "" where DirectML has none',
    "  int argument_count;",
    "  Argument arguments[kMaxStepArguments];",
    "  unsigned types;        // bit set of DataType: what the argument `type` may name",
    "  int output;            // position of the output that the step stores; -1: none",
    "};",
]


class Operators(NamedTuple):
    outputs: dict[str, tuple[str, ...]]
    attributes: list[tuple[str, str]]
    arguments: list[str]
    choices: dict[str, tuple[str, ...]]
    """Arguments that have one of some values."""
    steps: list[tuple[str, str]]
    """Name and initialiser."""
    since: list[int]
    """The versions that steps and arguments came with."""
    combinations: list[tuple[str, str]]
    """Name and kernel of the steps that have an operand."""
    storing: list[str]
    """The steps in front of the core that store an output."""
    most_arguments: int
    functions: list[str]
    code: list[str]


def operators_of(table: Table, types: Sequence[ElementType]) -> Operators:
    top = table.top
    code = [
        f"inline constexpr const char* kOperatorDomain = {text(top.text('domain'))};",
        f"inline constexpr int kOperatorSetVersion = {top.integer('opset_version')};",
        f"inline constexpr int kMostTensors = {top.integer('most_tensors')};",
        f"inline constexpr int kMostStepTensors = {top.integer('most_step_tensors')};",
        f"inline constexpr int kTensorsOfQuantized = {top.integer('tensors_of_quantized')};",
        f"inline constexpr int kMostEmitted = {top.integer('most_emitted')};",
        f"inline constexpr int kMaxRank = {top.integer('most_dimensions')};",
        f"inline constexpr const char* kUnnamedDimension = {text(top.text('unnamed_dimension'))};",
    ]
    outputs = {}
    for name, row in table.rows("operator"):
        row.text("summary")
        outputs[name] = row.names("outputs")
        row.end()
    attributes = []
    for name, row in table.rows("attribute"):
        attributes.append((name, row.text("type", among=ATTRIBUTE_TYPES)))
        row.text("doc")
        row.end()
    since: list[int] = []
    arguments, choices = arguments_of(table, since)
    steps, combinations, storing, most = steps_of(table, arguments, since, types, outputs["FusedNormalization"])
    for _, row in table.rows("edge"):
        check_operators(row, outputs)
        row.text("doc")
        row.end()
    functions = top.row("functions")
    names, numbered = function_names(functions, list(outputs)), functions.integer("numbered")
    functions.end()
    top.end()
    code.append(f"inline constexpr int kNumberedFunctions = {numbered};")
    return Operators(outputs, attributes, arguments, choices, steps, since, combinations, storing, most, names, code)


def since_of(row: Row) -> int:
    """Take the version of the specification that a row came with."""
    since = row.integer("since", 1)
    if since < 1:
        raise row.error(f"key 'since' is {since}; the first version is 1")
    return since


def arguments_of(table: Table, since: list[int]) -> tuple[list[str], dict[str, tuple[str, ...]]]:
    """Return the names of all arguments, and the values of those that are one of some words."""
    names, choices = [], {}
    for name, row in table.rows("argument"):
        names.append(name)
        since.append(since_of(row))
        kind = row.text("type", among=ARGUMENT_TYPES)
        row.text("doc")
        if kind != "tensor":
            row.either("default")
        if kind == "word":
            choices[name] = row.names("values")
        row.end()
    return names, choices


def steps_of(
    table: Table, arguments: Sequence[str], since: list[int], types: Sequence[ElementType], outputs: Sequence[str]
) -> tuple[list[tuple[str, str]], list[tuple[str, str]], list[str], int]:
    """Return the kinds of steps, those of them with an operand, those with an output, and the most arguments of one."""
    steps, combinations, storing, most = [], [], [], 0
    for name, row in table.rows("step"):
        place, operand, given = row.text("place", among=PLACES), row.flag("operand", False), row.names("arguments")
        for each in given:
            if each not in arguments:
                raise row.error(f"key 'arguments' has '{each}', which is not an argument")
        row.text("doc")
        since.append(since_of(row))
        output = row.text("output", "", among=("", *outputs))
        kind, directml = name if name in OTHER_STEPS else OTHER_STEPS[0], ""
        if operand:
            combinations.append((name, row.text("kernel")))
            kind, directml = name, row.text("directml").replace("not there", "")
        elif output:
            storing.append(name)
            kind = name
        row.end()
        listed = braces(f"Argument::k{camel(each)}" for each in given)
        stored = sum(1 << each.number for each in types if name in each.stored)
        if bool(stored) != ("type" in given):
            raise row.error("argument 'type', and types of element_types.toml that it stores: both or none")
        position = outputs.index(output) if output else -1
        code = (
            f"{{{text(name)}, StepPlace::k{camel(place)}, {boolean(operand)}, StepKind::k{kind}, {text(directml)}, "
            f"{len(given)}, {listed}, {stored}u, {position}}}"
        )
        steps.append((name, code))
        most = max(most, len(given))
    return steps, combinations, storing, most


def step_kind_list(operators: Operators) -> list[str]:
    names = [name for name, _ in operators.combinations]
    return [
        "",
        "// What a step of a chain is: first those that combine d with an operand, last those that store an output.",
        *enumeration("StepKind", [*names, *OTHER_STEPS, *operators.storing]),
        f"inline constexpr int kCombinationCount = {len(names)};",
        f"inline constexpr int kFirstStoring = {len(names) + len(OTHER_STEPS)};",
        "// X(name, kernel functor) for each that combines.",
        "#define NORMFUSE_FOR_EACH_COMBINATION(X) \\",
        *[f"  X({name}, {kernel}) \\" for name, kernel in operators.combinations],
    ]


def check_operators(row: Row, known: Iterable[str]) -> None:
    given = row.either("operators")
    for name in [] if given == "all" else given if isinstance(given, list) else [given]:
        if name not in known:
            raise row.error(f"key 'operators' has '{name}', which is not 'all' or a list of {quoted(known)}")


def function_names(row: Row, operators: Sequence[str]) -> list[str]:
    """Return every name of a model-local function that the EP has a kernel for, numbers left out."""
    lists = {"normalizations": row.names("normalizations")}
    names = []
    steps = row.row("steps")
    for operator in operators:
        choices = [lists[step] if isinstance(step, str) else ["", *step] for step in steps.elements(operator)]
        names += ["_".join([operator, *[c for c in choice if c]]) for choice in itertools.product(*choices)]
    steps.end()
    return names


def operator_code(operators: Operators) -> list[str]:
    out = list(operators.code)
    for operator, values in operators.outputs.items():
        out += enumeration(f"{operator}Output", [camel(value) for value in values])
        out.append(f"inline constexpr const char* k{operator}Outputs[] = {braces(map(text, values))};")
    for argument, values in operators.choices.items():
        out += enumeration(f"{camel(argument)}Value", [camel(value) for value in values])
        out.append(f"inline constexpr const char* k{camel(argument)}Values[] = {braces(map(text, values))};")
    return [
        *out,
        "struct AttributeSpec {",
        "  const char* name;",
        "  const char* type;",
        "};",
        *array("AttributeSpec kAttributes", (f"{{{text(name)}, {text(kind)}}}" for name, kind in operators.attributes)),
        *enumeration("Argument", [camel(name) for name in operators.arguments]),
        *array("const char* kArgumentNames", map(text, operators.arguments)),
        *enumeration("StepPlace", [camel(place) for place in PLACES]),
        *enumeration("StepName", [name for name, _ in operators.steps]),
        f"inline constexpr int kMaxStepArguments = {operators.most_arguments};",
        *STEP_CODE,
        *array("StepSpec kSteps", (code for _, code in operators.steps)),
        *array("const char* kFunctionNames", map(text, operators.functions)),
    ]


# normalisations

METHODS = ("standard", "softmax", "log_softmax")
TENSORS = ("X", "residual", "residual_bias", "scale", "bias")
NORMALIZATION_CODE = [
    "// A standard node that is a normalisation.",
    "struct NormalizationSpec {",
    "  const char* domain;",
    "  const char* op_type;",
    "  int since;",
    "  int until;",
    "  // What is normalised: all dimensions from first_axis on, that one alone, a list of them, "
    "or groups of channels.",
    "  enum class Axes { kFrom, kSingle, kList, kGroups } axes;",
    '  const char* axes_attribute;  // "" = none, the default always',
    "  int first_axis;",
    "  int axis_count;",
    f"  int axis_list[{MAX_AXES}];",
    "  float epsilon;",
    "  bool epsilon_is_attribute;",
    "  EpsilonOnValue epsilon_on;",
    "  MethodValue method;",
    "  bool use_mean;",
    "  AlignValue affine_align;",
    "  bool has_stash_type;",
    "  int input_count;",
    "  NormalizationTensor inputs[5];        // by position",
    "  int output_count;",
    "  FusedNormalizationOutput outputs[4];  // by position",
    "};",
]


def axes_of(row: Row) -> str:
    axes = row.row("axes")
    attribute = axes.text("attribute", "")
    if not attribute:
        code = f'NormalizationSpec::Axes::kFrom, "", {axes.integer("from")}, 0, {{0}}'
    elif not axes.has("default"):
        code = f"NormalizationSpec::Axes::kGroups, {text(attribute)}, 0, 0, {{0}}"
    else:
        default = axes.either("default")
        kind = "Single" if axes.flag("single", False) else "From"
        if isinstance(default, list) and 0 < len(default) <= MAX_AXES:
            code = f"NormalizationSpec::Axes::kList, {text(attribute)}, 0, {len(default)}, {braces(default)}"
        elif isinstance(default, int):
            code = f"NormalizationSpec::Axes::k{kind}, {text(attribute)}, {default}, 0, {{0}}"
        else:
            raise axes.error(f"key 'default' is {default!r}, which is not a dimension or 1 to {MAX_AXES} of them")
    axes.end()
    return code


def normalization_of(op: str, row: Row, operators: Operators) -> str:
    domain, since, until = row.text("domain", ""), row.integer("since"), row.integer("until", LAST_VERSION)
    axes = axes_of(row)
    fixed, value, on = True, 0.0, "variance"
    if row.has("epsilon"):
        epsilon = row.row("epsilon")
        fixed = epsilon.has("fixed")
        value = epsilon.number("fixed" if fixed else "default")
        on = epsilon.text("on", "variance", operators.choices["epsilon_on"])
        epsilon.end()
    method = row.text("method", "standard", METHODS)
    use_mean, stash = row.flag("use_mean", True), row.flag("stash_type", False)
    align = row.text("affine_align", "trailing", operators.choices["align"])
    ports = []
    outputs = operators.outputs["FusedNormalization"]
    kinds = (("inputs", "NormalizationTensor", TENSORS), ("outputs", "FusedNormalizationOutput", outputs))
    for key, kind, known in kinds:
        names = row.names(key)
        for name in names:
            if name not in known:
                raise row.error(f"key '{key}' has '{name}', which is not {quoted(known)}")
        ports.append(f"{len(names)}, " + braces(f"{kind}::k{camel(name)}" for name in names))
    row.end()
    return (
        f"{{{text(domain)}, {text(op)}, {since}, {until}, {axes}, {number(value)}, {boolean(not fixed)}, "
        f"EpsilonOnValue::k{camel(on)}, MethodValue::k{camel(method)}, {boolean(use_mean)}, "
        f"AlignValue::k{camel(align)}, {boolean(stash)}, "
        f"{ports[0]}, {ports[1]}}}"
    )


def normalization_code(table: Table, operators: Operators) -> list[str]:
    rows = [normalization_of(op, row, operators) for op, row in table.rows("normalization", "op")]
    table.top.end()
    enumerations = [
        *enumeration("MethodValue", [camel(method) for method in METHODS]),
        *enumeration("NormalizationTensor", [camel(tensor) for tensor in TENSORS]),
    ]
    return [*enumerations, *NORMALIZATION_CODE, *array("NormalizationSpec kNormalizations", rows)]


# options

OPTION_CODE = [
    "struct OptionSpec {",
    "  const char* name;",
    "  OptionKind kind;",
    "  const char* expected;   // what a value may be, for people",
    "  int value_count;",
    f"  const char* values[{MAX_VALUES}];  // of a choice or a flag",
    "};",
]


def option_code(table: Table) -> list[str]:
    expected = {"choice": "", "flag": ""}
    for name, row in table.rows("kind"):
        expected[name] = row.text("expected")
        row.end()
    names, rows, choices = [], [], []
    for name, row in table.rows("option"):
        kind = row.text("kind", among=list(expected))
        values = row.names("values") if kind == "choice" else ("0", "1") if kind == "flag" else ()
        if len(values) > MAX_VALUES:
            raise row.error(f"key 'values' has more than {MAX_VALUES}")
        if kind == "choice":
            choices += enumeration(f"{camel(name)}Value", [camel(value) for value in values])
        default = row.text("default")
        if values and default not in ("", *values):
            raise row.error(f"key 'default' is '{default}', which is not {quoted(values)}")
        row.text("doc")
        row.end()
        words = quoted(values) if values else expected[kind]
        names.append(camel(name))
        listed = braces(map(text, values), '""')
        rows.append(f"{{{text(name)}, OptionKind::k{camel(kind)}, {text(words)}, {len(values)}, {listed}}}")
    table.top.end()
    return [
        *enumeration("Option", names),
        *enumeration("OptionKind", [camel(kind) for kind in expected]),
        *choices,
        *OPTION_CODE,
        *array("OptionSpec kOptions", rows),
    ]


# reasons


def reason_code(table: Table) -> list[str]:
    rows = []
    for code, row in table.rows("reason", "code"):
        rows.append((code, row.text("text"), row.text("advice")))
        row.end()
    table.top.end()
    return [
        *enumeration("Reason", [camel(code) for code, _, _ in rows]),
        "struct ReasonSpec {",
        "  const char* code;",
        "  const char* text;    // with {names} to fill in",
        "  const char* advice;",
        "};",
        *array("ReasonSpec kReasons", (braces(map(text, row)) for row in rows)),
    ]


# what ONNX Runtime does with operators by itself


def host_operator_code(table: Table, activations: Sequence[str]) -> list[str]:
    code = []
    for name, row in table.rows("list"):
        code.append(f"// ONNX Runtime: {row.text('doc')}.")
        of_activations = row.has("activations")
        values = row.names("activations" if of_activations else "operators")
        row.end()
        unknown = [value for value in values if of_activations and value not in activations]
        if unknown:
            raise row.error(f"key 'activations' has {quoted(unknown)}, which is not in activations.toml")
        kind = "Activation" if of_activations else "std::string_view"
        code += array(f"{kind} k{camel(name)}", (f"Activation::k{v}" if of_activations else text(v) for v in values))
    table.top.end()
    return code


# operators on DirectML

MAX_VERSIONS = 10
MAX_DIRECTML = 4
MAX_SHAPE_INPUTS = 4
MAX_ATTRIBUTES = 8
DIRECTML_ATTRIBUTE_TYPES = ("int", "ints", "float", "string", "tensor")
MAX_VALUES = 8
MAX_CONSTANTS = 2
MAX_PARAMETERS = 4
MAX_OUTPUTS = 8
DIRECTML_OPERATOR_CODE = [
    "struct AttributeValues {",
    "  const char* name;",
    "  const char* values;  // with a space before and behind each",
    "};",
    "",
    "// An operator of ONNX that joins an island on DirectML.",
    "struct DirectMlOperatorSpec {",
    "  const char* name;",
    "  int version_count;",
    f"  int versions[{MAX_VERSIONS}];",
    "  int directml_count;",
    f"  const char* directml[{MAX_DIRECTML}];  // without DML_OPERATOR_",
    "  int level;            // 0xMmmm as DML_FEATURE_LEVEL",
    "  unsigned types;       // bit set of DataType",
    "  int shape_input_count;",
    f"  int shape_inputs[{MAX_SHAPE_INPUTS}];",
    "  bool on_cpu;          // computed on the CPU where all of its inputs are known there",
    "  bool moves;           // computes nothing",
    "  int attribute_count;",
    f"  AttributeSpec attributes[{MAX_ATTRIBUTES}];",
    "  int value_count;",
    f"  AttributeValues values[{MAX_VALUES}];  // the only ones that an attribute may have",
    "  int most_outputs;",
    "  int ranks[2];  // fewest and most dimensions of the first input; -1: may be unknown",
    "  int constant_count;",
    f"  int constants[{MAX_CONSTANTS}];  // positions of inputs that have to be constants, or left out",
    "  int scalar_count;",
    f"  int scalars[{MAX_PARAMETERS}];  // positions of inputs that have one element",
    "  int vector_count;",
    f"  int vectors[{MAX_PARAMETERS}];  // positions of inputs that have at most one dimension",
    "  const char* note;",
    "};",
]


def directml_operator_of(name: str, row: Row, types: Sequence[ElementType]) -> str:
    versions, directml = row.elements("versions"), row.names("directml")
    bits = type_bits(row, "types", row.names("types"), types)
    shapes, attributes = row.elements("shape_inputs", []), row.texts("attributes")
    values, constants = row.texts("values"), row.elements("constants", [])
    ranks = row.elements("ranks", [-1, 8])
    scalars, vectors = row.elements("scalars", []), row.elements("vectors", [])
    for key, given, most in (
        ("versions", versions, MAX_VERSIONS),
        ("directml", directml, MAX_DIRECTML),
        ("shape_inputs", shapes, MAX_SHAPE_INPUTS),
        ("attributes", attributes, MAX_ATTRIBUTES),
        ("values", values, MAX_VALUES),
        ("constants", constants, MAX_CONSTANTS),
        ("ranks", ranks, 2),
        ("scalars", scalars, MAX_PARAMETERS),
        ("vectors", vectors, MAX_PARAMETERS),
    ):
        if len(given) > most:
            raise row.error(f"key '{key}' has more than {most}")
    for each in attributes.values():
        if each not in DIRECTML_ATTRIBUTE_TYPES:
            raise row.error(f"'{each}' is not {quoted(DIRECTML_ATTRIBUTE_TYPES)}")
    names = braces((f"{{{text(each)}, {text(kind)}}}" for each, kind in attributes.items()), '{"", ""}')
    only = braces((f"{{{text(each)}, {text(f' {allowed} ')}}}" for each, allowed in values.items()), '{"", ""}')
    flags = ", ".join(boolean(row.flag(key, False)) for key in ("on_cpu", "moves"))
    code = (
        f"{{{text(name)}, {len(versions)}, {braces(versions)}, {len(directml)}, "
        f"{braces(map(text, directml), 'nullptr')}, {level(row, 'level')}, {bits}u, {len(shapes)}, "
        f"{braces(shapes, '0')}, {flags}, {len(attributes)}, {names}, {len(values)}, {only}, "
        f"{row.integer('outputs', MAX_OUTPUTS)}, {braces(ranks)}, {len(constants)}, {braces(constants, '0')}, "
        f"{len(scalars)}, {braces(scalars, '0')}, {len(vectors)}, {braces(vectors, '0')}, "
        f"{text(row.text('note', ''))}}}"
    )
    row.end()
    return code


def directml_operator_code(table: Table, types: Sequence[ElementType]) -> list[str]:
    rows = {name: directml_operator_of(name, row, types) for name, row in table.rows("operator")}
    assumptions = []
    for name, row in table.rows("assumption"):
        assumptions.append(f"inline constexpr double k{camel(name)} = {row.number('value')!r};  // {row.text('doc')}")
        row.end()
    table.top.end()
    return [
        *assumptions,
        *enumeration("DirectMlOperator", list(rows)),
        *DIRECTML_OPERATOR_CODE,
        *array("DirectMlOperatorSpec kDirectMlOperators", rows.values()),
    ]


# headers


def header(includes: Sequence[str], code: Sequence[str]) -> str:
    first = "// Generated by tools/generate_tables.py from the tables in ep/spec. Do not edit."
    included = [*(f"#include {name}" for name in includes), ""] if includes else []
    lines = [first, "#pragma once", "", *included, "namespace normfuse {", ""]
    return "\n".join([*lines, *code, "", "}  // namespace normfuse", ""])


def headers(folder: Path) -> dict[str, str]:
    """Return the headers made of the tables in a folder, by name."""
    table = Table(folder, "activations")
    activations = [activation_of(name, row) for name, row in table.rows("activation")]
    table.top.end()
    types = element_types_of(Table(folder, "element_types"))
    operators = operators_of(Table(folder, "operators"), types)
    version = max(*operators.since, *(each.since for each in activations))
    parts = [
        [f"inline constexpr int kSpecVersion = {version};"],
        PRICE_CODE,
        price_code(Table(folder, "prices")),
        activation_code(activations),
        operator_code(operators),
        normalization_code(Table(folder, "normalizations"), operators),
        option_code(Table(folder, "options")),
        reason_code(Table(folder, "reasons")),
        host_operator_code(Table(folder, "host_operators"), [each.name for each in activations]),
        directml_operator_code(Table(folder, "directml_operators"), types),
    ]
    code = [line for part in parts for line in ["", *part]][1:]
    return {
        "element_types.h": header(["<cstdint>"], element_type_list(types)),
        # What kernels know of the tables: a change of anything else compiles none of them again.
        "activation_list.h": header([], [*activation_list(activations), *step_kind_list(operators)]),
        "tables.h": header(["<limits>", "<string_view>", '"spec/activation_list.h"'], code),
        "formulas.h": header(["<cmath>", '"spec/tables.h"'], formula_code(activations)),
    }


def main() -> int:
    if len(sys.argv) != 3:
        print("usage: generate_tables.py FOLDER_OF_TABLES FOLDER_OF_HEADERS", file=sys.stderr)
        return 2
    folder, output = map(Path, sys.argv[1:])
    try:
        made = headers(folder)
    except TableError as error:
        print(f"generate_tables.py: {error}", file=sys.stderr)
        return 1
    output.mkdir(parents=True, exist_ok=True)
    for name, content in made.items():
        path = output / name
        # An unchanged header keeps its time stamp, so that nothing is compiled again.
        if not path.exists() or path.read_text(encoding="utf-8") != content:
            path.write_text(content, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
