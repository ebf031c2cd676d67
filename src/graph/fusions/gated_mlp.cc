// gate, up, activation and multiplication -> Q4NXGatedMLP or GatedGEMM.
//
// Before: Mul(activation(P(A, W_gate)), P(A, W_up)), P being Q4NXMatMul or GEMM, the activation
//         tanh-Gelu or SiLU, which may be Mul(gate, sigmoid(gate)); or SwiGLU(P(...), P(...)); or
//         gate, up = Split(P(A, W)) in halves, and Mul(activation(gate), up)
// After:  the gated P(A, W_gate, W_up), or the gated P(A, W)
//
// Saves three tensors as wide as the MLP. For a long prompt, they are most of a layer's memory
// traffic apart from the weights.
#include <algorithm>
#include <array>

#include "graph/fusions.h"
#include "graph/fusions/match.h"
#include "q4nx/layout.h"

namespace ort_aie::graph {
namespace {

// Mul(activation(gate), up), none of whose parts is read by another item.
struct Product {
  const Item* last;
  int gate, up;
  std::string activation;           // by its name in the attribute
  std::vector<const Item*> before;  // the items of the activation
};

bool IsActivation(const Item* item, std::string_view function) {
  return item != nullptr && item->Is("Activation") &&
         Attributes(*item).String("function") == function;
}

// `item` read as Mul(gate, sigmoid(gate)).
std::optional<Product> SpelledOutSilu(const Steps& steps, const Item* item) {
  const auto factors = Operands(steps, item, "Mul");
  if (!factors) return std::nullopt;
  for (const auto& [gate, slope] : {*factors, std::pair(factors->second, factors->first)}) {
    const Item* sigmoid = MadeBy(steps, slope);
    if (IsActivation(sigmoid, "sigmoid") && Steps::Read(*sigmoid, 0) == gate &&
        steps.OnlyReader(slope) == item && steps.TimesRead(gate) == 2) {
      return Product{nullptr, gate, kAbsent, "silu", {sigmoid, item}};
    }
  }
  return std::nullopt;
}

std::optional<Product> ProductOf(const Steps& steps, const Item* last, int activated, int up) {
  const Item* item = MadeBy(steps, activated);
  if (item == nullptr || steps.OnlyReader(activated) != last || steps.OnlyReader(up) != last) {
    return std::nullopt;
  }
  auto product = SpelledOutSilu(steps, item);
  for (const char* function : {"silu", "gelu_tanh"}) {
    if (IsActivation(item, function) && steps.TimesRead(Steps::Read(*item, 0)) == 1) {
      product = Product{nullptr, Steps::Read(*item, 0), kAbsent, function, {item}};
    }
  }
  if (product) {
    product->last = last;
    product->up = up;
  }
  return product;
}

// A projection of a value with weights only: a gated one has no bias, and norms are fused later.
const Item* PlainMatMul(const Steps& steps, int value) {
  const Item* item = MadeBy(steps, value);
  if (!IsMatMul(item)) return nullptr;
  for (size_t i = kBias; i < item->step.reads.size(); ++i) {
    if (item->step.reads[i] != kAbsent) return nullptr;
  }
  return item;
}

// The step that replaces `product`, with the sizes of `projection`.
Recipe::Step Gated(const Product& product, const Item& projection, std::vector<int> reads) {
  Recipe::Step step;
  step.op = projection.Is("GEMM") ? "GatedGEMM" : "Q4NXGatedMLP";
  step.name = product.last->step.name;
  step.ints = projection.step.ints;
  step.strings = projection.step.strings;
  step.strings["activation"] = product.activation;
  step.reads = std::move(reads);
  step.writes = {Steps::Written(*product.last, 0)};
  return step;
}

void Fuse(Steps& steps, const Product& product, Recipe::Step step,
          std::initializer_list<const Item*> projections) {
  std::vector<const Item*> taken_in = projections;
  taken_in.insert(taken_in.end(), product.before.begin(), product.before.end());
  steps.Fuse(product.last, std::move(step), taken_in);
}

bool FuseTwo(Steps& steps, const Product& product) {
  const Item* gate = PlainMatMul(steps, product.gate);
  const Item* up = PlainMatMul(steps, product.up);
  if (gate == nullptr || up == nullptr || gate->step.op != up->step.op) return false;
  if (Steps::Read(*gate, kA) != Steps::Read(*up, kA)) return false;
  constexpr std::array kCommon = {"K", "N", "accuracy_level"};
  constexpr std::array kForm = {"format", "group", "minima"};
  const StepInfo of_gate = Attributes(*gate), of_up = Attributes(*up);
  const auto same = [&](const char* name) { return of_gate.Int(name, 0) == of_up.Int(name, 0); };
  if (!std::ranges::all_of(kCommon, same)) return false;
  if (!std::ranges::all_of(kForm, same) || of_gate.Int("bits", 4) != of_up.Int("bits", 4) ||
      of_gate.String("type") != of_up.String("type")) {
    steps.SetApart(product.last, "gate and up, whose weights have different forms");
    return false;
  }
  Recipe::Step step =
      Gated(product, *gate,
            {Steps::Read(*gate, kA), Steps::Read(*gate, kWeights), Steps::Read(*up, kWeights)});
  if (step.ints.contains("symmetric")) {
    step.ints["symmetric"] = std::min(of_gate.Int("symmetric", 0), of_up.Int("symmetric", 0));
  }
  Fuse(steps, product, std::move(step), {gate, up});
  return true;
}

// Whether the node splits a value (..., 2 * half) into halves along its last dimension.
bool IsInHalves(const Steps& steps, const Node& split, int64_t half) {
  const Value& both = steps.value(split.input(0));
  const int64_t axis = split.Int("axis", 0);
  const bool is_last = both.shape && axis == static_cast<int64_t>(both.shape->size()) - 1;
  if (axis != -1 && !is_last) return false;
  const std::vector<int64_t> halves = {half, half};
  if (split.input(1) != kAbsent) return Integers(steps.value(split.input(1))) == halves;
  const auto given = split.attributes.find("split");  // before opset 13
  return given == split.attributes.end() || given->second == Attribute(halves);
}

bool FusePacked(Steps& steps, const Product& product) {
  const Item* item = steps.Producer(product.gate);
  const Node* split = steps.node(item);
  if (split == nullptr || !split->Is("", "Split") ||
      split->outputs != std::vector<int>{product.gate, product.up}) {
    return false;
  }
  const int both = split->input(0);
  const Item* projection = PlainMatMul(steps, both);
  if (projection == nullptr || steps.OnlyReader(both) != item) return false;
  // Up must begin where a row of blocks begins.
  const int64_t n = Attributes(*projection).Int("N", 0);
  if (n % (2 * q4nx::kBlockRows) != 0 || !IsInHalves(steps, *split, n / 2)) return false;
  Recipe::Step step = Gated(product, *projection,
                            {Steps::Read(*projection, kA), Steps::Read(*projection, kWeights)});
  step.ints["N"] = n / 2;
  Fuse(steps, product, std::move(step), {projection, item});
  return true;
}

bool FuseSwiglu(Steps& steps, const Item* last) {
  const int gate = Steps::Read(*last, 0), up = Steps::Read(*last, 1);
  if (steps.OnlyReader(gate) != last || steps.OnlyReader(up) != last) return false;
  const Product product{last, gate, up, "silu", {}};
  return FuseTwo(steps, product) || FusePacked(steps, product);
}

bool FuseProduct(Steps& steps, const Item* last, int activated, int up) {
  const auto product = ProductOf(steps, last, activated, up);
  return product && (FuseTwo(steps, *product) || FusePacked(steps, *product));
}

}  // namespace

void FuseGatedMLP(Steps& steps) {
  FuseEach(steps, [&](const Item* last) {
    if (last->Is("SwiGLU")) return FuseSwiglu(steps, last);
    const auto factors = Operands(steps, last, "Mul");
    return factors && (FuseProduct(steps, last, factors->first, factors->second) ||
                       FuseProduct(steps, last, factors->second, factors->first));
  });
}

}  // namespace ort_aie::graph
