"""``normfuse schema``: the JSON schema of what the commands write with --json and --report."""

from __future__ import annotations

import enum
import json
from typing import Annotated, Any, Literal

import typer

from normfuse.documents import Schemas, strict_object


class DocumentName(enum.StrEnum):
    """The documents that have a schema."""

    REPORT = "report"
    FOLDER = "folder"
    INSPECTION = "inspection"
    LOWERING = "lowering"
    VERIFICATION = "verification"
    BENCHMARK = "benchmark"
    CHECK = "check"


_TITLES = {
    DocumentName.REPORT: "normfuse optimize MODEL --json, and --report FILE.json",
    DocumentName.FOLDER: "normfuse optimize FOLDER --json; each model's own report lies beside its result",
    DocumentName.INSPECTION: "normfuse inspect --json",
    DocumentName.LOWERING: "normfuse inspect --backend directml --json",
    DocumentName.VERIFICATION: "normfuse verify --json",
    DocumentName.BENCHMARK: "normfuse bench --json",
    DocumentName.CHECK: "normfuse check --json, and --format json",
}


def schema_command(
    document: Annotated[DocumentName, typer.Argument(help="Which document.", show_default=False)],
) -> None:
    """Print the JSON schema of what a command writes with --json."""
    print(json.dumps(json_schema(document), indent=2))


def json_schema(document: str) -> dict[str, Any]:
    """Return the JSON schema of a document, as the classes that it is written from say."""
    from normfuse.folders import Row
    from normfuse.graph_rewrites.engine.passes import KeptPair
    from normfuse.graph_rewrites.engine.sites import Site
    from normfuse.inspection.claims import Claims
    from normfuse.inspection.lowering import Lowering
    from normfuse.inspection.quantization import Quantization
    from normfuse.measuring.benchmark import BenchmarkReport
    from normfuse.measuring.timing import Ratio
    from normfuse.optimization.checking import CheckReport
    from normfuse.optimization.optimize import OptimizationReport
    from normfuse.verification import VerificationReport
    from normfuse.verification.comparison import OutputComparison

    types = {each.__name__: each for each in (KeptPair, OutputComparison, Ratio, Site, VerificationReport)}
    name, schemas = DocumentName(document), Schemas(types)
    version: dict[str, Any] = {"schema_version": Literal[1]}
    # What the command adds to the report's own values, and the report.
    row: tuple[dict[str, Any], type | None] = {
        DocumentName.REPORT: ({}, OptimizationReport),
        DocumentName.FOLDER: (
            version | {"normfuse_version": str, "source": str, "target": str, "models": list[Row]},
            None,
        ),
        DocumentName.INSPECTION: (
            version
            | {"model": str, "sites": list[Site], "claims": Claims, "session_plan": str}
            | {"quantization": Quantization | None},
            None,
        ),
        DocumentName.LOWERING: (version | {"model": str, "backend": Literal["directml"]}, Lowering),
        DocumentName.VERIFICATION: (
            version | {"normfuse_version": str, "original": str, "optimized": str},
            VerificationReport,
        ),
        DocumentName.BENCHMARK: ({}, BenchmarkReport),
        DocumentName.CHECK: ({}, CheckReport),
    }[name]
    added, report = row
    properties = {key: schemas.of(kind) for key, kind in added.items()}
    properties |= {} if report is None else schemas.properties(report)
    optional = {"benchmark": BenchmarkReport, "output": str, "bytes_written": int} if name == "report" else {}
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": f"What is written by {_TITLES[name]}"}
    described = strict_object(properties, {key: schemas.of(kind) for key, kind in optional.items()})
    return head | described | {"$defs": schemas.definitions}
