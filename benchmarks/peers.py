"""How each peer runs a job: everything is prepared first, then one call is one run with inputs and outputs bound."""

import importlib.util
import platform
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

import numpy as np
import onnx
import onnxruntime
from jobs import Array, Arrays, Job

import normfuse

Call = Callable[[], None]


@dataclass(frozen=True)
class Prepared:
    call: Call
    outputs: Callable[[], Arrays]
    note: str = ""  # what a reader must know, such as a chain that was left to ORT


# One node on one element: a session's cost of a call without any work.
TRIVIAL = onnx.parser.parse_model(
    '<ir_version: 8, opset_import: ["": 17]> trivial (float[1] X) => (float[1] Y) { Y = Neg (X) }'
).SerializeToString()
TRIVIAL_INPUT = {"X": np.ones(1, np.float32)}


def aligned(array: Array) -> onnxruntime.OrtValue:
    """A copy in ONNX Runtime's own memory, aligned as every tensor inside of a session is."""
    value = onnxruntime.OrtValue.ortvalue_from_shape_and_type(array.shape, array.dtype)
    value.update_inplace(array)
    return value


def bound(session: onnxruntime.InferenceSession, inputs: Arrays) -> tuple[Call, Callable[[], Arrays]]:
    binding = session.io_binding()
    for name, value in inputs.items():
        binding.bind_ortvalue_input(name, aligned(value))
    names = [output.name for output in session.get_outputs()]
    results = dict(zip(names, session.run(names, inputs), strict=True))
    values = {name: aligned(result) for name, result in results.items()}
    for name, value in values.items():
        binding.bind_ortvalue_output(name, value)
    run, options = session._sess.run_with_iobinding, onnxruntime.RunOptions()
    raw = binding._iobinding
    return lambda: run(raw, options), lambda: {name: value.numpy() for name, value in values.items()}


def tuned(options: onnxruntime.SessionOptions, threads: int) -> onnxruntime.SessionOptions:
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    return options


class Peer:
    """Sessions of one kind.

    Without a label: normfuse, in its default configuration. Otherwise ONNX Runtime's own CPU execution provider, all
    optimisations on, but for those named.
    """

    def __init__(self, label: str = "", disabled: list[str] | None = None) -> None:
        self.label, self.is_ours, self.disabled = label or "normfuse", not label, disabled or []

    def session(self, model: bytes, threads: int) -> onnxruntime.InferenceSession:
        if not self.is_ours:
            options, more = onnxruntime.SessionOptions(), {"providers": ["CPUExecutionProvider"]}
            return onnxruntime.InferenceSession(
                model, tuned(options, threads), disabled_optimizers=self.disabled, **more
            )
        options = tuned(normfuse.session_options(), threads)
        options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
        return onnxruntime.InferenceSession(model, options, enable_fallback=0)

    def prepare(self, job: Job, threads: int) -> Prepared:
        model, note = job.model(), ""
        if self.is_ours and job.rewritten:
            model = normfuse.optimize(onnx.load_from_string(model), verify=False).model.SerializeToString()
        session = self.session(model, threads)
        if self.is_ours:
            claimed = {info.ep_name for info in session.get_provider_graph_assignment_info()}
            note = "" if claimed == {"NormFuseExecutionProvider"} else "left to ORT"
        return Prepared(*bound(session, {n: job.inputs[n] for n in job.activations}), note)

    def overhead(self, threads: int) -> Call:
        return bound(self.session(TRIVIAL, threads), TRIVIAL_INPUT)[0]


class OpenVino:
    label = "OpenVINO"

    def __init__(self) -> None:
        import openvino

        self.core = openvino.Core()
        self.tensor = openvino.Tensor

    def request(self, model: bytes, inputs: Arrays, threads: int) -> tuple[Call, Callable[[], Arrays]]:
        options = {
            "INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": "f32",
        }  # fmt: skip
        compiled = self.core.compile_model(self.core.read_model(model), "CPU", options)
        request = compiled.create_infer_request()
        for name, value in inputs.items():
            request.set_tensor(name, self.tensor(value))
        names = [output.get_any_name() for output in compiled.outputs]
        return request.infer, lambda: {name: np.array(request.get_tensor(name).data) for name in names}

    def prepare(self, job: Job, threads: int) -> Prepared:
        return Prepared(*self.request(job.model(), {n: job.inputs[n] for n in job.activations}, threads))

    def overhead(self, threads: int) -> Call:
        return self.request(TRIVIAL, TRIVIAL_INPUT, threads)[0]


class PyTorch:
    """torch.nn.functional in inference mode; PyTorch allocates its outputs in every call."""

    label = "PyTorch"

    def __init__(self) -> None:
        import torch

        self.torch = torch

    def prepare(self, job: Job, threads: int) -> Prepared:
        if job.torch is None:
            raise LookupError("PyTorch has no such operator")
        tensors = {name: self.torch.from_numpy(value) for name, value in job.inputs.items()}
        function, functional, state = job.torch, self.torch.nn.functional, {}
        self.torch.set_num_threads(threads)

        def call() -> None:
            with self.torch.inference_mode():
                state["Y"] = function(functional, tensors)

        def outputs() -> Arrays:
            value = state["Y"]
            return {"Y": (value[0] if isinstance(value, tuple) else value).numpy()}

        return Prepared(call, outputs)

    def overhead(self, threads: int) -> Call:
        value = self.torch.ones(1)
        self.torch.set_num_threads(threads)

        def call() -> None:
            with self.torch.inference_mode():
                self.torch.neg(value)

        return call


def installed(names: list[str] | None = None) -> list[Any]:
    """Every peer that this environment has; ORT and normfuse always."""
    peers: list[Any] = [Peer("ORT"), Peer()]
    for module, peer in (("openvino", OpenVino), ("torch", PyTorch)):
        if importlib.util.find_spec(module) and (names is None or peer.label in names):
            peers.append(peer())
    return peers


def versions() -> dict[str, str]:
    found = {"Python": platform.python_version()}
    for name in ("normfuse", "onnxruntime", "numpy", "openvino", "torch"):
        if importlib.util.find_spec(name):
            found[name] = version(name)
    return found


def copy_of(total_bytes: int) -> Call:
    """Reads half of the bytes and writes the other half: what moving a job's data costs at least."""
    source = np.ones(max(total_bytes // 2, 1), np.uint8)
    target: Array = np.zeros_like(source)
    return lambda: np.copyto(target, source)
