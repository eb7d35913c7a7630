"""Turn the TOML tables of ``ep/spec`` into one C++ header.

Called by CMake: ``python generate_tables.py FOLDER_OF_TABLES OUTPUT_HEADER``. Only the standard library is needed.
"""

from __future__ import annotations

import itertools
import re
import sys
import tomllib
from pathlib import Path
from typing import Any

MAX_PARAMS = 2
LEVELS = ("1_0", "2_0", "2_1", "3_0", "3_1", "4_0", "4_1", "5_0", "5_1", "5_2", "6_0", "6_1", "6_2", "6_3", "6_4")


def load(folder: Path, name: str) -> dict[str, Any]:
    return tomllib.loads((folder / f"{name}.toml").read_text(encoding="utf-8"))


def camel(snake: str) -> str:
    return "".join(part.capitalize() for part in snake.split("_"))


def text(value: str) -> str:
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'


def number(value: float | str) -> str:
    value = float(value)
    if value in (float("inf"), float("-inf")):
        return ("-" if value < 0 else "") + "std::numeric_limits<float>::infinity()"
    return repr(value) + "f"


def level(value: str) -> str:
    if not value:
        return "0"
    if value not in LEVELS:
        raise ValueError(f"unknown DirectML feature level {value!r}")
    major, minor = value.split("_")
    return f"0x{major}{minor}00"


def string_array(values: list[str], size: int) -> str:
    return "{" + ", ".join(text(v) for v in values + [""] * (size - len(values))) + "}"


def activation_rows(table: dict[str, Any]) -> tuple[list[str], list[str]]:
    rows, spellings = [], []
    for index, row in enumerate(table["activation"]):
        params = row.get("params", [])
        if len(params) > MAX_PARAMS:
            raise ValueError(f"{row['name']}: at most {MAX_PARAMS} parameters")
        names = [name for name, _ in params]
        defaults = ", ".join(number(value) for _, value in params) or "0"
        dml = row.get("directml", {"op": "", "type": 0, "level": "", "fused": "", "fields": []})
        fields = ", ".join(str(names.index(field)) for field in dml["fields"])
        rows.append(
            f"  {{{text(row['name'])}, {len(params)}, {string_array(names, MAX_PARAMS)}, {{{defaults}}}, "
            f"{'true' if row.get('slope') else 'false'}, {{{text(dml['op'])}, {dml['type']}, {level(dml['level'])}, "
            f"{level(dml['fused'])}, {len(dml['fields'])}, {{{fields or '0'}}}}}}},"
        )
        for spelling in row.get("onnx", []):
            spellings.append(spelling_row(row, index, names, spelling))
    return rows, spellings


def spelling_row(row: dict[str, Any], index: int, names: list[str], spelling: dict[str, Any]) -> str:
    defaults = dict(row.get("params", []))
    defaults.update(spelling.get("defaults", {}))
    values = ", ".join(number(defaults[name]) for name in names) or "0"
    attributes = {param: attribute for attribute, param in spelling.get("attributes", {}).items()}
    by_param = [attributes.get(name, "") for name in names]
    inputs = [names.index(name) for name in spelling.get("inputs", [])]
    input_list = ", ".join(str(i) for i in inputs) or "0"
    when = list(spelling.get("when", {}).items())
    when_name, when_value = when[0] if when else ("", "")
    return (
        f"  {{Activation::k{row['name']}, {text(spelling.get('domain', ''))}, {text(spelling['op'])}, "
        f"{spelling['since']}, {spelling.get('until', 9999)}, {text(when_name)}, {text(when_value)}, "
        f"{string_array(by_param, MAX_PARAMS)}, {{{values}}}, {len(inputs)}, {{{input_list}}}, "
        f"{'true' if spelling.get('bias') else 'false'}}},"
    )


def operator_code(table: dict[str, Any]) -> list[str]:
    out = [
        f"inline constexpr const char* kOperatorDomain = {text(table['domain'])};",
        f"inline constexpr int kOperatorSetVersion = {table['opset_version']};",
        f"inline constexpr int kSpecVersion = {table['spec_version']};",
    ]
    for operator in table["operator"]:
        name = operator["name"]
        for what in ("inputs", "outputs"):
            values = operator[what]
            kind = what[:-1].capitalize()
            out.append(f"enum class {name}{kind} : int {{")
            out += [f"  k{camel(v)} = {i}," for i, v in enumerate(values)]
            out.append("};")
            out.append(f"inline constexpr const char* k{name}{kind}s[] = {{{', '.join(text(v) for v in values)}}};")
    known = [f"  {{{text(a['name'])}, {text(a['type'])}}}," for a in table["attribute"]]
    out += ["struct AttributeSpec {", "  const char* name;", "  const char* type;", "};"]
    out += ["inline constexpr AttributeSpec kAttributes[] = {", *known, "};"]
    return out


