"""Models in every form that users have them: read, copied, written."""

from __future__ import annotations

import normfuse.quick_imports  # noqa: F401 -- before what imports onnx_ir

# isort: split
import contextlib
import copy
import dataclasses
import os
import shutil
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, Protocol, TypeAlias

import onnx
import onnx_ir as ir
from google.protobuf.message import DecodeError

from normfuse.errors import InvalidModelError, OptionError
from normfuse.files.model_checks import check_external_data, check_structure
from normfuse.files.node_order import is_sorted, sort_nodes, sorted_clone
from normfuse.files.output_files import file_to_write, is_free_or_regular, scratch_folder
from normfuse.files.sparse_tensors import with_dense_tensors
from normfuse.graph_rewrites.engine.map_types import has_map_types, keep_map_types, restore_map_types, without_map_types
from normfuse.graph_rewrites.engine.traversal import graphs_of


class _Program(Protocol):
    """torch.onnx.ONNXProgram as a protocol, so that types can be checked without PyTorch."""

    @property
    def model(self) -> ir.Model:
        """The exported model."""


ModelLike: TypeAlias = "str | os.PathLike[str] | bytes | onnx.ModelProto | ir.Model | _Program | Source"
Kind = Literal["path", "bytes", "proto", "ir", "program"]

_FIRST_WITH_DEFAULTS = 4
"""Version of ONNX's IR: before it an initializer had to be an input as well, and no other value could be fed."""
PROTOBUF_LIMIT = 2**31 - 1
"""Most bytes that one protobuf message can be written with."""
# Weights above this many bytes are written to the external file of a model that has one.
_EXTERNAL_THRESHOLD = 1024
# A model with so many bytes of weights is written to a file for onnxruntime.
_LARGE = 1 << 23
_TENSOR, _TENSORS = ir.AttributeType.TENSOR, ir.AttributeType.TENSORS
# Key in a tensor's metadata, which is never written: the location of its file as the model names it.
_LOCATION = "normfuse.location"


@dataclasses.dataclass(frozen=True)
class Source:
    """A model as a user gave it."""

    model: ir.Model
    """Shares its weights with the user's model; must not be changed (clone it)."""
    kind: Kind
    given: Any
    name: str
    """The name of the model in messages."""
    path: Path | None = None
    rewrites: dict[object, object] = dataclasses.field(default_factory=dict, compare=False, repr=False)
    """Its rewritten copies, see :func:`normfuse.sessions.rewriting.rewrite_copy`."""

    @property
    def size(self) -> int:
        """Size of the model on disk, external data included."""
        if self.path is not None:
            inside = self.path.stat().st_size
        elif self.kind == "bytes":
            inside = len(self.given)
        elif self.kind == "proto":
            inside = self.given.ByteSize()
        else:
            return model_size(self.model)
        return inside + sum(tensor.nbytes for tensor in external_tensors(self.model))


