"""Is everything there that normfuse needs on this machine, and does it work? One finding for each question."""

from __future__ import annotations

import dataclasses
import os
import platform
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from normfuse._version import __version__
from normfuse.errors import NormfuseError
from normfuse.host.native_library import EP_NAME, get_library_path
from normfuse.host.options import validate_options
from normfuse.host.plain_sessions import plain_session
from normfuse.host.registration import ensure_registered, instruction_set
from normfuse.host.session import session_options
from normfuse.host.versions import (
    BY_NAME_VERSION,
    NEWEST_TESTED,
    host_version,
    how_to_keep_one,
    installed_flavours,
    load_host,
)
from normfuse.inspection.gpu_work import count_gpu_work
from normfuse.sessions.prepared_models import VARIABLE, cache_folder, entries

if TYPE_CHECKING:
    import onnx

_TOLERANCE = 1e-5


@dataclasses.dataclass(frozen=True)
class Finding:
    """The answer to one question."""

    name: str
    ok: bool
    text: str
    """What is there; where ``ok`` is False, what is wrong and what to do."""


def diagnose(backend: str = "auto") -> Iterator[Finding]:
    """Yield findings, the most basic ones first; later ones are left out where an earlier one makes them pointless.

    Args:
        backend: "directml": also whether DirectML is there, whether it is right, and what a call of a node asks of it.

    Raises:
        OptionError: There is no such backend.
    """
    validate_options({"backend": backend})
    yield Finding("normfuse", True, f"{__version__}, Python {platform.python_version()}, {platform.platform()}")
    versions = ", ".join(f"{name} {_version(name)}" for name in ("onnx", "onnx-ir", "numpy"))
    yield Finding("packages", True, versions)
    questions: tuple[tuple[str, Callable[[], str]], ...] = (
        ("onnxruntime", _host),
        ("native library", _library),
        ("registration", _registration),
        ("instruction set", _instruction_set),
        ("cache", _cache),
        ("session", _session),
        ("custom operators", _custom_operators),
        *((("DirectML", _directml),) if backend == "directml" else ()),
    )
    for name, question in questions:
        try:
            yield Finding(name, True, question())
        except NormfuseError as error:
            yield Finding(name, False, str(error))
            return
        except Exception as error:  # whatever onnxruntime raises is an answer, too
            yield Finding(name, False, f"{type(error).__name__}: {error}")
            return


def _version(distribution: str) -> str:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return "(not installed)"


def _host() -> str:
    host = load_host()
    flavours = installed_flavours()
    text = ", ".join(f"{name} {version}" for name, version in flavours.items()) or f"onnxruntime {host.__version__}"
    if len(flavours) > 1:
        advice = how_to_keep_one()
        raise NormfuseError(
            f"{text} are installed at once and overwrite each other's files; keep one of them: {advice}."
        )
    if host_version(host) < BY_NAME_VERSION:
        text += "; selects the provider by normfuse.session_options() only, by name from 1.25 on"
    if host_version(host) > NEWEST_TESTED:
        newest = ".".join(map(str, NEWEST_TESTED))
        text += f"; newer than {newest}, the newest that normfuse {__version__} was tested with"
    return text


def _library() -> str:
    path = Path(get_library_path())
    return f"{path} ({path.stat().st_size / 1e6:.1f} MB)"


def _registration() -> str:
    devices = ensure_registered()
    kinds = ", ".join(str(device.device.type).rsplit(".", 1)[-1] for device in devices)
    return f"{EP_NAME} {devices[0].ep_metadata.get('version', '')} on {kinds}"


def _instruction_set() -> str:
    chosen = instruction_set()
    forced = os.environ.get("NORMFUSE_ISA")
    return chosen + (f" (NORMFUSE_ISA={forced})" if forced else "")


def _cache() -> str:
    folder, kept = cache_folder(), entries()
    if folder is None:
        return f"off: sessions prepare their models anew ({VARIABLE}=0, or no home folder)"
    return f"{len(kept)} prepared models, {sum(each.size for each in kept) / 1e6:.1f} MB, in {folder}"


def _session() -> str:
    """Run LayerNormalization -> Gelu and see who ran it."""
    host = load_host()
    options = host.SessionOptions()
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    options.log_severity_level = 4
    session_options(options, claim="all")
    model = _chain()
    session = plain_session(model.SerializeToString(), sess_options=options, enable_fallback=0)
    taken = [
        node.op_type
        for subgraph in session.get_provider_graph_assignment_info()
        if subgraph.ep_name == EP_NAME
        for node in subgraph.get_nodes()
    ]
    if sorted(taken) != ["Gelu", "LayerNormalization"]:
        raise NormfuseError(f"A session with LayerNormalization -> Gelu gave {EP_NAME} only {taken or 'nothing'}.")
    error = _error(session, model)
    if not error < _TOLERANCE:
        raise NormfuseError(f"LayerNormalization -> Gelu on {EP_NAME} is wrong by {error:.3g}.")
    return f"LayerNormalization -> Gelu ran on {EP_NAME}, error {error:.1g}"


def _directml() -> str:
    """Run the same on DirectML, and count what a call asks of it."""

    def create(further: dict[str, Any]) -> Any:
        options = session_options(claim="all", backend="directml", **further)
        return plain_session(model.SerializeToString(), sess_options=options, enable_fallback=0)

    model = _chain()
    work = count_gpu_work(create, {"x": _input()})
    if work.calls != 1:
        raise NormfuseError(f"A session with LayerNormalization -> Gelu made {work.calls} calls on DirectML, not 1.")
    error = _error(create({}), model)
    if not error < _TOLERANCE:
        raise NormfuseError(f"LayerNormalization -> Gelu on DirectML is wrong by {error:.3g}.")
    return f"LayerNormalization -> Gelu ran on DirectML, error {error:.1g}; {work}"


def _chain() -> onnx.ModelProto:
    from normfuse.models import chain

    return chain([4, 64], activation_name="gelu", opset=20)


def _input() -> np.ndarray[Any, Any]:
    return np.random.default_rng(0).standard_normal((4, 64)).astype(np.float32)


def _error(session: Any, model: onnx.ModelProto) -> float:
    """Largest error against float64."""
    from onnx import numpy_helper

    from normfuse.meaning import evaluate

    weights = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    scale, bias = (weights[name] for name in model.graph.node[0].input[1:3])
    x = _input()
    steps = "Normalize axes=-1; Mul scale; Add bias; Gelu"
    expected = evaluate(steps, {"X": x, "scale": scale, "bias": bias})["Y"].exact
    return float(np.abs(session.run(None, {"x": x})[0] - expected).max())


def _custom_operators() -> str:
    """Load a model that holds one of the operators, with the custom-operator library alone."""
    from normfuse.models import GraphBuilder
    from normfuse.spec import OPERATOR_DOMAIN

    host = load_host()
    g = GraphBuilder(opset=17)
    y = g.add("FusedActivation", g.input("x", [8]), domain=OPERATOR_DOMAIN, steps="Relu")
    g.output(y, [8])
    options = host.SessionOptions()
    options.register_custom_ops_library(get_library_path())
    session = plain_session(
        g.model("custom").SerializeToString(), sess_options=options, providers=["CPUExecutionProvider"]
    )
    x = np.linspace(-1.0, 1.0, 8, dtype=np.float32)
    if not np.array_equal(session.run(None, {"x": x})[0], np.maximum(x, 0)):
        raise NormfuseError("The custom operator FusedActivation gave a wrong result.")
    return "FusedActivation ran through register_custom_ops_library"
