"""Derive the constants of ep/cpu/kernels/math-inl.h and write ep/cpu/kernels/coefficients.h: a third of a minute.

Every polynomial is a minimax fit (Lawson's iteratively reweighted least squares on Chebyshev nodes) of a function that
mpmath evaluates with 40 digits. Coefficients are rounded to float32 one by one, from the constant term upwards, and
the remaining ones are fitted again after each rounding, so that the later ones make up for the rounding of the earlier.
Needs mpmath, numpy and clang-format.
"""

import subprocess
from collections.abc import Callable
from pathlib import Path

import mpmath
import numpy as np

mpmath.mp.dps = 40
mpf = mpmath.mpf

Function = Callable[[mpmath.mpf], mpmath.mpf]

TARGET = Path(__file__).resolve().parent.parent / "ep" / "cpu" / "kernels" / "coefficients.h"
NODES = 240
ROUNDS = 60


def float32(value: float) -> float:
    return float(np.float32(value))


def nodes_of(low: float, high: float) -> list[mpmath.mpf]:
    half, middle = mpf((high - low) / 2), mpf((high + low) / 2)
    return [middle + half * mpmath.cos(mpmath.pi * (2 * i + 1) / (2 * NODES)) for i in range(NODES)]


def polynomial(coefficients: list[float], x: mpmath.mpf) -> mpmath.mpf:
    return sum((mpf(c) * x**k for k, c in enumerate(coefficients)), mpf(0))


def least(
    basis: np.ndarray,
    target: np.ndarray,
    weights: np.ndarray,
    rounds: int,
    quotient: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]],
) -> np.ndarray:
    """Return the factors of the basis whose largest weighted error is the least.

    ``quotient`` gives the numerator and the denominator that factors make. Each round is weighted by the error of the
    one before (Lawson) and by its denominator (Sanathanan and Koerner).
    """
    lawson, below = np.ones(NODES) / NODES, np.ones(NODES)
    best: tuple[float, np.ndarray] | None = None
    for _ in range(rounds):
        root = np.sqrt(lawson) * weights / below
        solution, *_ = np.linalg.lstsq(basis * root[:, None], target * root, rcond=None)
        above, below = quotient(solution)
        error = np.abs(above / below - target) * weights
        if below.min() > 0 and (best is None or error.max() < best[0]):
            best = (float(error.max()), solution)
        below = np.abs(below)
        total = (lawson * error).sum()
        if total == 0:
            break
        lawson = lawson * error / total
    assert best is not None
    return best[1]


def fit(
    function: Function,
    low: float,
    high: float,
    degree: int,
    *,
    weight: Function,
    centre: float = 0.0,
    fixed: tuple[float, ...] = (),
) -> tuple[list[float], float]:
    """Fit sum(c[k] * (x - centre)**k) to function(x) on [low, high].

    weight: the error is multiplied by it before its maximum is minimised. fixed: the first coefficients, given.
    Returns the float32 coefficients from the constant term upwards, and the largest weighted error on the nodes.
    """
    nodes = nodes_of(low, high)
    scale = max(abs(low - centre), abs(high - centre))
    powers = np.stack([(np.array([float(x - mpf(centre)) for x in nodes]) / scale) ** k for k in range(degree + 1)], 1)
    weights = np.array([float(weight(x)) for x in nodes])
    exact = [function(x) for x in nodes]
    coefficients: list[float] = [float32(c) for c in fixed]

    def rest(done: list[float]) -> np.ndarray:
        """What the coefficients that are already chosen leave to the others, evaluated without cancellation."""
        return np.array([float(y - polynomial(done, x - mpf(centre))) for x, y in zip(nodes, exact, strict=True)])

    while len(coefficients) <= degree:
        k = len(coefficients)
        basis = powers[:, k:]
        solution = least(basis, rest(coefficients), weights, ROUNDS, lambda s, basis=basis: (basis @ s, np.ones(NODES)))
        coefficients.append(float32(solution[0] / scale**k))
    return coefficients, float(np.max(np.abs(rest(coefficients)) * weights))


