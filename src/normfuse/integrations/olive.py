"""A pass of Microsoft Olive that optimises a model in a workflow.

Olive finds passes by its package configuration, a JSON file. ``python -m normfuse.integrations.olive`` prints its own
one with this pass added, for ``olive run --config workflow.json --package-config that.json``; the workflow then has a
pass ``{"type": "NormfuseOptimization"}``. Quantise after it, see the documentation on quantised models.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from olive.hardware import AcceleratorSpec
from olive.model import ONNXModelHandler
from olive.model.utils import resolve_onnx_path
from olive.package_config import OlivePackageConfig
from olive.passes import Pass
from olive.passes.pass_config import BasePassConfig, PassConfigParam

from normfuse.errors import OptionError
from normfuse.optimization.optimize import OptimizationError, optimize
from normfuse.reports.files import write_report


class NormfuseOptimization(Pass):  # type: ignore[misc]
    """Fuse normalisation chains, and verify that the model still computes the same.

    Takes and gives an ONNX model. The report is written beside the result as ``normfuse_report.json``.
    """

    @classmethod
    def _default_config(cls, accelerator_spec: AcceleratorSpec) -> dict[str, PassConfigParam]:
        return {
            "target": PassConfigParam(
                type_=str, default_value="portable", description="portable, custom-op or standard, as normfuse.optimize"
            ),
            "verify": PassConfigParam(
                type_=bool, default_value=True, description="compare the result with the original on made-up inputs"
            ),
            "max_error": PassConfigParam(
                type_=float, default_value=None, description="error to allow instead of what the model's types explain"
            ),
            "verify_seconds": PassConfigParam(
                type_=float, default_value=60.0, description="how long the verification may take"
            ),
            "strict": PassConfigParam(
                type_=bool, default_value=False, description="fail where the verification stays undecided"
            ),
            "require_fused": PassConfigParam(
                type_=str, default_value=None, description="fail unless so many sites are fused, or 'all'"
            ),
            "allow_requantization_removal": PassConfigParam(
                type_=bool, default_value=False, description="also fuse where that removes a quantisation in a chain"
            ),
            "remove_quantization": PassConfigParam(
                type_=bool, default_value=False, description="take the quantisation of activations out"
            ),
            "fold_weights": PassConfigParam(
                type_=bool, default_value=None, description="dequantise weights once; the file grows"
            ),
        }

    def _run_for_config(
        self, model: ONNXModelHandler, config: BasePassConfig, output_model_path: str
    ) -> ONNXModelHandler:
        source = Path(model.model_path)
        result = optimize(
            source,
            target=config.target,
            verify=config.verify,
            max_error=config.max_error,
            verify_seconds=config.verify_seconds,
            require_fused=_required(config.require_fused),
            allow_requantization_removal=config.allow_requantization_removal,
            remove_quantization=config.remove_quantization,
            fold_weights=config.fold_weights,
        )
        verification = result.report.verification
        if config.strict and verification is not None and verification.result == "undecided":
            raise OptimizationError(f"{source}: {verification.message}", result.report)
        path = Path(resolve_onnx_path(output_model_path, source.name))
        path.parent.mkdir(parents=True, exist_ok=True)
        result.save(path)
        write_report(result.report.to_dict(), path.parent / "normfuse_report.json")
        if path.with_name(f"{path.name}.data").exists():
            return ONNXModelHandler(model_path=str(path.parent), onnx_file_name=path.name)
        return ONNXModelHandler(model_path=str(path))


def _required(text: str | None) -> Any:
    if text is None or text == "all":
        return text
    if not text.isdigit():
        raise OptionError(f"require_fused is '{text}'; it takes a number from 0 on, or all.")
    return int(text)


def package_config() -> dict[str, Any]:
    """Return Olive's own package configuration with this pass added, as data for JSON."""
    config: dict[str, Any] = json.loads(Path(OlivePackageConfig.get_default_config_path()).read_text(encoding="utf-8"))
    config["passes"]["NormfuseOptimization"] = {
        "module_path": f"{__name__ if __name__ != '__main__' else 'normfuse.integrations.olive'}.NormfuseOptimization",
        "supported_providers": ["*"],
        "supported_accelerators": ["*"],
        "supported_precisions": ["*"],
        "supported_algorithms": [],
        "supported_quantization_encodings": [],
    }
    return config


if __name__ == "__main__":
    json.dump(package_config(), sys.stdout, indent=2)
