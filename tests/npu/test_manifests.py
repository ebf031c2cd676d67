"""Plans, shapes and manifests that do not fit: each is refused by name."""

from __future__ import annotations

import json
from typing import Any

import pytest
from stream_checks import WORKERS, Device, build, call, layered, manifest, rounds, sequence_of

from ort_aie_ep import _npu
from ort_aie_ep.npu.simulator.txn import Write, decode
from ort_aie_ep.npu.terms.sequence import equal, symbol

# --- bad plans and shapes -------------------------------------------------------------------------


def test_refused_shapes_say_why() -> None:
    s = sequence_of("n", "k")
    n, _ = s.symbols()
    s.let("rest", n % 512)
    s.require(equal(n % 512, 0), "N must be a multiple of 512, got {n} ({rest} over) at K={k}")
    with pytest.raises(ValueError, match=r"got 600 \(88 over\) at K=7") as error:
        build(s, {"n": 600, "k": 7})
    assert 'sequence "run" (k=7, n=600), body[1]: N must be' in str(error.value)


def test_errors_in_loops_say_in_which_round() -> None:
    s = sequence_of("n", bytes=128)
    (n,) = s.symbols()
    with s.loop("i", n) as i, s.loop("j", 2) as j:
        s.transfer("a0", "x", offset=i * 64 + j * 32, run=32)
        s.wait("a0")
    with pytest.raises(ValueError, match=r"body\[0\]\.do\[0\]\.do\[0\] at i=2, j=0: fifo"):
        build(s, {"n": 3})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sequence": "walk"}, '"walk" .*: is not in the manifest of by_hand, which has run'),
        ({"parameters": {"rounds": 1}}, 'no value for the parameter "cycles"'),
        ({"parameters": {"rounds": 1, "cycles": 1, "m": 2}}, 'has no parameter "m"'),
        ({"arguments": {"x": (0, 0)}}, 'no buffer for the argument "y"'),
        ({"arguments": {"x": (0, 0), "y": (1, 0), "z": (2, 0)}}, 'has no argument "z"'),
        ({"arguments": {"x": (-1, 0), "y": (1, 0)}}, '"x" is in buffer -1 of the plan'),
        ({"arguments": {"x": (0, 2), "y": (1, 0)}}, '"x" starts at byte 2'),
        ({"arguments": {"x": (0, -4), "y": (1, 0)}}, '"x" starts at byte -4'),
        ({"buffers": {}}, 'an invocation has no "buffers"'),
    ],
)  # fmt: skip
def test_plans_that_do_not_fit_are_refused(changes: dict[str, Any], message: str) -> None:
    s = rounds()
    invocation = call(s, {"rounds": 1, "cycles": 1}) | changes
    with pytest.raises(ValueError, match=message):
        _npu.build(json.dumps(manifest(s)), [invocation])


def test_empty_and_incomplete_plans_are_refused() -> None:
    text = json.dumps(manifest(rounds()))
    with pytest.raises(ValueError, match="invocation"):
        _npu.build(text, [])
    with pytest.raises(ValueError, match="parameters and arguments, got 1"):
        _npu.build(text, [{"sequence": "run"}])


