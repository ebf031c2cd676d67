#include "ops/recipe.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <concepts>
#include <utility>

#include "base/error.h"

namespace ort_aie {
namespace {

// More tensors than any model has. Readers reserve a place for each input before they count them.
constexpr int kMostRecipeInputs = 1 << 20;

// More dimensions than any model's tensor has. Each of a chain of gathers adds one.
constexpr size_t kMostDimensions = 64;

constexpr std::string_view kBlanks = " \t\n\v\f\r";

std::string Escaped(std::string_view text) {
  constexpr char kDigits[] = "0123456789ABCDEF";
  std::string escaped;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte > ' ' && byte != '%' && byte != 0x7f) {
      escaped += c;
    } else {
      escaped += {'%', kDigits[byte >> 4], kDigits[byte & 15]};
    }
  }
  return escaped.empty() ? "%" : escaped;
}

// Whether the whole word is a number; `how` is a base or a std::chars_format. Unlike strtof and
// streams, from_chars reads the same in every locale.
template <typename T, typename How>
bool ReadNumber(std::string_view word, T& number, How how) {
  const char* const end = word.data() + word.size();
  const auto [at, error] = std::from_chars(word.data(), end, number, how);
  return error == std::errc() && at == end;
}

bool Unescape(std::string_view word, std::string& text) {
  if (word == "%") return true;
  for (size_t i = 0; i < word.size(); ++i) {
    if (word[i] != '%') {
      text += word[i];
      continue;
    }
    uint8_t byte = 0;
    if (i + 2 >= word.size() || !ReadNumber(word.substr(i + 1, 2), byte, 16)) return false;
    text += static_cast<char>(byte);
    i += 2;
  }
  return true;
}

// As C's %a writes it: -0x1.8p+1, and inf and nan without the prefix.
std::string HexText(float number) {
  char digits[32];
  const double size = std::fabs(number);  // as a double, of which even the smallest has a leading 1
  const char* const end =
      std::to_chars(digits, digits + sizeof(digits), size, std::chars_format::hex).ptr;
  return Concat(std::signbit(number) ? "-" : "", std::isfinite(number) ? "0x" : "",
                std::string_view(digits, end));
}

bool ReadHex(std::string_view word, float& number) {
  const bool negative = word.starts_with('-');
  if (negative) word.remove_prefix(1);
  const bool prefix = word.starts_with("0x");
  if (prefix) word.remove_prefix(2);
  if (word.starts_with('-')) return false;  // from_chars takes a sign too
  const auto format = prefix ? std::chars_format::hex : std::chars_format::general;
  if (!ReadNumber(word, number, format)) return false;
  if (negative) number = -number;
  return true;
}

// A line of a recipe, word by word.
class Line {
 public:
  explicit Line(std::string_view line) : rest_(line) {}

  // False at the end.
  bool Read(std::string& word) {
    word = Next();
    return !word.empty();
  }
  template <std::integral T>
  bool Read(T& number) {
    return ReadNumber(Next(), number, 10);
  }
  bool ReadText(std::string& text) {
    const std::string_view word = Next();
    return !word.empty() && Unescape(word, text);
  }
  bool ReadFloat(float& number) { return ReadHex(Next(), number); }
  // The rest of the line.
  template <typename T>
  bool ReadAll(std::vector<T>& numbers) {
    while (!AtEnd()) {
      if (!Read(numbers.emplace_back())) return false;
    }
    return true;
  }
  bool AtEnd() const { return rest_.find_first_not_of(kBlanks) == std::string_view::npos; }

 private:
  std::string_view Next() {
    rest_.remove_prefix(std::min(rest_.find_first_not_of(kBlanks), rest_.size()));
    const std::string_view word = rest_.substr(0, rest_.find_first_of(kBlanks));
    rest_.remove_prefix(word.size());
    return word;
  }

  std::string_view rest_;
};

// Takes a line off a text.
std::string_view TakeLine(std::string_view& text) {
  const std::string_view line = text.substr(0, text.find('\n'));
  text.remove_prefix(std::min(line.size() + 1, text.size()));
  return line;
}

template <typename... Parts>
[[noreturn]] void Refuse(const Parts&... parts) {
  Fail(ErrorCode::kInvalidArgument, "recipe of a plan: ", parts...);
}

// The state of reading.
struct Reading {
  Recipe recipe;
  bool has_inputs = false, has_outputs = false;
  // Of the last step.
  bool has_reads = false, has_writes = false;
};

