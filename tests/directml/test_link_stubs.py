"""Libraries to link with, which a package may bring along and LD_LIBRARY_PATH find: they succeed and give no object."""

from __future__ import annotations

import directml_libraries as libraries
import harness
import numpy as np
import onnx
import pytest

FAILURE = "{function} of {library} says that it succeeded, but gives no object.* by the option {option}"
CASES = {
    "D3D12CreateDevice": ("d3d12_library", {}),
    "DMLCreateDevice1": ("directml_library", {}),
    "DXCoreCreateAdapterFactory": ("dxcore_library", {"adapter_index": "0"}),
}


@pytest.mark.parametrize("function", CASES)
def test_a_stub_is_named(function: str) -> None:
    option, others = CASES[function]
    fake, stub = str(libraries.build_fake()), str(libraries.build_link_stub())
    working = {"directml_library": fake, "d3d12_library": fake, "dxcore_library": fake}
    model = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["": 20]>
        g (float[N, 4] x) => (float[N, 4] y) { y = LayerNormalization(x, w) }""")
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.ones(4, np.float32), "w"))
    with pytest.raises(Exception, match=FAILURE.format(function=function, library=stub, option=option)):
        harness.create_session(model, "ep", backend="directml", **{**working, option: stub}, **others)
