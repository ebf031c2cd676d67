"""The C++ side (src/python/module.cc). Bad arguments raise ValueError."""

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

import numpy as np
import numpy.typing as npt

FORMAT: int
FORMAT_OF_FILES: int
FLOW_ATTENTION_INPUTS: tuple[str, ...]
ONNXRUNTIME_HEADERS: str

_Bytes = npt.NDArray[np.uint8]
_Bf16Bits = npt.NDArray[np.uint16]
_Floats = npt.NDArray[np.float32]

def pack(
    codes: _Bytes, scales: _Bf16Bits, mins: _Bf16Bits | None, bits: int = 4, group: int = 32
) -> _Bytes: ...
def unpack(
    blocks: _Bytes, n: int, k: int, group: int = 32, minima: bool = True
) -> tuple[_Bytes, _Bf16Bits, _Bf16Bits]: ...
def pack_q8nx(
    codes: _Bytes, scales: _Floats, zero_points: _Bytes | None, group: int = 32
) -> _Bytes: ...
def unpack_q8nx(
    blocks: _Bytes, n: int, k: int, group: int = 32, minima: bool = True
) -> tuple[_Bytes, _Floats, _Bytes]: ...
def dequantize(blocks: _Bytes, n: int, k: int, group: int = 32, minima: bool = True) -> _Floats: ...
def widen(blocks: _Bytes, n: int, k: int, group: int, minima: bool) -> _Bytes: ...
def pack_matmulnbits(
    b: _Bytes,
    scales: _Bytes,
    zero_points: _Bytes | None,
    rows: int,
    k: int,
    block_size: int,
    scale_type: str,
    bits: int = 4,
    zero_point_type: str = "UINT8",
    group: int = 32,
    minima: bool = True,
) -> _Bytes: ...
def file_forms() -> list[dict[str, Any]]: ...  # the fields of formats.file_forms.FileForm
def pack_file(type: str, rows: _Bytes, k: int, tensor: str) -> _Bytes: ...
def unpack_file(type: str, blocks: _Bytes, n: int, k: int) -> _Bytes: ...
def dequantize_file(type: str, blocks: _Bytes, n: int, k: int) -> _Floats: ...
def pack_expert(
    codes: _Bytes,
    scales: _Bytes,
    zero_points: _Bytes | None,
    layout: Sequence[int],  # q4nx::ExpertLayout
    scale_type: str,
) -> _Bytes: ...
def quantize(
    weights: _Floats, bits: int = 4, importance: _Floats | None = None
) -> tuple[_Bytes, float, float, float, float]: ...
def cached_bytes(path: str) -> tuple[int, int] | None: ...  # of a file, and in pages of 2 MB
def why_not_q4nx(*, k: int, n: int, block_size: int, constant_weights: bool, type: str) -> str: ...
def why_not_float_matmul(
    *,
    constant_weights: bool,
    weights: Sequence[int],
    type: str,
    trans_a: int = 0,
    alpha: float = 1.0,
    beta: float = 1.0,
    bias_fits: bool = True,
) -> str: ...
def why_not_flow_attention(
    *,
    num_heads: int,
    kv_num_heads: int,
    head_dim: int,
    causal: int,
    local_window_size: int,
    has_output_qk: bool,
    type: str,
    cache_type: str,
) -> str: ...
def kernel_choice() -> list[tuple[str, str, str, str]]: ...  # role, variant, origin, why
def kernel_rules(vendor: str, isa: str, family: int) -> list[tuple[str, str, str, str]]: ...
def kernel_rules_here() -> list[tuple[str, str, str, str]]: ...
def kernel_variants() -> dict[str, list[str]]: ...  # by role, for this CPU
def kernel_measurement() -> tuple[str, str, str, str]: ...  # path, state, why not, date
def kernel_measurement_text(date: str, variants: dict[str, str]) -> str: ...
def kernel_candidates(role: str, variant: str) -> list[str]: ...  # with the bits of `variant`

# Role, threads, the variant that sessions use, samples, thousandths of the rule's time.
def kernel_samples() -> list[tuple[str, int, str, int, int]]: ...
def keep_samples(path: str, run: list[tuple[str, int, str, list[int]]]) -> None: ...
def fastest_candidate(samples: list[list[int]]) -> int | None: ...
def add_run(run: list[int], kept: list[int]) -> list[int]: ...
def run_with_trials(a: _Floats, blocks: _Bytes, n: int, calls: int) -> tuple[_Floats, str]: ...