def fit_ratio(
    function: Function, high: float, degrees: tuple[int, int], *, weight: Function
) -> tuple[list[float], list[float], float]:
    """Fit a ratio of polynomials of these degrees to function(x) on [0, high]: numerator, denominator, largest error.

    weight: as in ``fit``. The denominator, 1 at 0, is rounded to float32 as a whole, then the numerator is fitted to
    what goes with it.
    """
    nodes = nodes_of(0, high)
    target = np.array([float(function(x)) for x in nodes])
    weights = np.array([float(weight(x)) for x in nodes])
    upper, lower = degrees
    powers = np.stack([np.array([float(x / high) for x in nodes]) ** k for k in range(max(degrees) + 1)], axis=1)
    above, below = powers[:, : upper + 1], powers[:, 1 : lower + 1]
    basis = np.concatenate([above, -target[:, None] * below], axis=1)
    solution = least(basis, target, weights, 2 * ROUNDS, lambda s: (above @ s[: upper + 1], 1 + below @ s[upper + 1 :]))
    rounded = [1.0, *(float32(c / high ** (k + 1)) for k, c in enumerate(solution[upper + 1 :]))]
    numerator, worst = fit(
        lambda x: function(x) * polynomial(rounded, x),
        0.0,
        high,
        upper,
        weight=lambda x: weight(x) / polynomial(rounded, x),
    )
    return numerator, rounded, worst


def relative(function: Function) -> Function:
    return lambda x: 1 / abs(function(x)) if function(x) != 0 else mpf(0)


# ---- What is approximated ----------------------------------------------------------------------------------------


def gaussian_tail(a: mpmath.mpf) -> mpmath.mpf:
    """1 - Phi(a): GELU(x) = max(x, 0) - |x| * tail(|x|)."""
    return mpmath.erfc(a / mpmath.sqrt(2)) / 2


def gelu_tanh_tail(a: mpmath.mpf) -> mpmath.mpf:
    """The same of the tanh form: (1 - tanh(u)) / 2 = 1 / (1 + exp(2 u)), u = sqrt(2 / pi) * (a + 0.044715 * a**3)."""
    u = mpmath.sqrt(2 / mpmath.pi) * (a + mpf("0.044715") * a**3)
    return 1 / (1 + mpmath.exp(2 * u))


def tail_weight(tail: Function) -> Function:
    """Makes the error count in units of max(|value|, 2^-24), value = a * tail(a)."""
    return lambda a: max(a, mpf(2) ** -10) / max(a * tail(a), mpf(2) ** -24)


HALF_LOG2E = float32(float(mpmath.log(mpmath.e, 2) / 2))


def without_gaussian(tail: Function) -> Function:
    """tail(a) * 2^(c a^2) with the float32 c that the kernel uses for log2(e) / 2: smooth, and c needs no low part."""
    return lambda a: tail(a) * mpf(2) ** (mpf(HALF_LOG2E) * a * a)


def written(value: float) -> str:
    """A float in C++, without the digits that no float32 has."""
    significand, exponent = value.hex().split("p")
    return f"{significand.rstrip('0').rstrip('.')}p{exponent}f"


