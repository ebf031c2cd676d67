#include "ops/weight_shapes.h"

#include <algorithm>
#include <initializer_list>

#include "base/error.h"
#include "base/size.h"
#include "q4nx/pack.h"

namespace ort_aie {
namespace {

using Sizes = std::vector<Size>;

template <typename Dim>
std::string Text(const std::vector<Dim>& dims) {
  std::string text = "(";
  for (const Dim& dim : dims) text += Concat(text.size() > 1 ? ", " : "", dim);
  return text + ")";
}

bool Fits(const std::vector<int64_t>& dims, const Sizes& sizes) {
  return std::ranges::equal(dims, sizes,
                            [](int64_t dim, Size size) { return dim == -1 || size == dim; });
}

bool IsFloatName(const std::string& type) {
  return type == "FLOAT" || type == "FLOAT16" || type == "BFLOAT16";
}

// Why the input is none of these; empty if it is one of them.
std::string WhyOther(const char* name, const KnownInput& input, bool is_float,
                     std::initializer_list<Sizes> shapes) {
  const bool typed = is_float ? IsFloatName(input.type) : input.type == "UINT8";
  const auto fits = [&](const Sizes& sizes) { return Fits(input.dims, sizes); };
  if (typed && std::ranges::any_of(shapes, fits)) return "";
  std::string expected;
  for (const Sizes& sizes : shapes) expected += (expected.empty() ? "" : " or ") + Text(sizes);
  return Concat("input ", name, " is ", input.type, " ", Text(input.dims), ", expected ",
                is_float ? "FLOAT, FLOAT16 or BFLOAT16 " : "UINT8 ", expected);
}

Size Blocks(const BlockedWeights& weights) { return CeilDiv(Size(weights.k), weights.block_size); }

// Packed, or a float for each scale. A MatMulNBits takes them `flat` too.
std::string WhyNotScales(const BlockedWeights& weights, bool flat) {
  const Size n = weights.n, blocks = Blocks(weights);
  const auto why_other = [&](const char* name, const KnownInput& input, bool is_float, Size row) {
    const Sizes rows = {n, row};
    return WhyOther(name, input, is_float,
                    flat ? std::initializer_list{rows, {n * row}} : std::initializer_list{rows});
  };
  std::string why = why_other("scales", weights.scales, true, blocks);
  if (!why.empty() || !weights.zero_points) return why;
  const bool is_float = IsFloatName(weights.zero_points->type);
  const auto packed = q4nx::PackedZeroPointBytes<Size>(weights.bits, weights.k, weights.block_size);
  return why_other("zero_points", *weights.zero_points, is_float, is_float ? blocks : packed);
}

}  // namespace

std::string WhyMalformed(const BlockedWeights& weights) {
  const Size n = weights.n, in_block = Size(weights.block_size) * weights.bits;
  std::string why = WhyOther("B", weights.b, false, {{n, Blocks(weights), CeilDiv(in_block, 8)}});
  if (why.empty()) why = WhyNotScales(weights, true);
  if (why.empty() && weights.bias) why = WhyOther("bias", *weights.bias, true, {{n}});
  if (why.empty()) return "";
  return Concat(why, " for K=", weights.k, " N=", weights.n, " block_size=", weights.block_size,
                " bits=", weights.bits);
}

std::string WhyNotRows(const TiedGather& gather, const BlockedWeights& weights) {
  if (gather.bits != weights.bits) {
    return Concat("its codes have ", gather.bits, " bits, but those of the projection have ",
                  weights.bits);
  }
  if (gather.gather_axis != 0) return "gather_axis is not 0";
  if (gather.quantize_axis != 1 && gather.quantize_axis != -1) return "quantize_axis is not 1";
  if (weights.k % weights.block_size != 0) {
    // The gathered rows would also contain the padding of the last block.
    return Concat("K=", weights.k, " is not a multiple of block_size=", weights.block_size);
  }
  const auto row = q4nx::CodeBytes<Size>(weights.bits, weights.k, weights.block_size);
  if (!Fits(gather.data.dims, {weights.n, row})) {
    return Concat("its data is reshaped to something other than ", weights.n, " rows");
  }
  return WhyNotScales(weights, false);
}

}  // namespace ort_aie
