"""What Peano is known to do wrong: sources, versions and levels that a build refuses or avoids."""

from __future__ import annotations

import pytest

from ort_aie_ep.npu import peano

KERNELS = sorted(path.name for path in peano.SOURCES.rglob("*.cc") if path.parent.name != "host")


@pytest.mark.parametrize("source", KERNELS)
def test_shipped_sources_have_no_mistake(source: str) -> None:
    assert peano.mistakes_of(source) == ()


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("float chess_storage(% 32) table[128] = {0};", "use alignas"),
        ("void f() { do { g(); } while (x); }", "out of its loop"),
        ("void f() { acquire_greater_equal(49, 1); }", "take no locks"),
        ("static bool ready = false;", "persists"),
        ("void f() { static int count; }", "persists"),
        ('void f() { asm("nop"); }', "crashes"),
        ("void f() { memcpy(a, b, 64); }", "call in a loop"),
        ("auto y = aie::neg(x);", "subtract"),
        ("constexpr int32_t rows[32] = {};\nauto v = aie::load_v<32>(rows);", "array rows"),
        ("void f() {\n  float s[32];\n  aie::store_v(s, v);\n}", "line 2: array s"),
        ("void f() { alignas(32) float s[32]; aie::store_v(s + 16, v); }", "array s"),
    ],
)
def test_a_source_that_peano_gets_wrong_is_named(code: str, said: str) -> None:
    (mistake,) = peano.source_mistakes(code)
    assert said in mistake


@pytest.mark.parametrize(
    "code",
    [
        "alignas(64) constexpr int32_t rows[32] = {};\nauto v = aie::load_v<32>(rows);",
        "void f() { alignas(aie::vector_decl_align) float s[32]; aie::store_v(s, v); }",
        "constexpr float coefficients[] = {1, 2}; for (const float c : coefficients) {}",
        "// do { chess_storage } while",
        "static constexpr int lanes = 32; static_assert(lanes == 32);",
        "float lanes_of[4]; f(lanes_of); aie::load_v<16>(lanes);",
    ],
)
def test_what_peano_compiles_is_let_through(code: str) -> None:
    assert list(peano.source_mistakes(code)) == []


@pytest.mark.parametrize(
    ("version", "issue"),
    [
        ("21.0.0.2026062401+fdf257de", "#1053"),
        ("21.0.0.2026070101+00000000", "#1053"),
        ("22.0.0.2026082101+f3081197", "#1262"),
        ("clang version 22.0.0 (https://github.com/Xilinx/llvm-aie f3081197ab)", "#1262"),
    ],
)
def test_a_version_that_compiles_wrongly_is_named(version: str, issue: str) -> None:
    assert issue in (peano.wrong_version(version) or "")


@pytest.mark.parametrize(
    "version",
    [
        "21.0.0.2026062301+cb664e8c", "21.0.0.2026080301+c9c5ecb7", "22.0.0.2026090201+a36c62b9",
        "clang version 22.0.0 (llvm-aie)", "",
    ],
)  # fmt: skip
def test_other_versions_are_taken(version: str) -> None:
    assert peano.wrong_version(version) is None