// Whether the line is a valid recipe line at this place.
bool Read(Line& line, const std::string& key, Reading& reading) {
  Recipe& recipe = reading.recipe;
  if (key == "inputs") {
    return !std::exchange(reading.has_inputs, true) && line.Read(recipe.inputs) &&
           recipe.inputs >= 0;
  }
  if (key == "constant") {
    int64_t type = 0;
    std::vector<int64_t> dims;
    Recipe::Constant constant;
    const bool good = recipe.steps.empty() && line.Read(type) && line.Read(constant.range.offset) &&
                      line.Read(constant.range.size) && line.ReadAll(dims);
    constant.type = TypeOfNumber(type);
    if (!good || constant.type == DataType::kOther) return false;
    constant.shape = Shape(dims.begin(), dims.end());
    recipe.constants.push_back(std::move(constant));
    return true;
  }
  if (key == "step") {
    reading.has_reads = reading.has_writes = false;
    Recipe::Step& step = recipe.steps.emplace_back();
    return line.Read(step.op) && line.ReadText(step.name);
  }
  if (key == "outputs") {
    return !std::exchange(reading.has_outputs, true) && line.ReadAll(recipe.outputs);
  }
  if (recipe.steps.empty()) return false;
  Recipe::Step& step = recipe.steps.back();
  std::string name;
  if (key == "int") {
    int64_t number = 0;
    return line.Read(name) && line.Read(number) && step.ints.try_emplace(name, number).second;
  }
  if (key == "float") {
    float number = 0;
    return line.Read(name) && line.ReadFloat(number) &&
           step.floats.try_emplace(name, number).second;
  }
  if (key == "string") {
    std::string text;
    return line.Read(name) && line.ReadText(text) && step.strings.try_emplace(name, text).second;
  }
  if (key == "reads") {
    return !std::exchange(reading.has_reads, true) && line.ReadAll(step.reads);
  }
  if (key == "writes") {
    return !std::exchange(reading.has_writes, true) && line.ReadAll(step.writes);
  }
  return false;
}

void CheckAttributes(const Recipe::Step& step, const OpDescription& op) {
  const auto find = [&](const std::string& name, AttributeRule::Kind kind) {
    const auto is_it = [&](const AttributeRule& rule) {
      return name == rule.name && kind == rule.kind;
    };
    const auto found = std::ranges::find_if(op.attributes, is_it);
    if (found == op.attributes.end()) Refuse(step.op, " has no attribute ", name);
    return *found;
  };
  for (const auto& [name, value] : step.ints) {
    const AttributeRule rule = find(name, AttributeRule::kInt);
    if (value < rule.least || value > rule.most) {
      Refuse("attribute ", name, " of ", step.op, " '", step.name, "' is ", value, ", expected ",
             rule.least, " to ", rule.most);
    }
  }
  for (const auto& [name, value] : step.floats) find(name, AttributeRule::kFloat);
  for (const auto& [name, value] : step.strings) find(name, AttributeRule::kString);
  for (const AttributeRule& rule : op.attributes) {
    if (rule.required && !step.ints.contains(rule.name)) {
      Refuse("attribute ", rule.name, " of ", step.op, " '", step.name, "' is missing");
    }
  }
}

// Checks that a step has no more values than its op can have, and has the required ones.
void CheckPositions(const Recipe::Step& step, const char* what, const std::vector<int>& values,
                    size_t most, size_t required) {
  if (values.size() > most) {
    Refuse(step.op, " '", step.name, "' ", what, " ", values.size(), " values, expected at most ",
           most);
  }
  for (size_t i = 0; i < required; ++i) {
    if (i >= values.size() || values[i] == Recipe::kAbsent) {
      Refuse(step.op, " '", step.name, "' ", what, " no value at position ", i);
    }
  }
}

void CheckConstants(const Recipe& recipe) {
  for (const Recipe::Constant& constant : recipe.constants) {
    const Size bytes = ByteCount(constant.type, constant.shape);
    if (bytes != constant.range.size) {
      Refuse("a constant has ", constant.range.size, " bytes, expected ", bytes, " for ",
             NameOf(constant.type), " ", constant.shape);
    }
  }
}

