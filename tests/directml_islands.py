"""For tests of islands: sessions of one island, what nodes compute in float64, and a GPU of the test's own."""

import ctypes
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import directml_libraries as libraries
import harness
import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from normfuse.meaning import Array

OUT_OF_MEMORY = 0x8007000E - (1 << 32)
REMOVED = 0x887A0005 - (1 << 32)
TEXT = {"float32": "float", "float64": "double"}


def kind(array: Array) -> str:
    """Its element type in ONNX's text form."""
    return TEXT.get(array.dtype.name, array.dtype.name)


def session_of(model: onnx.ModelProto, fake: Mapping[str, str], **options: Any) -> onnxruntime.InferenceSession:
    return harness.create_session(model, "ep", **{"backend": "directml", "claim": "all", **fake, **options})


def island(model: onnx.ModelProto, fake: Mapping[str, str], **options: Any) -> onnxruntime.InferenceSession:
    """A session of which every node is in one island."""
    session = session_of(model, fake, **options)
    assert not harness.cpu_types(session)
    assert len(harness.ep_groups(session)) == 1
    return session


def open_output(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model, which does not say what shape its first output has; without constants that nothing reads."""
    model.graph.output[0].type.tensor_type.ClearField("shape")
    read = {name for node in model.graph.node for name in node.input}
    kept = [constant for constant in model.graph.initializer if constant.name in read]
    del model.graph.initializer[:]
    model.graph.initializer.extend(kept)
    return model


def in_double(model: onnx.ModelProto, feeds: Mapping[str, Array]) -> list[Array]:
    """What ONNX's reference implementation computes of the nodes, with floats of 64 bits."""
    wide = onnx.ModelProto()
    wide.CopyFrom(model)
    for node in wide.graph.node:
        for attribute in node.attribute:
            if node.op_type == "Cast" and attribute.name == "to" and attribute.i == TensorProto.FLOAT:
                attribute.i = TensorProto.DOUBLE
        if node.op_type == "ConstantOfShape" and not node.attribute:
            node.attribute.append(helper.make_attribute("value", numpy_helper.from_array(np.zeros(1))))
    constants = {each.name: numpy_helper.to_array(each) for each in wide.graph.initializer}
    for each in wide.graph.initializer:
        each.CopyFrom(numpy_helper.from_array(doubled(constants[each.name]), each.name))
    return [np.asarray(y) for y in ReferenceEvaluator(wide).run(None, {n: doubled(x) for n, x in feeds.items()})]


def doubled(array: Array) -> Array:
    return np.asarray(array, np.float64) if array.dtype in (np.float32, np.float16) else array


class FakeGpu:
    """A copy of the fake is another library: what a test does to its GPU touches no other test."""

    def __init__(self, folder: Path) -> None:
        path = folder / f"libfake_directml_{folder.name}.so"
        path.write_bytes(libraries.build_fake().read_bytes())
        self.path = str(path)
        self.options = {"directml_library": self.path, "d3d12_library": self.path}
        self._control = ctypes.CDLL(self.path).FakeControl
        self._control.argtypes = [ctypes.c_char_p, ctypes.c_int64]

    def __getitem__(self, counter: str) -> int:
        return libraries.counted(self.path, counter)

    def control(self, name: str, value: int) -> None:
        self._control(name.encode(), value)
