"""The class :class:`normfuse.InferenceSession`. Importing this module imports onnxruntime, if that is installed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from normfuse.errors import HostVersionError
from normfuse.host.plain_sessions import CREATION, ORIGINAL, host_class
from normfuse.host.provider_names import ProviderNames
from normfuse.host.versions import load_host
from normfuse.sessions.cached import create_session

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import onnxruntime

    from normfuse.files.model_files import ModelLike

_HostClass: Any
try:
    _HostClass = host_class()
except HostVersionError:  # creating one says so
    _HostClass = object

# Arguments of onnxruntime's class that it takes by name only.
_FURTHER = ("enable_fallback", "read_config_from_model", "disabled_optimizers")


class _StandsIn(type):
    """If the class replaces onnxruntime's, isinstance holds for sessions created before, or elsewhere, too."""

    def __instancecheck__(cls, instance: Any) -> bool:
        return super().__instancecheck__(instance) or (
            cls.__module__ == __name__ and _HostClass is not object and isinstance(instance, _HostClass)
        )


class InferenceSession(_HostClass, metaclass=_StandsIn):
    """A session on a model that is rewritten in memory and run with normfuse: an onnxruntime.InferenceSession.

    It takes onnxruntime's arguments as well, so that it can replace that class. If ``providers`` names another
    available provider before the CPU's, the session is a plain one. Nothing is verified and nothing is
    written: :func:`normfuse.optimize` does both, once, ahead of time.

    Args:
        path_or_bytes: The model: a path, bytes, onnx.ModelProto, onnx_ir.Model or torch.onnx.ONNXProgram; it is not
            changed.
        sess_options: Session options to use. They are not changed, but copied; except for those that have providers
            or, as far as the model tells, libraries of operators, which ONNX Runtime does not copy. Where
            :func:`normfuse.session_options` made them, its arguments apply, unless they are given here.
        providers: As in onnxruntime. ``get_providers()`` then says what a plain session says.
        provider_options: As in onnxruntime.
        backend: See :func:`normfuse.session_options`, as ``claim``, ``claim_report`` and ``ep_options``.
        claim: See there.
        claim_report: See there.
        allow_requantization_removal: Also fuse where that removes a quantisation inside a chain.
        remove_quantization: Remove the Q/DQ pairs (QuantizeLinear, DequantizeLinear) of activations, so that the model
            runs in float. Results change: see :func:`normfuse.optimize`.
        fold_weights: Dequantise quantised weights once instead of in every run, where the operator that reads them runs
            in float. Results do not change; the weights take up to four times (of 4 bits eight times) the memory.
        choose_products: Run products of int8 tensors (MatMul, Conv ...) in integers also on x86, where ONNX Runtime may
            run them in float; and networks of depthwise convolutions in float, which is faster there. On x86 QLinear
            operators are first written as Q/DQ pairs.
        blocked_layout: Run chains between convolutions in the layout that ONNX Runtime uses for these (NCHWc; channels
            last if quantised), instead of reordering tensors around each chain. ONNX Runtime optimises such a model
            twice, once into a temporary file.
        exact_products: Where ONNX Runtime's sums of uint8 x int8 saturate (x86 without VNNI), run these products with
            weights of uint8 that are 128 higher: exact, and 1.15 to 1.35 times as long. Elsewhere nothing changes.
            Between Q/DQ pairs, weights are the constants of the model.
        options: Further options of the execution provider, see :data:`normfuse.spec.OPTIONS`; ``enable_fallback``,
            ``disabled_optimizers`` and ``read_config_from_model`` as in onnxruntime.

    Raises:
        InvalidModelError: The model cannot be read, or ONNX Runtime cannot load it.
        OptionError: An option is unknown or has a value that it does not take.
        HostVersionError: onnxruntime is missing or older than 1.24.
        LibraryLoadError: The native library cannot be loaded.
    """

    def __init__(
        self,
        path_or_bytes: ModelLike,
        sess_options: onnxruntime.SessionOptions | None = None,
        providers: Sequence[str | tuple[str, Mapping[str, Any]]] | None = None,
        provider_options: Sequence[Mapping[str, Any]] | None = None,
        **options: Any,
    ) -> None:
        further = {name: options.pop(name) for name in _FURTHER if name in options}
        load_host()
        names = ProviderNames.given(providers)
        falls_back = int(further.get("enable_fallback", 1)) == 1
        reason = names.reason(falls_back=falls_back) if providers else None
        if further.get("read_config_from_model") or reason is not None:
            super().__init__(path_or_bytes, sess_options, providers, provider_options, **further)
            return
        names.check(providers, provider_options)
        inner = create_session(path_or_bytes, sess_options, further.get("disabled_optimizers"), **options)
        self.__dict__.update(inner.__dict__)
        self._enable_fallback = falls_back
        if providers:  # an application that names them may look for them
            names.tell(self)

    def _create_inference_session(self, *arguments: Any) -> None:
        """What ``set_providers`` calls: onnxruntime's own session with other providers."""
        creation = getattr(_HostClass, CREATION)
        getattr(creation, ORIGINAL, creation)(self, *arguments)
