"""Inputs for a model, made from its own signature, or read from a user's ``.npz`` files.

Random numbers alone would be refused by most models or would exercise nothing: token ids must lie below the size of
the table they index, masks are 0 or 1, lengths fit the tensors they describe, and dimensions of the same name agree.
"""

from __future__ import annotations

import dataclasses
import math
import os
import re
import reprlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal, TypeAlias
from zipfile import BadZipFile

import numpy as np
import onnx_ir as ir

from normfuse.errors import OptionError, OptionTypeError, VerificationError

Sample: TypeAlias = dict[str, np.ndarray]
Inputs: TypeAlias = (
    "str | os.PathLike[str] | Mapping[str, np.ndarray] | Sequence[str | os.PathLike[str] | Mapping[str, np.ndarray]]"
)

# Sizes for one kind of dimension each, tried one after the other until the model accepts them: small ones take little
# time, and amplify rounding errors least.
_PROFILES: tuple[dict[str, int], ...] = (
    {"batch": 1, "length": 2, "spatial": 8, "channels": 3, "past": 1},
    {"batch": 3, "length": 7, "spatial": 32, "channels": 3, "past": 1},
    {"batch": 2, "length": 16, "spatial": 64, "channels": 3, "past": 4},
    {"batch": 1, "length": 33, "spatial": 96, "channels": 3, "past": 0},
    {"batch": 1, "length": 64, "spatial": 128, "channels": 1, "past": 8},
    {"batch": 1, "length": 1, "spatial": 224, "channels": 4, "past": 16},
    {"batch": 1, "length": 512, "spatial": 320, "channels": 3, "past": 3},
    {"batch": 1, "length": 16000, "spatial": 512, "channels": 3, "past": 3},
    {"batch": 1, "length": 1, "spatial": 1, "channels": 1, "past": 1},
)
TYPICAL_PROFILE = 2
"""Sizes of usual inputs, for measuring speed."""
Style: TypeAlias = Literal["random", "padded", "ramps", "smooth"]
STYLES: tuple[Style, ...] = ("random", "padded", "ramps", "smooth")
"""The styles of samples, in turn: kernels take branches by the values, and noise does not show all faults."""
_IMAGE_CHANNELS = (1, 3, 4)
_WAVES = 3.0
MOST_BYTES = 4 << 30
"""Limit of tensors that are made or that ONNX Runtime has to compute: a model needs memory for several at a time."""
# Operators that pass the values of an index tensor on unchanged.
_PASSES_ON = {
    *("Cast", "Concat", "Expand", "Flatten", "Identity", "Reshape"),
    *("Slice", "Split", "Squeeze", "Tile", "Transpose", "Unsqueeze"),
}


class TooLarge(VerificationError):  # noqa: N818 - what the inputs are, not what is wrong
    """Inputs of these sizes are not made."""


@dataclasses.dataclass(frozen=True)
class _Signature:
    name: str
    dtype: ir.DataType
    dims: tuple[int | str, ...]
    bound: int | None
    """Size of the smallest table that the values index; None: they index none."""


