"""Uses of the AIE API, one expression each: candidates for the list aie_api_signatures.txt.

Each is compiled with the real headers, which gives the list (lab/check_aie_api.py), and with
the stand-in, which must refuse uses that are not on it (test_standin_signatures.py). Operands are
written

    v<T,N>  a vector      w<T,N>  one that may be changed      s<T>  a scalar
    a<Tag,N>  an accumulator    b<Tag,N>  one that may be changed    m<N>  a mask
    e<T,N>  a lane of a vector    p<T>, c<T>  a pointer, to constants    k  an unsigned int
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import product

BITS = {
    "int4": 4, "uint4": 4, "int8": 8, "uint8": 8, "int16": 16, "uint16": 16, "int32": 32,
    "uint32": 32, "bfloat16": 16, "float": 32,
}  # fmt: skip
TAGS = ("accfloat", "acc32", "acc64")
LANES = (16, 32, 64)
SOME = ("int8", "uint16", "int32", "bfloat16", "float")
MIXED = (
    ("bfloat16", "float"), ("float", "bfloat16"), ("int8", "uint8"), ("int8", "int16"),
    ("uint16", "int16"), ("int32", "int16"), ("int8", "int32"), ("int32", "float"),
    ("bfloat16", "int16"),
)  # fmt: skip

PRELUDE = """
#include <aie_api/aie.hpp>
template <typename T, unsigned N> const aie::vector<T, N>& v();
template <typename T, unsigned N> aie::vector<T, N>& w();
template <typename T> T s();
template <typename T, unsigned N> const aie::accum<T, N>& a();
template <typename T, unsigned N> aie::accum<T, N>& b();
template <unsigned N> const aie::mask<N>& m();
template <unsigned N> aie::mask<N>& n();
template <typename T, unsigned N> aie::vector_elem_const_ref<T, N> e();
template <typename T, unsigned N> aie::vector_elem_ref<T, N> r();
template <typename T> T* p();
template <typename T> const T* c();
template <typename T> T& l();
extern unsigned k;
template <typename T> struct show;
"""

_OPERANDS = [
    (r"\bvec<", "aie::vector<"), (r"\bacc<", "aie::accum<"), (r"(?<!::)\bmask<", "aie::mask<"),
    (r"\b([vwabmnerspcl]<[^<>]*>)(?!\()", r"\1()"),
]  # fmt: skip
_WORDS = [
    (r"\bl<decltype\((.+?)\(\)\)\)>\(\)", r"\1)"), (r"\bl<aie::(mmul<[^<>]*>)>\(\)", r"\1&"),
    (r"\bw<([^<>]*)>", r"vector<\1>&"), (r"\bb<([^<>]*)>", r"accum<\1>&"),
    (r"\bn<([^<>]*)>", r"mask<\1>&"), (r"\br<([^<>]*)>", r"lane<\1>&"),
    (r"\bv<", "vector<"), (r"\ba<", "accum<"), (r"\bm<", "mask<"), (r"\be<", "lane<"),
    (r"\bs<([^<>]*)>", r"\1"), (r"\bp<([^<>]*)>", r"\1*"), (r"\bc<([^<>]*)>", r"const \1*"),
    (r"\bl<([^<>]*)>", r"\1&"), (r"\bvec<", "vector<"), (r"\bacc<", "accum<"), ("aie::", ""),
    (r"\bk\b", "unsigned"),
]  # fmt: skip


@dataclass(frozen=True)
class Use:
    """`pattern` with lanes as {N}, {2N}, ..; `lanes` is N, or 0 if it has none."""

    pattern: str
    lanes: int

    @property
    def code(self) -> str:
        """As a C++ expression."""
        text = self.pattern
        for name, factor in _FACTORS.items():
            text = text.replace(f"{{{name}}}", str(int(self.lanes * factor)))
        for find, replace in _OPERANDS:
            text = re.sub(find, replace, text)
        return text

    @property
    def words(self) -> str:
        """The use as the list writes it."""
        text = re.sub(r"\{(\w+|N/\d)\}", r"\1", self.pattern)
        for find, replace in _WORDS:
            text = re.sub(find, replace, text)
        return text


_FACTORS = {"N": 1, "2N": 2, "4N": 4, "8N": 8, "N/2": 0.5, "N/4": 0.25}


def lanes_of(type_name: str) -> tuple[int, ...]:
    """Those of LANES for which the type has vectors on either architecture."""
    return tuple(n for n in LANES if 128 <= n * BITS[type_name] <= 1024)


def _each(patterns: Iterable[str], types: Iterable[str] = tuple(BITS)) -> Iterator[Use]:
    """Each pattern for each type in place of T, and each of its lane counts."""
    for pattern, name in product(patterns, types):
        text = re.sub(r"\bT\b", name, pattern)
        for n in lanes_of(name):
            yield Use(text, n)


def _calls(names: str, operands: str) -> list[str]:
    return [f"aie::{name}({operands})" for name in names.split()]


ELEMENTWISE = "add sub max min lt le gt ge eq neq bit_and bit_or bit_xor mul negmul maxdiff"
PRODUCTS = "mac msc"


def _elementwise() -> Iterator[Use]:
    yield from _each(_calls(ELEMENTWISE, "v<T,{N}>, v<T,{N}>"))
    for operands in ("v<T,{N}>, s<T>", "s<T>, v<T,{N}>"):
        for pattern in _calls(ELEMENTWISE, operands):
            yield from (Use(re.sub(r"\bT\b", t, pattern), 32) for t in BITS)
    for operands in ("v<T,{N}>, e<T,16>", "e<T,16>, v<T,{N}>", "v<T,{N}>, r<T,16>"):
        for pattern in _calls(ELEMENTWISE, operands):
            yield from (Use(re.sub(r"\bT\b", t, pattern), 16) for t in ("int16", "bfloat16"))
    for operands in ("v<T,{N}>, v<U,{N}>", "v<T,{N}>, s<U>", "s<T>, v<U,{N}>"):
        for pattern, (t, u) in product(_calls(ELEMENTWISE, operands), MIXED):
            yield Use(re.sub(r"\bU\b", u, re.sub(r"\bT\b", t, pattern)), 16)
    for operands in (
        "v<bfloat16,{N}>, v<bfloat16,{2N}>", "s<bfloat16>, s<bfloat16>",
        "a<accfloat,{N}>, a<accfloat,{N}>", "a<accfloat,{N}>, v<float,{N}>",
        "v<float,{N}>, a<accfloat,{N}>", "a<accfloat,{N}>, s<float>", "v<int16,{N}>, 1",
        "m<{N}>, m<{N}>",
    ):  # fmt: skip
        yield from (Use(pattern, 16) for pattern in _calls(ELEMENTWISE, operands))


def _sums_and_products() -> Iterator[Use]:
    for tag, name in product(TAGS, SOME):
        for pattern in _calls("add sub", "a<TAG,{N}>, v<T,{N}>"):
            yield Use(re.sub(r"\bT\b", name, pattern.replace("TAG", tag)), 32)
        for operands in (
            "a<TAG,{N}>, v<T,{N}>, v<T,{N}>", "a<TAG,{N}>, v<T,{N}>, s<T>",
            "a<TAG,{N}>, s<T>, v<T,{N}>",
        ):  # fmt: skip
            for pattern in _calls(PRODUCTS, operands):
                yield Use(re.sub(r"\bT\b", name, pattern.replace("TAG", tag)), 32)
        for call in ("mul<TAG>(v<T,{N}>, v<T,{N}>)", "mul<TAG>(v<T,{N}>, s<T>)",
                     "negmul<TAG>(v<T,{N}>, v<T,{N}>)", "mul_square<TAG>(v<T,{N}>)",
                     "mac_square(a<TAG,{N}>, v<T,{N}>)"):  # fmt: skip
            yield Use("aie::" + re.sub(r"\bT\b", name, call.replace("TAG", tag)), 32)
        yield Use(f"aie::add(a<{tag},{{N}}>, a<{tag},{{N}}>)", 32)
        yield Use(f"aie::sub(a<{tag},{{N}}>, a<{tag},{{N}}>)", 32)
    for operands in (
        "a<accfloat,{N}>, v<bfloat16,{N}>, e<bfloat16,16>",
        "a<accfloat,{N}>, e<bfloat16,16>, v<bfloat16,{N}>",
        "a<accfloat,{2N}>, v<bfloat16,{N}>, v<bfloat16,{N}>",
        "a<accfloat,{N}>, v<bfloat16,{N}>, v<float,{N}>",
        "a<accfloat,{N}>, v<float,{N}>, s<bfloat16>",
        "v<float,{N}>, v<bfloat16,{N}>, v<bfloat16,{N}>",
        "a<acc32,{N}>, v<int8,{N}>, v<uint8,{N}>", "a<acc64,{N}>, v<int16,{N}>, v<int32,{N}>",
    ):  # fmt: skip
        yield from (Use(pattern, 16) for pattern in _calls(PRODUCTS, operands))
    yield from _each(["aie::mul_square(v<T,{N}>)"])


def _of_one_vector() -> Iterator[Use]:
    names = (
        "neg abs bit_not inv invsqrt exp2 tanh unpack pack reverse reduce_add reduce_max reduce_min"
    )
    yield from _each(_calls(names, "v<T,{N}>"))
    for tr in ("float", "bfloat16"):
        calls = [f"aie::exp2<{tr}>(v<T,{{N}}>)", f"aie::tanh<{tr}>(v<T,{{N}}>)"]
        yield from _each(calls, ("float", "bfloat16"))
    for name, scalar in product(("inv", "invsqrt", "exp2", "tanh"), ("float", "bfloat16", "int32")):
        yield Use(f"aie::{name}(s<{scalar}>)", 0)
    shifts = "upshift downshift logical_downshift"
    yield from _each(_calls(shifts, "v<T,{N}>, k"))
    yield from (Use(call, 16) for call in _calls(shifts, "v<int16,{N}>, v<int16,{N}>"))
    for tr in ("float", "bfloat16"):
        yield from _each(
            [f"aie::to_float<{tr}>(v<T,{{N}}>)", f"aie::to_float<{tr}>(v<T,{{N}}>, 3)"]
        )
    yield from _each(["aie::to_float(v<T,{N}>)"], SOME)
    for tr in ("int4", "int8", "uint8", "int16", "int32"):
        yield from _each(
            [f"aie::to_fixed<{tr}>(v<T,{{N}}>)", f"aie::to_fixed<{tr}>(v<T,{{N}}>, 3)"],
            ("bfloat16", "float", "int16"),
        )
    yield Use("aie::to_fixed(v<float,{N}>)", 16)
    for count in range(1, 6):
        vectors = ", ".join(["v<T,{N}>"] * count)
        yield from _each([f"aie::reduce_add_v({vectors})"], SOME)


def _choices() -> Iterator[Use]:
    for operands in ("v<T,{N}>, v<T,{N}>", "v<T,{N}>, s<T>", "s<T>, v<T,{N}>", "s<T>, s<T>"):
        yield from _each([f"aie::select({operands}, m<{{N}}>)"], SOME)
    yield from (
        Use(f"aie::select({operands}, m<{{N}}>)", 16)
        for operands in (
            "v<float,{N}>, v<bfloat16,{N}>", "v<bfloat16,{2N}>, v<bfloat16,{2N}>", "s<float>, "
            "v<bfloat16,{N}>", "v<bfloat16,{N}>, e<bfloat16,16>",
            "a<accfloat,{N}>, a<accfloat,{N}>", "v<uint4,{2N}>, v<uint4,{2N}>",
        )
    )  # fmt: skip
    for operands in ("s<T>, s<T>", "v<T,{N}>, v<T,{N}>", "s<T>, v<T,{N}>", "v<T,{N}>, s<T>"):
        yield from _each([f"aie::clamp(v<T,{{N}}>, {operands})"], SOME)
    yield Use("aie::clamp(v<bfloat16,{N}>, s<float>, s<float>)", 16)


def _building() -> Iterator[Use]:
    yield from _each(["aie::broadcast<T,{N}>(s<T>)", "aie::zeros<T,{N}>()"])
    yield from _each(
        ["aie::broadcast<T,{N}>(1)", "aie::broadcast<T>(s<T>)", "aie::zeros<T>()"], SOME
    )
    yield Use("aie::broadcast<bfloat16,{N}>(e<bfloat16,16>)", 16)
    yield Use("aie::broadcast<float,{N}>(s<bfloat16>)", 16)
    yield Use("aie::broadcast<accfloat,{N}>(s<float>)", 16)
    for tag, n in product(TAGS, LANES):
        yield Use(f"aie::zeros<{tag},{{N}}>()", n)
    for name in SOME:
        for count in (1, 2, 4, 8):
            vectors = ", ".join([f"v<{name},{{N}}>"] * count)
            n = 128 // BITS[name]
            yield Use(f"aie::concat({vectors})", n)
    for operands in (
        "a<accfloat,{N}>, a<accfloat,{N}>", "v<float,{N}>, v<float,{2N}>", "v<float,{N}>, s<float>",
        "v<float,{N}>, v<int32,{N}>", "v<float,{N}>, a<accfloat,{N}>",
        "v<float,{N}>, v<float,{N}>, v<float,{N}>",
    ):  # fmt: skip
        yield Use(f"aie::concat({operands})", 8)


def _moves() -> Iterator[Use]:
    pairs = "interleave_zip interleave_unzip"
    yield from _each(_calls(pairs, "v<T,{N}>, v<T,{N}>, 8"))
    yield from _each(_calls(pairs, "v<T,{N}>, v<T,{N}>"), SOME)
    yield from _each(_calls("filter_even filter_odd", "v<T,{N}>, 4"))
    for operands in ("v<T,{N}>, v<T,{N}>, 4", "v<T,{N}>"):
        yield from _each(_calls("filter_even filter_odd", operands), SOME)
    for name in ("filter_even", "interleave_zip"):
        more = "" if name == "filter_even" else "v<bfloat16,{N}>, "
        yield from (Use(f"aie::{name}(v<bfloat16,{{N}}>, {more}{c})", 32) for c in (1, 2, 3, 64))
    yield from _each(["aie::transpose(v<T,{N}>, 4, {N/4})", "aie::transpose(v<T,{N}>)"], SOME)
    yield Use("aie::reverse(a<accfloat,{N}>)", 16)
    for way in ("down", "up"):
        yield from _each(
            [
                f"aie::shuffle_{way}(v<T,{{N}}>, k)", f"aie::shuffle_{way}_rotate(v<T,{{N}}>, k)",
                f"aie::shuffle_{way}_replicate(v<T,{{N}}>, k)",
                f"aie::shuffle_{way}_fill(v<T,{{N}}>, v<T,{{N}}>, k)",
            ],
            SOME,
        )  # fmt: skip
        yield Use(f"aie::shuffle_{way}_fill(v<float,{{N}}>, s<float>, k)", 16)


def _memory() -> Iterator[Use]:
    for pointer in ("c<T>", "p<T>"):
        yield from _each([f"aie::load_v<{{N}}>({pointer})"])
    yield from _each(
        [
            "aie::load_unaligned_v<{N}>(c<T>)", "aie::load_unaligned_v<{N}>(c<T>, 4)",
            "aie::store_v(p<T>, v<T,{N}>)", "aie::store_unaligned_v(p<T>, v<T,{N}>)",
            "aie::store_unaligned_v(p<T>, v<T,{N}>, 4)",
        ]
    )  # fmt: skip
    yield from _each(
        [
            "aie::load_v(c<T>)", "aie::load_v<{N}, T>(c<T>)", "aie::store_v(c<T>, v<T,{N}>)",
            "aie::load_unaligned_v(c<T>)", "aie::vector_ldst_align_v<T, {N}>",
            "aie::begin_vector<{N}>(p<T>)", "aie::begin_vector<{N}>(c<T>)",
            "aie::cbegin_vector<{N}>(c<T>)", "aie::cbegin_vector<{N}>(p<T>)",
            "aie::begin_restrict_vector<{N}>(p<T>)", "aie::begin_restrict_vector<{N}>(c<T>)",
        ],
        ("uint8", "bfloat16", "float"),
    )  # fmt: skip
    yield Use("aie::store_v(p<float>, v<bfloat16,{N}>)", 16)
    yield Use("aie::store_v(p<float>, a<accfloat,{N}>)", 16)
    yield Use("aie::store_v(p<uint8_t>, v<uint4,{N}>)", 32)
    yield Use("aie::load_v<{N}>(c<double>)", 8)
    yield Use("aie::vector_decl_align", 0)
    ways = ("aie::begin_vector<{N}>(p<float>)", "aie::cbegin_vector<{N}>(c<float>)",
            "aie::begin_restrict_vector<{N}>(p<float>)")  # fmt: skip
    for way in ways:
        it = f"l<decltype({way.replace('>)', '>())')})>()"
        for text in (
            "*@", "*@++", "++@", "@ += 1", "@ + 1", "@ == @", "@ != @", "--@", "@ - 1", "@ - @",
            "@[1]", "*@ = v<float,{N}>()", "aie::vector<float,{N}>(*@)", "@ < @",
        ):  # fmt: skip
            yield Use(text.replace("@", it), 16)


def _vectors() -> Iterator[Use]:
    for name, n in product(BITS, (4, 8, 16, 24, 32, 64, 128, 256, 512)):
        yield Use(f"vec<{name},{{N}}>()", n)
    yield Use("vec<double,{N}>()", 8)
    yield from _each(
        [
            "vec<T,{N}>(s<T>)", "vec<T,{N}>(s<T>, s<T>, s<T>, s<T>)", "vec<T,{N}>(v<T,{N}>)",
            "vec<T,{N}>(a<accfloat,{N}>)", "vec<T,{N}>(a<acc32,{N}>)", "vec<T,{N}>(c<T>)",
            "v<T,{N}>.get(k)", "w<T,{N}>.set(s<T>, k)", "v<T,{N}>[k]", "w<T,{N}>[k]",
            "w<T,{N}>[k] = s<T>", "v<T,{N}>[k].get()", "w<T,{N}>[k].get()", "T(v<T,{N}>[k])",
            "v<T,{N}>.push(s<T>)", "w<T,{N}>.push(s<T>)", "v<T,{N}>.size()", "v<T,{N}>.bits()",
            "v<T,{N}>.unpack()", "v<T,{N}>.pack()", "w<T,{N}> = s<T>", "w<T,{N}> = v<T,{N}>",
            "v<T,{N}>.extract<{N/2}>(k)", "w<T,{N}>.insert(k, v<T,{N/2}>)", "v<T,{N}>.grow<{2N}>()",
            "v<T,{N}>.grow<{2N}>(k)", "v<T,{N}>.grow<{N/2}>()", "v<T,{N}>.grow_replicate<{2N}>()",
            "v<T,{N}>.extract<{2N}>(k)", "w<T,{N}>.insert(k, v<T,{2N}>)", "v<T,{N}>.get(k, k)",
            "v<T,{N}> + v<T,{N}>", "v<T,{N}> == v<T,{N}>",
            "vec<T,{N}>::value_type()",
        ],
        ("uint4", "int8", "uint16", "int32", "bfloat16", "float"),
    )  # fmt: skip
    for t, u in product(BITS, BITS):
        yield Use(f"v<{t},{{N}}>.cast_to<{u}>()", 512 // BITS[t])
    for u in ("int8", "float", "bfloat16"):
        yield Use(f"w<uint8,{{N}}>.insert(k, v<{u},{{N/2}}>)", 64)


def _accumulators() -> Iterator[Use]:
    for tag, n in product((*TAGS, "acc16", "acc48"), (2, 4, 8, 16, 32, 64, 128, 256)):
        yield Use(f"acc<{tag},{{N}}>()", n)
    for tag, name, n in product(TAGS, SOME, (16, 32)):
        for text in (
            "acc<TAG,{N}>(v<T,{N}>)", "acc<TAG,{N}>(v<T,{N}>, 2)", "b<TAG,{N}> = v<T,{N}>",
            "b<TAG,{N}>.from_vector(v<T,{N}>)", "b<TAG,{N}>.from_vector(v<T,{N}>, 2)",
            "a<TAG,{N}>.to_vector<T>()", "a<TAG,{N}>.to_vector<T>(2)", "w<T,{N}> = a<TAG,{N}>",
        ):  # fmt: skip
            yield Use(re.sub(r"\bT\b", name, text.replace("TAG", tag)), n)
    for name in ("bfloat16", "float"):
        for text in ("w<T,{N}> = a<accfloat,{N}>", "a<accfloat,{N}>.to_vector<T>()"):
            yield from (Use(re.sub(r"\bT\b", name, text), n) for n in (8, 64, 128))
    for tag in TAGS:
        for text in (
            "a<TAG,{N}>.extract<{N/2}>(k)", "b<TAG,{N}>.insert(k, a<TAG,{N/2}>)",
            "a<TAG,{N}>.grow<{2N}>()", "a<TAG,{N}>.grow<{2N}>(k)", "a<TAG,{N}>.size()",
            "a<TAG,{N}>.extract<{2N}>(k)", "b<TAG,{N}>.insert(k, a<TAG,{2N}>)",
            "a<TAG,{N}>.grow<{N/2}>()", "acc<TAG,{N}>(s<float>)", "b<TAG,{N}> = s<float>",
            "a<TAG,{N}>.cast_to<accfloat>()", "a<TAG,{N}>.cast_to<acc32>()",
            "a<TAG,{N}>.cast_to<acc64>()", "a<TAG,{N}>.get(k)", "a<TAG,{N}>[k]",
            "acc<TAG,{N}>(a<TAG,{N}>)", "b<TAG,{N}> = a<TAG,{N}>", "a<TAG,{N}> + a<TAG,{N}>",
            "acc<TAG,{N}>::value_type()",
        ):  # fmt: skip
            yield Use(text.replace("TAG", tag), 16)


def _masks() -> Iterator[Use]:
    for text in (
        "aie::mask<{N}>()", "aie::mask<{N}>(s<uint32_t>)",
        "aie::mask<{N}>::from_uint32(s<uint32_t>)",
        "aie::mask<{N}>::from_uint64(s<uint64_t>)", "m<{N}>.to_uint32()", "m<{N}>.to_uint64()",
        "m<{N}>.size()", "m<{N}>.test(k)", "n<{N}>.set(k)", "n<{N}>.clear(k)", "n<{N}>.set()",
        "n<{N}>.clear()", "m<{N}>.count()", "m<{N}>.empty()", "m<{N}>.full()", "~m<{N}>",
        "m<{N}> & m<{N}>", "m<{N}> | m<{N}>", "m<{N}> ^ m<{N}>", "m<{N}> == m<{N}>", "m<{N}> << k",
        "m<{N}>[k]", "!m<{N}>", "m<{N}> & m<{2N}>",
    ):  # fmt: skip
        yield from (Use(text, n) for n in (16, 32, 64, 128))
    yield from (Use("aie::mask<{N}>()", n) for n in (4, 8, 24))


def _matrix_products() -> Iterator[Use]:
    b16 = "bfloat16, bfloat16"
    for shape in product((4, 8, 16), (1, 8, 16), (4, 8, 16)):
        yield Use(f"aie::mmul<{', '.join(map(str, shape))}, {b16}>()", 0)
    yield Use("aie::mmul<4, 8, 4, bfloat16, bfloat16, accfloat>()", 0)
    yield Use("aie::mmul<4, 8, 4, bfloat16>()", 0)
    yield Use("aie::mmul<4, 8, 4, bfloat16, float>()", 0)
    made = "aie::mmul<4, 8, 4, bfloat16, bfloat16>"
    one = f"l<{made}>()"
    for text in (
        f"{made}(a<accfloat,16>)", f"{made}(v<float,16>)", f"{made}(v<bfloat16,16>)",
        f"{made}(v<float,16>, 2)", f"{made}(v<float,32>)", f"{made}(a<accfloat,32>)",
        f"{one}.mul(v<bfloat16,32>, v<bfloat16,32>)", f"{one}.mac(v<bfloat16,32>, v<bfloat16,32>)",
        f"{one}.mac(v<bfloat16,32>, v<bfloat16,16>)", f"{one}.mac(v<float,32>, v<bfloat16,32>)",
        f"{one}.to_vector<float>()", f"{one}.to_vector<bfloat16>()",
        f"{one}.to_vector<bfloat16>(1)", f"{one}.to_vector<int32>()", f"{one}.to_accum()",
        f"acc<accfloat,16>({one})", f"vec<float,16>({one})",
        f"{made}::size_A", f"{made}::size_B", f"{made}::size_C", f"{made}::accum_type()",
        f"{made}::vector_A_type()", f"{made}::vector_B_type()",
    ):  # fmt: skip
        yield Use(text, 0)


def _blocks() -> Iterator[Use]:
    yield from (Use("aie::block_vector<bfp16ebs8, {N}>()", n) for n in (16, 32, 64, 128, 256, 512))
    made = "aie::block_vector<bfp16ebs8, 64>"
    yield Use("aie::block_vector<float, 64>()", 0)
    yield Use(f"{made}::size()", 0)
    yield Use(f"{made}::memory_bytes()", 0)
    yield from (Use("a<accfloat,{N}>.to_vector<bfp16ebs8>()", n) for n in (32, 64, 128))
    yield Use("a<acc32,64>.to_vector<bfp16ebs8>()", 0)
    for way, pointer, use in (
        ("input", "c<bfp16ebs8>", "pop()"), ("output", "p<bfp16ebs8>", f"push({made}())"),
    ):  # fmt: skip
        stream = f"aie::block_vector_{way}_buffer_stream<bfp16ebs8, 64>"
        yield Use(f"{stream}({pointer})", 0)
        yield Use(f"{stream}({pointer}).seek(3)", 0)
        yield Use(f"{stream}({pointer}).{use}", 0)
    yield Use(f"b<accfloat,64> = mac_8x8_8x8T({made}(), {made}(), a<accfloat,64>)", 0)


def _state_and_scalars() -> Iterator[Use]:
    for what in ("rounding", "saturation"):
        kind = f"aie::{what}_mode"
        yield Use(f"aie::set_{what}(s<{kind}>)", 0)
        yield Use(f"aie::get_{what}()", 0)
        yield Use(f"aie::swap_{what}(s<{kind}>)", 0)
        yield Use(f"aie::set_{what}(1)", 0)
    for mode in (
        "floor", "ceil", "symmetric_floor", "symmetric_ceil", "negative_inf", "positive_inf",
        "symmetric_zero", "symmetric_inf", "conv_even", "conv_odd",
    ):  # fmt: skip
        yield Use(f"aie::rounding_mode::{mode}", 0)
    for mode in ("none", "saturate", "symmetric", "truncate"):
        yield Use(f"aie::saturation_mode::{mode}", 0)
    for text in (
        "bfloat16(s<float>)", "bfloat16(1.5f)", "bfloat16()", "uint4()", "int4()",
        "float(s<bfloat16>)", "s<bfloat16>.bits()",
        "bfloat16::from_bits(1)", "s<uint4>.value", "s<int4>.value", "uint4(3)", "int4(3)",
        "int(s<uint4>)", "event0()", "event1()", "aie::is_aie2p", "aie::get_rounding_mode()",
        "r<float,16>.get()", "e<float,16>.get()", "float(r<float,16>)", "float(e<float,16>)",
        "r<float,16> = s<float>", "e<float,16> = s<float>", "r<float,16>.set(s<float>)",
        "e<float,16>.parent", "e<float,16>.offset", "s<accauto>", "s<accfloat>",
        "aie::vector_elem_ref<float,16>(r<float,16>)",
        "aie::vector_elem_const_ref<float,16>(e<float,16>)",
        "aie::vector_elem_ref<float,16>(w<float,16>, k)",
        "aie::vector_elem_const_ref<float,16>(v<float,16>, k)",
    ):  # fmt: skip
        yield Use(text, 0)


@cache
def all_uses() -> tuple[Use, ...]:
    """Every use, once."""
    parts: list[Callable[[], Iterator[Use]]] = [
        _elementwise, _sums_and_products, _of_one_vector, _choices, _building, _moves, _memory,
        _vectors, _accumulators, _masks, _matrix_products, _blocks, _state_and_scalars,
    ]  # fmt: skip
    return tuple(dict.fromkeys(use for part in parts for use in part()))
