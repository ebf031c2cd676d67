"""Models whose sizes lie: 64-bit products that wrap, negative numbers, paths that are not files.
Each is refused with an error, wherever it enters; separate processes show that nothing crashes."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from crafted_models import opened, opened_in_turn, python
from model_folders import DATA
from op_models import FLOAT32, model_of, one_op_model, onnx_tensor
from provider_calls import needs_provider

import ort_aie_ep
from ort_aie_ep import _native

Array = npt.NDArray[Any]

MOST = 2**63 - 1


def matmul_nbits(
    n: int, k: int, b: Array, scales: Array, zero_points: Array | None = None
) -> bytes:
    inputs = {"A": np.zeros((1, 512), FLOAT32), "B": b, "scales": scales}
    if zero_points is not None:
        inputs["zero_points"] = zero_points
    given = {"K": k, "N": n, "bits": 4, "block_size": 32}
    return one_op_model("MatMulNBits", inputs, {"Y": FLOAT32}, given, domain="com.microsoft",
                        constants=("B", "scales", "zero_points"))  # fmt: skip


@needs_provider
def test_a_projection_whose_bytes_wrap_is_refused(tmp_path: Path) -> None:
    sizes = [
        (2**60 + 1, 512),  # N * 256 bytes of codes and N * 16 scales wrap to the sizes for N = 1
        (2**59 + 1, 512),
        (MOST, 512),
        (1, 2**62 + 512),  # K / 2 bytes do not wrap, K scales of 4 bytes do
        (2**32 + 1, 2**32 + 512),
        (-(2**60) + 1, 512),
    ]
    codes, scales = np.zeros((1, 16, 16), np.uint8), np.ones(16, FLOAT32)
    models = [matmul_nbits(n, k, codes, scales) for n, k in sizes]
    feeds = [{"A": np.zeros((1, 512), FLOAT32)}] * len(models)
    outcomes = opened_in_turn(models, tmp_path, "provider", feeds)
    for size, said in zip(sizes, outcomes, strict=True):
        assert said.startswith("[ONNXRuntimeError]"), size


@needs_provider
def test_zero_points_that_are_as_long_as_the_scales_but_bytes_are_refused(tmp_path: Path) -> None:
    """uint8 zero points are packed two to a byte; these have the length of float ones."""
    model = matmul_nbits(1, 512, np.zeros((1, 16, 16), np.uint8), np.ones(16, FLOAT32),
                         np.zeros(64, np.uint8))  # fmt: skip
    assert opened(model, tmp_path, "provider", {"A": np.zeros((1, 512), FLOAT32)}) != "ran"


@pytest.mark.parametrize("op", ["Q4NXMatMul", "Q4NXGather", "GEMM"])
def test_custom_ops_refuse_weights_of_other_sizes(op: str, tmp_path: Path) -> None:
    inputs: dict[str, Array] = {
        "A": np.zeros((1, 256), FLOAT32),
        "W": np.zeros((1, 1, 5120), np.uint8),
    }
    given = {"format": _native.FORMAT}
    if op == "GEMM":
        import ml_dtypes

        inputs["W"] = np.zeros((1, 1, 8192), ml_dtypes.bfloat16)
    if op == "Q4NXGather":
        inputs, given = {"W": inputs["W"], "indices": np.zeros(1, np.int64)}, given | {"dtype": 1}
    sizes = [
        (MOST, 256), (32, MOST), (2**60 + 32, 256), (-(2**63), 256), (32, -(2**63)), (2**62, 2**62)
    ]  # fmt: skip
    models = [
        one_op_model(op, inputs, {"Y": FLOAT32}, given | {"K": k, "N": n}, constants=("W",))
        for n, k in sizes
    ]
    feeds = {key: value for key, value in inputs.items() if key != "W"}
    outcomes = opened_in_turn(models, tmp_path, "custom ops", [feeds] * len(models))
    for size, said in zip(sizes, outcomes, strict=True):
        refused = re.search("must be positive|input W must be|negative|dimension", said)
        assert refused, (size, said)


def attention(num_heads: int, kv_num_heads: int, channels: int) -> tuple[bytes, dict[str, Array]]:
    feeds = {
        "query": np.zeros((1, 1, channels), FLOAT32),
        "seqlens_k": np.zeros(1, np.int32),
        "total_sequence_length": np.ones(1, np.int32),
    }
    inputs = {"query": feeds["query"], "key": None, "value": None, "past_key": None,
              "past_value": None} | feeds  # fmt: skip
    outputs = dict.fromkeys(("Y", "present_key", "present_value"), FLOAT32)
    given = {"num_heads": num_heads, "kv_num_heads": kv_num_heads, "format": _native.FORMAT}
    return one_op_model("FlowAttention", inputs, outputs, given), feeds


def test_attention_with_impossible_numbers_of_heads_is_refused(tmp_path: Path) -> None:
    numbers = [
        ((2**64 + 8) // 3, (2**64 + 8) // 3),  # three times that is 8
        (2**62, 2**62),
        (MOST, 1),
        (-8, 4),
        (-(2**63), -1),
    ]
    models, feeds = zip(*(attention(*of, channels=64) for of in numbers), strict=True)
    outcomes = opened_in_turn(models, tmp_path, "custom ops", feeds)
    for of, said in zip(numbers, outcomes, strict=True):
        refused = re.search("out of range|not a multiple of|must be a positive multiple", said)
        assert refused, (of, said)


@pytest.fixture(scope="module")
def context(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A context model of the test Llama, written by a process that has since ended."""
    folder = tmp_path_factory.mktemp("context")
    code = f"""
import sys, onnxruntime
onnxruntime.register_execution_provider_library("AieExecutionProvider", sys.argv[1])
options = onnxruntime.SessionOptions()
options.add_session_config_entry("ep.context_enable", "1")
options.add_session_config_entry("ep.context_file_path", sys.argv[2])
devices = [d for d in onnxruntime.get_ep_devices() if d.ep_name == "AieExecutionProvider"]
options.add_provider_for_devices(devices[:1], {{}})
onnxruntime.InferenceSession({str(DATA / "llama" / "model.onnx")!r}, options)
"""
    python(code, ort_aie_ep.library_path(), folder / "ctx.onnx")
    return folder / "ctx.onnx"