class InputMaker:
    """Makes inputs for one model.

    Attributes:
        profile_count: How many different choices of sizes there are for the symbolic dimensions.
    """

    def __init__(self, model: ir.Model, sizes: Mapping[str, int] | None = None) -> None:
        """Look at the model's signature; ``sizes`` fixes symbolic dimensions."""
        initializers = model.graph.initializers
        self._inputs = [_signature(value) for value in model.graph.inputs if value.name not in initializers]
        symbolic = any(isinstance(dim, str) for signature in self._inputs for dim in signature.dims)
        self._sizes = dict(sizes or {})
        names = {dim for signature in self._inputs for dim in signature.dims if isinstance(dim, str)}
        if unknown := sorted(set(self._sizes) - names):
            known = ", ".join(sorted(names)) or "none"
            raise OptionError(f"The model has no symbolic dimension '{unknown[0]}'; it has {known}.")
        self.profile_count = len(_PROFILES) if symbolic else 1

    def make(self, profile: int, seed: int, style: Style = "random") -> Sample:
        """Return one sample: name -> array for every input.

        Args:
            profile: Which sizes the symbolic dimensions get, below ``profile_count``.
            seed: Of the random numbers; the same arguments give the same sample.
            style: "padded": data and token ids end in zeros; "ramps": rows of floats rise evenly, each second one is
                constant; "smooth": they change slowly along their last two dimensions, or a picture's height and
                width.

        Raises:
            TooLarge: They would take more memory than there may be.
        """
        shapes = self._shapes(profile)
        try:
            return self._made(shapes, np.random.default_rng((seed, profile)), style)
        except MemoryError as error:
            raise TooLarge("The inputs do not fit into the memory of this machine.") from error

    def _made(self, shapes: Mapping[str, tuple[int, ...]], rng: np.random.Generator, style: Style) -> Sample:
        longest = max((shape[-1] for shape in shapes.values() if len(shape) > 1), default=1)
        return {
            signature.name: _values(signature, shapes[signature.name], longest, rng, style)
            for signature in self._inputs
        }

    def _shapes(self, profile: int) -> dict[str, tuple[int, ...]]:
        sizes = dict(self._sizes)
        shapes = {
            signature.name: tuple(
                dim if isinstance(dim, int) else _size(dim, axis, signature, _PROFILES[profile], sizes)
                for axis, dim in enumerate(signature.dims)
            )
            for signature in self._inputs
        }
        for signature in self._inputs:
            # Random numbers are made in eight bytes each.
            if math.prod(shapes[signature.name]) * 8 > MOST_BYTES:
                shape = list(shapes[signature.name])
                raise TooLarge(
                    f"Input '{signature.name}' of shape {shape} is too large to generate; give inputs of your own."
                )
        return shapes

    def check(self, sample: Mapping[str, np.ndarray], name: str) -> Sample:
        """Return a user's sample in the model's element types.

        Raises:
            OptionError: An input is missing, unknown, of another rank or fixed size, or of a type that does not fit.
        """
        known = {signature.name: signature for signature in self._inputs}
        if unknown := sorted(set(sample) - set(known)):
            raise OptionError(f"{name} holds '{unknown[0]}'; the model's inputs are {', '.join(known)}.")
        if missing := [key for key in known if key not in sample]:
            raise OptionError(f"{name} does not hold the model's input '{missing[0]}'.")
        return {key: _converted(np.asarray(sample[key]), known[key], name) for key in known}


def check_inputs(inputs: Inputs | None) -> None:
    """Raise OptionTypeError if these are not inputs in one of the forms that users give them."""
    if inputs is None:
        return
    entries: Sequence[object] = inputs if isinstance(inputs, Sequence) and not isinstance(inputs, str) else [inputs]
    for entry in entries:
        if not isinstance(entry, (str, os.PathLike, Mapping)):
            raise OptionTypeError(
                f"inputs is or holds {reprlib.repr(entry)} ({type(entry).__name__}); it must be a path of an .npz "
                "file, a mapping of input name to array, or a list of these."
            )


def read_inputs(inputs: Inputs) -> Iterator[tuple[str, Mapping[str, np.ndarray]]]:
    """Yield (name for messages, sample) for each sample that a user gave."""
    entries = [inputs] if isinstance(inputs, (str, os.PathLike, Mapping)) else list(inputs)
    for index, entry in enumerate(entries):
        if isinstance(entry, Mapping):
            yield f"Sample {index}", entry
            continue
        path = Path(entry)
        try:
            loaded = np.load(path, allow_pickle=False)
            if not isinstance(loaded, np.lib.npyio.NpzFile):
                raise OptionError(f"{path} holds one array; store the inputs by name, with numpy.savez.")
            with loaded:
                yield str(path), dict(loaded)
        except OptionError:
            raise
        except FileNotFoundError:
            raise OptionError(f"{path} does not exist.") from None
        except PermissionError as error:
            raise OptionError(f"Cannot read {path}: permission denied.") from error
        except (OSError, ValueError, EOFError, BadZipFile) as error:
            # For any other file NumPy's message says to load it unsafely, as a pickle.
            raise OptionError(
                f"{path} is damaged, or not an .npz file of plain arrays; make one with numpy.savez(path, **inputs)."
            ) from error


