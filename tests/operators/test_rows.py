"""Rows side by side: every number of them, wherever X and Y lie in memory, and quantised at every scale."""

from __future__ import annotations

import families
import harness
import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import pytest
from checking import check, normalization, session_of
from families import Family
from strategies import Case

from normfuse.meaning import Array

F32 = np.float32
PAGE = 4096
pytestmark = pytest.mark.every_isa


def numbers(shape: tuple[int, ...], seed: int, mean: float = 0.0) -> Array:
    return np.random.default_rng(seed).normal(mean, 1.0, shape).astype(F32)


def rows(count: int, width: int, activation: str = "Identity", mean: float = 0.0, **inputs: Array) -> Case:
    parameters = {"scale": numbers((width,), 1), "bias": numbers((width,), 2)} | inputs
    return normalization(numbers((count, width), 0, mean), {"axes": [-1], "activation": activation}, **parameters)


def placed(memory: Array, like: Array, distance: int) -> Array:
    """An array in ``memory`` whose address is ``distance`` bytes behind a multiple of the size of a page."""
    start = -memory.ctypes.data % PAGE + distance
    return memory[start : start + like.nbytes].view(like.dtype).reshape(like.shape)


@pytest.mark.parametrize("count", range(1, 12))
@pytest.mark.parametrize("width", [17, 70, 384, 1040])
def test_every_number_of_rows(count: int, width: int) -> None:
    check(rows(count, width, "Gelu", mean=1e3), "ep")
    y = {"y_scale": np.asarray(0.02, F32), "y_zero_point": np.asarray(-5, np.int8)}
    check(rows(count, width, **y), "ep")


@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("value", [np.inf, np.nan, 6e4, 1e30])
def test_a_row_of_strange_values_changes_no_other(value: float, dtype: type, residual: bool) -> None:
    x = numbers((13, 768), 0).astype(dtype)
    inputs = {"scale": numbers((768,), 1).astype(dtype), "bias": numbers((768,), 2).astype(dtype)}
    if residual:
        inputs["residual"] = numbers((13, 768), 3).astype(dtype)
    case = normalization(x, {"axes": [-1]}, **inputs)
    session = session_of(case, "ep")
    usual = harness.run(session, case.inputs)["Y"]
    for strange in range(13):
        row = x[strange].copy()
        with np.errstate(over="ignore"):
            x[strange, [5, 700]] = np.asarray([value, -value]).astype(dtype)
        got = harness.run(session, case.inputs)["Y"]
        x[strange] = row
        others = np.arange(13) != strange
        assert got[others].tobytes() == usual[others].tobytes(), strange


@pytest.mark.parametrize("activation", ["Identity", "Relu", "Gelu", "Swish"])
@pytest.mark.parametrize("width", [40, 768, 1000])
def test_results_do_not_depend_on_where_tensors_lie(activation: str, width: int) -> None:
    case = rows(9, width, activation)
    session = session_of(case, "ep")
    x, expected = case.inputs["X"], harness.run(session, case.inputs)["Y"]
    memory = [np.zeros(x.nbytes + 3 * PAGE, np.uint8) for _ in range(2)]
    source = placed(memory[0], x, 0)
    source[:] = x
    for distance in (0, 64, 128, 448, 1024, 1088, 3072, 3136, 4032):
        target = placed(memory[1], x, distance)
        target[:] = np.nan
        binding = session.io_binding()
        for bind, name, array in ((binding.bind_input, "X", source), (binding.bind_output, "Y", target)):
            bind(name, "cpu", 0, F32, array.shape, array.ctypes.data)
        session.run_with_iobinding(binding, onnxruntime.RunOptions())
        assert target.tobytes() == expected.tobytes(), distance


@pytest.mark.parametrize("zero", [-128, 0, 127])
@pytest.mark.parametrize("scale", [1e-35, 1e-20, 1e-10, 1e-7, 1.0, 1e7, 1e20, 1e35])
def test_every_scale_of_a_quantised_result(scale: float, zero: int) -> None:
    y = {"y_scale": np.asarray(scale, F32), "y_zero_point": np.asarray(zero, np.int8)}
    for activation in ("Identity", "Relu", "Gelu"):
        check(rows(4, 100, activation, **y), "ep")
        check(rows(4, 100, activation, bias=np.full(100, 1e30, F32), **y), "ep")


@pytest.mark.parametrize("scale", [3e-8, 2e-6, 1e-4, 0.01, 0.3])
def test_quantised_gelu_of_every_size(scale: float) -> None:
    """What is normalised is multiplied by 0, so that the values are the biases themselves."""
    sizes = np.geomspace(1e-9, 20.0, 2000)
    bias = np.concatenate([sizes, -sizes, np.linspace(-9, 9, 3001), [0.0, -0.0, np.inf, -np.inf, np.nan]]).astype(F32)
    for y_type in (np.int8, np.uint8):
        y = {"y_scale": np.asarray(scale, F32), "y_zero_point": np.asarray(100, y_type)}
        check(rows(5, bias.size, "Gelu", scale=np.zeros(bias.size, F32), bias=bias, **y), "ep")


# --- rows that are summed again, among others of their tile ----------------------------------------------------------


