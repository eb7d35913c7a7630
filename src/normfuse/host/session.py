"""Session options with the execution provider and the custom operators in them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from normfuse import spec
from normfuse.errors import OptionError
from normfuse.host.config_entries import get_entry, set_entry
from normfuse.host.native_library import EP_NAME, get_library_path
from normfuse.host.options import check_directml, validate_options
from normfuse.host.registration import devices_for, ensure_registered
from normfuse.host.versions import load_host

if TYPE_CHECKING:
    import os

    import onnx
    import onnx_ir as ir
    import onnxruntime

#: Session configuration entry that says which backend the options ask for.
BACKEND_KEY = "normfuse.backend"

_MARKER = "normfuse.session_options"
#: A level of `log_severity_level`.
ERRORS_ONLY = 3
# The default of the option, so that a session without options reads no table.
_BACKEND = "auto"
#: ONNX Runtime keeps the options given with a provider as session configuration entries with this prefix.
OPTION_PREFIX = f"ep.{EP_NAME.lower()}."


def session_options(
    options: onnxruntime.SessionOptions | None = None,
    *,
    model: str | os.PathLike[str] | bytes | onnx.ModelProto | ir.Model | None = None,
    backend: str | None = None,
    claim: str | None = None,
    claim_report: str | os.PathLike[str] | None = None,
    **ep_options: object,
) -> onnxruntime.SessionOptions:
    """Return session options that use the execution provider and know the custom operators.

    Works with every supported ONNX Runtime: ``InferenceSession(path, sess_options=normfuse.session_options())``.
    Do not pass ``providers=`` as well: ONNX Runtime would then ignore what is set here.

    Args:
        options: Options to add to (changed in place and returned); None: new ones, which log errors only
            (``log_severity_level`` 3): ONNX Runtime warns of every session in which a node stays with its own CPU
            provider, and most nodes do. Calling this again with the same object changes the options that are given
            then; what is not given, or None, stays as it is. Leave ``add_provider_for_devices`` to this function.
            Where ``optimized_model_filepath`` is set, chains of standard operators are left alone (``compile=0``): ONNX
            Runtime cannot save what an execution provider compiled.
        model: The model that the session will be created on, for the memory that this takes. A model rewritten by
            :func:`normfuse.optimize` holds functions, and by default ONNX Runtime copies all weights of such a model
            once more while it loads it. Where nothing else in the model gains by that, its functions are then inlined
            later, without the copy (``session.disable_aot_function_inlining`` is 1, unless the options have that entry
            already). Where a float16 model leads into a fault of ONNX Runtime that ends the process, one of its
            optimizers is added to ``optimization.disable_specified_optimizers``; without ``model`` the chains that
            would lead there are left alone. The model's weights are not read.
        backend: "cpu" or "directml": what runs the fused chains. "auto", the default, is the CPU, on machines with a
            GPU as well.
        claim: "profitable", the default: take the chains that are expected to run faster here; "all": every supported
            one.
        claim_report: File to which one JSON object for each site that was looked at is written at session creation.
        ep_options: Further options of the execution provider, see :data:`normfuse.spec.OPTIONS`.

    Raises:
        OptionError: An option is unknown or has a value that it does not take, or DirectML is asked for and missing.
        InvalidModelError: The file of ``model`` cannot be read.
        HostVersionError: onnxruntime is missing or older than 1.24.
        LibraryLoadError: The native library is missing or cannot be loaded.
    """
    given = {"backend": backend, "claim": claim, "claim_report": claim_report, **ep_options}
    values = validate_options(given)
    host = load_host()
    if options is None:
        options = host.SessionOptions()
        options.log_severity_level = ERRORS_ONLY
    elif not isinstance(options, host.SessionOptions):
        raise OptionError(f"options must be an onnxruntime.SessionOptions, not {type(options).__name__}.")
    again = get_entry(options, _MARKER) is not None
    if again:
        before = {name: get_entry(options, OPTION_PREFIX + name) for name in spec.OPTIONS}
        values = validate_options({**before, **{name: value for name, value in given.items() if value is not None}})
    backend = values.get("backend") or spec.OPTIONS["backend"].default if values else _BACKEND
    devices = devices_for(backend, ensure_registered())
    if backend == "directml":
        check_directml(values, on_gpu_device=devices[0].ep_metadata.get("backend") == backend)
    if options.optimized_model_filepath and ep_options.get("compile") is None:
        values["compile"] = "0"
    if model is not None:
        from normfuse.host.float16 import avoid_float16_fault
        from normfuse.host.inlining import choose_inlining

        choose_inlining(options, model)
        avoid_float16_fault(options, model)
    if again:
        for option in spec.OPTIONS.values():
            if option.name in values or get_entry(options, OPTION_PREFIX + option.name) is not None:
                set_entry(options, OPTION_PREFIX + option.name, values.get(option.name, option.default))
    else:
        # In this order: the other way round ONNX Runtime finds the operators' domain registered twice.
        options.register_custom_ops_library(get_library_path())
        options.add_provider_for_devices(devices, values)
        set_entry(options, _MARKER, "1")
    set_entry(options, BACKEND_KEY, backend)
    return options