def _signature(value: ir.Value) -> _Signature:
    name = value.name or ""
    if not isinstance(value.type, ir.TensorType):
        raise VerificationError(
            f"Input '{name}' is not a tensor, and normfuse can only make tensors: verify this model with your own "
            "means, and optimise it without verification."
        )
    if value.shape is None:
        raise VerificationError(f"The rank of input '{name}' is not known; give inputs in an .npz file (--inputs).")
    # Some exporters write -1 for a size that is not known.
    known = [dim if not isinstance(dim, int) or dim >= 0 else ir.SymbolicDim(None) for dim in value.shape.dims]
    dims = [dim if isinstance(dim, int) else dim.value for dim in known]
    named = tuple(f"?{axis} of {len(dims)}" if dim is None else dim for axis, dim in enumerate(dims))
    return _Signature(name, value.type.dtype, named, _table_size(value))


def _table_size(value: ir.Value) -> int | None:
    sizes = []
    pending, seen = [value], {id(value)}
    while pending:
        current = pending.pop()
        for node, index in current.uses():
            if node.op_type == "Gather" and index == 1 and node.domain in ("", "ai.onnx"):
                size = _dimension(node.inputs[0], node.attributes.get_int("axis", 0))
                if size is not None:
                    sizes.append(size)
            elif node.op_type in _PASSES_ON and index in (0, *(range(1, 99) if node.op_type == "Concat" else ())):
                for output in node.outputs:
                    if id(output) not in seen:
                        seen.add(id(output))
                        pending.append(output)
    return min(sizes, default=None)


def _dimension(table: ir.Value | None, axis: int) -> int | None:
    producer = table.producer() if table is not None else None
    while table is not None and table.const_value is None and producer is not None and len(producer.inputs) > 0:
        if producer.op_type not in ("DequantizeLinear", "Cast", "Identity"):
            break
        table = producer.inputs[0]
        producer = table.producer() if table is not None else None
    if table is None:
        return None
    shape = table.const_value.shape if table.const_value is not None else table.shape
    size = shape[axis] if shape is not None and -len(shape) <= axis < len(shape) else None
    return size if isinstance(size, int) and size > 0 else None


def _size(dim: str, axis: int, signature: _Signature, profile: Mapping[str, int], sizes: dict[str, int]) -> int:
    parts = re.split(r"\s*\+\s*", dim)
    if len(parts) > 1:  # such as "past_sequence_length + 1"
        return sum(
            int(part) if part.isdigit() else _size(part, axis, signature, profile, sizes) for part in parts if part
        )
    if dim not in sizes:
        sizes[dim] = profile[_dimension_kind(dim.lower(), axis, signature)]
    return sizes[dim]


def _dimension_kind(name: str, axis: int, signature: _Signature) -> str:
    if "past" in name:
        return "past"
    if axis == 1 and len(signature.dims) == 3 and re.search(r"state|hidden|^[hc][0n]?$", signature.name.lower()):
        return "batch" if isinstance(signature.dims[0], int) else "length"  # [layers, batch, size] of recurrent nets
    if "batch" in name or (axis == 0 and len(signature.dims) > 1 and "seq" not in name and "len" not in name):
        return "batch"
    if re.search(r"height|width|^h$|^w$", name):
        return "spatial"
    if "channel" in name:
        return "channels"
    if len(signature.dims) >= 4 and signature.dtype.is_floating_point() and not re.search("seq|len|time|frame", name):
        return "channels" if axis == _channel_axis(signature.dims) else "spatial"
    if axis == 0 and len(signature.dims) == 1 and "seq" not in name:
        return "batch"
    return "length"


def _channel_axis(dims: tuple[int | str, ...]) -> int:
    """The dimension of an image's channels: last, as TensorFlow has them, if only that is a number, and a usual one."""
    return len(dims) - 1 if isinstance(dims[1], str) and dims[-1] in _IMAGE_CHANNELS else 1