def load_model(
    model: ModelLike, folder: str | None = None, *, before_data: Callable[[ir.Model], None] | None = None
) -> Source:
    """Read a model of any kind.

    Args:
        model: A path, the bytes of a file, an onnx.ModelProto, an onnx_ir.Model, or what
            ``torch.onnx.export(..., dynamo=True)`` returns; or what this function returned, which is returned again.
            External data is mapped, not read.
        folder: Where the external data lies; None: beside a file, and of bytes or a ModelProto in the current folder.
        before_data: Called with the model before its external data is looked for.

    Raises:
        InvalidModelError: It cannot be read, or breaks a rule of the ONNX format.
    """
    if isinstance(model, Source):
        return model
    if isinstance(model, ir.Model):
        source = Source(model, "ir", model, "the model")
    elif isinstance(model, onnx.ModelProto):
        source = Source(_from_proto(model, "the model", folder), "proto", model, "the model")
    elif isinstance(model, (bytes, bytearray, memoryview)):
        data = bytes(model)
        source = Source(_from_proto(_parse(data, "the model"), "the model", folder), "bytes", data, "the model")
    elif isinstance(model, (str, os.PathLike)):
        path = Path(model)
        name = str(path)
        source = Source(_from_proto(_parse(_read(path), name), name, folder or path.parent), "path", model, name, path)
    elif isinstance(getattr(model, "model", None), ir.Model):
        source = Source(model.model, "program", model, "the exported program")
    else:
        raise InvalidModelError(
            f"A model is given as a path, bytes, onnx.ModelProto, onnx_ir.Model or torch.onnx.ONNXProgram, not as "
            f"{type(model).__module__}.{type(model).__qualname__}."
        )
    if before_data is not None:
        before_data(source.model)
    linked = None if source.path is None or folder else source.path.resolve().parent
    external = list(external_tensors(source.model))
    check_external_data(external, source.name, linked)
    ours = source.kind not in ("ir", "program")
    links = _links(external)
    if not ours and (tensor := next((tensor for tensor in external if tensor.path in links), None)) is not None:
        raise InvalidModelError(
            f"{source.name}: file '{tensor.location}' with the data of '{tensor.name}' has another name as well "
            "(a hard link), which onnx_ir does not read; give the path of the model instead."
        )
    if not is_sorted(source.model):
        if ours:
            sort_nodes(source.model, source.name)
        else:
            source, ours = dataclasses.replace(source, model=sorted_clone(source.model, source.name)), True
    if links or any(map(_is_small, external)):
        if not ours:
            source = dataclasses.replace(source, model=source.model.clone())
        _settle_external_tensors(source.model, links)
    return source


def as_kind(model: ir.Model, source: Source) -> Any:
    """Return an optimised model as the kind that its source had; a path or bytes become a ModelProto or bytes.

    Raises:
        OptionError: It has more than 2 GB of weights in memory, which the kind cannot hold.
    """
    if source.kind == "ir":
        return model
    if source.kind == "program":
        program = copy.copy(source.given)
        program.model = model
        # A program that has run keeps its session, and would still run the original model.
        program._inference_session = program._tempdir = None
        return program
    if bytes_inside(model) > PROTOBUF_LIMIT:
        raise OptionError(
            "The model has more than 2 GB of weights in memory, more than a ModelProto can be written with; call "
            "save(path) instead."
        )
    given = {str(t.location): str(t.meta[_LOCATION]) for t in external_tensors(model) if _LOCATION in t.meta}
    proto = _with_locations(to_proto(model), given)
    return proto.SerializeToString() if source.kind == "bytes" else proto


def save_model(model: ir.Model, path: str | os.PathLike[str], *, never: Source | None = None) -> int:
    """Write a model under a temporary name, then rename; on failure no file is left.

    A model with external data, or with more than 2 GB of weights, gets one file ``<name>.data`` beside it.

    Args:
        model: The model.
        path: The file to write.
        never: The source whose files must not be overwritten.

    Returns:
        The number of bytes written, external data included.

    Raises:
        OptionError: The file cannot be written there.
    """
    target = check_target(Path(path), never)
    external = any(True for _ in external_tensors(model)) or bytes_inside(model) > PROTOBUF_LIMIT
    if external and Path(path).absolute().parent.resolve() != target.absolute().parent.resolve():
        raise OptionError(
            f"Cannot write {path}: it is a link into another folder, and the model's weights, in a file of their own, "
            f"must lie beside it; name {target} itself."
        )
    with scratch_folder(target) as folder:
        written = folder / target.name
        data = _free_data_name(target, model) if external else None
        _write(model, written, data)
        size = sum(file.stat().st_size for file in folder.iterdir())
        # The weights first: when the model is there, so are they.
        if data is not None and (folder / data).exists():
            (folder / data).replace(target.parent / data)
        written.replace(target)
    return size


