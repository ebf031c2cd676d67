#include "ort/ep/recipe.h"

#include <array>
#include <cstdlib>
#include <sstream>

#include "ops/error.h"
#include "ops/flow_attention.h"
#include "ops/format.h"

namespace ort_aie::ep {
namespace {

constexpr std::array kKindNames = {"Q4NXMatMul", "FlowAttention", "Q4NXGather"};  // by Kind

constexpr const char* kAttentionInts[] = {
    "num_heads",         "kv_num_heads",   "do_rotary", "rotary_interleaved",
    "local_window_size", "smooth_softmax", "causal",    "sliding_window_cache",
    "qk_output"};
constexpr const char* kAttentionFloats[] = {"scale", "softcap", "qk_norm_epsilon"};

int PositionOf(const std::vector<Value>& values, const Value& value) {
  if (!value) return Recipe::kAbsent;
  for (size_t i = 0; i < values.size(); ++i) {
    if (values[i].name == value.name) return static_cast<int>(i);
  }
  return Recipe::kAbsent;
}

}  // namespace

const Value& InputAt(const Claim& claim, int position) {
  static const Value absent;
  const Node& node = *claim.node;
  switch (claim.kind) {
    case Kind::kMatMul:  // Q4NXMatMul(A, W, bias)
      return position == 0 ? node.input(0) : position == 2 ? node.input(5) : absent;
    case Kind::kGather:  // Q4NXGather(W, indices)
      return position == 1 ? node.input(1) : absent;
    default:
      return node.input(static_cast<size_t>(position));
  }
}

Recipe MakeRecipe(const Claim& claim, const Node& fused) {
  const Node& node = *claim.node;
  Recipe recipe{};
  recipe.kind = claim.kind;
  recipe.ints["format"] = kFormat;
  switch (claim.kind) {
    case Kind::kMatMul:
      recipe.inputs.resize(3);
      recipe.ints["accuracy_level"] = node.Int("accuracy_level", 0);
      // Without zero points each is 8 or, of 2 bits, 2: a power of two times scale is exact.
      recipe.ints["symmetric"] = node.input(3) ? 0 : 1;
      break;
    case Kind::kGather:
      recipe.inputs.resize(2);
      recipe.ints["dtype"] = ToOnnxType(node.input(2).initializer.type);
      break;
    case Kind::kAttention:
      recipe.inputs.resize(FlowAttention::kInputCount);
      for (const char* name : kAttentionInts) {
        if (node.Has(name)) recipe.ints[name] = node.Int(name, 0);
      }
      for (const char* name : kAttentionFloats) {
        if (node.Has(name)) recipe.floats[name] = node.Float(name, 0.0f);
      }
      break;
  }
  for (size_t i = 0; i < recipe.inputs.size(); ++i) {
    recipe.inputs[i] = PositionOf(fused.inputs(), InputAt(claim, static_cast<int>(i)));
  }
  if (claim.projection != nullptr) {
    recipe.ints["K"] = claim.projection->Int("K", 0);
    recipe.ints["N"] = claim.projection->Int("N", 0);
    recipe.ints["bits"] = claim.projection->Int("bits", 4);
  }
  for (const Value& output : node.outputs()) {
    recipe.outputs.push_back(PositionOf(fused.outputs(), output));
  }
  return recipe;
}

// Lines of a key and values; floats in hexadecimal, so that none is rounded.
std::string ToText(const Recipe& recipe) {
  std::ostringstream text;
  text << std::hexfloat << "op " << kKindNames[static_cast<size_t>(recipe.kind)] << '\n';
  for (const auto& [name, value] : recipe.ints) text << "int " << name << ' ' << value << '\n';
  for (const auto& [name, value] : recipe.floats) text << "float " << name << ' ' << value << '\n';
  const auto list = [&](const char* key, const std::vector<int>& values) {
    text << key;
    for (int value : values) text << ' ' << value;
    text << '\n';
  };
  list("inputs", recipe.inputs);
  list("outputs", recipe.outputs);
  if (recipe.weights.size > 0) {
    text << "weights " << recipe.weights.offset << ' ' << recipe.weights.size << '\n';
  }
  for (const auto& [position, c] : recipe.constants) {
    text << "constant " << position << ' ' << static_cast<int>(c.type) << ' ' << c.span.offset
         << ' ' << c.span.size;
    for (int64_t dim : c.shape) text << ' ' << dim;
    text << '\n';
  }
  return text.str();
}

Recipe RecipeFrom(const std::string& text) {
  Recipe recipe{};
  bool has_op = false;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string key, name, value;
    words >> key;
    bool good = true;
    if (key == "op") {
      words >> name;
      for (size_t i = 0; i < kKindNames.size(); ++i) {
        if (name != kKindNames[i]) continue;
        recipe.kind = static_cast<Kind>(i);
        has_op = true;
      }
    } else if (key == "int") {
      int64_t number = 0;
      good = static_cast<bool>(words >> name >> number);
      recipe.ints[name] = number;
    } else if (key == "float") {
      good = static_cast<bool>(words >> name >> value);
      recipe.floats[name] = std::strtof(value.c_str(), nullptr);
    } else if (key == "inputs" || key == "outputs") {
      auto& list = key == "inputs" ? recipe.inputs : recipe.outputs;
      for (int position; words >> position;) list.push_back(position);
    } else if (key == "weights") {
      good = static_cast<bool>(words >> recipe.weights.offset >> recipe.weights.size);
    } else if (key == "constant") {
      int position = 0, type = 0;
      Recipe::Constant constant;
      good = static_cast<bool>(words >> position >> type >> constant.span.offset >>
                               constant.span.size);
      constant.type = static_cast<DataType>(type);
      for (int64_t dim; words >> dim;) constant.shape.push_back(dim);
      good = good && position >= 0 && type >= 0 && type < static_cast<int>(DataType::kOther) &&
             constant.span.size ==
                 ElementCount(constant.shape) * static_cast<int64_t>(SizeOf(constant.type));
      recipe.constants[position] = constant;
    } else {
      good = false;
    }
    Require(good, "EPContext: line '", line,
            "' is not understood; generate the context model again");
  }
  Require(has_op, "EPContext: no operator is named; generate the context model again");
  return recipe;
}

int64_t RecipeInfo::Int(const char* attribute, int64_t fallback) const {
  const auto found = recipe_.ints.find(attribute);
  return found != recipe_.ints.end() ? found->second : fallback;
}

float RecipeInfo::Float(const char* attribute, float fallback) const {
  const auto found = recipe_.floats.find(attribute);
  return found != recipe_.floats.end() ? found->second : fallback;
}

Tensor RecipeInfo::ConstantInput(size_t index) const {
  const size_t weights = recipe_.kind == Kind::kGather ? 0 : 1;
  return index == weights ? weights_ : Tensor{};
}

std::optional<std::string> RecipeInfo::ConfigEntry(const char* name) const {
  const auto found = settings_.find(name);
  if (found == settings_.end()) return std::nullopt;
  return found->second;
}

}  // namespace ort_aie::ep
