#include "ort/ep/recipe.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdlib>
#include <limits>
#include <locale>
#include <optional>
#include <sstream>
#include <utility>

#include "base/error.h"
#include "ops/flow_attention.h"
#include "ops/format.h"

namespace ort_aie::ep {
namespace {

// What a recipe may say of an op. An attribute without bounds counts nothing: what the model had.
struct IntRule {
  const char* name;
  bool required = false;
  int64_t least = std::numeric_limits<int64_t>::min(), most = std::numeric_limits<int64_t>::max();
};
enum class Constants { kNone, kFloat, kInt32, kInt64, kIndex };
struct OpRule {
  const char* name;
  std::vector<IntRule> ints;
  std::vector<const char*> floats, strings;
  std::vector<Constants> inputs;  // what each may be where it is a constant
  size_t outputs;                 // all are required
  bool has_weights;
};

constexpr int64_t kMostHeads = std::numeric_limits<int32_t>::max();

const OpRule& RuleOf(Kind kind) {
  using enum Constants;
  static const auto& rules = *new std::array<OpRule, 3>{
      OpRule{"Q4NXMatMul",
             {{"format", true},
              {"K", true, 1},
              {"N", true, 1},
              {"bits", false, 2, 4},
              {"accuracy_level"},
              {"symmetric", false, 0, 1}},
             {},
             {},
             {kFloat, kNone, kFloat},  // A, W, bias
             1,
             true},
      OpRule{"FlowAttention",
             {{"format", true},
              {"num_heads", true, 1, kMostHeads},
              {"kv_num_heads", true, 1, kMostHeads},
              {"do_rotary"},
              {"rotary_interleaved"},
              {"local_window_size"},
              {"smooth_softmax"},
              {"causal"},
              {"sliding_window_cache"},
              {"qk_output"},
              {"float32_products"},
              {"kv_cache_bit_width"}},
             {"scale", "softcap", "qk_norm_epsilon"},
             {"k_quant_type", "v_quant_type"},
             // as FlowAttention::Input has them
             {kFloat, kFloat, kFloat, kFloat, kFloat, kInt32, kInt32, kFloat, kFloat, kInt64,
              kFloat, kFloat, kFloat, kFloat, kFloat, kFloat, kInt64},
             3,
             false},
      OpRule{"Q4NXGather",
             {{"format", true}, {"K", true, 1}, {"N", true, 1}, {"bits", false, 2, 4}, {"dtype"}},
             {},
             {},
             {kNone, kIndex},  // W, indices
             1,
             true}};
  return rules[static_cast<size_t>(kind)];
}

bool MayBe(Constants constants, DataType type) {
  switch (constants) {
    case Constants::kFloat:
      return IsFloat(type);
    case Constants::kInt32:
      return type == DataType::kInt32;
    case Constants::kInt64:
      return type == DataType::kInt64;
    case Constants::kIndex:
      return type == DataType::kInt32 || type == DataType::kInt64;
    case Constants::kNone:
      break;
  }
  return false;
}

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
  recipe.inputs.resize(RuleOf(claim.kind).inputs.size());
  switch (claim.kind) {
    case Kind::kMatMul:
      recipe.ints["accuracy_level"] = node.Int("accuracy_level", 0);
      // Without zero points each is 8 or, of 2 bits, 2: a power of two times scale is exact.
      recipe.ints["symmetric"] = node.input(3) ? 0 : 1;
      break;
    case Kind::kGather:
      recipe.ints["dtype"] = NumberOf(node.input(2).initializer.type);
      break;
    case Kind::kAttention:
      for (const IntRule& rule : RuleOf(claim.kind).ints) {
        if (node.Has(rule.name)) recipe.ints[rule.name] = node.Int(rule.name, 0);
      }
      for (const char* name : RuleOf(claim.kind).floats) {
        if (node.Has(name)) recipe.floats[name] = node.Float(name, 0.0f);
      }
      for (const char* name : RuleOf(claim.kind).strings) {
        if (node.Has(name)) recipe.strings[name] = node.String(name, "");
      }
      break;
  }
  recipe.ints["format"] = kFormat;
  for (size_t i = 0; i < recipe.inputs.size(); ++i) {
    recipe.inputs[i] = PositionOf(fused.inputs(), InputAt(claim, static_cast<int>(i)));
  }
  if (claim.projection != nullptr) {
    recipe.ints["K"] = claim.projection->Int("K", 0);
    recipe.ints["N"] = claim.projection->Int("N", 0);
    recipe.ints["bits"] = claim.projection->Int("bits", 4);
  }
  for (size_t i = 0; i < RuleOf(claim.kind).outputs; ++i) {
    recipe.outputs.push_back(PositionOf(fused.outputs(), node.output(i)));
  }
  return recipe;
}

// Lines of a key and values; floats in hexadecimal, so that none is rounded.
std::string ToText(const Recipe& recipe) {
  std::ostringstream text;
  text.imbue(std::locale::classic());
  text << std::hexfloat << "op " << RuleOf(recipe.kind).name << '\n';
  for (const auto& [name, value] : recipe.ints) text << "int " << name << ' ' << value << '\n';
  for (const auto& [name, value] : recipe.floats) text << "float " << name << ' ' << value << '\n';
  for (const auto& [name, value] : recipe.strings) {
    text << "string " << name << ' ' << value << '\n';
  }
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

namespace {

// A line of a recipe, word by word.
class Line {
 public:
  explicit Line(const std::string& line) : words_(line) { words_.imbue(std::locale::classic()); }

  template <typename T>
  bool Take(T& word) {
    return static_cast<bool>(words_ >> word);
  }
  bool TakeFloat(float& number) {
    std::string word;
    if (!Take(word)) return false;
    char* end = nullptr;
    number = std::strtof(word.c_str(), &end);  // streams do not read hexadecimal
    return end == word.c_str() + word.size();
  }
  // The rest of the line.
  template <typename T>
  bool TakeAll(std::vector<T>& numbers) {
    while (!AtEnd()) {
      if (!Take(numbers.emplace_back())) return false;
    }
    return true;
  }
  bool AtEnd() { return (words_ >> std::ws).eof(); }

 private:
  std::istringstream words_;
};

// Whether it is a line of a recipe, and not there yet.
bool Read(Line& line, const std::string& key, std::optional<Kind>& kind, Recipe& recipe) {
  std::string name;
  if (key == "op") {
    if (kind || !line.Take(name)) return false;
    for (Kind known : {Kind::kMatMul, Kind::kAttention, Kind::kGather}) {
      if (name == RuleOf(known).name) kind = known;
    }
    return kind.has_value();
  }
  if (key == "int") {
    int64_t number = 0;
    return line.Take(name) && line.Take(number) && recipe.ints.try_emplace(name, number).second;
  }
  if (key == "float") {
    float number = 0;
    return line.Take(name) && line.TakeFloat(number) &&
           recipe.floats.try_emplace(name, number).second;
  }
  if (key == "string") {
    std::string text;
    return line.Take(name) && line.Take(text) && recipe.strings.try_emplace(name, text).second;
  }
  if (key == "inputs") return recipe.inputs.empty() && line.TakeAll(recipe.inputs);
  if (key == "outputs") return recipe.outputs.empty() && line.TakeAll(recipe.outputs);
  if (key == "weights") {
    return recipe.weights.size == 0 && line.Take(recipe.weights.offset) &&
           line.Take(recipe.weights.size);
  }
  if (key == "constant") {
    int position = 0, type = 0;
    std::vector<int64_t> dims;
    Recipe::Constant constant;
    const bool good = line.Take(position) && line.Take(type) && line.Take(constant.span.offset) &&
                      line.Take(constant.span.size) && line.TakeAll(dims);
    if (!good || type < 0 || type >= static_cast<int>(DataType::kOther)) return false;
    constant.type = static_cast<DataType>(type);
    constant.shape = Shape(dims.begin(), dims.end());
    return recipe.constants.try_emplace(position, std::move(constant)).second;
  }
  return false;
}

template <typename... Parts>
[[noreturn]] void Refuse(const Parts&... parts) {
  Fail(ErrorCode::kInvalidArgument, "EPContext: ", parts..., "; generate the context model again");
}

void CheckAttributes(const Recipe& recipe, const OpRule& rule) {
  for (const auto& [name, value] : recipe.ints) {
    const auto is_named = [&](const IntRule& known) { return name == known.name; };
    const auto known = std::ranges::find_if(rule.ints, is_named);
    if (known == rule.ints.end()) Refuse(rule.name, " has no attribute ", name);
    if (value < known->least || value > known->most) {
      Refuse("attribute ", name, " of ", rule.name, " is ", value, ", expected ", known->least,
             " to ", known->most);
    }
  }
  for (const IntRule& known : rule.ints) {
    if (known.required && !recipe.ints.contains(known.name)) {
      Refuse("attribute ", known.name, " of ", rule.name, " is missing");
    }
  }
  for (const auto& [name, value] : recipe.floats) {
    if (std::ranges::find(rule.floats, name) == rule.floats.end()) {
      Refuse(rule.name, " has no attribute ", name);
    }
  }
  for (const auto& [name, value] : recipe.strings) {
    if (std::ranges::find(rule.strings, name) == rule.strings.end()) {
      Refuse(rule.name, " has no attribute ", name);
    }
  }
  CheckFormat(recipe.ints.at("format"));
}

// The positions of a fused node that has `count` values.
void CheckPositions(const OpRule& rule, const char* what, const std::vector<int>& positions,
                    size_t expected, size_t count) {
  if (positions.size() != expected) {
    Refuse(rule.name, " has ", expected, " ", what, ", the recipe ", positions.size());
  }
  for (const int position : positions) {
    if (position == Recipe::kAbsent) continue;
    if (position < 0 || std::cmp_greater_equal(position, count)) {
      Refuse("it has ", count, " ", what, ", expected one at ", position);
    }
  }
}

void CheckOutputs(const Recipe& recipe, const OpRule& rule) {
  for (size_t i = 0; i < recipe.outputs.size(); ++i) {
    if (recipe.outputs[i] == Recipe::kAbsent)
      Refuse("output ", i, " of ", rule.name, " is missing");
    const auto end = recipe.outputs.begin() + static_cast<std::ptrdiff_t>(i);
    if (std::find(recipe.outputs.begin(), end, recipe.outputs[i]) != end) {
      Refuse("two outputs of ", rule.name, " are one value");
    }
  }
}

void CheckConstants(const Recipe& recipe, const OpRule& rule) {
  for (const auto& [position, constant] : recipe.constants) {
    if (position < 0 || std::cmp_greater_equal(position, rule.inputs.size())) {
      Refuse(rule.name, " has no input ", position);
    }
    const auto i = static_cast<size_t>(position);
    if (recipe.inputs[i] != Recipe::kAbsent || !MayBe(rule.inputs[i], constant.type)) {
      Refuse("input ", position, " of ", rule.name, " cannot be a constant ",
             NameOf(constant.type));
    }
    if (recipe.kind == Kind::kMatMul && position == 2 &&
        constant.shape != Shape{recipe.ints.at("N")}) {
      Refuse("the bias is ", constant.shape, ", expected (", recipe.ints.at("N"), ")");
    }
    const Size bytes = ByteCount(constant.type, constant.shape);
    if (bytes != constant.span.size) {
      Refuse("constant ", position, " of ", rule.name, " has ", constant.span.size,
             " bytes, expected ", bytes, " for ", constant.shape);
    }
  }
}

void CheckWeights(const Recipe& recipe, const OpRule& rule) {
  if (!rule.has_weights) {
    if (recipe.weights.size != 0) Refuse(rule.name, " has no weights");
    return;
  }
  const int64_t n = recipe.ints.at("N"), k = recipe.ints.at("K");
  const Size bytes = q4nx::BytesOfBlocks<Size>(n, k, FormOf(recipe));
  if (bytes != recipe.weights.size) {
    Refuse("weights of ", recipe.weights.size, " bytes, expected ", bytes, " for K=", k, " N=", n);
  }
}

}  // namespace

WeightForm FormOf(const Recipe& recipe) {
  const auto bits = recipe.ints.find("bits");
  return q4nx::FormOfBits(bits != recipe.ints.end() ? bits->second : 4);
}

Recipe RecipeFrom(const std::string& text, size_t inputs, size_t outputs) {
  Recipe recipe{};
  std::optional<Kind> kind;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    Line words(line);
    std::string key;
    if (!words.Take(key) || !Read(words, key, kind, recipe) || !words.AtEnd()) {
      Refuse("line '", line, "' is not understood");
    }
  }
  if (!kind) Refuse("no operator is named");
  recipe.kind = *kind;
  const OpRule& rule = RuleOf(recipe.kind);
  CheckAttributes(recipe, rule);
  CheckPositions(rule, "inputs", recipe.inputs, rule.inputs.size(), inputs);
  CheckPositions(rule, "outputs", recipe.outputs, rule.outputs, outputs);
  CheckOutputs(recipe, rule);
  CheckConstants(recipe, rule);
  CheckWeights(recipe, rule);
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

std::string RecipeInfo::String(const char* attribute) const {
  const auto found = recipe_.strings.find(attribute);
  return found != recipe_.strings.end() ? found->second : "";
}

Tensor RecipeInfo::ConstantInput(size_t index) const {
  const size_t weights = recipe_.kind == Kind::kGather ? 0 : 1;
  return index == weights ? weights_ : Tensor{};
}

}  // namespace ort_aie::ep