def check_target(target: Path, source: Source | None = None, *, never_path: Path | None = None) -> Path:
    """Return the file that a model is written to, which is another one than ``target`` if that is a link.

    Nothing is written.

    Args:
        target: The file to write.
        source: A model none of whose files is to be overwritten.
        never_path: Another file that is not to be overwritten (a model that is not read yet).

    Raises:
        OptionError: A model cannot be written there.
    """
    file = file_to_write(target)
    never_path = never_path or (source.path if source is not None else None)
    if never_path is not None and _same_file(never_path, target):
        raise OptionError(f"{target} is the input itself; give the output another name.")
    if source is not None and any(_same_file(Path(t.path), target) for t in external_tensors(source.model)):
        raise OptionError(f"{target} holds the weights of the input; give the output another name.")
    return file


def tensors(model: ir.Model) -> Iterator[ir.TensorProtocol]:
    """Yield every tensor of a model: initializers and attributes, of all graphs and functions."""
    for graph in (*graphs_of(model.graph), *model.functions.values()):
        if isinstance(graph, ir.Graph):
            yield from (value.const_value for value in graph.initializers.values() if value.const_value is not None)
        for node in graph:
            for attribute in node.attributes.data.values():
                kind = attribute.type
                if (kind is _TENSOR or kind is _TENSORS) and not attribute.is_ref() and attribute.value is not None:
                    yield from (attribute.value,) if kind is _TENSOR else attribute.value


def external_tensors(model: ir.Model) -> Iterator[ir.ExternalTensor]:
    """Yield the tensors of a model with external data."""
    return (tensor for tensor in tensors(model) if isinstance(tensor, ir.ExternalTensor))


def find_external_data(model: ir.Model, folder: str) -> None:
    """Set the folder of the external data of a model that ONNX Runtime wrote to another folder."""
    external = list(external_tensors(model))
    for tensor in external:
        tensor.base_dir = folder
    _settle_external_tensors(model, _links(external))


@contextlib.contextmanager
def runnable(model: ir.Model, *, in_file: bool = False) -> Iterator[tuple[bytes | Path, str | None]]:
    """Yield a model in the form that onnxruntime.InferenceSession takes, within the context.

    If the caller drops the model, its memory is freed within the context.

    Args:
        model: The model.
        in_file: Write a large one into a temporary file: bytes take their size twice while onnxruntime reads them.

    Yields:
        The bytes of the model, or the path of a temporary file, and the folder of its external data (None: it has
        none); a file alone, with its data beside it, where one message cannot hold the model or its external data lies
        in several folders.
    """
    places = {str(tensor.location): _place(tensor) for tensor in external_tensors(model)}
    folders = {str(folder) for folder, _ in places.values()}
    inside = bytes_inside(model)
    spill = ""
    try:
        if len(folders) > 1 or inside >= PROTOBUF_LIMIT:
            spill = tempfile.mkdtemp(prefix="normfuse.")
            path = Path(spill) / "model.onnx"
            _write(model, path, "model.onnx.data")
            data: bytes | Path = path
            folders = set()
        elif in_file and inside >= _LARGE and not places and (written := _written_in_parts(model)) is not None:
            spill, data = str(written.parent), written
        else:
            names = {location: name for location, (_, name) in places.items()}
            data = _with_locations(to_proto(model), names).SerializeToString()
        del model
        yield data, next(iter(folders), None)
    finally:
        if spill:
            shutil.rmtree(spill, ignore_errors=True)


class _WithoutWeights:
    """A model without the initializers of its main graph, to be written."""

    def __init__(self, model: ir.Model) -> None:
        graph = model.graph
        self._model = model
        self.graph = ir.GraphView(
            graph.inputs,
            graph.outputs,
            nodes=tuple(graph),
            initializers=(),
            doc_string=graph.doc_string,
            name=graph.name,
            metadata_props=graph.metadata_props,
        )

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)