// Checks that each value is written once, before it is read.
void CheckValues(const Recipe& recipe) {
  const int given = recipe.inputs + static_cast<int>(recipe.constants.size());
  size_t written_values = 0;
  for (const Recipe::Step& step : recipe.steps) written_values += step.writes.size();
  std::vector<bool> written(written_values, false);
  const auto index = [&](int value) -> size_t {
    const int64_t at = int64_t{value} - given;
    if (at >= static_cast<int64_t>(written_values)) Refuse("there is no value ", value);
    return static_cast<size_t>(at);
  };
  for (const Recipe::Step& step : recipe.steps) {
    for (const int value : step.reads) {
      if (value == Recipe::kAbsent || (value >= 0 && value < given)) continue;
      if (value < 0 || !written[index(value)]) {
        Refuse(step.op, " '", step.name, "' reads value ", value,
               ", which no step before it writes");
      }
    }
    for (const int value : step.writes) {
      if (value == Recipe::kAbsent) continue;
      if (value < given || written[index(value)]) {
        Refuse(step.op, " '", step.name, "' writes value ", value, ", which exists already");
      }
      written[index(value)] = true;
    }
  }
  std::vector<bool> given_out(written_values, false);
  for (size_t i = 0; i < recipe.outputs.size(); ++i) {
    const int value = recipe.outputs[i];
    if (value == Recipe::kAbsent) continue;
    if (value < given || !written[index(value)]) {
      Refuse("output ", i, " is value ", value, ", which no step writes");
    }
    if (given_out[index(value)]) Refuse("two outputs are the same value");
    given_out[index(value)] = true;
  }
}

}  // namespace

int Recipe::values() const {
  int most = inputs + static_cast<int>(constants.size());
  for (const Step& step : steps) {
    for (const int value : step.writes) most = std::max(most, value + 1);
  }
  return most;
}

std::string ToText(const Recipe& recipe) {
  int64_t format = kRecipeFormat;
  for (const Recipe::Step& step : recipe.steps) {
    const auto its = step.ints.find("format");
    // The op itself refuses a format that it does not know.
    if (its == step.ints.end() || its->second > kLastRecipeFormat) continue;
    format = std::max(format, its->second);
  }
  std::string text = Concat("recipe ", format, "\ninputs ", recipe.inputs, '\n');
  const auto list = [&](const std::string& key, const auto& numbers) {
    text += key;
    for (const auto number : numbers) text += ' ' + std::to_string(number);
    text += '\n';
  };
  for (const Recipe::Constant& constant : recipe.constants) {
    list(Concat("constant ", NumberOf(constant.type), ' ', constant.range.offset, ' ',
                constant.range.size),
         constant.shape);
  }
  for (const Recipe::Step& step : recipe.steps) {
    text += Concat("step ", step.op, ' ', Escaped(step.name), '\n');
    for (const auto& [name, value] : step.ints) text += Concat("int ", name, ' ', value, '\n');
    for (const auto& [name, value] : step.floats) {
      text += Concat("float ", name, ' ', HexText(value), '\n');
    }
    for (const auto& [name, value] : step.strings) {
      text += Concat("string ", name, ' ', Escaped(value), '\n');
    }
    list("reads", step.reads);
    list("writes", step.writes);
  }
  list("outputs", recipe.outputs);
  return text;
}

Recipe RecipeFrom(const std::string& text) {
  Reading reading;
  std::string_view rest = text;
  const std::string_view head = TakeLine(rest);
  if (Line first(head); true) {
    std::string word;
    int format = 0;
    if (!first.Read(word) || word != "recipe" || !first.Read(format) || !first.AtEnd()) {
      Refuse("it begins with '", head.substr(0, 40), "', expected 'recipe ", kRecipeFormat, "'");
    }
    if (format < kRecipeFormat || format > kLastRecipeFormat) {
      Refuse("it has format ", format, ", but this library reads formats ", kRecipeFormat, " to ",
             kLastRecipeFormat,
             "; make the model again with this version (ort-aie compile, or the session that "
             "writes a context model)");
    }
  }
  while (!rest.empty()) {
    const std::string_view line = TakeLine(rest);
    Line words(line);
    std::string key;
    if (!words.Read(key) || !Read(words, key, reading) || !words.AtEnd()) {
      Refuse("line '", line.substr(0, 100), "' is not a line of a recipe");
    }
  }
  Recipe& recipe = reading.recipe;
  if (!reading.has_inputs) Refuse("it has no line 'inputs'");
  if (!reading.has_outputs) {
    Refuse("it has no line 'outputs', which should be its last line: the text is cut off");
  }
  if (recipe.inputs > kMostRecipeInputs) {
    Refuse("it has ", recipe.inputs, " inputs, expected at most ", kMostRecipeInputs);
  }
  for (const Recipe::Step& step : recipe.steps) {
    const OpDescription* op = FindOp(step.op);
    if (op == nullptr) Refuse("'", step.op, "' is not an operator of this library");
    CheckAttributes(step, *op);
    CheckPositions(step, "reads", step.reads, op->inputs, op->required_inputs);
    CheckPositions(step, "writes", step.writes, op->outputs, op->required_outputs);
  }
  CheckConstants(recipe);
  CheckValues(recipe);
  return std::move(recipe);
}

