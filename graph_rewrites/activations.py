"""Activations: single nodes, read by the activation table, and the spellings written out in several nodes."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, NoReturn

import onnx_ir as ir
from onnxscript.rewriter import pattern

from normfuse.ep.spec import ACTIVATIONS, ActivationSpelling

from .facts import Facts, label
from .fused import Activation, Fused
from .rule import FusionRule, any_of, node_of
from .sites import Declined

__all__ = [
    "ACTIVATION_DOMAINS",
    "ACTIVATION_OPERATORS",
    "DecomposedGelu",
    "DecomposedGeluTanh",
    "DecomposedHardSwish",
    "DecomposedLeakyRelu",
    "DecomposedMish",
    "DecomposedSoftplus",
    "DecomposedSwish",
    "NodeActivation",
    "any_activation",
    "is_activation",
    "read_activation",
]

_SPELLINGS: dict[tuple[str, str], list[tuple[str, ActivationSpelling]]] = {}
for _name, _row in ACTIVATIONS.items():
    for _spelling in _row.spellings:
        _SPELLINGS.setdefault((_spelling.domain, _spelling.op_type), []).append((_name, _spelling))

#: Every operator that is an activation by itself, and the domains they are in.
ACTIVATION_OPERATORS = tuple(sorted({op_type for _, op_type in _SPELLINGS}))
ACTIVATION_DOMAINS = tuple(sorted({domain for domain, _ in _SPELLINGS}))
_WRITTEN_OUT = ("Gelu", "GeluTanh", "HardSwish", "Mish", "Swish")
_ALSO_WRITTEN_OUT = tuple(
    sorted({spelling.op_type for name in _WRITTEN_OUT for spelling in ACTIVATIONS[name].spellings})
)


def is_activation(node: ir.Node) -> bool:
    """True for an operator of the activation table, whether or not its attributes can be taken."""
    return (node.domain, node.op_type) in _SPELLINGS


def read_activation(node: ir.Node, facts: Facts, opsets: Mapping[str, int]) -> tuple[Activation, ir.Value | None]:
    """Return the activation that a single node is, by the activation table, and the bias it adds before (BiasGelu).

    Raises:
        Declined: a parameter is not constant, or the node means something else at this opset.
    """
    version = opsets.get(node.domain, 1)
    for name, spelling in _SPELLINGS.get((node.domain, node.op_type), ()):
        if not (spelling.since <= version <= (spelling.until or version)):
            continue
        if any(_string(node, attribute) != wanted for attribute, wanted in spelling.when.items()):
            continue
        parameters = dict(spelling.defaults)
        for attribute, parameter in spelling.attributes.items():
            given = node.attributes.get(attribute)
            if given is not None:
                if given.is_ref():
                    raise Declined("parameter_not_constant", parameter=f"attribute {attribute}", node=label(node))
                parameters[parameter] = given.as_float()
        for value, parameter in zip(node.inputs[1:], spelling.inputs, strict=False):
            if value is not None:
                scalar = facts.scalar(value)
                if scalar is None:
                    raise Declined("parameter_not_constant", parameter=label(value), node=label(node))
                parameters[parameter] = scalar
        slope = node.inputs[1] if ACTIVATIONS[name].has_slope else None
        bias = node.inputs[1] if spelling.has_bias and len(node.inputs) > 1 else None
        return Activation.of(name, slope, **parameters), bias
    raise Declined("unsupported_operator", op_type=f"{node.op_type} of opset {version}", where="as an activation")


def _string(node: ir.Node, attribute: str) -> str:
    given = node.attributes.get(attribute)
    if given is None:
        return "none"
    return "" if given.is_ref() else given.as_string()


def any_activation(op: Any, *inputs: Any, output: str) -> Any:
    """Return the pattern of any single node of the activation table."""
    node = node_of(op, ACTIVATION_DOMAINS, ACTIVATION_OPERATORS)
    return node(*inputs, _allow_other_inputs=True, _outputs=[output])


class NodeActivation(FusionRule):
    """One node that computes what exporters also write out: newer opsets and ONNX Runtime's own optimiser have it.

    So a model is seen as it was before another tool inlined our functions or ONNX Runtime fused their bodies.

    Before::

        Y = BiasGelu(x, bias)

    After::

        Y = FusedActivation(x, bias=bias, activation="Gelu")
    """

    def pattern(self, op: Any, x: Any) -> Any:
        nodes = node_of(op, ACTIVATION_DOMAINS, _ALSO_WRITTEN_OUT)
        return nodes(x, _allow_other_inputs=True, _outputs=["activated"])

    def check(self, context: Any, x: ir.Value, **_: Any) -> bool:
        self.require_float(x, "FusedActivation")
        bias = read_activation(context.root, self.facts, self.facts.opsets)[1]
        if bias is not None:
            self.facts.require_fits(bias, x, "bias")
        return True

    def rewrite(self, op: Any, x: ir.Value, activated: ir.Value) -> ir.Value:
        node = activated.producer()
        assert node is not None
        activation, bias = read_activation(node, self.facts, self.facts.opsets)
        fused = Fused("FusedActivation", {"X": x})
        fused.activation = activation
        if bias is not None:
            fused.inputs["bias"] = bias
        return fused.emit(op)[0]


class _DecomposedActivation(FusionRule):
    """Base of the rules below: the match is the function of x that ``activation`` returns."""

    @abstractmethod
    def activation(self, **parameters: Any) -> Activation:
        """Return the activation for the values bound by the pattern."""

    def check(self, context: Any, x: ir.Value, **bindings: Any) -> bool:
        self.require_float(x)
        if self.facts.is_constant(x):
            raise Declined(
                "different_formula",
                node=label(context.root),
                kind="an activation",
                detail=f"its input {label(x)} is a constant",
            )
        self.activation(root=context.root, **bindings)
        return True

    def rewrite(self, op: Any, x: ir.Value, **bindings: Any) -> ir.Value:
        fused = Fused("FusedActivation", {"X": x})
        fused.activation = self.activation(**bindings)
        return fused.emit(op)[0]

    def number(self, value: ir.Value, root: ir.Node | None, what: str) -> float:
        """Return a bound constant; declines (in ``check``) where it is none."""
        scalar = self.facts.scalar(value)
        if scalar is None:
            raise Declined(
                "parameter_not_constant",
                parameter=f"{what} {label(value)}",
                node=label(root) if root is not None else "the chain",
            )
        return scalar


def _halved(op: Any, x: Any) -> Any:
    return any_of(op.Mul(x, 0.5), op.Div(x, 2))


class DecomposedGelu(_DecomposedActivation):
    """GELU by the error function, its factors multiplied in any order.

    Before::

        e = Erf(Div(x, 1.4142135))
        Y = Mul(Mul(x, Add(e, 1)), 0.5)

    After::

        Y = FusedActivation(x, activation="Gelu")
    """

    spellings = ("half last", "divide last", "x last", "half x")

    def pattern(self, op: Any, x: Any) -> Any:
        scaled = any_of(op.Div(x, math.sqrt(2)), op.Mul(x, math.sqrt(0.5)))
        return _half_times(op, self.spelling, x, op.Erf(scaled))

    def activation(self, **_: Any) -> Activation:
        return Activation.of("Gelu")


def _half_times(op: Any, spelling: str, x: Any, odd: Any) -> Any:
    """0.5 * x * (1 + odd), multiplied in the order that `spelling` names."""
    one_plus = op.Add(odd, 1)
    if spelling == "half last":
        return op.Mul(op.Mul(x, one_plus), 0.5)
    if spelling == "divide last":
        return op.Div(op.Mul(x, one_plus), 2)
    if spelling == "x last":
        return op.Mul(x, any_of(_halved(op, one_plus), op.Add(_halved(op, odd), 0.5)))
    return op.Mul(_halved(op, x), one_plus)


class DecomposedGeluTanh(_DecomposedActivation):
    """GELU by its tanh approximation, as GPT-2, T5 and PyTorch write it.

    Before::

        inner = Mul(Add(x, Mul(Pow(x, 3), 0.044715)), 0.7978846)
        Y = Mul(Mul(x, 0.5), Add(Tanh(inner), 1))

    After::

        Y = FusedActivation(x, activation="GeluTanh")
    """

    spellings = ("half last", "divide last", "x last", "half x")

    def pattern(self, op: Any, x: Any) -> Any:
        square = any_of(op.Mul(x, x), op.Pow(x, 2))
        cube = any_of(op.Pow(x, 3), op.Mul(x, square))
        term = any_of(op.Mul(cube, 0.044715), op.Mul(op.Mul(x, 0.044715), square), op.Mul(x, op.Mul(square, 0.044715)))
        root = math.sqrt(2 / math.pi)
        polynomial = any_of(op.Add(x, term), op.Mul(x, op.Add(op.Mul(square, 0.044715), 1)))
        inner = any_of(
            op.Mul(polynomial, root),
            op.Mul(op.Mul(x, root), op.Add(any_of(op.Mul(square, 0.044715), op.Mul(x, op.Mul(x, 0.044715))), 1)),
            op.Add(op.Mul(x, root), op.Mul(cube, 0.044715 * root)),
            op.Mul(x, op.Add(op.Mul(square, 0.044715 * root), root)),
        )
        return _half_times(op, self.spelling, x, op.Tanh(inner))

    def activation(self, **_: Any) -> Activation:
        return Activation.of("GeluTanh")


class DecomposedSwish(_DecomposedActivation):
    """SiLU (alpha = 1), QuickGELU (alpha = 1.702) and Swish with any constant alpha.

    Before::

        Y = Mul(x, Sigmoid(Mul(x, alpha)))

    After::

        Y = FusedActivation(x, activation="Swish", activation_params=[alpha])
    """

    spellings = ("product", "quotient")

    def pattern(self, op: Any, x: Any, alpha: Any) -> Any:
        if self.spelling == "quotient":
            return op.Div(x, op.Add(op.Exp(op.Neg(any_of(op.Mul(x, alpha), x))), 1))
        return op.Mul(x, op.Sigmoid(any_of(op.Mul(x, alpha), x)))

    def activation(self, alpha: ir.Value | None = None, root: ir.Node | None = None, **_: Any) -> Activation:
        return Activation.of("Swish", alpha=1.0 if alpha is None else self.number(alpha, root, "alpha"))


class DecomposedHardSwish(_DecomposedActivation):
    """HardSwish by HardSigmoid, or by Clip (ReLU6).

    Before::

        Y = Div(Mul(x, Clip(Add(x, 3), 0, 6)), 6)

    After::

        Y = FusedActivation(x, activation="HardSwish", activation_params=[1/6, 0.5])
    """

    spellings = ("gate", "factor", "divide last", "scale last")

    def pattern(self, op: Any, x: Any) -> Any:
        clipped = any_of(
            op.Clip(op.Add(x, 3), _allow_other_inputs=True, _outputs=["clip"]),
            op.Min(op.Relu(op.Add(x, 3)), 6),
            op.Min(op.Max(op.Add(x, 3), 0), 6),
        )
        if self.spelling == "gate":
            divided = any_of(op.Div(clipped, 6), op.Mul(clipped, 1 / 6))
            return op.Mul(x, any_of(op.HardSigmoid(x, _outputs=["hard_sigmoid"]), divided))
        if self.spelling == "factor":
            return op.Mul(any_of(op.Div(x, 6), op.Mul(x, 1 / 6)), clipped)
        if self.spelling == "divide last":
            return op.Div(op.Mul(x, clipped), 6)
        return op.Mul(op.Mul(x, clipped), 1 / 6)

    def activation(
        self, clip: ir.Value | None = None, hard_sigmoid: ir.Value | None = None, root: ir.Node | None = None, **_: Any
    ) -> Activation:
        if hard_sigmoid is not None:
            node = hard_sigmoid.producer()
            assert node is not None
            alpha, beta = node.attributes.get_float("alpha", 0.2), node.attributes.get_float("beta", 0.5)
            return Activation.of("HardSwish", alpha=_sixth(alpha), beta=beta)
        if clip is not None:
            self._require_clip(clip, 0.0, 6.0)
        return Activation.of("HardSwish")

    def _require_clip(self, clip: ir.Value, low: float, high: float) -> None:
        node = clip.producer()
        assert node is not None
        if "min" in node.attributes or "max" in node.attributes:
            bounds = [node.attributes.get_float("min", -math.inf), node.attributes.get_float("max", math.inf)]
        else:
            bounds = [self.number(value, node, "bound") for value in node.inputs[1:3] if value is not None]
        if bounds != [low, high]:
            raise Declined(
                "different_formula",
                node=label(node),
                kind="HardSwish",
                detail=f"it clips to {bounds} and not to [{low:g}, {high:g}]",
            )


def _sixth(alpha: float) -> float:
    """Return 1/6 as the table has it for what float32 makes of it."""
    return 1 / 6 if math.isclose(alpha, 1 / 6, rel_tol=1e-6) else alpha


class DecomposedLeakyRelu(_DecomposedActivation):
    """LeakyRelu as TensorFlow writes it: the larger of x and a fraction of it.

    Before::

        Y = Max(Mul(x, alpha), x)

    After::

        Y = FusedActivation(x, activation="LeakyRelu", activation_params=[alpha])
    """

    def pattern(self, op: Any, x: Any, alpha: Any) -> Any:
        return op.Max(op.Mul(x, alpha), x)

    def activation(self, alpha: ir.Value, root: ir.Node | None = None, **_: Any) -> Activation:
        slope = self.number(alpha, root, "alpha")
        if not 0 <= slope <= 1:
            # With a larger one, it is the positive half that is scaled.
            raise Declined(
                "different_formula",
                node=label(root) if root else "",
                kind="LeakyRelu",
                detail=f"its slope is {slope:g} and not between 0 and 1",
            )
        return Activation.of("LeakyRelu", alpha=slope)


class DecomposedMish(_DecomposedActivation):
    """Mish by Softplus and Tanh.

    Before::

        Y = Mul(x, Tanh(Softplus(x)))

    After::

        Y = FusedActivation(x, activation="Mish")
    """

    def pattern(self, op: Any, x: Any) -> Any:
        return op.Mul(x, op.Tanh(any_of(op.Softplus(x), op.Log(op.Add(op.Exp(x), 1)))))

    def activation(self, **_: Any) -> Activation:
        return Activation.of("Mish")


class DecomposedSoftplus(_DecomposedActivation):
    """Softplus by logarithm and exponential, with a steepness, or with PyTorch's threshold of 20.

    Before::

        Y = Div(Log(Add(Exp(Mul(x, beta)), 1)), beta)

    After::

        Y = FusedActivation(x, activation="Softplus", activation_params=[beta])
    """

    spellings = ("threshold", "steep", "plain")

    def pattern(self, op: Any, x: Any, steepness: Any, threshold: Any) -> Any:
        if self.spelling == "plain":
            return op.Log(op.Add(op.Exp(x), 1))
        steep = op.Mul(x, steepness)
        raised = any_of(op.Softplus(steep), op.Log(op.Add(op.Exp(steep), 1)))
        if self.spelling == "steep":
            return op.Div(raised, steepness)
        plain = any_of(op.Softplus(x), op.Log(op.Add(op.Exp(x), 1)))
        compared = any_of(op.Mul(x, pattern.Var("compared_steepness")), x)
        return op.Where(op.Greater(compared, threshold), x, any_of(op.Div(raised, steepness), plain))

    def activation(
        self,
        steepness: ir.Value | None = None,
        compared_steepness: ir.Value | None = None,
        threshold: ir.Value | None = None,
        root: ir.Node | None = None,
        **_: Any,
    ) -> Activation:
        beta, compared = (
            1.0 if value is None else self.number(value, root, "steepness") for value in (steepness, compared_steepness)
        )
        if not (0 < beta < math.inf and 0 < compared < math.inf):
            self._refuse(root, f"its steepness is {min(beta, compared):g}")
        if threshold is not None:
            # Above 20 log(1 + exp(x)) is x in float32; below, the Where is another function.
            linear_from = beta * self.number(threshold, root, "threshold") / compared
            if not linear_from >= 20 * (1 - 1e-6):
                self._refuse(root, f"it is linear from {linear_from:g} on, where that still makes a difference")
        return Activation.of("Softplus", steepness=beta)

    def _refuse(self, root: ir.Node | None, detail: str) -> NoReturn:
        raise Declined("different_formula", node=label(root) if root else "", kind="Softplus", detail=detail)