def _written_in_parts(model: ir.Model) -> Path | None:
    """Write a model into a temporary file, one initializer after the other, so that none is copied in memory.

    Protobuf merges a message that is in a file twice: here that is the graph.

    Returns:
        None where there is no room for it.
    """
    skeleton = ir.serde.serialize_model(_WithoutWeights(model))  # type: ignore[arg-type]  # has all that it asks for
    restore_map_types(skeleton, model)
    folder: str | None = None
    try:
        folder = tempfile.mkdtemp(prefix="normfuse.")
        path = Path(folder) / "model.onnx"
        with path.open("wb") as file:
            file.write(skeleton.SerializeToString())
            for value in model.graph.initializers.values():
                if value.const_value is not None:
                    value.const_value.name = value.name
                    part = onnx.ModelProto()
                    ir.serde.serialize_tensor_into(part.graph.initializer.add(), value.const_value)
                    file.write(part.SerializeToString())
    except OSError:
        shutil.rmtree(folder or "", ignore_errors=True)
        return None
    return path


def _is_small(tensor: ir.ExternalTensor) -> bool:
    return tensor.nbytes <= _EXTERNAL_THRESHOLD


def _links(external: Iterable[ir.ExternalTensor]) -> set[str]:
    """Return the paths of external data that onnx_ir would not read: links out of the folder, and hard links."""
    folders = {tensor.path: str(tensor.base_dir) for tensor in external if tensor.base_dir}
    return {
        path
        for path, folder in folders.items()
        if Path(path).stat().st_nlink > 1 or not Path(path).resolve().is_relative_to(Path(folder).resolve())
    }


def _settle_external_tensors(model: ir.Model, links: Collection[str]) -> None:
    """Load small external weights into the model, and allow links: their files have been checked.

    ONNX Runtime needs small ones in the model, for inferring shapes.
    """
    for graph in graphs_of(model.graph):
        for value in graph.initializers.values():
            tensor = value.const_value
            if not isinstance(tensor, ir.ExternalTensor):
                continue
            if tensor.path in links:
                value.const_value = tensor = _followed(tensor)
            if _is_small(tensor):
                value.const_value = ir.Tensor(tensor.numpy().copy(), dtype=tensor.dtype, name=tensor.name)


def _followed(tensor: ir.ExternalTensor) -> ir.ExternalTensor:
    """Return the tensor with the real path of its data, so that onnx_ir finds no links to refuse."""
    followed = ir.ExternalTensor(
        Path(tensor.path).resolve(),
        tensor.offset,
        tensor.length,
        tensor.dtype,
        shape=tensor.shape,
        name=tensor.name or "",
    )
    followed.meta[_LOCATION] = str(tensor.location)
    return followed


def _place(tensor: ir.ExternalTensor) -> tuple[Path, str]:
    """Return the real folder of a tensor's data, and its location there."""
    if _LOCATION in tensor.meta:
        path = Path(tensor.path)
        return path.parent, path.name
    return Path(tensor.base_dir or ".").resolve(), str(tensor.location)


def _with_locations(proto: onnx.ModelProto, names: Mapping[str, str]) -> onnx.ModelProto:
    """Give external tensors other locations, in place, and return the model."""
    waiting = [proto.graph] if any(location != name for location, name in names.items()) else []
    while waiting:
        graph = waiting.pop()
        for entry in (entry for tensor in graph.initializer for entry in tensor.external_data):
            if entry.key == "location":
                entry.value = names.get(entry.value, entry.value)
        for attribute in (attribute for node in graph.node for attribute in node.attribute):
            waiting += [attribute.g] if attribute.HasField("g") else attribute.graphs
    return proto


def _read(path: Path) -> bytes:
    try:
        is_folder = path.is_dir()
        data = b"" if is_folder else path.read_bytes()
    except FileNotFoundError:
        raise InvalidModelError(f"{path} does not exist.") from None
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        raise InvalidModelError(f"Cannot read {path}: {getattr(error, 'strerror', None) or error}.") from error
    if is_folder:
        raise InvalidModelError(f"{path} is a folder; name the model file in it.")
    if not data:
        raise InvalidModelError(f"{path} is empty.")
    if data.startswith(b"version https://git-lfs"):
        raise InvalidModelError(f"{path} is a Git LFS pointer, not the model itself; run git lfs pull.")
    if data[4:8] == b"ORTM":
        raise InvalidModelError(f"{path} is in ONNX Runtime's own format; give the .onnx file it was made from.")
    return data


