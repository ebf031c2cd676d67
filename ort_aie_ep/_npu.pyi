"""The C++ side of the NPU (src/python/npu_module.cc). Bad arguments raise ValueError."""

from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any, Literal, TypedDict

import numpy as np
import numpy.typing as npt

_Bytes = npt.NDArray[np.uint8]

# --- instruction streams

_Words = npt.NDArray[np.uint32]

class _Run(TypedDict):
    words: _Words  # complete, header included
    variable: _Words  # indices of words that hold a length, an address or a parameter
    predicted_seconds: float
    sources: list[str]  # of every operation

class _Lookup(TypedDict):
    runs: list[_Run]
    id: int  # of the kept stream
    outcome: Literal["same", "patched", "encoded"]
    changed: list[tuple[int, int, int]]  # (run, first word, word after the last)

# A plan: {"sequence": name, "parameters": {name: value},
#          "arguments": {name: (argument of the run, byte offset)}} for every invocation.
_Plan = Sequence[Mapping[str, Any]]

DISPATCH_SECONDS: float

def build(manifest_json: str, plan: _Plan) -> list[_Run]: ...
def encode(
    generation: int, rows: int, columns: int, operations: Sequence[tuple[Any, ...]]
) -> _Words: ...
def register(column: int, row: int, offset: int) -> int: ...

# Why work is left to the host, in words: of steps, and of whole layers.
def reasons() -> list[str]: ...
def layer_reasons() -> list[str]: ...

# What the scheduler of src/targets/npu does with a plan. Each input is (TensorProto's type, dims,
# constant, values that ops read), or None for one that is left out.
class Part(TypedDict):
    design: str
    package: str
    runs: int
    invocations: list[tuple[str, float]]  # the sequence, and its predicted seconds
    read: int  # bytes of DDR
    written: int

# Parts in one hardware context, and how many lists their runs are.
class Submission(TypedDict):
    parts: list[Part]
    lists: int

class Stage(TypedDict):
    steps: list[str]  # of the source
    host: str | None  # the reason, if the host does it
    experts: bool
    layers: bool  # whole layers and the vocabulary
    device_steps: int
    before: list[str]  # reasons of the host's steps before the submissions, and after them
    after: list[str]
    submissions: list[Submission]

class Schedule(TypedDict):
    stages: list[Stage]
    layers_refused: str
    form: tuple[int, bool]  # group, minima: of the weights on the device
    left: dict[str, str]  # by name of a step, why the host does it
    widened: dict[tuple[int, int, bool], str]  # bits, group, minima: why

# The packages that the executor looks for, with those for one form of Q4NX.
def packages(group: int, minima: bool) -> list[str]: ...

class Packages:
    # load(name) gives the JSON of a package's manifest, and the same with costs of predictions.
    def __init__(
        self, names: Set[str], load: Callable[[str], tuple[str, str]], one_xclbin: bool
    ) -> None: ...
    def schedule(
        self,
        recipe: str,
        inputs: Sequence[tuple[int, list[int], bool, Sequence[float] | None] | None],
        *,
        planned: bool = True,
        int8: bool = False,
        layers: bool = True,
    ) -> Schedule: ...

STREAM_UNIT: int  # a run's words take a multiple of these bytes of the device's memory

class StreamMemory:
    def __init__(self, bytes: int = ...) -> None: ...
    @property
    def used(self) -> int: ...
    @property
    def dropped(self) -> int: ...  # streams dropped to make room for others

class StreamCache:
    def __init__(
        self, manifest_json: str, capacity: int = 64, memory: StreamMemory | None = None
    ) -> None: ...
    def get(self, plan: _Plan) -> _Lookup: ...

# --- what mlir-air's fused decode reads

class _FusedDecodeGeometry(TypedDict):
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    layers: int
    head_chunks: int
    group: int  # layers in a buffer of weights; 0: all are in one
    phases: list[tuple[int, int]]  # row blocks, column blocks
    head_chunk: tuple[int, int]
    # Elements of two bytes from here on.
    layer_elements: int
    weight_elements: list[int]
    rms_elements: int
    rotary_slab: int
    rotary_slabs: int
    logits_offset: int
    y_elements: int
    region_width: int

def fused_decode_models() -> list[str]: ...
def fused_decode_read_package(
    folder: str,
) -> tuple[str, int, list[int]]: ...  # model, channels, positions of windows
def fused_decode_geometry(model: str) -> _FusedDecodeGeometry: ...
def fused_decode_kv_elements(model: str, positions: int) -> int: ...
def fused_decode_kv_offset(
    model: str, positions: int, layer: int, value: bool, head: int, position: int
) -> int: ...
def fused_decode_pack_layer(
    model: str,
    channels: int,
    *,
    qkv: Sequence[_Bytes],
    o: _Bytes,
    up: _Bytes,
    gate: _Bytes,
    down: _Bytes,
) -> _Bytes: ...
def fused_decode_pack_head_chunk(model: str, channels: int, head: _Bytes, chunk: int) -> _Bytes: ...
def fused_decode_words(
    *,
    base: _Words,
    slopes: Sequence[tuple[int, int]],
    base_length: int,
    positions: int,
    length: int,
) -> _Words: ...
