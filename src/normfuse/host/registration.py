"""Registering the native library with ONNX Runtime, once a process."""

from __future__ import annotations

import re
import threading
import warnings
from typing import TYPE_CHECKING, Any, Literal

from normfuse.errors import HostVersionError, LibraryLoadError, OptionError
from normfuse.host.messages import words_of
from normfuse.host.native_library import EP_NAME, get_library_path
from normfuse.host.options import validate_options
from normfuse.host.versions import BY_NAME_VERSION, host_version, load_host

if TYPE_CHECKING:
    import onnxruntime

_LOCK = threading.Lock()


def register(backend: Literal["auto", "cpu", "directml"] = "auto") -> list[onnxruntime.OrtEpDevice]:
    """Make the execution provider known to the ONNX Runtime of this process; further calls change nothing.

    Afterwards, from ONNX Runtime 1.25 on, sessions select it by name,
    ``InferenceSession(path, providers=["NormFuseExecutionProvider", "CPUExecutionProvider"])``. Every supported
    version takes ``SessionOptions.add_provider_for_devices(devices, {})`` and :func:`normfuse.session_options`.

    Args:
        backend: The backend that the returned device is for, as in :func:`normfuse.session_options`. What runs the
            chains is still the option of that name, which a session is given with the device.

    Returns:
        The execution provider's device, in a list as ``add_provider_for_devices`` takes it: one, because a session has
        one set of options for all of a provider's devices.

    Raises:
        HostVersionError: onnxruntime is missing or older than 1.24.
        LibraryLoadError: The native library is missing or cannot be loaded.
        OptionError: There is no such backend, or the environment variable NORMFUSE_ISA names an instruction set that
            this machine does not have.
    """
    validate_options({"backend": backend})
    devices = ensure_registered()
    host = load_host()
    if host_version(host) < BY_NAME_VERSION:
        warnings.warn(
            f"onnxruntime {host.__version__} does not know plug-in providers in providers=[...] (1.25 is the "
            "first that does): create the session with sess_options=normfuse.session_options() instead.",
            stacklevel=2,
        )
    return devices_for(backend, devices)


def devices_for(backend: str, devices: list[onnxruntime.OrtEpDevice]) -> list[onnxruntime.OrtEpDevice]:
    """The device of a backend, as a list; "auto" is the CPU, and so is DirectML where no GPU is listed (on Linux)."""
    wanted = "directml" if backend == "directml" else "cpu"
    return sorted(devices, key=lambda device: device.ep_metadata.get("backend") != wanted)[:1]


def instruction_set() -> str:
    """Return the instruction set of the kernels that run on this machine."""
    (device,) = devices_for("cpu", ensure_registered())
    return str(device.ep_metadata.get("instruction_set", ""))


def ensure_registered() -> list[onnxruntime.OrtEpDevice]:
    """Register, and return all devices of the execution provider: the CPU and, on Windows, the GPUs."""
    host = load_host()
    with _LOCK:
        devices = _devices(host)
        if not devices:
            _register(host, get_library_path())
            devices = _devices(host)
        if not devices:
            raise LibraryLoadError(
                f"onnxruntime {host.__version__} loaded {get_library_path()} but found no device of "
                f"{EP_NAME} on this machine."
            )
        return devices


def _devices(host: Any) -> list[onnxruntime.OrtEpDevice]:
    devices = [device for device in host.get_ep_devices() if device.ep_name == EP_NAME]
    # The same file can be registered under two names by hand; a session takes the devices of one registration only.
    paths = [device.ep_metadata.get("library_path") for device in devices]
    seen: set[tuple[object, ...]] = set()
    unique = []
    for device, path in zip(devices, paths, strict=True):
        key = (device.device.type, device.device.vendor_id, device.device.device_id)
        if path == paths[0] and key not in seen:
            seen.add(key)
            unique.append(device)
    return unique


def _register(host: Any, path: str) -> None:
    try:
        host.register_execution_provider_library(EP_NAME, path)
    except Exception as error:  # onnxruntime raises one class of its own for each status code
        text = str(error)
        if "needs onnxruntime" in text:
            raise HostVersionError(text) from error
        own = re.search(r"The environment variable NORMFUSE_ISA.*", text)
        if own is not None:
            raise OptionError(own[0]) from error
        raise LibraryLoadError(f"onnxruntime could not load the native library {path}: {words_of(error)}") from error