def changed(context: Path, change: Any) -> bytes:
    """The context model with another recipe."""
    model = onnx.load(context, load_external_data=False)
    (recipe,) = [a for node in model.graph.node for a in node.attribute if a.name == "notes"]
    recipe.s = change(recipe.s.decode()).encode()
    serialised: bytes = model.SerializeToString()
    return serialised


def feeds_of(context: Path) -> dict[str, Array]:
    model = onnx.load(context, load_external_data=False)
    feeds: dict[str, Array] = {}
    for value in model.graph.input:
        tensor = value.type.tensor_type
        fixed = [dim.dim_value if dim.HasField("dim_value") else 1 for dim in tensor.shape.dim]
        if "past" in value.name and len(fixed) == 4:
            fixed = [1, 2, 0, 32]
        dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type)
        feeds[value.name] = np.ones(fixed, dtype)
    return feeds


def set_line(before: str, line: str) -> Any:
    """Changes the first line that matches."""

    def change(text: str) -> str:
        changed_text, times = re.subn(rf"^{before}$", line, text, count=1, flags=re.MULTILINE)
        assert times == 1
        return changed_text

    return change


def rows_that_wrap(step: str, weights: str) -> Any:
    """2^55 + 1 rows of blocks of 4,608 bytes wrap to 4,608 bytes."""

    def change(text: str) -> str:
        before, after = text.split(f"step {step} ", 1)
        after = set_line(r"int N \d+", f"int N {2**60 + 32}")(after)
        after = set_line(r"int K \d+", "int K 256")(after)
        before = set_line(f"constant 2 {weights}", "constant 2 4096 4608 1 1 4608")(before)
        return f"{before}step {step} {after}"

    return change


# The first table of rotary embeddings.
TABLE = r"constant 1 \d+ 16384 256 16"


CHANGES = [
    (rows_that_wrap("Q4NXGather", ".* 16 1 4608"),
     rf"aie.Q4NXGather '.*': input W must be uint8 \({2**55 + 1}, 1, 4608\)"),
    (rows_that_wrap("Q4NXMatMul", ".* 10 1 4608"),
     rf"aie.Q4NXMatMul '.*': input W must be uint8 \({2**55 + 1}, 1, 4608\)"),
    # (2^62 + 4) * 4 floats wrap to 16
    (set_line(TABLE, f"constant 1 4096 64 4 {2**62 + 4}"),
     r"a constant has 64 bytes, expected \(out of range\)"),
    (set_line(TABLE, f"constant 1 4096 64 {2**62 + 4} 4"),
     r"a constant has 64 bytes, expected \(out of range\)"),
    (set_line(TABLE, "constant 1 4096 64 -4 -4"),
     r"a constant has 64 bytes, expected \(out of range\)"),
    (set_line(TABLE, "constant 1 4100 64 4 4"), "has no tensor of 64 bytes at 4100"),
    (set_line(TABLE, f"constant 1 {2**62} 64 4 4"), f"has no tensor of 64 bytes at {2**62}"),
    (set_line(TABLE, f"constant 1 -{2**63} 64 4 4"), "has no tensor of 64 bytes at -"),
    (set_line(TABLE, f"constant 1 4096 {2**62} {2**60}"),
     f"has no tensor of {2**62} bytes at 4096"),
    (set_line(TABLE, "constant 1 4096 64 4 99999999999999999999"), "is not a line of a recipe"),
    (set_line("int num_heads .*", f"int num_heads {(2**64 + 8) // 3}"),
     "attribute num_heads of FlowAttention '.*' is 6148914691236517208, expected 1 to"),
    # Constants that belong to other inputs.
    (set_line(TABLE, "constant 1 4096 64 4 4"), "input sin_cache must be"),
    (set_line("constant 2 .*", "constant 1 4096 5120 1280"), "input W must be"),
    (set_line("inputs 7", f"inputs {2**31 - 1}"), "recipe of a plan"),
]  # fmt: skip