def test_values_that_do_not_fit_are_refused() -> None:
    s = sequence_of("n")
    (n,) = s.symbols()
    s.start("left", n, 0)
    for value in (-(1 << 31), (1 << 31) - 1):
        (run,) = build(s, {"n": value})
        assert Device().run(decode(run["words"])).memory[0, 2, 1024] == value & 0xFFFFFFFF
    with pytest.raises(ValueError, match=r'"m" of the worker "left".* 2147483648'):
        build(s, {"n": 1 << 31})
    s = sequence_of("n")
    (n,) = s.symbols()
    s.work(n // (n - 4))
    with pytest.raises(ValueError, match=r"body\[0\]: division by 0"):
        build(s, {"n": 4})
    s = sequence_of()
    s.work(-1)
    with pytest.raises(ValueError, match="work of -1 cycles"):
        build(s)


def test_loops_without_end_are_refused() -> None:
    s = sequence_of("n")
    (n,) = s.symbols()
    with s.loop("i", n), s.loop("j", n):
        pass
    with pytest.raises(ValueError, match="67108864"):
        build(s, {"n": 1 << 40})
    s = sequence_of("n")
    (n,) = s.symbols()
    s.work(n * n)
    with pytest.raises(ValueError, match="64 bits"):
        build(s, {"n": 1 << 40})


def test_what_loops_evaluate_list_and_move_is_bounded_too() -> None:
    s = sequence_of("n")
    (n,) = s.symbols()
    long = n
    for i in range(200):
        long = long + i
    with s.loop("i", n):
        s.work(long)
    with pytest.raises(ValueError, match="67108864"):
        build(s, {"n": 1 << 20})
    s = sequence_of("n")
    (n,) = s.symbols()
    with s.loop("i", n):
        s.wait(*["y0"] * 1000)
    with pytest.raises(ValueError, match="67108864"):
        build(s, {"n": 1 << 11})
    # All segments count: a stream holds them at once.
    s = sequence_of("n", bytes=1 << 34)
    (n,) = s.symbols()
    with s.loop("i", n):
        s.transfer("y0", "y", offset=0, run=4, outer=[(1 << 10, 1 << 23)])
        s.wait("y0")
        s.cut()
    with pytest.raises(ValueError, match=r"2097152|1024"):
        build(s, {"n": 1 << 11})


def test_an_address_beyond_64_bits_is_refused() -> None:
    s = sequence_of(bytes=(1 << 63) - 1)
    s.transfer("a0", "x", offset=1 << 62, run=64)
    s.wait("a0")
    with pytest.raises(ValueError, match="64 bits"):
        _npu.build(json.dumps(manifest(s)), [call(s, x=(0, 1 << 62))])


# --- malformed manifests --------------------------------------------------------------------------


def changed(path: str, value: Any) -> dict[str, Any]:
    """The manifest of `layered` with `value` at a path such as "fifos.a0.column"."""
    result = json.loads(json.dumps(manifest(layered())))
    *parents, last = [int(p) if p.isdigit() and "bds" not in path else p for p in path.split(".")]
    at = result
    for parent in parents:
        at = at[parent]
    if value is ...:
        del at[last]
    else:
        at[last] = value
    return result


RUN = "sequences.run"


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("format", 2, "manifest has format 2, but this library reads format 1; build the package"),
        ("kernel", ..., 'manifest has no "kernel"'),
        ("colour", "red", 'manifest has an unknown key "colour"'),
        ("kernel", "a\0b", "manifest.kernel must be a string without zeros"),
        ("generation", 5, "manifest.generation must be an integer from 3 to 4, got 5"),
        ("weights", {"group": 48, "minima": 1}, "weights.group must be 32, 64, 128 or 256, got 48"),
        ("costs.write32", 0, "manifest.costs.write32 must be a positive number, got 0"),
        ("fifos", [], r"manifest.fifos must be an object, got \[\]"),
        ("fifos.a0.direction", "up", 'fifos.a0.direction must be "MM2S" or "S2MM", got "up"'),
        ("fifos.a1.channel", 0, "fifos.a0 and manifest.fifos.a1 share a channel"),
        ("fifos.p7.packet", 3, "share a channel, expected packet ids that keep them apart"),
        ("workers.left.row", 1, "workers.left.row must be an integer from 2 to 5, got 1"),
        ("workers.left.address", 1026, "address must be a multiple of 4 .* got 1026"),
        ("workers.left.address", 65532, "room for 2 words below 65536, got 65532"),
        ("workers.left.parameters", ["m"], 'has 2 values, expected 1 for the worker "left"'),
        ("bds.2", [0], "manifest.bds.2 is not a shim column, expected 0 to 1"),
        ("bds.0", [3, 3], "manifest.bds.0 has descriptor 3 twice"),
        ("bds.0", [], 'has no descriptors for column 0, which the fifo "a0" uses'),
        (f"{RUN}.parameters", ["n", "n"], 'parameters has "n" twice'),
        (f"{RUN}.arguments.0.direction", "both", 'must be "in", "out" or "inout"'),
        (f"{RUN}.arguments.0.direction", "out", r'do\[0\] reads the argument "x", .* "out"'),
        (f"{RUN}.arguments.0.bytes", "r", 'names the symbol "r", which has no value here'),
        (f"{RUN}.arguments.0.bytes", 1 << 63, "must be an integer from"),
        (f"{RUN}.arguments.0.bytes", ["^", 1, 2], r'bytes: unknown operator "\^"'),
        (f"{RUN}.body.0.for", "n", 'gives the name "n" again'),
        (f"{RUN}.body.0.do.0.transfer", "a9", 'names the fifo "a9", expected one of: a0, a1'),
        (f"{RUN}.body.0.do.0.argument", "z", 'names the argument "z", expected one of: x, y'),
        (f"{RUN}.body.0.do.0.outer", [[1]], r"must be pairs \[count, stride\]"),
        (f"{RUN}.body.0.do.2.start", "up", 'names the worker "up"'),
        (f"{RUN}.body.0.do.3.wait", [], "must be a list of at least one fifo"),
        (f"{RUN}.body.0.do.3", {"jump": 1}, "is not a statement, expected one of let"),
        (f"{RUN}.body.0.do.3", {"require": 1, "message": "{m}"}, r'has "\{m", expected \{name\}'),
    ],
)  # fmt: skip
def test_malformed_manifests_name_the_key_and_what_came(
    path: str, value: Any, message: str
) -> None:
    s = layered()
    with pytest.raises(ValueError, match=message):
        _npu.build(json.dumps(changed(path, value)), [call(s, {"n": 1, "k": 8})])


