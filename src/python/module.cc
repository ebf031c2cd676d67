// The C++ functions that Python calls: packing, the eligibility rules, the host kernels for tests,
// and (in kernel_choice_module.cc) which kernels a CPU runs, (in graph_module.cc) what a model's
// graph becomes. Those for an NPU are in npu_module.cc.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/platform.h"
#include "ops/eligibility.h"
#include "ops/flow_attention.h"
#include "ops/format.h"
#include "ops/weights.h"
#include "python/errors.h"
#include "python/file_forms_module.h"
#include "python/graph_module.h"
#include "python/kernel_choice_module.h"
#include "q4nx/experts.h"
#include "q4nx/pack.h"
#include "q4nx/quantize.h"
#include "targets/host/host_target.h"
#include "targets/host/kernels/choice.h"
#include "targets/host/lookup_tables.h"

namespace py = pybind11;

namespace ort_aie {
namespace {

template <typename T>
using Array = py::array_t<T, py::array::c_style>;

template <typename T>
void RequireShape(const Array<T>& array, const char* name, const Shape& shape) {
  const Shape actual(array.shape(), array.shape() + array.ndim());
  Require(actual == shape, name, " must be ", shape, ", got ", actual);
}

WeightForm FormOf(int64_t bits, int64_t group, bool minima) {
  Require(q4nx::IsBits(bits), "bits must be 2, 4 or 8, got ", bits);
  Require(q4nx::IsGroup(group), "group must be 32, 64, 128 or 256, got ", group);
  return {q4nx::KindOfBits(bits), group, minima};
}

Array<uint8_t> EmptyBlocks(int64_t n, int64_t k, const WeightForm& form) {
  Require(n > 0 && k > 0, "N and K must be positive, got N=", n, " K=", k);
  q4nx::BytesOfBlocks<Size>(n, k, form).As("blocks");
  return Array<uint8_t>(BlocksShape(n, k, form));
}

// The form of weights with this group and minima: its kind, one of `kinds`, is found from the size
// of their blocks. If none fits, it is the first.
WeightForm RequireBlocks(const Array<uint8_t>& blocks, int64_t n, int64_t k, int64_t group,
                         bool minima, std::initializer_list<WeightKind> kinds) {
  Require(n > 0 && k > 0, "N and K must be positive, got N=", n, " K=", k);
  WeightForm form = FormOf(4, group, minima);
  const auto fits = [&](WeightKind kind) {
    form.kind = kind;
    return blocks.ndim() == 3 && blocks.shape(2) == q4nx::BlockBytes(form);
  };
  const auto found = std::ranges::find_if(kinds, fits);
  form.kind = found != kinds.end() ? *found : *kinds.begin();
  RequireShape(blocks, "blocks", {q4nx::RowBlocks(n), q4nx::ColBlocks(k), q4nx::BlockBytes(form)});
  return form;
}

constexpr auto kMinimaKinds = {WeightKind::kQ4NX, WeightKind::kQ2NX};
constexpr auto kCodeKinds = {WeightKind::kQ4NX, WeightKind::kQ2NX, WeightKind::kQ8NX};
constexpr auto kKinds = {WeightKind::kQ4NX, WeightKind::kQ2NX, WeightKind::kQ8NX,
                         WeightKind::kBf16};

Array<uint8_t> Pack(const Array<uint8_t>& codes, const Array<uint16_t>& scales,
                    const std::optional<Array<uint16_t>>& mins, int64_t bits, int64_t group) {
  Require(codes.ndim() == 2 && codes.size() > 0, "codes must be (N, K) and not empty");
  Require(bits == 4 || bits == 2, "bits must be 4 or 2, got ", bits, "; pack_q8nx packs 8");
  const WeightForm form = FormOf(bits, group, mins.has_value());
  const int64_t n = codes.shape(0), k = codes.shape(1);
  RequireShape(scales, "scales", {n, q4nx::CeilDiv(k, group)});
  if (mins) RequireShape(*mins, "mins", {n, q4nx::CeilDiv(k, group)});
  Array<uint8_t> blocks = EmptyBlocks(n, k, form);
  q4nx::Pack(codes.data(), scales.data(), mins ? mins->data() : nullptr, n, k,
             blocks.mutable_data(), form);
  return blocks;
}

py::tuple Unpack(const Array<uint8_t>& blocks, int64_t n, int64_t k, int64_t group, bool minima) {
  const WeightForm form = RequireBlocks(blocks, n, k, group, minima, kMinimaKinds);
  const int64_t groups = q4nx::CeilDiv(k, group);
  Array<uint8_t> codes({n, k});
  Array<uint16_t> scales({n, groups}), mins({n, groups});
  q4nx::Unpack(blocks.data(), n, k, codes.mutable_data(), scales.mutable_data(),
               mins.mutable_data(), form);
  return py::make_tuple(codes, scales, mins);
}

Array<uint8_t> PackBytes(const Array<uint8_t>& codes, const Array<float>& scales,
                         const std::optional<Array<uint8_t>>& zero_points, int64_t group) {
  Require(codes.ndim() == 2 && codes.size() > 0, "codes must be (N, K) and not empty");
  const WeightForm form = FormOf(8, group, zero_points.has_value());
  const int64_t n = codes.shape(0), k = codes.shape(1);
  RequireShape(scales, "scales", {n, q4nx::CeilDiv(k, group)});
  if (zero_points) RequireShape(*zero_points, "zero_points", {n, q4nx::CeilDiv(k, group)});
  Array<uint8_t> blocks = EmptyBlocks(n, k, form);
  q4nx::PackBytes(codes.data(), scales.data(), zero_points ? zero_points->data() : nullptr, n, k,
                  blocks.mutable_data(), form);
  return blocks;
}

py::tuple UnpackBytes(const Array<uint8_t>& blocks, int64_t n, int64_t k, int64_t group,
                      bool minima) {
  const WeightForm form = RequireBlocks(blocks, n, k, group, minima, {WeightKind::kQ8NX});
  const int64_t groups = q4nx::CeilDiv(k, group);
  Array<uint8_t> codes({n, k}), zero_points({n, groups});
  Array<float> scales({n, groups});
  q4nx::UnpackBytes(blocks.data(), n, k, codes.mutable_data(), scales.mutable_data(),
                    zero_points.mutable_data(), form);
  return py::make_tuple(codes, scales, zero_points);
}

Array<float> Dequantize(const Array<uint8_t>& blocks, int64_t n, int64_t k, int64_t group,
                        bool minima) {
  const WeightForm form = RequireBlocks(blocks, n, k, group, minima, kCodeKinds);
  Array<float> weights({n, k});
  q4nx::Dequantize(blocks.data(), n, k, weights.mutable_data(), form);
  return weights;
}

// Blocks of groups of 32 with minima, of the same weights: those of shipping files.
Array<uint8_t> Widen(const Array<uint8_t>& blocks, int64_t n, int64_t k, int64_t group,
                     bool minima) {
  const WeightForm form = RequireBlocks(blocks, n, k, group, minima, kMinimaKinds);
  Array<uint8_t> wide = EmptyBlocks(n, k, q4nx::kShipping);
  q4nx::Widen(blocks.data(), form, q4nx::RowBlocks(n) * q4nx::ColBlocks(k), wide.mutable_data());
  return wide;
}

q4nx::ScaleType ScaleTypeOf(const std::string& name) {
  if (name == "FLOAT") return q4nx::ScaleType::kFloat32;
  if (name == "FLOAT16") return q4nx::ScaleType::kFloat16;
  if (name == "BFLOAT16") return q4nx::ScaleType::kBfloat16;
  Fail(ErrorCode::kInvalidArgument, "scales must be FLOAT, FLOAT16 or BFLOAT16, got ", name);
}

// All arrays are bytes, whatever their types: rows of the initializers as they are in the file.
Array<uint8_t> PackMatMulNBits(const Array<uint8_t>& b, const Array<uint8_t>& scales,
                               const std::optional<Array<uint8_t>>& zero_points, int64_t rows,
                               int64_t k, int64_t block_size, const std::string& scale_type,
                               int64_t bits, const std::string& zero_point_type, int64_t group,
                               bool minima) {
  const WeightForm form = FormOf(bits, group, minima);
  Require(form.minima || !zero_points, "weights with zero_points need minima");
  Require(block_size == 32 || block_size == 64 || block_size == 128 || block_size == 256,
          "block_size must be 32, 64, 128 or 256, got ", block_size);
  Require(block_size % form.group == 0, "block_size ", block_size, " is not a multiple of group ",
          form.group);
  Require(rows > 0 && k > 0, "rows and K must be positive, got rows=", rows, " K=", k);
  const Size code_bytes = rows * q4nx::CodeBytes<Size>(bits, k, block_size);
  const Size source_blocks = rows * CeilDiv(Size(k), block_size);
  q4nx::MatMulNBitsRows source{};
  source.bits = bits;
  source.scale_type = ScaleTypeOf(scale_type);
  const auto bytes = [](q4nx::ScaleType type) { return type == q4nx::ScaleType::kFloat32 ? 4 : 2; };
  Require(code_bytes == b.size(), "B has ", b.size(), " bytes, expected ", code_bytes, " for ",
          rows, " rows, K=", k, " block_size=", block_size);
  const Size scale_bytes = source_blocks * bytes(source.scale_type);
  Require(scale_bytes == scales.size(), "scales have ", scales.size(), " bytes, expected ",
          scale_bytes);
  source.b = b.data();
  source.scales = scales.data();
  if (zero_points) {
    const bool packed = zero_point_type == "UINT8";
    Require(packed || bits != 8, "zero_points of 8 bits must be UINT8, got ", zero_point_type);
    if (!packed) source.zero_point_type = ScaleTypeOf(zero_point_type);
    const Size size = packed ? rows * q4nx::PackedZeroPointBytes<Size>(bits, k, block_size)
                             : source_blocks * bytes(source.zero_point_type);
    Require(size == zero_points->size(), "zero_points have ", zero_points->size(),
            " bytes, expected ", size, " of ", zero_point_type);
    source.zero_points = zero_points->data();
    source.zero_point_kind = packed ? q4nx::ZeroPoints::kPacked : q4nx::ZeroPoints::kFloat;
  }
  source.rows = rows;
  source.k = k;
  source.block_size = block_size;
  Array<uint8_t> blocks = EmptyBlocks(rows, k, form);
  uint8_t* out = blocks.mutable_data();
  const py::gil_scoped_release release;
  q4nx::PackMatMulNBits(source, form, out);
  return blocks;
}

// One expert of a QMoE. `layout` has the fields of ExpertLayout in order; arrays are bytes.
Array<uint8_t> PackExpert(const Array<uint8_t>& codes, const Array<uint8_t>& scales,
                          const std::optional<Array<uint8_t>>& zero_points,
                          const std::vector<int64_t>& layout, const std::string& scale_type) {
  Require(layout.size() == 9, "layout must have 9 numbers, got ", layout.size());
  const bool is_fp4 = scale_type == "FLOAT8E8M0";
  const q4nx::ExpertLayout its = {
      layout[0],
      layout[1],
      layout[2],
      layout[3],
      layout[4],
      layout[5],
      layout[6],
      is_fp4 ? q4nx::FormOf(FileType::kMXFP4) : FormOf(layout[5], layout[7], layout[8] != 0)};
  Require(its.n > 0 && its.k > 0 && its.step > 0 && its.first >= 0 &&
              Size(its.first) + Size(its.n - 1) * its.step + 1 <= Size(its.source_rows),
          "layout means rows outside of the source");
  Require(q4nx::IsBits(its.bits) && its.block_size >= 0 && its.block_size % 32 == 0, "layout has ",
          its.bits, " bits and block_size=", its.block_size);
  const auto type = is_fp4 ? q4nx::ScaleType{} : ScaleTypeOf(scale_type);
  const int64_t scale_bytes = is_fp4 ? 1 : type == q4nx::ScaleType::kFloat32 ? 4 : 2;
  const auto check = [](const char* name, const Array<uint8_t>& bytes, int64_t expected) {
    Require(bytes.size() == expected, name, " have ", bytes.size(), " bytes, expected ", expected);
  };
  check("codes", codes, q4nx::ExpertCodeBytes(its));
  check("scales", scales, q4nx::ExpertScales(its) * scale_bytes);
  Require(zero_points || !is_fp4, "the global scale is missing");
  if (zero_points) check("zero points", *zero_points, q4nx::ExpertZeroPointBytes(its));
  Array<uint8_t> blocks = EmptyBlocks(its.n, its.k, its.form);
  uint8_t* out = blocks.mutable_data();
  const uint8_t* points = zero_points ? zero_points->data() : nullptr;
  bool packed = false;
  {
    const py::gil_scoped_release release;
    packed = q4nx::PackExpert(its, codes.data(), scales.data(), type, points, out);
  }
  Require(packed, q4nx::kNoFp4Scale);
  return blocks;
}

// weights (N, K) float32 of any strides -> blocks, sum of squared errors, sum of squared weights,
// largest error, sum of squared errors times importance (K) float32.
py::tuple Quantize(const py::array_t<float>& weights, int64_t bits,
                   const std::optional<Array<float>>& importance) {
  Require(q4nx::IsBits(bits), "bits must be 2, 4 or 8, got ", bits);
  Require(weights.ndim() == 2 && weights.size() > 0, "weights must be (N, K) and not empty");
  const int64_t n = weights.shape(0), k = weights.shape(1), size = sizeof(float);
  Require(weights.strides(0) % size == 0 && weights.strides(1) % size == 0,
          "the strides of weights must be whole elements");
  if (importance) {
    RequireShape(*importance, "importance", {k});
    const std::span values(importance->data(), static_cast<size_t>(k));
    Require(std::ranges::all_of(values, [](float v) { return v >= 0 && std::isfinite(v); }),
            "importance must be finite and not negative");
  }
  Array<uint8_t> blocks = EmptyBlocks(n, k, {q4nx::KindOfBits(bits)});
  uint8_t* out = blocks.mutable_data();
  const float* counts = importance ? importance->data() : nullptr;
  q4nx::QuantizationError error;
  {
    const py::gil_scoped_release release;
    error = q4nx::Quantize(weights.data(), weights.strides(0) / size, weights.strides(1) / size, n,
                           k, bits, counts, out);
  }
  Require(error.representable, "weights hold NaN, infinities or values above 2^60");
  return py::make_tuple(blocks, error.squared_error, error.squared_weights, error.largest_error,
                        error.weighted_error);
}

const host::Kernels& KernelsNamed(const std::string& isa) {
  for (auto table = host::AvailableKernels(); *table != nullptr; ++table) {
    if (isa == (*table)->name) return **table;
  }
  if (const host::Kernels* variant = host::VariantNamed(isa.c_str())) return *variant;
  Fail(ErrorCode::kInvalidArgument, "isa ", isa, " is not available on this CPU");
}

std::vector<std::string> AvailableIsas() {
  std::vector<std::string> names;
  for (auto table = host::AvailableKernels(); *table != nullptr; ++table) {
    names.emplace_back((*table)->name);
  }
  return names;
}

constexpr float kEpsilon = 1e-5f;  // of norms

// The projection step on one thread, with a chosen kernel table. Blocks of any form are passed as
// bytes, those of a form of GGUF files with its `type`. `up` makes it a gated projection, and
// `gemm` makes few rows go the way of many.
Array<float> Project(const Array<float>& a, const Array<uint8_t>& blocks, int64_t n,
                     const std::string& numerics, const std::string& isa, bool symmetric,
                     const std::optional<Array<float>>& norm_weight,
                     const std::optional<Array<uint8_t>>& up, bool gelu, bool gemm, int64_t group,
                     bool minima, const std::string& type) {
  Require(a.ndim() == 2 && a.shape(0) > 0, "a must be (rows, K) with at least one row");
  Require(numerics == "bf16" || numerics == "int8", "numerics must be bf16 or int8, got ",
          numerics);
  const int64_t rows = a.shape(0), k = a.shape(1);
  const auto form_of = [&](const Array<uint8_t>& its) {
    if (type.empty()) return RequireBlocks(its, n, k, group, minima, kKinds);
    const WeightForm form = q4nx::FormOf(FileTypeNamed(type));
    RequireShape(its, "blocks", BlocksShape(n, k, form));
    return form;
  };
  const WeightForm form = form_of(blocks);
  Require(form.kind != WeightKind::kBf16 || numerics == "bf16",
          "weights of bf16 need numerics bf16");
  Array<float> y({rows, n});
  MatMulStep step{};
  step.weights = blocks.data();
  step.form = form;
  step.rows = rows;
  step.k = k;
  step.n = n;
  step.a = a.data();
  step.y = y.mutable_data();
  step.type = DataType::kFloat32;
  step.numerics = numerics == "int8" ? Numerics::kInt8 : Numerics::kBf16;
  step.symmetric = symmetric || !minima;
  if (norm_weight) {
    RequireShape(*norm_weight, "norm_weight", {k});
    step.norm_weight = norm_weight->data();
    step.norm_epsilon = kEpsilon;
  }
  if (up) {
    Require(form_of(*up) == form, "up must have as many bits as blocks");
    step.up_weights = up->data();
    step.activation = gelu ? Activation::kGeluTanh : Activation::kSilu;
  }
  (gemm ? host::RunGemm : host::RunMatMul)(step, KernelsNamed(isa), InlineThreadPool());
  return y;
}

// (rows, K), with b of the same shape. Without b, a function of each element.
Array<float> ElementByElement(const std::string& function, const Array<float>& a,
                              const std::optional<Array<float>>& b, const std::string& isa) {
  Require(a.ndim() == 2 && a.size() > 0, "a must be (rows, K) and not empty");
  if (b) RequireShape(*b, "b", {a.shape(0), a.shape(1)});
  Require(b.has_value() == (function == "add" || function == "multiply"),
          "b must be given for add and multiply, and for them alone");
  Array<float> y({a.shape(0), a.shape(1)});
  ElementwiseStep step{};
  step.function = function == "add"        ? Function::kAdd
                  : function == "multiply" ? Function::kMultiply
                                           : ActivationFunction(function);
  step.rows = a.shape(0);
  step.k = a.shape(1);
  step.a = a.data();
  step.b = b ? b->data() : nullptr;
  step.y = y.mutable_data();
  step.type = DataType::kFloat32;
  host::RunElementwise(step, KernelsNamed(isa), InlineThreadPool());
  return y;
}

// The RMS norm of (rows, K), as Project computes it.
Array<float> Norm(const Array<float>& a, const Array<float>& weight, const std::string& isa) {
  Require(a.ndim() == 2 && a.size() > 0, "a must be (rows, K) and not empty");
  RequireShape(weight, "weight", {a.shape(1)});
  Array<float> y({a.shape(0), a.shape(1)});
  NormStep step{};
  step.rows = a.shape(0);
  step.k = a.shape(1);
  step.a = a.data();
  step.weight = weight.data();
  step.y = y.mutable_data();
  step.type = DataType::kFloat32;
  step.epsilon = kEpsilon;
  host::RunNorm(step, KernelsNamed(isa), InlineThreadPool());
  return y;
}

int64_t MostStreamedRows(int64_t bits, const std::string& numerics, const std::string& isa,
                         const std::string& type) {
  const WeightForm form =
      type.empty() ? WeightForm{q4nx::KindOfBits(bits)} : q4nx::FormOf(FileTypeNamed(type));
  return host::MostStreamedRows(KernelsNamed(isa), form,
                                numerics == "int8" ? Numerics::kInt8 : Numerics::kBf16);
}

// (scores, numerators, sum, accumulated) of one attention chunk, as targets/host/attention.cc, by
// the kernels for few rows, for many, or for many in bfloat16. Keys and values are first rounded to
// the type of the cache.
py::tuple AttentionChunk(const Array<float>& q, const Array<float>& k, const Array<float>& v,
                         float scale, float softcap, const std::string& path,
                         const std::string& cache, const std::string& isa) {
  using host::kChunk;
  Require(q.ndim() == 2 && k.ndim() == 2 && v.ndim() == 2 && q.shape(1) == k.shape(1) &&
              k.shape(0) == v.shape(0) && k.shape(1) == v.shape(1) && k.shape(0) <= kChunk &&
              q.size() > 0 && k.size() > 0 && q.shape(1) % 8 == 0,
          "q (rows, dim), k and v (keys, dim), dim a multiple of 8, at most ", kChunk, " keys");
  const host::Kernels& kernels = KernelsNamed(isa);
  const host::Bf16Attention* bf16 = path == "bf16" ? kernels.bf16_attention : nullptr;
  Require(path == "few" || path == "many" || bf16 != nullptr, "there is no path ", path,
          " with isa ", isa);
  const auto [type, kernel] =
      cache == "float16"    ? std::pair(DataType::kFloat16, host::kCacheFloat16)
      : cache == "bfloat16" ? std::pair(DataType::kBfloat16, host::kCacheBfloat16)
      : cache == "int8"     ? std::pair(DataType::kInt8, host::kCacheInt8)
      : cache == "int4"     ? std::pair(DataType::kInt4, host::kCacheInt4)
                            : std::pair(DataType::kFloat32, host::kCacheFloat32);
  const int64_t rows = q.shape(0), dim = q.shape(1), keys = k.shape(0);
  const auto size = [](int64_t n) { return static_cast<size_t>(n); };
  std::vector<float> k_rows(size(keys * dim)), v_rows(size(keys * dim));
  const auto store = [&](const Array<float>& from, void* to) {
    const float one = 1.0f;
    if (type == DataType::kInt8) {
      kernels.float_to_int8(from.data(), &one, false, keys * dim, static_cast<int8_t*>(to));
    } else if (type == DataType::kInt4) {
      kernels.float_to_int4(from.data(), &one, false, keys * dim, static_cast<uint8_t*>(to));
    } else {
      host::FromFloat(kernels, type, from.data(), keys * dim, to);
    }
  };
  store(k, k_rows.data());
  store(v, v_rows.data());

  std::vector<float> s(size(rows * kChunk)), transposed(size(dim * kChunk));
  std::vector<uint16_t> q_bf16(size(rows * dim)), f_bf16(size(rows * kChunk)),
      packed(size(dim * kChunk));
  if (bf16 != nullptr) {
    kernels.float_to_bfloat16(q.data(), rows * dim, q_bf16.data());
    bf16->pack_keys[kernel](k_rows.data(), keys, dim, packed.data());
    bf16->scores(q_bf16.data(), rows, dim, packed.data(), keys, scale, s.data());
  } else if (path == "many") {
    kernels.transpose_keys(k.data(), keys, dim, transposed.data());
    kernels.scores_transposed(q.data(), rows, dim, transposed.data(), keys, scale, s.data());
  } else {
    kernels.scores[kernel](q.data(), rows, dim, k_rows.data(), keys, scale, nullptr, s.data());
  }

  Array<float> scores({rows, keys}), f({rows, keys}), sums({rows}), y({rows, dim});
  const auto copy = [&](const Array<float>& to) {
    for (int64_t r = 0; r < rows; ++r) {
      std::memcpy(const_cast<float*>(to.data(r)), s.data() + r * kChunk, size(keys) * 4);
    }
  };
  for (int64_t r = 0; r < rows; ++r) {
    if (softcap > 0) kernels.softcap(s.data() + r * kChunk, keys, softcap);
    std::fill(s.data() + r * kChunk + keys, s.data() + (r + 1) * kChunk,
              -std::numeric_limits<float>::infinity());
  }
  copy(scores);
  std::vector<float> max(size(rows), -std::numeric_limits<float>::infinity());
  std::vector<float> correction(size(rows));
  std::fill(sums.mutable_data(), sums.mutable_data() + rows, 0.0f);
  std::fill(y.mutable_data(), y.mutable_data() + rows * dim, 0.0f);
  if (bf16 != nullptr) {
    bf16->softmax(s.data(), rows, keys, max.data(), sums.mutable_data(), correction.data(),
                  f_bf16.data());
    kernels.bfloat16_to_float(f_bf16.data(), rows * kChunk, s.data());
    bf16->pack_values[kernel](v_rows.data(), keys, dim, packed.data());
    bf16->accumulate(f_bf16.data(), rows, packed.data(), keys, dim, correction.data(),
                     y.mutable_data());
  } else {
    kernels.softmax(s.data(), rows, keys, max.data(), sums.mutable_data(), correction.data());
    const auto of = path == "many" ? host::kCacheFloat32 : kernel;
    const void* values = path == "many" ? v.data() : v_rows.data();
    kernels.accumulate[of](s.data(), rows, values, keys, dim, correction.data(), nullptr,
                           y.mutable_data());
  }
  copy(f);
  return py::make_tuple(scores, f, sums, y);
}

// x (n), n a multiple of 8 -> the bytes of a quantised KV cache, and the codes that are read back.
py::tuple CacheCodes(const Array<float>& x, const Array<float>& scales, int64_t bits,
                     const std::string& isa) {
  const host::Kernels& kernels = KernelsNamed(isa);
  const int64_t n = x.size();
  Require(n % 8 == 0 && (scales.size() == 1 || scales.size() == n) && (bits == 8 || bits == 4),
          "x of a multiple of 8, one scale or as many, bits 8 or 4");
  Array<uint8_t> cache(n * bits / 8);
  Array<float> codes(n);
  if (bits == 8) {
    auto* bytes = reinterpret_cast<int8_t*>(cache.mutable_data());
    kernels.float_to_int8(x.data(), scales.data(), scales.size() > 1, n, bytes);
    kernels.int8_to_float(bytes, n, codes.mutable_data());
  } else {
    kernels.float_to_int4(x.data(), scales.data(), scales.size() > 1, n, cache.mutable_data());
    kernels.int4_to_float(cache.data(), n, codes.mutable_data());
  }
  return py::make_tuple(cache, codes);
}

Array<float> Float16RoundTrip(const Array<float>& x, const std::string& isa) {
  const host::Kernels& kernels = KernelsNamed(isa);
  std::vector<uint16_t> half(static_cast<size_t>(x.size()));
  Array<float> y(x.size());
  kernels.float_to_float16(x.data(), x.size(), half.data());
  kernels.float16_to_float(half.data(), x.size(), y.mutable_data());
  return y;
}

}  // namespace
}  // namespace ort_aie