@needs_provider
def test_a_recipe_that_names_other_sizes_is_refused(context: Path) -> None:
    """And as it was written, it runs."""
    models = [changed(context, change) for change, _ in CHANGES]
    feeds = [feeds_of(context)] * (1 + len(models))
    first, *others = opened_in_turn([context, *models], context.parent, "provider", feeds)
    assert first == "ran"
    for (_, message), said in zip(CHANGES, others, strict=True):
        assert re.search(message, said)


@needs_provider
def test_weights_that_are_not_a_regular_file_are_refused(context: Path, tmp_path: Path) -> None:
    paths = []
    for kind in ("FIFO", "folder", "device"):
        (tmp_path / kind).mkdir()
        paths.append(Path(shutil.copy(context, tmp_path / kind)))
        weights = paths[-1].with_name("ctx.onnx.aie")
        if kind == "FIFO":
            os.mkfifo(weights)
        elif kind == "folder":
            weights.mkdir()
        else:
            weights.symlink_to("/dev/zero")
    for said in opened_in_turn(paths, tmp_path, "provider", [{}] * len(paths)):
        assert "ctx.onnx.aie" in said


def test_python_refuses_sizes_that_wrap() -> None:
    blocks = np.zeros((1, 1, 5120), np.uint8)
    for n, k in [(2**60 + 32, 256), (MOST, MOST), (-1, 256), (32, 0)]:
        for read in (_native.unpack, _native.dequantize):
            with pytest.raises(ValueError, match=r"must be"):
                read(blocks, n, k)
    b, scales = np.zeros(256, np.uint8), np.zeros(64, np.uint8)
    for rows, k, block_size in [
        (2**60 + 1, 512, 32),
        (1, 2**62, 32),
        (MOST, MOST, 256),
        (-1, 512, 32),
        (1, -512, 32),
        (1, 512, 0),
        (1, 512, -32),
        (1, 512, 33),
    ]:
        with pytest.raises(ValueError, match=r"must be|expected"):
            _native.pack_matmulnbits(b, scales, None, rows, k, block_size, "FLOAT")


def test_python_refuses_a_matrix_whose_blocks_wrap() -> None:
    """A view of one value that claims to have 2^60 of them."""
    weights = np.broadcast_to(np.float32(1), (2**30, 2**30))
    with pytest.raises((ValueError, MemoryError)):
        _native.quantize(weights)


@needs_provider
def test_an_embedding_of_another_type_is_not_compared_with_the_projection(tmp_path: Path) -> None:
    """int4 data with as many elements as B has bytes is half as long."""
    n, k = 4096, 4096
    b = np.zeros((n, k // 32, 16), np.uint8)
    initializers = [
        onnx_tensor("B", b),
        onnx_tensor("scales", np.ones((n, k // 32), FLOAT32)),
        onnx.helper.make_tensor(
            "data", onnx.TensorProto.INT4, [n, k // 2], bytes(n * k // 4), raw=True
        ),
    ]
    given = {"bits": 4, "block_size": 32}
    nodes = [
        onnx.helper.make_node("MatMulNBits", ["A", "B", "scales"], ["Y"], name="lm_head",
                              domain="com.microsoft", K=k, N=n, **given),
        onnx.helper.make_node("GatherBlockQuantized", ["data", "ids", "scales"], ["E"],
                              name="embedding", domain="com.microsoft", quantize_axis=1, **given),
    ]  # fmt: skip
    tensor = onnx.helper.make_tensor_value_info
    graph = onnx.helper.make_graph(
        nodes,
        "graph",
        [
            tensor("A", onnx.TensorProto.FLOAT, [1, k]),
            tensor("ids", onnx.TensorProto.INT64, [None]),
        ],
        [tensor("Y", onnx.TensorProto.FLOAT, None), tensor("E", onnx.TensorProto.FLOAT, None)],
        initializers,
    )
    feeds = {"A": np.ones((1, k), FLOAT32), "ids": np.zeros(1, np.int64)}
    said = opened(model_of(graph).SerializeToString(), tmp_path, "provider", feeds)
    # Whatever ONNX Runtime does with twice as many scales as the data needs.
    assert said == "ran" or said.startswith("[ONNXRuntimeError]")
