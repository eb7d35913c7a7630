"""Models above the 2 GB that one protobuf message can hold: their weights are never read into memory."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto

from normfuse import models

BYTES, COLUMNS = 2_360_000_000, 256

OPTIMIZE = """
import sys
import normfuse
result = normfuse.optimize(sys.argv[1], verify=False)
status = dict(line.split(":") for line in open("/proc/self/status"))
assert len(result.report.fused) == 2, result.report.fused
assert result.report.bytes_before > 2**31
large = next(t for t in result.model.graph.initializer if t.name == "table")
assert large.data_location == 1 and not large.raw_data
print(status["RssAnon"].split()[0])
"""


def with_a_large_table(folder: Path, bytes_each: int) -> Path:
    """An embedding of more than 2 GB, in a file that is all holes, behind it normalisations."""
    g = models.GraphBuilder(opset=17)
    ids = g.input("ids", ["batch", "length"], "int64")
    y = g.add("Cast", g.add("Gather", "table", ids), to=TensorProto.FLOAT)
    for _ in range(2):
        scale, bias = g.weight(COLUMNS, mean=1.0), g.weight(COLUMNS)
        y = g.add("Gelu", g.add("LayerNormalization", y, scale, bias), domain="com.microsoft")
    g.output(y, ["batch", "length", COLUMNS])
    g.constant([0.0], "table")
    model = g.model("large")
    table = next(tensor for tensor in model.graph.initializer if tensor.name == "table")
    table.Clear()
    table.name, table.data_location = "table", TensorProto.EXTERNAL
    table.data_type = TensorProto.FLOAT if bytes_each == 4 else TensorProto.INT8
    table.dims.extend([BYTES // COLUMNS // bytes_each, COLUMNS])
    table.external_data.add(key="location", value="table.bin")
    with (folder / "table.bin").open("wb") as file:
        file.truncate(bytes_each * table.dims[0] * COLUMNS)
    onnx.save(model, folder / "large.onnx")
    return folder / "large.onnx"


# Numbers in float are looked at, for NaN and infinity: for ten seconds.
@pytest.mark.parametrize("bytes_each", [1, pytest.param(4, marks=pytest.mark.slow)])
def test_weights_are_not_read(tmp_path: Path, bytes_each: int) -> None:
    path = with_a_large_table(tmp_path, bytes_each)
    command = [sys.executable, "-c", OPTIMIZE, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 400_000, "kB of memory that are not a mapped file"