def _values(
    signature: _Signature, shape: tuple[int, ...], longest: int, rng: np.random.Generator, style: Style
) -> np.ndarray:
    name = signature.name.lower()
    if signature.dtype == ir.DataType.STRING:
        return np.full(shape, "text", dtype=object)
    dtype = signature.dtype.numpy()
    if "mask" in name or signature.dtype == ir.DataType.BOOL:
        return _mask(shape, rng).astype(dtype)
    if signature.dtype.is_floating_point():
        if re.search(r"timestep|^t$", name):
            return rng.uniform(1, 999, shape).astype(dtype)
        return _styled(rng.standard_normal(shape), style, _neighbours(signature), rng).astype(dtype)
    if signature.bound is not None:
        if "position" in name and shape:
            return np.broadcast_to(np.arange(shape[-1]) % signature.bound, shape).astype(dtype)
        ids = rng.integers(0, signature.bound, shape).astype(dtype)
        return _padded(ids, [-1], rng) if style == "padded" else ids
    if re.search(r"sample_?rate|^sr$", name):
        return np.full(shape, 16000, dtype)
    if "timestep" in name:
        return rng.integers(1, 999, shape).astype(dtype)
    if "len" in name:
        return np.full(shape, longest, dtype)
    if dtype.itemsize == 1:  # pixels and quantised tensors use their whole range
        limits = np.iinfo(dtype)
        numbers = rng.integers(limits.min, limits.max + 1, shape)
        values = _styled(numbers, style, _neighbours(signature), rng)
        if values is not numbers and style != "padded":
            values = np.rint(np.interp(values, (values.min(), values.max()), (limits.min, limits.max)))
        return values.astype(dtype)
    return rng.integers(0, 2, shape).astype(dtype)


def _neighbours(signature: _Signature) -> list[int]:
    """The dimensions along which values are neighbours: the last two, or an image's height and width."""
    rank = len(signature.dims)
    if rank == 4 and signature.dims[3] in _IMAGE_CHANNELS and signature.dims[1] not in _IMAGE_CHANNELS:
        return [-3, -2]
    return [-2, -1] if rank > 2 else [-1][:rank]


def _styled(noise: np.ndarray, style: Style, axes: list[int], rng: np.random.Generator) -> np.ndarray:
    """Numbers of a style, as large as the noise; the noise itself if the style does not apply."""
    if not axes or noise.size < 2:
        return noise
    values = noise
    if style == "padded":
        values = _padded(noise, axes, rng)
    elif style == "ramps":
        values = _ramps(noise.shape, axes[-1])
    elif style == "smooth":
        rest = [1 if axis - noise.ndim in axes else size for axis, size in enumerate(noise.shape)]
        phase = rng.uniform(0, 2 * np.pi, rest)
        for axis in axes:
            steps = np.linspace(0, rng.uniform(1, _WAVES) * 2 * np.pi, noise.shape[axis])
            phase = phase + steps.reshape(-1, *(1,) * (-1 - axis))
        values = np.sin(phase)
    return values


def _padded(values: np.ndarray, axes: list[int], rng: np.random.Generator) -> np.ndarray:
    """Zeros at the end of each of some dimensions, at most in half of it."""
    for axis in axes if values.ndim else ():
        size = values.shape[axis]
        least = (size + 1) // 2
        kept = np.arange(size) < rng.integers(least, max(size, least + 1))
        values = values * kept.reshape(-1, *(1,) * (-1 - axis)).astype(values.dtype)
    return values


def _ramps(shape: tuple[int, ...], axis: int) -> np.ndarray:
    """Rows along a dimension: ever steeper ramps, with constant rows between them."""
    rest = [size for number, size in enumerate(shape) if number - len(shape) != axis]
    number = np.arange(np.prod(rest, dtype=np.int64)).reshape(*rest, 1)
    rows = np.where(number % 2, 1.0, np.linspace(0.0, 1.0, shape[axis])) * (number + 1) / max(1, number.size // 4)
    return np.moveaxis(rows, -1, axis)


def _mask(shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    """Ones, then zeros along the last dimension; every row begins with a one. A lone value is 0."""
    if not shape:
        return np.zeros(shape)
    kept = rng.integers((shape[-1] + 1) // 2, shape[-1] + 1, (*shape[:-1], 1))
    return np.arange(shape[-1]) < kept


def _converted(array: np.ndarray, signature: _Signature, name: str) -> np.ndarray:
    fits = len(array.shape) == len(signature.dims) and all(
        isinstance(dim, str) or dim == size for dim, size in zip(signature.dims, array.shape, strict=True)
    )
    if not fits:
        raise OptionError(
            f"{name}: '{signature.name}' has shape {list(array.shape)}, and the model takes "
            f"[{', '.join(map(str, signature.dims))}]."
        )
    if signature.dtype == ir.DataType.STRING:
        return array.astype(object)
    wanted = signature.dtype.numpy()
    if array.dtype != wanted and not np.can_cast(array.dtype, wanted, casting="same_kind"):
        raise OptionError(f"{name}: '{signature.name}' has element type {array.dtype}, and the model takes {wanted}.")
    return array.astype(wanted, copy=False)
