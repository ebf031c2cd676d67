// What only moves elements. A token's result is often its input as it is: then nothing is copied
// within a plan.
//
// aie.Reshape(A) -> Y: A in other dimensions, as ONNX's Reshape.
//   attribute sizes  the dimensions as text, such as "0,-1,32": 0 is A's, -1 what is left
// aie.Split(A) -> Y0, Y1?, Y2?, Y3?: the parts of A along an axis.
//   attributes axis (from 0), sizes (of the parts along it)
// aie.Transpose(A) -> Y: two neighbouring axes of A (batch, m, n, ...) change places.
//   attribute axis  the first of them, 1 by default; those before it are batches
//
// A is float, float16 or bfloat16. Attribute of all of them: format.
#include <algorithm>
#include <charconv>
#include <numeric>
#include <utility>

#include "base/error.h"
#include "ops/op.h"
#include "ops/sizes.h"

namespace ort_aie {
namespace {

int64_t BytesOfA(const Tensor& a) { return ByteCount(a.type, a.shape).As("input A"); }

void CopyWhole(const Tensor& a, void* y, Plan& plan) {
  if (y == a.data || y == nullptr) return;
  const int64_t bytes = BytesOfA(a);
  if (bytes == 0) return;
  plan.steps.emplace_back(MoveStep{{1, 1, 1}, {0, 0, 0}, bytes, a.data, y});
}

class Reshape final : public Op {
 public:
  explicit Reshape(const NodeInfo& info) : sizes_(SizesOf(info.String("sizes"))) {
    Require(sizes_.size() <= Shape::kInPlace, "attribute sizes has ", sizes_.size(),
            " numbers, expected at most ", Shape::kInPlace);
  }

  void Describe(std::span<const Tensor> inputs, std::span<Output> outputs) const override {
    const Tensor& a = inputs[0];
    RequireFloat("A", a);
    outputs[0] = {a.type, ShapeOf(a), 0};
  }
  void Append(std::span<const Tensor> inputs, std::span<const Output>,
              std::span<void* const> buffers, Plan& plan) const override {
    CopyWhole(inputs[0], buffers[0], plan);
  }

 private:
  Shape ShapeOf(const Tensor& a) const {
    Shape shape;
    Size others = 1;
    for (size_t i = 0; i < sizes_.size(); ++i) {
      Require(sizes_[i] != 0 || i < a.shape.size(), "input A has no dimension ", i, ", got ",
              a.shape);
      shape.push_back(sizes_[i] == 0 ? a.shape[i] : sizes_[i]);
      if (sizes_[i] >= 0) others = others * shape.back();
    }
    const int64_t count = ElementCount(a.shape).As("input A");
    const int64_t given = others.As("attribute sizes");
    const auto open = std::ranges::find(sizes_, -1);
    if (open != sizes_.end() && given != 0)
      shape[static_cast<size_t>(open - sizes_.begin())] = count / given;
    Require(ElementCount(shape) == count, "input A is ", a.shape,
            ", which has not as many elements as ", shape);
    return shape;
  }

  const std::vector<int64_t> sizes_;
};

void InferReshape(const ShapeContext& context) {
  auto value = RequiredInput(context, 0, "A");
  const std::vector<int64_t> sizes = SizesOf(context.String("sizes"));
  auto dims = Reshaped(value.dims, sizes);
  if (!dims) {
    dims.emplace();
    for (const int64_t size : sizes) dims->push_back({size > 0 ? size : -1});
  }
  value.dims = std::move(*dims);
  context.SetOutput(0, value);
}

class Split final : public Op {
 public:
  explicit Split(const NodeInfo& info)
      : axis_(static_cast<size_t>(info.Int("axis", 0))), sizes_(SizesOf(info.String("sizes"))) {
    Require(sizes_.size() <= kMostOutputs && std::ranges::min(sizes_) >= 0,
            "attribute sizes must have 1 to ", kMostOutputs, " numbers of 0 or more");
    Size sum = 0;
    for (const int64_t size : sizes_) sum = sum + size;
    sum_ = sum.As("attribute sizes");
  }

  void Describe(std::span<const Tensor> inputs, std::span<Output> outputs) const override {
    const Tensor& a = inputs[0];
    RequireFloat("A", a);
    Require(axis_ < a.shape.size() && a.shape[axis_] == sum_, "input A must have ", sum_,
            " elements along axis ", axis_, ", got ", a.shape);
    for (size_t i = 0; i < sizes_.size(); ++i) {
      outputs[i] = {a.type, a.shape};
      outputs[i].shape[axis_] = sizes_[i];
    }
  }
  void Append(std::span<const Tensor> inputs, std::span<const Output>,
              std::span<void* const> buffers, Plan& plan) const override {
    const Tensor& a = inputs[0];
    if (BytesOfA(a) == 0) return;
    const auto product = [&](size_t first, size_t last) {
      return std::accumulate(a.shape.begin() + first, a.shape.begin() + last, int64_t{1},
                             std::multiplies<>());
    };
    const int64_t outer = product(0, axis_);
    const int64_t inner = product(axis_ + 1, a.shape.size()) * static_cast<int64_t>(SizeOf(a.type));
    int64_t offset = 0;
    for (size_t i = 0; i < sizes_.size(); ++i) {
      const int64_t run = sizes_[i] * inner;
      if (buffers[i] != nullptr && run != 0) {
        plan.steps.emplace_back(MoveStep{
            {1, outer, 1}, {0, sum_ * inner, 0}, run, a.as<uint8_t>() + offset, buffers[i]});
      }
      offset += run;
    }
  }

