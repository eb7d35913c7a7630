"""One site of a model as a model of its own, with the inputs that it has there: for looking at it, and for reports."""

from __future__ import annotations

import dataclasses
import difflib
import os
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedFunctionsPass, RemoveUnusedNodesPass, RemoveUnusedOpsetsPass

from normfuse.errors import OptionError
from normfuse.files.model_files import ModelLike, check_target, load_model, save_model
from normfuse.files.output_files import scratch_folder
from normfuse.sessions.rewriting import rewrite_copy
from normfuse.verification import Inputs, Sample
from normfuse.verification.between import values_between
from normfuse.verification.diff_sites import reads
from normfuse.verification.samples import reference

if TYPE_CHECKING:
    from normfuse.files.model_files import Source
    from normfuse.graph_rewrites.engine.sites import Site


@dataclasses.dataclass(frozen=True)
class ExtractedSite:
    """The nodes of a site, and what they read in a run of the whole model."""

    site: Site
    inputs: Sample
    _model: ir.Model
    _source: Source

    @property
    def nodes(self) -> tuple[str, ...]:
        """The operators, in the order of the graph."""
        return tuple(node.op_type for node in self._model.graph)

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of what the nodes compute for others."""
        return tuple(value.name or "" for value in self._model.graph.outputs)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the model, and its inputs beside it as ``<name>.npz``; return the path of these.

        Raises:
            OptionError: A file cannot be written there.
        """
        inputs = Path(path).with_suffix(".npz")
        target = check_target(inputs)
        with scratch_folder(target) as folder:
            written = folder / target.name
            _save_arrays(written, self.inputs)
            save_model(self._model, path, never=self._source)
            written.replace(target)
        return inputs


def extract_site(model: ModelLike, site: str, *, inputs: Inputs | None = None) -> ExtractedSite:
    """Return one site of a model, fused or left, as a model of its own.

    Args:
        model: Any form of model that :func:`normfuse.optimize` takes; it is not changed.
        site: Its name, as :func:`normfuse.inspect` gives it.
        inputs: One sample for the whole model, which gives the inputs of the site; None: made from the signature.

    Raises:
        InvalidModelError: The model cannot be read or loaded.
        OptionError: There is no such site in the main graph, or the inputs do not fit the model.
        VerificationError: No input could be made that the model accepts.
    """
    source = load_model(model)
    whole = rewrite_copy(source)
    found = _site(whole.sites, site, source.name)
    names = {*found.nodes, found.name}
    nodes = {node for node in source.model.graph if _name(node) in names}
    if found.fused_into is not None:
        nodes |= _taken_in(source.model.graph, next(node for node in whole.model.graph if _name(node) == found.name))
    if not nodes:
        raise OptionError(f"Site '{site}' has no node of its own in the main graph of {source.name}.")
    inside = _with_constants(source.model.graph, nodes)
    read = dict.fromkeys(
        value.name or ""
        for node in inside
        for value in reads(node)
        if value.producer() not in inside and not _is_weight(value) and _is_outer(value, source.model.graph)
    )
    fed, _ = reference(source.model, source.name, inputs, 1, 0, typical=True)
    gives = _results(source.model.graph, inside)
    values = values_between(source.model, (*read, *gives), fed[0])
    arrays = {name: np.asarray(values[name]) for name in (*read, *gives)}
    part = _part(source.model, arrays, tuple(read), gives)
    return ExtractedSite(found, {name: arrays[name] for name in read}, part, source)


def _taken_in(graph: ir.Graph, fused: ir.Node) -> set[ir.Node]:
    """The nodes that a fused one stands for: from what it computes back to what it reads."""
    read = {value.name for value in fused.inputs if value is not None}
    producers = {value.name: node for node in graph for value in node.outputs}
    pending = [value.name for value in fused.outputs]
    found: set[ir.Node] = set()
    while pending:
        node = producers.get(pending.pop())
        if node is not None and node not in found:
            found.add(node)
            pending += [value.name for value in reads(node) if value.name not in read]
    return found


def _site(sites: Sequence[Site], name: str, model: str) -> Site:
    found = next((site for site in sites if site.name == name), None)
    if found is None:
        near = difflib.get_close_matches(name, [site.name for site in sites], n=1, cutoff=0.3)
        hint = f"; did you mean '{near[0]}'?" if near else "; normfuse inspect --all lists them."
        raise OptionError(f"{model} has no site '{name}'{hint}")
    if found.graph:
        raise OptionError(f"Site '{name}' lies in {found.graph}; only sites of the main graph can be extracted.")
    return found


def _name(node: ir.Node) -> str:
    return node.name or next((value.name for value in node.outputs if value.name), "") or ""


def _is_weight(value: ir.Value) -> bool:
    return value.is_initializer() and not value.is_graph_input()


def _is_outer(value: ir.Value, graph: ir.Graph) -> bool:
    """Whether a value belongs to the main graph, and not to a subgraph."""
    producer = value.producer()
    return value.is_graph_input() if producer is None else producer.graph is graph


def _with_constants(graph: ir.Graph, nodes: Iterable[ir.Node]) -> dict[ir.Node, None]:
    """The nodes, and those that compute what they read from weights alone, in the order of the graph."""
    constant: set[ir.Node] = set()
    for node in graph:
        if all(_is_weight(value) or value.producer() in constant for value in reads(node)):
            constant.add(node)
    inside = dict.fromkeys(nodes)
    pending = list(inside)
    while pending:
        producers = (value.producer() for value in reads(pending.pop()))
        for producer in producers:
            if producer is not None and producer in constant and producer not in inside:
                inside[producer] = None
                pending.append(producer)
    return {node: None for node in graph if node in inside}


def _results(graph: ir.Graph, inside: Mapping[ir.Node, None]) -> tuple[str, ...]:
    """Names of what nodes compute for others, or for the whole model."""
    whole = {id(value) for value in graph.outputs}
    return tuple(
        value.name
        for node in inside
        for value in node.outputs
        if value.name and (id(value) in whole or any(use.node not in inside for use in value.uses()))
    )


def _part(model: ir.Model, arrays: Mapping[str, np.ndarray], given: Sequence[str], gives: Sequence[str]) -> ir.Model:
    """A copy of what lies between some values, whose types are those of arrays."""
    part = model.clone()
    graph = part.graph
    by_name = {value.name: value for node in graph for value in node.outputs}
    by_name |= {value.name: value for value in graph.inputs}
    graph.inputs.clear()
    graph.outputs.clear()
    for name in gives:
        graph.outputs.append(_typed(by_name[name], by_name[name], arrays[name]))
    for name in given:
        new = _typed(ir.Value(name=name), by_name[name], arrays[name])
        for use in tuple(by_name[name].uses()):
            use.node.replace_input_with(use.idx, new)
        graph.inputs.append(new)
    for clean in (RemoveUnusedNodesPass, RemoveUnusedFunctionsPass, RemoveUnusedOpsetsPass):
        clean()(part)
    return part


def _typed(value: ir.Value, known: ir.Value, array: np.ndarray) -> ir.Value:
    # Sizes that the model does not name are those of the run: whether a chain can be fused may depend on them.
    value.shape = known.shape if known.shape is not None else ir.Shape(array.shape)
    value.type = ir.TensorType(ir.DataType.from_numpy(array.dtype))
    return value


def _save_arrays(path: Path, arrays: Sample) -> None:
    """Like numpy.savez, which cannot write every name that a value may have."""
    with zipfile.ZipFile(path, "w") as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, array, allow_pickle=False)