def test_text_that_is_not_a_manifest_is_refused() -> None:
    for text, message in [
        ("{", "manifest is not JSON"),
        ("[]", "manifest must be an object"),
        ("[" * 100_000, "nested more than 1024 deep"),
        ('{"clock_hz": 1e999}', "manifest is not JSON"),
    ]:
        with pytest.raises(ValueError, match=message):
            _npu.StreamCache(text)
    deep: Any = 1
    for _ in range(400):
        deep = ["+", deep, 1]
    with pytest.raises(ValueError, match="256"):
        _npu.StreamCache(json.dumps(changed(f"{RUN}.arguments.0.bytes", deep)))
    block: Any = {"cut": True}
    for _ in range(65):
        block = {"if": 1, "do": [block]}
    for path, value, message in [
        (f"{RUN}.body", [block], "nested more than 64 deep"),
        (f"{RUN}.body", [{"let": f"l{i}", "value": 1} for i in range(1025)], "more than 1024 symb"),
        (
            f"{RUN}.arguments",
            [{"name": f"a{i}", "direction": "in", "bytes": 4} for i in range(65)],
            "one of more than 64 arguments",
        ),
        ("workers", {f"w{i}": WORKERS["right"] for i in range(1025)}, "more than 1024 workers"),
        ("kernel", "x" * (1 << 20), "bytes, expected at most 1048576"),
    ]:
        with pytest.raises(ValueError, match=message):
            _npu.StreamCache(json.dumps(changed(path, value)))


def test_names_hold_within_their_block() -> None:
    s = sequence_of("n")
    (n,) = s.symbols()
    s.let("m", n + 1)
    s.let("m", n + 2)  # the same block: later statements see the new value
    s.start("left", symbol("m"), 0)
    with s.when(n):
        s.let("inner", n * 3)
        s.start("left", symbol("inner"), 0)
    (run,) = build(s, {"n": 5})
    writes = [op for op in decode(run["words"]).operations if isinstance(op, Write)]
    assert [op.value for op in writes[::3]] == [7, 15]
    s.start("left", symbol("inner"), 0)
    with pytest.raises(ValueError, match='"inner"'):
        build(s, {"n": 5})