def stored(values: Array, dtype: type) -> tuple[Array, Array]:
    """Values in steps that span the type, and the step."""
    limits = np.iinfo(dtype)
    step = np.asarray(np.abs(values).max() / limits.max, F32)
    return np.clip(np.rint(values / step), limits.min, limits.max).astype(dtype), step


def added(before: str, data: Array) -> tuple[list[onnx.NodeProto], dict[str, Array], dict[str, Array], Array]:
    """What is normalised, "d", as nodes with inputs and constants, and in float64."""
    make, wide = onnx.helper.make_node, data.astype(np.float64)
    by_row = np.arange(data[..., :1].size, dtype=F32).reshape(data[..., :1].shape)
    if before == "one number a row":
        return [make("Add", ["x", "t"], ["d"])], {"x": data, "t": by_row}, {}, wide + by_row
    if before == "a scale for each element":
        factor = np.linspace(0.5, 1.5, data.size, dtype=F32).reshape(data.shape)
        return [make("Mul", ["x", "t"], ["d"])], {"x": data, "t": factor}, {}, wide * factor.astype(np.float64)
    kinds = {"int8": (np.int8, np.int8), "uint16": (np.uint16, np.int16), "int8 and a residual": (np.int8, None)}
    nodes, inputs, constants, total = [], {}, {}, np.zeros(data.shape)
    for name, dtype in zip("xr", kinds[before], strict=True):
        if dtype is None:
            inputs[name], part = data, wide
        else:
            inputs[name], constants[f"{name}_step"] = stored(data, dtype)
            nodes.append(make("DequantizeLinear", [name, f"{name}_step"], [f"{name}_real"]))
            part = inputs[name].astype(np.float64) * np.float64(constants[f"{name}_step"])
        total = total + part
    reals = [nodes[0].output[0], "r" if kinds[before][1] is None else "r_real"]
    return [*nodes, make("Add", reals, ["d"])], inputs, constants, total


@pytest.mark.parametrize("length", [33, 100, 768, 1024, 4096])
@pytest.mark.parametrize("norm", ["LayerNormalization", "LayerNormalization, uint8", "Instance", "Group"])
@pytest.mark.parametrize(
    "before", ["one number a row", "a scale for each element", "int8", "uint16", "int8 and a residual"]
)
def test_rows_that_are_summed_again_disturb_no_other(before: str, norm: str, length: int) -> None:
    """The mean of a row's first values is more than a deviation from its mean: in ramps, skies, padding, onsets.

    By default such a row was read into where the tile kept its rows, and rows got another row's values.
    """
    import normfuse

    families_of = [Family(name, row) for name in ("ramp", "zeros in front", "sorted") for row in (None, 1, 4)]
    for count in (4, 8):
        shape = (count, length) if norm.startswith("Layer") else (2, count // 2, length)
        _, _, constants, _ = added(before, np.ones(shape, F32))
        session_list: list[onnxruntime.InferenceSession] = []
        for family in families_of:
            data = families.fill(family, np.random.default_rng(length), shape, F32, mean=0.5)
            data.flat[0] = 8.0  # the largest of all, so that steps are the same in each
            nodes, feeds, constants, d = added(before, np.clip(data, -8.0, 8.0))
            n = (d - d.mean(-1, keepdims=True)) / np.sqrt(d.var(-1, keepdims=True) + 1e-5)
            if not session_list:
                model = _behind(norm, nodes, feeds, constants, shape)
                rewritten = normfuse.optimize(model, verify=False).model
                options = harness.session_options("cpu")
                own = normfuse.InferenceSession(model.SerializeToString(), options)
                session_list = [harness.create_session(model), harness.create_session(rewritten)]
                assert harness.ep_groups(session_list[0])
            got = [harness.run(session, feeds)["y"] for session in session_list] + [own.run(None, feeds)[0]]
            for which, y in enumerate(got):
                if y.dtype == np.uint8:
                    error = np.abs(y - np.clip(n / F32(0.05) + 128, 0, 255)).max() - 0.501
                else:
                    error = (np.abs(y - n) / (1 + np.abs(n))).max() - 2e-5
                assert error <= 0, f"{family}, {count} rows, way {which}: error {error}"


def _behind(
    norm: str, nodes: list[onnx.NodeProto], feeds: dict[str, Array], constants: dict[str, Array], shape: tuple[int, ...]
) -> onnx.ModelProto:
    make = onnx.helper.make_node
    size = shape[-1] if norm.startswith("Layer") else shape[1]
    more = {"ones": np.ones(size, F32), "zeros": np.zeros(size, F32)}
    kind, at = {"Instance": ("InstanceNormalization", {}), "Group": ("GroupNormalization", {"num_groups": size})}.get(
        norm, ("LayerNormalization", {})
    )
    last = "z" if norm.endswith("uint8") else "y"
    nodes = [*nodes, make(kind, ["d", "ones", "zeros"], [last], name="norm", epsilon=1e-5, **at)]
    if last == "z":
        more |= {"step": np.asarray(0.05, F32), "zero": np.asarray(128, np.uint8)}
        nodes.append(make("QuantizeLinear", ["z", "step", "zero"], ["y"]))
    code = onnx.TensorProto.UINT8 if last == "z" else onnx.TensorProto.FLOAT
    return harness.build_model(nodes, feeds, {"y": code}, constants | more, shapes={"y": shape})
