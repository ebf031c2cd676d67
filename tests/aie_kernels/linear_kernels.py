"""Q4NX blocks, and the linear kernels in numpy and float64."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy_q4nx as q4nx
from standin import Array, aligned, bfloat16, f64, to_bf16

from ort_aie_ep import _native
from ort_aie_ep.aie_kernels.cycles import form_scalars
from ort_aie_ep.formats.q4nx import SHIPPING, BlockForm

ROWS, COLUMNS, GROUP = q4nx.BLOCK_ROWS, q4nx.BLOCK_COLS, q4nx.GROUP
MAX_K = 16384
EPSILON = 2.0**-8  # of bfloat16, unit roundoff; two limbs leave 2^-17
FLOAT_EPSILON = 2.0**-24


#: The last scalars of kernels for blocks of the shipping form.
OF_SHIPPING = form_scalars(SHIPPING)


def in_both_forms(rng: np.random.Generator, form: BlockForm, k: int) -> tuple[Array, Array]:
    """Random blocks (K / 256, bytes) of 32 out-features in a form, and the same codes widened."""
    groups = ROWS, k // form.group
    codes = rng.integers(0, 16, (ROWS, k)).astype(np.uint8)
    scales = to_bf16(rng.standard_normal(groups) * np.exp2(rng.integers(-30, 30, groups)))
    scales[0] = 0
    minima = to_bf16(rng.standard_normal(groups)) if form.minima else None
    blocks = q4nx.pack(codes, scales, minima, group=form.group)
    return blocks[0], _native.widen(blocks, ROWS, k, form.group, form.minima)[0]


@dataclass(frozen=True)
class Weights:
    """(32, K) weights: codes (32, K), scales and minima (32, K / 32) bfloat16."""

    codes: Array
    scales: Array
    minima: Array

    @property
    def blocks(self) -> Array:
        """(K / 256, 5120) uint8."""
        blocks: Array = q4nx.pack(self.codes, self.scales, self.minima)[0]
        return blocks

    @property
    def exact(self) -> Array:
        """(32, K) float64 = min + scale * code."""
        spread = [np.repeat(f64(v), GROUP, axis=1) for v in (self.scales, self.minima)]
        weights: Array = spread[0] * self.codes + spread[1]
        return weights


def weights(rng: np.random.Generator, kind: str, k: int) -> Weights:
    """`kind` is "usual" (as trained: minima negative), or an extreme of codes, signs or size."""
    groups, largest = (ROWS, k // GROUP), 15
    codes = rng.integers(0, largest + 1, (ROWS, k)).astype(np.uint8)
    scales = rng.uniform(0.002, 0.02, groups)
    minima = -largest / 2 * scales * rng.uniform(0.8, 1.2, groups)
    if kind == "codes 0":
        codes[:] = 0
    elif kind == "largest codes":
        codes[:] = largest
    elif kind == "codes by row":
        codes[:] = (np.arange(ROWS) & largest)[:, None]
    elif kind == "codes by column":
        codes[:] = np.arange(k) & largest
    elif kind == "zeros":
        scales[:], minima[:] = 0, 0
    elif kind == "negative scales":
        scales, minima = -scales, -minima
    elif kind == "scales apart":
        scales *= np.exp2(rng.integers(-30, 30, groups))
        minima *= np.exp2(rng.integers(-30, 30, groups))
    return Weights(codes, to_bf16(scales), to_bf16(minima))


KINDS = [
    "usual", "codes 0", "largest codes", "codes by row", "codes by column", "zeros",
    "negative scales", "scales apart",
]  # fmt: skip


def activations(rng: np.random.Generator, kind: str, k: int) -> Array:
    """(K,) bfloat16; "biased" values do not cancel in their sums, "apart" have one huge value per
    group."""
    x = rng.standard_normal(k)
    if kind == "biased":
        x = np.abs(x) + 1
    elif kind == "zeros":
        x[:] = 0
    elif kind == "apart":
        x[::GROUP] *= 2.0**12
    return to_bf16(x)


ACTIVATIONS = ["usual", "biased", "zeros", "apart"]


def zeros(count: int, dtype: object = bfloat16) -> Array:
    return aligned(np.zeros(count, dtype))  # type: ignore[call-overload]


def bound(w: Weights, x: Array) -> Array:
    """(32,) the worst error of acc, from the numerics that the sources of FusedDQP state."""
    groups = np.abs(f64(x)).reshape(-1, GROUP).sum(axis=1)
    sums = np.abs(f64(x).reshape(-1, GROUP).sum(axis=1))
    scales, minima = np.abs(f64(w.scales)), np.abs(f64(w.minima))
    # 32 macs, of which one lane sees 8 or fewer and additions join the rest, and two to remove the
    # bias: no partial sum is above (128 + 15) sum |x|, no path is longer than 34 roundings.
    dot = 34 * 143 * FLOAT_EPSILON * groups
    # Sums: 31 additions in fp32, then two limbs.
    of_sum = 31 * FLOAT_EPSILON * groups + 2.0**-17 * sums
    dot = dot + 128 * of_sum
    dots = np.abs(f64(w.codes) * f64(x)).reshape(ROWS, -1, GROUP).sum(axis=2)
    per_group = scales * (dot + 2.0**-17 * (dots + dot)) + minima * of_sum
    # Four macs per group into the total.
    totals = (scales * dots + minima * groups).sum(axis=1)
    roundings = 4 * w.scales.shape[1] * FLOAT_EPSILON
    result: Array = per_group.sum(axis=1) + roundings * 2 * totals
    return result