class Header:
    """The text of coefficients.h, with the error of each fit beside it."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def comment(self, text: str) -> None:
        self.lines += ["", f"// {text}"]

    def scalar(self, name: str, value: float) -> None:
        self.lines.append(f"constexpr float {name} = {written(float32(value))};")

    def pair(self, name: str, value: mpmath.mpf, high: float) -> None:
        """A number as the sum of two floats, of which the first is given."""
        self.scalar(name, high)
        self.scalar(f"{name}Low", float(value - mpf(high)))

    def row(self, name: str, values: list[float]) -> None:
        numbers = ", ".join(map(written, values))
        self.lines.append(f"constexpr float {name}[{len(values)}] = {{{numbers}}};")

    def table(self, name: str, columns: list[list[float]]) -> None:
        """columns[i] = coefficients of interval i; stored by coefficient."""
        degree = len(columns[0])
        self.lines.append(f"alignas(64) constexpr float {name}[{degree}][{len(columns)}] = {{")
        for k in range(degree):
            self.lines.append("{" + ", ".join(written(c[k]) for c in columns) + "},")
        self.lines.append("};")


def root_of_tail(tail: Function, count: int, degree: int) -> tuple[list[list[float]], float]:
    """The square root of tail(-x) on ``count`` intervals from -8 to 0, the variable counted from the lower end of each.

    Counted from there every coefficient that matters is positive, and nothing cancels. 0 at -8, from where on
    everything that is less than 2^-50 is 0. What rounding does to the constant term, twice as much in the square, the
    other terms make up for but next to the lower end, where they add little rounding of their own.
    """
    weight = tail_weight(tail)

    def root(x: mpmath.mpf) -> mpmath.mpf:
        return mpmath.sqrt(tail(-x))

    columns, worst = [], 0.0
    for i in range(count):
        low = -8 + i * 8 / count

        def relaxed(x: mpmath.mpf, low: float = low) -> mpmath.mpf:
            return 2 * root(x) * weight(-x) * (mpf("0.2") if x - low < 0.02 else 1)

        fixed = (0.0,) if i == 0 else ()
        c, error = fit(root, low, low + 8 / count, degree, weight=relaxed, centre=low, fixed=fixed)
        columns.append(c)
        worst = max(worst, error)
    return columns, worst


def dip(tail: Function, degree: int) -> tuple[list[list[float]], float]:
    """Fit x * tail(-x) for -7.75 <= x <= 0 around each multiple of 1/4; column i is the one around i / 4 modulo 8.

    The error is absolute. 0 at both ends, so that what is beyond them is 0.
    """

    def function(x: mpmath.mpf) -> mpmath.mpf:
        return x * tail(-x)

    columns, worst = [], 0.0
    for i in range(32):
        centre = i / 4 - 8 if i else 0.0
        low, high = centre - 0.125, min(centre + 0.125, 0.0)
        fixed = (0.0,) if i < 2 else ()
        c, error = fit(function, low, high, degree, weight=lambda x: mpf(1), centre=centre, fixed=fixed)
        columns.append(c)
        worst = max(worst, error)
    return columns, worst


def add_gelu_ratios(h: Header) -> None:
    """The ratios of GeluAlone and GeluOfRows, with the error in units of what each may be off by, and GeluOfBytes."""
    smooth = without_gaussian(gaussian_tail)
    in_ulp = tail_weight(gaussian_tail)

    forms: list[tuple[str, float, tuple[int, int], Function]] = [
        ("", 8.0, (4, 4), in_ulp),
        ("Rows", 8.0, (3, 4), lambda a: in_ulp(a) / (1 + a * a / 10)),
    ]
    for name, high, degrees, weight in forms:

        def scaled(a: mpmath.mpf, weight: Function = weight) -> mpmath.mpf:
            return weight(a) * gaussian_tail(a) / smooth(a)

        above, below, error = fit_ratio(smooth, high, degrees, weight=scaled)
        h.comment(f"Gelu: tail(a) * 2^(kHalfLog2E a^2) to a = {high:g}, as a ratio; weighted error {error:.2g}.")
        h.row(f"kGelu{name}Above", above)
        h.row(f"kGelu{name}Below", below)

    def half_erf(square: mpmath.mpf) -> mpmath.mpf:
        x = mpmath.sqrt(square)
        return mpmath.erf(x / mpmath.sqrt(2)) / (2 * x)

    above, below, error = fit_ratio(half_erf, 22.0, (3, 3), weight=lambda square: square)

    def excess(x: float) -> float:
        top, bottom = (sum(mpf(c) * mpf(x) ** (2 * k) for k, c in enumerate(row)) for row in (above, below))
        return float(x * top / bottom) - 0.5

    one = next(x for x in np.arange(4.6, 5, 1e-4) if excess(x) > 0)
    h.comment(
        f"Gelu: (Phi(x) - 1/2) / x in x^2, to 22, as a ratio; error of Gelu {error:.2g}. Where Phi is 1, and below 0."
    )
    h.row("kGeluBytesAbove", above)
    h.row("kGeluBytesBelow", below)
    h.scalar("kGeluBytesOne", float32(one))
    h.scalar("kGeluBytesZero", -4.75)


def add_erf(h: Header) -> None:
    """The two parts of the error function, which meet at kErfNear."""

    def near_zero(square: mpmath.mpf) -> mpmath.mpf:
        x = mpmath.sqrt(square)
        return mpmath.erf(x) / x - 1 if x else 2 / mpmath.sqrt(mpmath.pi) - 1

    def exponent(a: mpmath.mpf) -> mpmath.mpf:
        return mpmath.log(mpmath.erfc(a), 2)

    near, far = 0.875, 4.0
    c, error = fit(near_zero, 0.0, near * near, 5, weight=lambda s: 1 / (1 + near_zero(s)))
    h.comment(f"erf(x) / x - 1 in x^2, to x = kErfNear; error relative to erf(x) / x: {error:.2g}.")
    h.scalar("kErfNear", near)
    h.row("kErf", c)
    c, error = fit(exponent, near, far, 6, weight=lambda a: mpmath.log(2) * mpmath.erfc(a) / mpmath.erf(a))
    h.comment(f"log2(1 - erf(a)) from there to 4, where erf(a) is 1; error relative to erf(a): {error:.2g}.")
    h.row("kErfExponent", c)


def add_sine(h: Header) -> None:
    """Pi as the sum of three floats, and what a sine differs by from its argument."""
    high = float32(float(mpmath.pi))
    middle = float32(float(mpmath.pi - mpf(high)))
    h.comment("pi as the sum of three floats, and 1 / pi.")
    h.scalar("kPi", high)
    h.scalar("kPiMiddle", middle)
    h.scalar("kPiLow", float(mpmath.pi - mpf(high) - mpf(middle)))
    h.scalar("kInversePi", float(1 / mpmath.pi))

    def curve(square: mpmath.mpf) -> mpmath.mpf:
        r = mpmath.sqrt(square)
        return (mpmath.sin(r) / r - 1) / square if r else -mpf(1) / 6

    def in_sine(square: mpmath.mpf) -> mpmath.mpf:
        r = mpmath.sqrt(square)
        return square * r / mpmath.sin(r) if r else mpf(0)

    c, error = fit(curve, 0.0, 1.6 * 1.6, 4, weight=in_sine)
    h.comment(f"(sin(r) - r) / r^3 in r^2, to r = 1.6; error relative to sin(r): {error:.2g}.")
    h.row("kSine", c)


def derive() -> str:
    h = Header()
    log2e = mpmath.log(mpmath.e, 2)
    h.comment("log2(e) as the sum of two floats; half of it as one.")
    h.pair("kLog2E", log2e, float32(float(log2e)))
    h.scalar("kHalfLog2E", HALF_LOG2E)
    h.comment("log(2) as the sum of two floats, the first of 9 bits: its product with an exponent is exact.")
    h.pair("kLn2", mpmath.log(2), 355 / 512)

    def exp2(f: mpmath.mpf) -> mpmath.mpf:
        return mpf(2) ** f

    c, error = fit(exp2, -0.5, 0.5, 6, weight=relative(exp2), fixed=(1.0,))
    h.comment(f"2^f on [-1/2, 1/2]; relative error {error:.2g}.")
    h.row("kExp2", c)

    c, error = fit(exp2, -1 / 64, 1 / 64, 2, weight=relative(exp2), fixed=(1.0,))
    h.comment(f"2^f on [-1/64, 1/64], relative error {error:.2g}, and 2^(i/32).")
    h.row("kExp2ThirtySecond", c)
    h.row("kExp2Table", [float32(float(exp2(mpf(i) / 32))) for i in range(32)])

    c, error = fit(exp2, -1 / 16, 1 / 16, 3, weight=relative(exp2), fixed=(1.0,))
    h.comment(f"2^f on [-1/16, 1/16], relative error {error:.2g}; 2^(i/8) is in kExp2Table.")
    h.row("kExp2Eighth", c)

    def expm1_curve(f: mpmath.mpf) -> mpmath.mpf:
        return (mpmath.expm1(f) - f) / f**2 if f else mpf(1) / 2

    half_ln2 = float(mpmath.log(2) / 2)
    c, error = fit(expm1_curve, -half_ln2, half_ln2, 4, weight=lambda f: f * f / abs(mpmath.expm1(f)) if f else mpf(0))
    h.comment(f"(exp(f) - 1 - f) / f^2 on [-log(2) / 2, log(2) / 2]; error relative to exp(f) - 1: {error:.2g}.")
    h.row("kExpm1", c)

    def log1p_over_e(e: mpmath.mpf) -> mpmath.mpf:
        return mpmath.log1p(e) / e if e else mpf(1)

    c, error = fit(log1p_over_e, 0.0, 1.0, 10, weight=relative(log1p_over_e), fixed=(1.0,))
    h.comment(f"log(1 + e) / e on [0, 1]; relative error {error:.2g}.")
    h.row("kLog1p", c)

    for name, tail, degree in (("Gelu", gaussian_tail, 6), ("GeluTanh", gelu_tanh_tail, 7)):
        columns, error = root_of_tail(tail, 16, degree)
        h.comment(f"{name}: root of tail(-x) from -8, -7.5 ... -0.5 on; weighted error {error:.2g}.")
        h.table(f"k{name}Root", columns)

    add_gelu_ratios(h)
    add_erf(h)
    add_sine(h)

    linear = 2 * mpmath.sqrt(2 / mpmath.pi) * log2e
    cubic = linear * mpf("0.044715")
    h.comment("GeluTanh: x / (1 + 2^-(x (linear + cubic x^2))), each the sum of two floats.")
    # Its first float has 22 bits: what linear + cubic x^2 differs from it by is exact.
    h.pair("kGeluTanhLinear", linear, round(float(linear) * 2**20) / 2**20)
    h.pair("kGeluTanhCubic", cubic, float32(float(cubic)))
    columns, error = dip(gaussian_tail, 4)
    h.comment(f"Gelu: x tail(-x) around 0, -7.75, -7.5 ... -0.25; error {error:.2g}.")
    h.table("kGeluDip", columns)

    head = [
        "// Written by tools/derive_coefficients.py, which says what each constant is; do not edit.",
        "#pragma once",
        "",
        "namespace normfuse {",
    ]
    return "\n".join([*head, *h.lines, "", "}  // namespace normfuse", ""])


if __name__ == "__main__":
    command = ["clang-format", f"--assume-filename={TARGET}"]
    TARGET.write_text(subprocess.run(command, input=derive(), capture_output=True, text=True, check=True).stdout)