def function_names(operators: dict[str, Any]) -> list[str]:
    """Return every name of a model-local function that the EP has a kernel for, numbers left out."""
    functions = operators["functions"]
    names = []
    for operator, steps in functions["steps"].items():
        choices = [functions[step] if isinstance(step, str) else ["", *step] for step in steps]
        names += ["_".join([operator, *[c for c in choice if c]]) for choice in itertools.product(*choices)]
    return names


def function_code(operators: dict[str, Any]) -> list[str]:
    return [
        f"inline constexpr int kNumberedFunctions = {operators['functions']['numbered']};",
        "inline constexpr const char* kFunctionNames[] = {",
        *[f"  {text(name)}," for name in function_names(operators)],
        "};",
    ]


def reason_code(table: dict[str, Any]) -> list[str]:
    rows = table["reason"]
    return [
        "enum class Reason : int {",
        *[f"  k{camel(r['code'])} = {i}," for i, r in enumerate(rows)],
        "};",
        "struct ReasonSpec {",
        "  const char* code;",
        "  const char* text;    // with {names} to fill in",
        "  const char* advice;",
        "};",
        "inline constexpr ReasonSpec kReasons[] = {",
        *[f"  {{{text(r['code'])}, {text(r['text'])}, {text(r['advice'])}}}," for r in rows],
        "};",
    ]


def header(folder: Path) -> str:
    activations = load(folder, "activations")
    names = [row["name"] for row in activations["activation"]]
    for name in names:
        if not re.fullmatch(r"[A-Z][A-Za-z0-9]*", name):
            raise ValueError(f"activation name {name!r} is not an identifier in CamelCase")
    rows, spellings = activation_rows(activations)
    kernels = [f"  X({row['name']}, {row['kernel']}) \\" for row in activations["activation"]]
    lines = [
        "// Generated by tools/generate_tables.py from the tables in ep/spec. Do not edit.",
        "#pragma once",
        "",
        "#include <limits>",
        "",
        "namespace normfuse {",
        "",
        f"inline constexpr int kMaxActivationParams = {MAX_PARAMS};",
        "enum class Activation : int {",
        *[f"  k{name} = {i}," for i, name in enumerate(names)],
        "};",
        f"inline constexpr int kActivationCount = {len(names)};",
        "// X(name, kernel functor) for each activation, in the order of the enumeration.",
        "#define NORMFUSE_FOR_EACH_ACTIVATION(X) \\",
        *kernels,
        "",
        "struct DirectMlActivation {",
        '  const char* op;      // DML_OPERATOR_ACTIVATION_<op>, "" where DirectML has none',
        "  int type;            // DML_OPERATOR_TYPE",
        "  int level;           // feature level of the operator, 0xMmmm as DML_FEATURE_LEVEL; 0 = none",
        "  int fused_level;     // from which MVN1 takes it as FusedActivation; 0 = never",
        "  int field_count;",
        "  int fields[kMaxActivationParams];  // parameter index of each float field",
        "};",
        "struct ActivationSpec {",
        "  const char* name;",
        "  int param_count;",
        "  const char* params[kMaxActivationParams];",
        "  float defaults[kMaxActivationParams];",
        "  bool has_slope;",
        "  DirectMlActivation directml;",
        "};",
        "inline constexpr ActivationSpec kActivations[] = {",
        *rows,
        "};",
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
        "};",
        "inline constexpr ActivationSpelling kActivationSpellings[] = {",
        *spellings,
        "};",
        "",
        *operator_code(load(folder, "operators")),
        *function_code(load(folder, "operators")),
        "",
        *reason_code(load(folder, "reasons")),
        "",
        "}  // namespace normfuse",
        "",
    ]
    return "\n".join(lines)


def main() -> int:
    if len(sys.argv) != 3:
        print("usage: generate_tables.py FOLDER_OF_TABLES OUTPUT_HEADER", file=sys.stderr)
        return 2
    folder, output = map(Path, sys.argv[1:])
    output.parent.mkdir(parents=True, exist_ok=True)
    content = header(folder)
    # An unchanged header keeps its time stamp, so that nothing is compiled again.
    if not output.exists() or output.read_text(encoding="utf-8") != content:
        output.write_text(content, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