Recipe PlanRecipeFrom(const std::string& text) {
  Recipe recipe = RecipeFrom(text);
  if (!recipe.constants.empty()) Refuse("it has constants that are not inputs");
  for (size_t i = 0; i < recipe.outputs.size(); ++i) {
    if (recipe.outputs[i] == Recipe::kAbsent) Refuse("it leaves out output ", i);
  }
  return recipe;
}

int64_t StepInfo::Int(const char* attribute, int64_t fallback) const {
  const auto found = step_.ints.find(attribute);
  return found != step_.ints.end() ? found->second : fallback;
}

float StepInfo::Float(const char* attribute, float fallback) const {
  const auto found = step_.floats.find(attribute);
  return found != step_.floats.end() ? found->second : fallback;
}

std::string StepInfo::String(const char* attribute) const {
  const auto found = step_.strings.find(attribute);
  return found != step_.strings.end() ? found->second : "";
}

Tensor StepInfo::ConstantInput(size_t index) const {
  return index < constants_.size() ? constants_[index] : Tensor{};
}

namespace {

using Known = std::function<std::optional<ShapeContext::Value>(int)>;
using Set = std::function<void(int, const ShapeContext::Value&)>;

class StepShapes final : public ShapeContext {
 public:
  StepShapes(const Recipe::Step& step, const Known& known, const Set& set)
      : step_(step), known_(known), set_(set) {}

  std::optional<Value> Input(size_t index) const override {
    if (index >= step_.reads.size() || step_.reads[index] == Recipe::kAbsent) return std::nullopt;
    return known_(step_.reads[index]);
  }
  int64_t Int(const char* attribute, int64_t fallback) const override {
    return StepInfo(step_, {}).Int(attribute, fallback);
  }
  std::string String(const char* attribute) const override {
    return StepInfo(step_, {}).String(attribute);
  }
  void SetOutput(size_t index, const Value& value) const override {
    described_.at(index) = true;
    if (index < step_.writes.size() && step_.writes[index] != Recipe::kAbsent) {
      set_(step_.writes[index], value);
    }
  }
  bool Described(size_t index) const { return described_.at(index); }

 private:
  const Recipe::Step& step_;
  const Known& known_;
  const Set& set_;
  mutable std::array<bool, kMostOutputs> described_{};
};

}  // namespace

void InferStep(const Recipe::Step& step, const Known& known, const Set& set) {
  const StepShapes context(step, known, set);
  FindOp(step.op)->infer(context);
  // If the op does not describe an output, such as sum of a projection, it is like the first input.
  for (size_t i = 1; i < std::min(step.writes.size(), kMostOutputs); ++i) {
    if (const auto first = context.Input(0); first && !context.Described(i)) {
      context.SetOutput(i, *first);
    }
  }
}

std::vector<ShapeContext::Value> InferValues(
    const Recipe& recipe, std::span<const std::optional<ShapeContext::Value>> inputs) {
  std::vector<std::optional<ShapeContext::Value>> values(static_cast<size_t>(recipe.values()));
  std::copy_n(inputs.begin(), std::min(inputs.size(), static_cast<size_t>(recipe.inputs)),
              values.begin());
  for (size_t i = 0; i < recipe.constants.size(); ++i) {
    const Recipe::Constant& constant = recipe.constants[i];
    ShapeContext::Value& value =
        values[static_cast<size_t>(recipe.inputs) + i].emplace(NumberOf(constant.type));
    for (const int64_t dim : constant.shape) value.dims.push_back({dim});
  }
  for (const Recipe::Step& step : recipe.steps) {
    // Nothing says the type of what a node of ONNX Runtime before the plan writes.
    const std::span required = std::span(step.reads).first(FindOp(step.op)->required_inputs);
    const auto known = [&](int value) { return values[static_cast<size_t>(value)].has_value(); };
    if (!std::ranges::all_of(required, known)) continue;
    InferStep(
        step, [&](int value) { return values[static_cast<size_t>(value)]; },
        [&](int value, const ShapeContext::Value& its) {
          if (its.dims.size() > kMostDimensions) {
            Refuse(step.op, " '", step.name, "' writes a value with ", its.dims.size(),
                   " dimensions, expected at most ", kMostDimensions);
          }
          values[static_cast<size_t>(value)] = its;
        });
  }
  std::vector<ShapeContext::Value> known;
  for (auto& value : values) known.push_back(value.value_or(ShapeContext::Value{}));
  return known;
}

}  // namespace ort_aie