 private:
  const size_t axis_;
  const std::vector<int64_t> sizes_;
  int64_t sum_ = 0;
};

void InferSplit(const ShapeContext& context) {
  const auto value = RequiredInput(context, 0, "A");
  const auto axis = static_cast<size_t>(context.Int("axis", 0));
  const std::vector<int64_t> sizes = SizesOf(context.String("sizes"));
  for (size_t i = 0; i < std::min(sizes.size(), kMostOutputs); ++i) {
    auto part = value;
    if (axis < part.dims.size()) part.dims[axis] = {sizes[i]};
    context.SetOutput(i, part);
  }
}

class Transpose final : public Op {
 public:
  explicit Transpose(const NodeInfo& info) : axis_(static_cast<size_t>(info.Int("axis", 1))) {}

  void Describe(std::span<const Tensor> inputs, std::span<Output> outputs) const override {
    const Tensor& a = inputs[0];
    RequireFloat("A", a);
    Require(a.shape.size() >= axis_ + 2, "input A must be (batch, m, n, ...), got ", a.shape);
    outputs[0] = {a.type, a.shape};
    std::swap(outputs[0].shape[axis_], outputs[0].shape[axis_ + 1]);
    if (StaysInOrder(a)) outputs[0].same_as = 0;
  }
  void Append(std::span<const Tensor> inputs, std::span<const Output>,
              std::span<void* const> buffers, Plan& plan) const override {
    const Tensor& a = inputs[0];
    if (StaysInOrder(a)) return CopyWhole(a, buffers[0], plan);
    const int64_t bytes = BytesOfA(a);
    if (bytes == 0) return;
    const int64_t batch =
        std::accumulate(a.shape.begin(), a.shape.begin() + axis_, int64_t{1}, std::multiplies<>());
    const int64_t m = a.shape[axis_], n = a.shape[axis_ + 1];
    const int64_t run = bytes / (batch * m * n);
    plan.steps.emplace_back(
        MoveStep{{batch, n, m}, {m * n * run, run, n * run}, run, a.data, buffers[0]});
  }

 private:
  bool StaysInOrder(const Tensor& a) const {
    return a.shape[axis_] == 1 || a.shape[axis_ + 1] == 1;
  }

  const size_t axis_;
};

void InferTranspose(const ShapeContext& context) {
  auto value = RequiredActivations(context);
  const auto axis = static_cast<size_t>(context.Int("axis", 1));
  if (value.dims.size() > axis + 1) std::swap(value.dims[axis], value.dims[axis + 1]);
  context.SetOutput(0, value);
}

}  // namespace

std::vector<int64_t> SizesOf(std::string_view text) {
  std::vector<int64_t> sizes;
  while (true) {
    const char* const end = text.data() + text.size();
    int64_t size = 0;
    const auto [at, error] = std::from_chars(text.data(), end, size);
    Require(error == std::errc() && size >= -1,
            "attribute sizes must be numbers of -1 or more, got '", text, "'");
    sizes.push_back(size);
    if (at == end) return sizes;
    Require(*at == ',', "attribute sizes must be divided by commas, got '", text, "'");
    text = std::string_view(at + 1, end);
  }
}

std::string TextOf(std::span<const int64_t> sizes) {
  std::string text;
  for (const int64_t size : sizes) text += (text.empty() ? "" : ",") + std::to_string(size);
  return text;
}

std::optional<std::vector<ShapeContext::Dim>> Reshaped(const std::vector<ShapeContext::Dim>& source,
                                                       std::span<const int64_t> sizes) {
  std::vector<ShapeContext::Dim> result;
  Size others = 1, rest = 1;  // of the sizes, and of the dimensions that they replace
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] < -1 || (sizes[i] == 0 && i >= source.size())) return std::nullopt;
    result.push_back(sizes[i] == 0 ? source[i] : ShapeContext::Dim{sizes[i]});
    if (sizes[i] > 0) others = others * sizes[i];
  }
  const auto open = std::ranges::find(sizes, -1);
  if (open == sizes.end()) return result;
  for (size_t i = 0; i < source.size(); ++i) {
    if (i < sizes.size() && sizes[i] == 0) continue;
    if (source[i].value < 1) return std::nullopt;
    rest = rest * source[i].value;
  }
  if (!rest.InRange() || !others.InRange()) return std::nullopt;
  const int64_t all = rest.As("a dimension"), given = others.As("a dimension");
  if (all % given != 0) return std::nullopt;
  result[static_cast<size_t>(open - sizes.begin())] = {all / given};
  return result;
}

OpDescription DescribeReshape() {
  return {.name = "Reshape",
          .inputs = 1,
          .required_inputs = 1,
          .attributes = {TextAttribute("sizes")},
          .create = MakeOp<Reshape>,
          .infer = InferReshape,
          .passes_on = true};
}

OpDescription DescribeSplit() {
  return {.name = "Split",
          .inputs = 1,
          .required_inputs = 1,
          .outputs = kMostOutputs,
          .attributes = {{.name = "axis", .required = true, .least = 0, .most = Shape::kInPlace},
                         TextAttribute("sizes")},
          .create = MakeOp<Split>,
          .infer = InferSplit};
}

OpDescription DescribeTranspose() {
  return {.name = "Transpose",
          .inputs = 1,
          .required_inputs = 1,
          .attributes = {{.name = "axis", .least = 1, .most = Shape::kInPlace - 2}},
          .create = MakeOp<Transpose>,
          .infer = InferTranspose,
          .passes_on = true};
}

}  // namespace ort_aie
