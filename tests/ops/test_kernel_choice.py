"""Which kernels a CPU gets: the rules, for CPUs that this machine need not be, and what forces."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from ort_aie_ep import _native
from ort_aie_ep.formats import q4nx
from ort_aie_ep.runtime.kernels import Chosen, chosen_kernels, kernels_by_rule, kernels_line

ISAS = ("portable", "avx2", "avx512", "avx512_bf16", "amx")
# What a whole table takes from others, to which it adds.
BASES = {
    "avx512_bf16": {"avx512"},
    "amx": {"avx512", "avx512_bf16"},
    "amx_standin": {"portable"},
}
ONE_ROW = ("one row, int8", "one row, bf16")


def variants(chosen: tuple[Chosen, ...]) -> dict[str, str]:
    return {one.role: one.variant for one in chosen}


def in_process(script: str, **environment: str) -> Any:
    """What a script prints as JSON: the choice is made once in a process."""
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=dict(os.environ) | environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout)


SHOW_CHOICE = (
    "import json; from ort_aie_ep import _native; print(json.dumps(_native.kernel_choice()))"
)


@pytest.mark.parametrize("isa", ["avx512", "avx512_bf16"])
def test_amd_fetches_past_the_caches_and_others_into_l2(isa: str) -> None:
    amd, intel, other = (variants(kernels_by_rule(v, isa)) for v in ("amd", "intel", "other"))
    for role in ONE_ROW:
        # Of those with dot products of bfloat16 the kernel that has them fetches in the same way.
        fast_bf16 = role == "one row, bf16" and isa == "avx512_bf16"
        assert amd[role] == ("avx512_bf16" if fast_bf16 else "avx512-nta")
        assert intel[role] == other[role] == "avx512-t1-minima"


def test_dot_products_of_bfloat16_are_for_those_that_are_fast_at_them() -> None:
    for role in ("rows, bf16", "attention of prompts"):
        assert variants(kernels_by_rule("amd", "avx512_bf16"))[role] == "avx512_bf16"
        assert variants(kernels_by_rule("amd", "avx512"))[role] == "avx512"
        assert variants(kernels_by_rule("intel", "avx512_bf16"))[role] == "avx512"


@pytest.mark.parametrize("vendor", ["amd", "intel", "other"])
def test_tiles_are_for_many_rows_whoever_made_the_cpu(vendor: str) -> None:
    with_tiles = {"rows, int8", "rows, bf16", "attention of prompts"}
    without, chosen = (variants(kernels_by_rule(vendor, isa)) for isa in ("avx512_bf16", "amx"))
    assert {role for role, variant in chosen.items() if variant == "amx"} == with_tiles
    assert all(chosen[role] == without[role] for role in chosen.keys() - with_tiles)


@pytest.mark.parametrize("vendor", ["amd", "intel", "other"])
@pytest.mark.parametrize("isa", ISAS)
def test_no_rule_chooses_the_stand_in(vendor: str, isa: str) -> None:
    assert "amx_standin" not in variants(kernels_by_rule(vendor, isa)).values()


@pytest.mark.parametrize("vendor", ["amd", "intel", "other"])
@pytest.mark.parametrize("isa", ["portable", "avx2"])
def test_older_cpus_get_their_widest_instruction_set_for_all(vendor: str, isa: str) -> None:
    assert set(variants(kernels_by_rule(vendor, isa)).values()) == {isa}


@pytest.mark.parametrize("vendor", ["amd", "intel", "other"])
@pytest.mark.parametrize("isa", ISAS)
def test_every_rule_says_what_it_rests_on(vendor: str, isa: str) -> None:
    for one in kernels_by_rule(vendor, isa):
        assert one.origin == "rule"
        assert one.why


def test_rules_want_a_vendor_and_an_instruction_set() -> None:
    with pytest.raises(ValueError, match="vendor must be amd, intel or other, got via"):
        kernels_by_rule("via", "avx2")
    with pytest.raises(ValueError, match="there is no isa sse9"):
        kernels_by_rule("amd", "sse9")


@pytest.mark.parametrize("isa", _native.available_isas())
def test_the_environment_forces_a_whole_table(isa: str) -> None:
    choice = in_process(SHOW_CHOICE, ORT_AIE_ISA=isa)
    assert {origin for _, _, origin, _ in choice} == {"forced"}
    isas = {variant.split("-")[0] for _, variant, _, _ in choice}
    assert isa in isas
    assert isas <= {isa} | BASES.get(isa, set())


def test_every_chosen_variant_is_one_of_its_role() -> None:
    of_role = _native.kernel_variants()
    for one in chosen_kernels():
        assert one.variant in of_role[one.role]


def test_a_choice_in_one_line() -> None:
    rows = Chosen("rows, int8", "avx512", "rule", "the widest instruction set")
    lookups = Chosen("lookups", "avx512", "rule", "the widest instruction set")
    one_row = Chosen("one row, int8", "avx512-nta", "rule", "AMD: fetching past the caches")
    forced = Chosen("rows, int8", "avx2", "forced", "ORT_AIE_ISA")
    assert kernels_line([one_row, rows, lookups]) == (
        "avx512-nta (one row, int8), avx512 (rows, int8; lookups); by rule"
    )
    assert kernels_line([forced]) == "avx2; ORT_AIE_ISA"


@pytest.mark.parametrize("variant", _native.kernel_variants()["one row, int8"])
@pytest.mark.parametrize("numerics", ["int8", "bf16"])
def test_variants_of_one_row_give_the_same_bits(variant: str, numerics: str) -> None:
    n, k = 70, 1000
    rng = np.random.default_rng(3)
    codes = rng.integers(0, 16, (n, k), np.uint8)
    scales = rng.uniform(0.5, 2, (n, -(-k // q4nx.GROUP))).astype(np.float32)
    blocks = q4nx.pack(codes, scales, -8 * scales)
    a = rng.standard_normal((1, k)).astype(np.float32)
    isa = variant.split("-")[0]
    with_minima, without = (
        _native.project(a, blocks, n, numerics, isa, symmetric) for symmetric in (False, True)
    )
    np.testing.assert_array_equal(_native.project(a, blocks, n, numerics, variant), with_minima)
    symmetric = _native.project(a, blocks, n, numerics, variant, symmetric=True)
    np.testing.assert_array_equal(symmetric, with_minima if "minima" in variant else without)