PYBIND11_MODULE(_native, m) {
  using namespace ort_aie;
  m.doc() = "C++ side of ort_aie_ep: Q4NX packing, eligibility rules, host kernels.";
  RaiseErrorsAsValueError();
  m.attr("FORMAT") = kFormat;
  m.attr("FORMAT_OF_FILES") = kFormatOfFiles;
  py::list attention_inputs;
  for (const char* name : FlowAttention::kInputNames) attention_inputs.append(name);
  m.attr("FLOW_ATTENTION_INPUTS") = py::tuple(attention_inputs);
  m.attr("ONNXRUNTIME_HEADERS") = ORT_AIE_HEADERS;

  m.def("pack", &Pack, py::arg("codes").noconvert(), py::arg("scales").noconvert(),
        py::arg("mins").noconvert(), py::arg("bits") = 4, py::arg("group") = 32);
  m.def("unpack", &Unpack, py::arg("blocks").noconvert(), py::arg("n"), py::arg("k"),
        py::arg("group") = 32, py::arg("minima") = true);
  m.def("pack_q8nx", &PackBytes, py::arg("codes").noconvert(), py::arg("scales").noconvert(),
        py::arg("zero_points").noconvert(), py::arg("group") = 32);
  m.def("unpack_q8nx", &UnpackBytes, py::arg("blocks").noconvert(), py::arg("n"), py::arg("k"),
        py::arg("group") = 32, py::arg("minima") = true);
  m.def("dequantize", &Dequantize, py::arg("blocks").noconvert(), py::arg("n"), py::arg("k"),
        py::arg("group") = 32, py::arg("minima") = true);
  m.def("widen", &Widen, py::arg("blocks").noconvert(), py::arg("n"), py::arg("k"),
        py::arg("group"), py::arg("minima"));
  m.def("pack_matmulnbits", &PackMatMulNBits, py::arg("b").noconvert(),
        py::arg("scales").noconvert(), py::arg("zero_points").noconvert(), py::arg("rows"),
        py::arg("k"), py::arg("block_size"), py::arg("scale_type"), py::arg("bits") = 4,
        py::arg("zero_point_type") = "UINT8", py::arg("group") = 32, py::arg("minima") = true);

  m.def("pack_expert", &PackExpert, py::arg("codes").noconvert(), py::arg("scales").noconvert(),
        py::arg("zero_points").noconvert(), py::arg("layout"), py::arg("scale_type"));

  DefineFileForms(m);
  m.def("quantize", &Quantize, py::arg("weights").noconvert(), py::arg("bits") = 4,
        py::arg("importance").noconvert() = py::none());

  m.def(
      "why_not_q4nx",
      [](int64_t k, int64_t n, int64_t block_size, bool constant_weights, const std::string& type) {
        return WhyNotQ4NX({.k = k,
                           .n = n,
                           .block_size = block_size,
                           .constant_weights = constant_weights,
                           .type = type,
                           .zero_point_type = ""});
      },
      py::kw_only(), py::arg("k"), py::arg("n"), py::arg("block_size"), py::arg("constant_weights"),
      py::arg("type"));
  m.def(
      "why_not_float_matmul",
      [](bool constant_weights, const std::vector<int64_t>& weights, const std::string& type,
         int64_t trans_a, float alpha, float beta, bool bias_fits) {
        return WhyNotFloatMatMul(
            {constant_weights, weights, type, trans_a, alpha, beta, bias_fits});
      },
      py::kw_only(), py::arg("constant_weights"), py::arg("weights"), py::arg("type"),
      py::arg("trans_a") = 0, py::arg("alpha") = 1.0f, py::arg("beta") = 1.0f,
      py::arg("bias_fits") = true);
  m.def(
      "why_not_flow_attention",
      [](int64_t num_heads, int64_t kv_num_heads, int64_t head_dim, int64_t causal,
         int64_t local_window_size, bool has_output_qk, const std::string& type,
         const std::string& cache_type) {
        GroupQueryAttentionNode node;
        node.num_heads = num_heads;
        node.kv_num_heads = kv_num_heads;
        node.head_dim = head_dim;
        node.causal = causal;
        node.local_window_size = local_window_size;
        node.has_output_qk = has_output_qk;
        node.type = type;
        node.cache_type = cache_type;
        return WhyNotFlowAttention(node);
      },
      py::kw_only(), py::arg("num_heads"), py::arg("kv_num_heads"), py::arg("head_dim"),
      py::arg("causal"), py::arg("local_window_size"), py::arg("has_output_qk"), py::arg("type"),
      py::arg("cache_type"));

  graph::DefineGraph(m);
  host::DefineKernelChoice(m);
  m.def("available_isas", &AvailableIsas);
  m.def(
      "prompts_in_bf16", [](const std::string& isa) { return KernelsNamed(isa).prompts_in_bf16; },
      py::arg("isa"));
  m.def(
      "has_bf16_attention",
      [](const std::string& isa) { return KernelsNamed(isa).bf16_attention != nullptr; },
      py::arg("isa"));
  m.def("why_no_amx", [] {
    const char* why = host::WhyNoAmx();
    return std::string(why == nullptr ? "" : why);
  });
  m.def("selected_isa", [] { return std::string(host::SelectedKernels().name); });
  m.def(
      "cached_bytes",
      [](const std::string& path) -> std::optional<std::pair<int64_t, int64_t>> {
        const platform::File file = platform::File::Open(path);
        const auto cached = file.is_open() ? file.CachedBytes() : std::nullopt;
        if (!cached) return std::nullopt;
        return std::pair(cached->bytes, cached->in_large_pages);
      },
      py::arg("path"));
  m.def("project", &Project, py::arg("a").noconvert(), py::arg("blocks").noconvert(), py::arg("n"),
        py::arg("numerics"), py::arg("isa"), py::arg("symmetric") = false,
        py::arg("norm_weight").noconvert() = py::none(), py::arg("up").noconvert() = py::none(),
        py::arg("gelu") = false, py::arg("gemm") = false, py::arg("group") = 32,
        py::arg("minima") = true, py::arg("type") = "");
  m.def("elementwise", &ElementByElement, py::arg("function"), py::arg("a").noconvert(),
        py::arg("b").noconvert(), py::arg("isa"));
  m.def("rms_norm", &Norm, py::arg("a").noconvert(), py::arg("weight").noconvert(), py::arg("isa"));
  m.def("most_streamed_rows", &MostStreamedRows, py::arg("bits"), py::arg("numerics"),
        py::arg("isa"), py::arg("type") = "");
  m.def("lookup_tables_made", &host::LookupTablesMade);
  m.def("attention_chunk", &AttentionChunk, py::arg("q").noconvert(), py::arg("k").noconvert(),
        py::arg("v").noconvert(), py::arg("scale"), py::arg("softcap"), py::arg("path"),
        py::arg("cache"), py::arg("isa"));
  m.def("cache_codes", &CacheCodes, py::arg("x").noconvert(), py::arg("scales").noconvert(),
        py::arg("bits"), py::arg("isa"));
  m.def("float16_round_trip", &Float16RoundTrip, py::arg("x").noconvert(), py::arg("isa"));
}