class KernelTrials:
    def __init__(self, folder: str, threads: int, weights: int = 0) -> None: ...
    @staticmethod
    def candidates(role: str) -> list[str]: ...
    def bytes_of(self, role: str) -> int: ...
    def measure(self, role: str, seconds: float) -> list[float]: ...
    def read_bandwidth(self, seconds: float) -> float: ...

def available_isas() -> list[str]: ...
def prompts_in_bf16(isa: str) -> bool: ...
def has_bf16_attention(isa: str) -> bool: ...
def why_no_amx() -> str: ...
def selected_isa() -> str: ...
def project(
    a: _Floats,
    blocks: _Bytes,
    n: int,
    numerics: str,
    isa: str,
    symmetric: bool = False,
    norm_weight: _Floats | None = None,
    up: _Bytes | None = None,
    gelu: bool = False,
    gemm: bool = False,
    group: int = 32,
    minima: bool = True,
    type: str = "",
) -> _Floats: ...
def elementwise(function: str, a: _Floats, b: _Floats | None, isa: str) -> _Floats: ...
def rms_norm(a: _Floats, weight: _Floats, isa: str) -> _Floats: ...
def most_streamed_rows(bits: int, numerics: str, isa: str, type: str = "") -> int: ...
def lookup_tables_made() -> int: ...
def attention_chunk(
    q: _Floats,
    k: _Floats,
    v: _Floats,
    scale: float,
    softcap: float,
    path: str,
    cache: str,
    isa: str,
) -> tuple[_Floats, _Floats, _Floats, _Floats]: ...
def cache_codes(x: _Floats, scales: _Floats, bits: int, isa: str) -> tuple[_Bytes, _Floats]: ...
def float16_round_trip(x: npt.NDArray[Any], isa: str) -> _Floats: ...

# {"name", "domain", "op_type", "attributes": {name: int, float, str or list of int},
#  "inputs", "outputs": names of values, empty for one that is left out}
_GraphNode = Mapping[str, Any]
# {"name", "type": TensorProto's number, "shape": a list of int, str or None, or None,
#  "constant": an array, True if its elements are not available, or None,
#  "wanted": whether others than the nodes read it}
_GraphValue = Mapping[str, Any]

class _FusedStep(TypedDict):
    op: str  # of the domain aie; empty: the node stays
    name: str
    attributes: dict[str, int | float | str]
    reads: list[str]  # values by position, empty for an absent one
    writes: list[str]
    nodes: list[str]
    places: list[int]  # of the nodes; the first names the step
    why_not: str  # why a node that could have been compiled stays
    apart: str  # what the step could have taken in, but for their weights

class _ExpertConstant(TypedDict):
    name: str  # of the input of Q4NXMoE
    # Inputs of the QMoE by position, -1 for an absent one; without scales it is a bias.
    source: int
    scales: int
    zero_points: int
    shape: list[int]  # packed
    layout: list[int]  # q4nx::ExpertLayout

class _ClaimedSource(_FusedStep):
    # Where `reads` has packed weights: the place of the node whose weights they are, and which
    # constant of a QMoE
    packed: list[tuple[int, _ExpertConstant | None] | None]
    malformed: bool  # `why_not` says that no runtime could run the node

class _GraphRegion(TypedDict):
    items: list[int]  # in order
    inputs: list[str]  # constants last
    outputs: list[str]
    recipe: str

class _GraphPlan(TypedDict):
    items: list[_FusedStep]
    regions: list[_GraphRegion]

class _RecipeStep(TypedDict):
    op: str
    name: str
    attributes: dict[str, int | float | str]
    reads: list[int]  # values by position, -1 for an absent one
    writes: list[int]

class _Recipe(TypedDict):
    inputs: int
    steps: list[_RecipeStep]
    outputs: list[int]

def claimed_sources(
    nodes: Sequence[_GraphNode], values: Sequence[_GraphValue], q4nx_compatible: bool
) -> list[_ClaimedSource]: ...
def fused_steps(nodes: Sequence[_GraphNode], values: Sequence[_GraphValue]) -> list[_FusedStep]: ...
def plan_graph(
    nodes: Sequence[_GraphNode],
    values: Sequence[_GraphValue],
    whole: bool,
    layers: bool = False,
) -> _GraphPlan: ...
def read_recipe(text: str) -> _Recipe: ...

# TensorProto's number of a type, and dimensions; None where it is not known
_ValueType = tuple[int, Sequence[int | str | None]]

# Of all values of a recipe, from those of its inputs.
def infer_recipe(text: str, inputs: Sequence[_ValueType | None]) -> list[_ValueType | None]: ...