def _parse(data: bytes, name: str) -> onnx.ModelProto:
    # Every writer puts the field ir_version (key 8) first.
    looks_like_onnx = data[:1] == b"\x08"
    try:
        model: onnx.ModelProto = onnx.ModelProto.FromString(data)
    except DecodeError:
        if looks_like_onnx:
            raise InvalidModelError(f"{name} is truncated or damaged: it starts like an ONNX model.") from None
        raise InvalidModelError(f"{name} is not an ONNX model.") from None
    if looks_like_onnx and model.ir_version and not model.HasField("graph"):
        raise InvalidModelError(f"{name} is truncated: it starts like an ONNX model but holds no graph.")
    return model


def _from_proto(proto: onnx.ModelProto, name: str, folder: str | Path | None = None) -> ir.Model:
    check_structure(proto, name)
    proto = with_dense_tensors(proto, name)
    try:
        model = ir.from_proto(without_map_types(proto))
    except Exception as error:  # onnx_ir raises what its constructors raise
        raise InvalidModelError(f"{name} cannot be read: {_first_line(error).rstrip('.')}.") from error
    keep_map_types(model, proto)
    for value, info in zip(model.graph.inputs, proto.graph.input, strict=True):
        # For an input that is also an output, onnx_ir has read the entry of the output last.
        if value.shape is None and info.type.tensor_type.HasField("shape"):
            value.shape = ir.serde.deserialize_type_proto_for_shape(info.type)
    if (model.ir_version or 0) < _FIRST_WITH_DEFAULTS:
        fed = [value for value in model.graph.inputs if value.name not in model.graph.initializers]
        model.graph.inputs[:] = fed
    for tensor in external_tensors(model):
        tensor.base_dir = str(folder if folder is not None else ".")
    return model


def _first_line(error: BaseException) -> str:
    while error.__cause__ is not None:
        error = error.__cause__
    return (str(error).splitlines() or [type(error).__name__])[0]


def to_proto(model: ir.Model) -> onnx.ModelProto:
    """Return a model as a ModelProto, which has weights of its own.

    Raises:
        InvalidModelError: Something in it cannot be written, such as text that is not UTF-8.
    """
    try:
        proto = ir.to_proto(model)
    except Exception as error:  # onnx_ir raises what its parts raise
        raise InvalidModelError(f"The model cannot be written: {_first_line(error).rstrip('.')}.") from error
    restore_map_types(proto, model)
    return proto


def _write(model: ir.Model, path: Path, data: str | None) -> None:
    """Write a model, with its weights in a file of this name beside it, if one is given."""
    ir.save(model, path, format="protobuf", external_data=data, size_threshold_bytes=_EXTERNAL_THRESHOLD)
    if has_map_types(model):
        written = onnx.ModelProto.FromString(path.read_bytes())
        restore_map_types(written, model)
        path.write_bytes(written.SerializeToString())


def model_size(model: ir.Model) -> int:
    """Return the size of a model on disk, external data included."""
    outside = sum(tensor.nbytes for tensor in external_tensors(model))
    inside = bytes_inside(model)
    return outside + (inside if inside > PROTOBUF_LIMIT else to_proto(model).ByteSize())


def bytes_inside(model: ir.Model) -> int:
    """Return the size of the weights that are not external."""
    return sum(tensor.nbytes for tensor in tensors(model) if not isinstance(tensor, ir.ExternalTensor))


def _same_file(first: Path, second: Path) -> bool:
    try:
        return first.samefile(second)
    except OSError:
        return first.absolute() == second.absolute()


def _free_data_name(target: Path, model: ir.Model) -> str:
    used = [Path(tensor.path) for tensor in external_tensors(model)]
    name = f"{target.name}.data"
    while any(_same_file(path, target.parent / name) for path in used) or not is_free_or_regular(target.parent / name):
        name = f"{Path(name).stem}.normfuse.data"
    return name
