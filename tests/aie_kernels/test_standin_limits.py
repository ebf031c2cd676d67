"""What an architecture lacks does not compile with the stand-in; its legal counterpart does."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import pytest
from standin import ARCHITECTURES, compile

BOTH = ("aie2", "aie2p")

PRELUDE = """
#include <aie_api/aie.hpp>
template <typename T, unsigned N> aie::vector<T, N> any() { return aie::zeros<T, N>(); }
using bf16 = bfloat16;
using aie::accum, aie::mmul, aie::vector;
"""


@dataclass(frozen=True)
class Rule:
    """`illegal` fails with `message` on `on`, and `legal` compiles there; elsewhere `illegal` may
    compile."""

    name: str
    illegal: str
    message: str
    legal: str
    on: tuple[str, ...] = BOTH
    legal_elsewhere: bool = True


RULES = [
    Rule(
        "mmul shape of AIE2", "mmul<4, 16, 8, bf16, bf16> m; (void)m;",
        "no mmul of this shape on the architecture", "mmul<8, 8, 8, bf16, bf16> m; (void)m;",
        ("aie2p",),
    ),
    Rule(
        "mmul shape of neither", "mmul<16, 8, 8, bf16, bf16> m; (void)m;",
        "no mmul of this shape on the architecture", "mmul<4, 8, 8, bf16, bf16> m; (void)m;",
    ),
    Rule(
        "mmul of float", "mmul<4, 8, 4, float, float> m; (void)m;",
        "bfloat16 x bfloat16 only", "mmul<4, 8, 4, bf16, bf16> m; (void)m;",
    ),
    Rule(
        "exp2 on AIE2", "auto y = aie::exp2<bf16>(any<float, 16>()); (void)y;",
        "AIE2 has no exp2 and no tanh", "auto y = aie::inv(any<bf16, 16>()); (void)y;", ("aie2",),
    ),
    Rule(
        "tanh on AIE2", "auto y = aie::tanh(any<float, 32>()); (void)y;",
        "AIE2 has no exp2 and no tanh", "auto y = aie::invsqrt(any<bf16, 16>()); (void)y;",
        ("aie2",),
    ),
    Rule(
        "exp2 of bfloat16", "auto y = aie::exp2(any<bf16, 16>()); (void)y;",
        "exp2 and tanh take vector<float, N>", "auto y = aie::exp2(any<float, 16>()); (void)y;",
        ("aie2p",), legal_elsewhere=False,
    ),
    Rule(
        "exp2 of 8 lanes", "auto y = aie::exp2(any<float, 8>()); (void)y;",
        "16 lanes at least", "auto y = aie::exp2(any<float, 64>()); (void)y;",
        ("aie2p",), legal_elsewhere=False,
    ),
    Rule(
        "odd lane count", "auto v = any<bf16, 24>(); (void)v;",
        "lane count must be a power of two", "auto v = any<bf16, 32>(); (void)v;",
    ),
    Rule(
        "vector below 128 bits", "auto v = any<bf16, 4>(); (void)v;",
        "at least 128 bits", "auto v = any<bf16, 8>(); (void)v;",
    ),
    Rule(
        "vector of double", "vector<double, 8> v; (void)v;",
        "no vectors of this element type", "vector<float, 8> v; (void)v;",
    ),
    Rule(
        "accumulator of 256 lanes", "accum<accfloat, 256> a; (void)a;",
        "no accumulator of this lane count", "accum<accfloat, 128> a; (void)a;",
    ),
    Rule(
        "float times bfloat16", "auto a = aie::mul(any<float, 16>(), any<bf16, 16>()); (void)a;",
        "no mixed multiplication", "auto a = aie::mul(any<bf16, 16>(), any<bf16, 16>()); (void)a;",
    ),
    Rule(
        "bfloat16 times a float scalar", "auto a = aie::mul(any<bf16, 16>(), 2.0f); (void)a;",
        "no mixed multiplication", "auto a = aie::mul(any<bf16, 16>(), bf16(2.0f)); (void)a;",
    ),
    Rule(
        "macs of different widths",
        "accum<accfloat, 32> c; c = aie::mac(c, any<bf16, 16>(), bf16(2.0f)); (void)c;",
        "accumulator has another lane count",
        "accum<accfloat, 16> c; c = aie::mac(c, any<bf16, 16>(), bf16(2.0f)); (void)c;",
    ),
    Rule(
        "float products in acc32",
        "accum<acc32, 16> c; c = aie::mac(c, any<bf16, 16>(), bf16(2.0f)); (void)c;",
        "another accumulator",
        "accum<acc32, 16> c; c = aie::mac(c, any<int8, 16>(), int8(2)); (void)c;",
    ),
    Rule(
        "products of packed codes",
        "auto a = aie::mul(any<uint4, 32>(), any<uint4, 32>()); (void)a;",
        "unpack four-bit lanes first",
        "auto u = any<uint4, 32>().unpack(); auto a = aie::mul(u, u); (void)a;",
    ),
    Rule(
        "a product is not a vector of 64 lanes",
        "vector<bf16, 64> v = aie::mul(any<bf16, 64>(), any<bf16, 64>()); (void)v;",
        "above 32 lanes conversion is explicit",
        "vector<bf16, 32> v = aie::mul(any<bf16, 32>(), any<bf16, 32>()); (void)v;",
    ),
    Rule(
        "an integer accumulator is not a vector",
        "vector<float, 16> v = aie::mul(any<int8, 16>(), any<int8, 16>()); (void)v;",
        "integer accumulators never convert implicitly",
        "auto v = aie::mul(any<int8, 16>(), any<int8, 16>()).to_vector<int16>(2); (void)v;",
    ),
    Rule(
        "accfloat to integers", "auto v = accum<accfloat, 16>().to_vector<int32>(); (void)v;",
        "to integers by aie::to_fixed",
        "auto v = aie::to_fixed<int32>(accum<accfloat, 16>().to_vector<float>()); (void)v;",
    ),
    Rule(
        "sum of different types", "auto v = aie::add(any<bf16, 16>(), any<float, 16>()); (void)v;",
        "different element types", "auto v = aie::add(any<bf16, 16>(), any<bf16, 16>()); (void)v;",
    ),
    Rule(
        "sum of different widths", "auto v = aie::max(any<bf16, 16>(), any<bf16, 32>()); (void)v;",
        "different lane counts", "auto v = aie::max(any<bf16, 16>(), any<bf16, 16>()); (void)v;",
    ),
    Rule(
        "chunk of one code",
        "auto v = aie::interleave_zip(any<uint4, 32>(), any<uint4, 32>(), 1); (void)v;",
        "chunk_must_be_a_power_of_two_of_at_least_8_bits",
        "auto v = aie::interleave_zip(any<uint4, 32>(), any<uint4, 32>(), 2); (void)v;",
    ),
    Rule(
        "chunk of three lanes", "auto v = aie::filter_even(any<bf16, 32>(), 3); (void)v;",
        "chunk_must_be_a_power_of_two_of_at_least_8_bits",
        "auto v = aie::filter_even(any<bf16, 32>(), 4); (void)v;",
    ),
    Rule(
        "chunk above the vector",
        "auto v = aie::interleave_zip(any<bf16, 8>(), any<bf16, 8>(), 16); (void)v;",
        "chunk_must_be_a_power_of_two_of_at_least_8_bits",
        "auto v = aie::interleave_zip(any<bf16, 8>(), any<bf16, 8>(), 8); (void)v;",
    ),
    Rule(
        "extract of more lanes", "auto v = any<bf16, 16>().extract<32>(0); (void)v;",
        "extract cannot widen", "auto v = any<bf16, 16>().extract<8>(1); (void)v;",
    ),
    Rule(
        "store of another type", "float* p = nullptr; aie::store_v(p, any<bf16, 16>());",
        "no matching function", "float* p = nullptr; aie::store_v(p, any<float, 16>());",
    ),
    Rule(
        "bits of floats", "auto v = aie::bit_and(any<float, 16>(), any<float, 16>()); (void)v;",
        "bit operations take integers",
        "auto f = any<float, 16>().cast_to<int32>(); auto v = aie::bit_and(f, f); (void)v;",
    ),
    Rule(
        "bits of a vector and a scalar",
        "auto v = aie::bit_or(any<uint16, 16>(), uint16(3)); (void)v;",
        "no matching function", "auto v = aie::bit_or(uint16(3), any<uint16, 16>()); (void)v;",
    ),
    Rule(
        "bits of a scalar of another type",
        "auto v = aie::bit_and(3, any<uint16, 16>()); (void)v;",
        "no matching function", "auto v = aie::bit_and(uint16(3), any<uint16, 16>()); (void)v;",
    ),
    Rule(
        "even chunks of two vectors",
        "auto v = aie::filter_even(any<bf16, 16>(), any<bf16, 16>(), 8); (void)v;",
        "no matching function",
        "auto v = aie::interleave_unzip(any<bf16, 16>(), any<bf16, 16>(), 8).first; (void)v;",
    ),
    Rule(
        "odd chunks of two vectors",
        "auto v = aie::filter_odd(any<bf16, 16>(), any<bf16, 16>(), 8); (void)v;",
        "no matching function",
        "auto v = aie::interleave_unzip(any<bf16, 16>(), any<bf16, 16>(), 8).second; (void)v;",
    ),
    Rule(
        "sum of a vector and a scalar of another type",
        "auto v = aie::add(any<bf16, 16>(), 2.0f); (void)v;",
        "different element types", "auto v = aie::add(any<bf16, 16>(), bf16(2.0f)); (void)v;",
    ),
    Rule(
        "maximum with an int",
        "auto v = aie::max(any<int16, 16>(), 0); (void)v;",
        "different element types", "auto v = aie::max(any<int16, 16>(), int16(0)); (void)v;",
    ),
    Rule(
        "comparison of different types",
        "auto m = aie::lt(any<float, 16>(), any<bf16, 16>()); (void)m;",
        "different element types", "auto m = aie::lt(any<bf16, 16>(), any<bf16, 16>()); (void)m;",
    ),
    Rule(
        "comparison with a scalar of another type",
        "auto m = aie::ge(any<bf16, 16>(), 0.0f); (void)m;",
        "different element types", "auto m = aie::ge(any<bf16, 16>(), bf16(0.0f)); (void)m;",
    ),
    Rule(
        "choice of different types",
        "auto v = aie::select(0.0f, any<bf16, 32>(), aie::mask<32>()); (void)v;",
        "different element types",
        "auto v = aie::select(bf16(0.0f), any<bf16, 16>(), aie::mask<16>()); (void)v;",
    ),
    Rule(
        "clamp between a scalar and a vector",
        "auto v = aie::clamp(any<float, 16>(), 0.0f, any<float, 16>()); (void)v;",
        "two vectors or two scalars",
        "auto v = aie::clamp(any<float, 16>(), 0.0f, 1.0f); (void)v;",
    ),
    Rule(
        "broadcast of what does not convert",
        "enum class E { one }; auto v = aie::broadcast<int16, 16>(E::one); (void)v;",
        "broadcast", "auto v = aie::broadcast<int16, 16>(1); (void)v;",
    ),
    Rule(
        "exclusive or of masks", "auto m = aie::mask<16>() ^ aie::mask<16>(); (void)m;",
        "mask<16", "auto m = aie::mask<16>() | aie::mask<16>(); (void)m;",
    ),
    Rule(
        "64 bits of a shorter mask", "auto b = aie::mask<16>().to_uint64(); (void)b;",
        "no matching function", "auto b = aie::mask<64>().to_uint64(); (void)b;",
    ),
    Rule(
        "a shorter mask of 64 bits", "auto m = aie::mask<32>::from_uint64(1); (void)m;",
        "no matching function", "auto m = aie::mask<32>::from_uint32(1); (void)m;",
    ),
    Rule(
        "growth of an accumulator from another part",
        "auto a = accum<accfloat, 16>().grow<32>(1); (void)a;",
        "no matching function", "auto a = accum<accfloat, 16>().grow<32>(); (void)a;",
    ),
    Rule(
        "products of bytes and words",
        "auto a = aie::mul(any<int8, 16>(), any<int32, 16>()); (void)a;",
        "products of integers of 32 and fewer bits are not modelled",
        "auto a = aie::mul(any<int16, 16>(), any<int8, 16>()); (void)a;",
    ),
    Rule(
        "load with a type beside the lanes",
        "const float* p = nullptr; auto v = aie::load_v<16, float>(p); (void)v;",
        "no matching function", "const float* p = nullptr; auto v = aie::load_v<16>(p); (void)v;",
    ),
    Rule(
        "unpack of floats", "auto v = any<bf16, 16>().unpack(); (void)v;",
        "unpack takes integers", "auto v = any<int8, 16>().unpack(); (void)v;",
    ),
]  # fmt: skip


NAMED = {f"rule_{number}.cc": rule for number, rule in enumerate(RULES)}


def check(folder: Path, arch: str, bodies: dict[str, str]) -> tuple[bool, dict[str, str]]:
    """Whether functions with these bodies compile together, and the errors of each, by name.

    A template's instance is an error only once, so two bodies must not fail in the same one.
    """
    source = folder / "snippets.cc"
    functions = (
        f'#line 1 "{name}"\nvoid {name.removesuffix(".cc")}() {{ {body} }}\n'
        for name, body in bodies.items()
    )
    source.write_text(PRELUDE + "".join(functions))
    done = compile(
        str(source), arch, "-fsyntax-only", "-ftemplate-backtrace-limit=0", "-fmax-errors=0"
    )
    errors: dict[str, str] = dict.fromkeys(bodies, "")
    error, current, leads = "", "", False
    for line in done.stderr.splitlines():
        where = re.match(r"(rule_\d+\.cc):\d+:", line)
        if where is not None:
            current = where[1]
            leads = ": error: " not in line and ": note: " not in line
            if "requested here" in line:  # Clang names a use after the error that it leads to,
                errors[current] += f"{error}\n"
        elif ": error: " in line:  # GCC before it
            error, current, leads = line, current if leads else "", False
        if current:
            errors[current] += f"{line}\n"
    return done.returncode == 0, errors


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_illegal_does_not_compile(arch: str, tmp_path: Path) -> None:
    illegal = {name: rule for name, rule in NAMED.items() if arch in rule.on}
    _, errors = check(tmp_path, arch, {name: rule.illegal for name, rule in illegal.items()})
    other = {r.name: errors[name] for name, r in illegal.items() if r.message not in errors[name]}
    assert other == {}


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_legal_twins_compile(arch: str, tmp_path: Path) -> None:
    """And what is illegal on the other architecture only."""
    bodies = {name: rule.legal for name, rule in NAMED.items() if arch in rule.on}
    for name, rule in NAMED.items():
        if arch not in rule.on and rule.legal_elsewhere:
            bodies[name] = rule.illegal
    compiles, errors = check(tmp_path, arch, bodies)
    assert compiles, errors


def test_other_architectures_do_not_compile(tmp_path: Path) -> None:
    source = tmp_path / "snippet.cc"
    source.write_text(PRELUDE)
    done = compile(str(source), "aie2", "-fsyntax-only", "-U__AIE_ARCH__", "-D__AIE_ARCH__=10")
    assert done.returncode != 0
    assert "__AIE_ARCH__" in done.stderr
