#include "ops/weights.h"

#include "base/error.h"
#include "ops/format.h"

namespace ort_aie {
namespace {

DataType TypeOf(const WeightForm& form) {
  return form.kind == WeightKind::kBf16 ? DataType::kBfloat16 : DataType::kUint8;
}

// What differs from the shipping form, in errors.
std::string Described(const WeightForm& form) {
  std::string text;
  if (form.kind == WeightKind::kBf16) return text;
  if (form.kind != WeightKind::kQ4NX) text = Concat(" bits=", q4nx::BitsOf(form.kind));
  if (form == WeightForm{form.kind}) return text;
  return Concat(text, " group=", form.group, " minima=", form.minima ? 1 : 0);
}

WeightForm FormOf(const WeightAttributes& attributes) {
  const auto& [k, n, bits, format, group, minima, bf16] = attributes;
  if (bf16) {
    CheckFormat(format);
    return {WeightKind::kBf16};
  }
  Require(format == kFormat || format == kFormatOfForms, "the model has format ", format,
          ", but this library reads formats ", kFormat, " and ", kFormatOfForms,
          "; compile the model again with this version (ort-aie compile)");
  Require(q4nx::IsBits(bits), "attribute bits must be 2, 4 or 8, got ", bits);
  if (format != kFormatOfForms) return {q4nx::KindOfBits(bits)};
  Require(q4nx::IsGroup(group), "attribute group must be 32, 64, 128 or 256, got ", group);
  Require(minima == 0 || minima == 1, "attribute minima must be 0 or 1, got ", minima);
  return {q4nx::KindOfBits(bits), group, minima == 1};
}

}  // namespace

std::vector<AttributeRule> WithForm(std::vector<AttributeRule> others) {
  others.push_back({.name = "format", .required = true});
  others.push_back({.name = "bits", .least = 2, .most = 8});
  others.push_back({.name = "group", .least = 32, .most = 256});
  others.push_back({.name = "minima", .least = 0, .most = 1});
  return others;
}

WeightAttributes ReadWeightAttributes(const NodeInfo& info) {
  return {.bits = info.Int("bits", 4),
          .format = info.Int("format", 0),
          .group = info.Int("group", 0),
          .minima = info.Int("minima", 1)};
}

void StateForm(const WeightForm& form, std::map<std::string, int64_t>& attributes) {
  attributes["format"] = kFormat;
  if (form.kind != WeightKind::kQ4NX) attributes["bits"] = q4nx::BitsOf(form.kind);
  if (form.group == q4nx::kGroup && form.minima) return;
  attributes["format"] = kFormatOfForms;
  attributes["group"] = form.group;
  attributes["minima"] = form.minima ? 1 : 0;
}

void CheckFormat(int64_t format) {
  Require(format == kFormat, "the model has format ", format, ", but this library reads format ",
          kFormat, "; compile the model again with this version (ort-aie compile)");
}

Shape BlocksShape(int64_t n, int64_t k, const WeightForm& form) {
  const auto element_bytes = static_cast<int64_t>(SizeOf(TypeOf(form)));
  return {q4nx::RowBlocks(n), q4nx::ColBlocks(k), q4nx::BlockBytes(form) / element_bytes};
}

Weights CheckWeights(const char* name, const WeightAttributes& attributes, const Tensor& w,
                     std::optional<int64_t> experts) {
  const WeightForm form = FormOf(attributes);
  const int64_t k = attributes.k, n = attributes.n;
  Require(k > 0 && n > 0, "attributes K and N must be positive, got K=", k, " N=", n);
  Require(static_cast<bool>(w), "input ", name, " must be a constant initializer");
  Shape expected = BlocksShape(n, k, form);
  if (experts) expected = {*experts, expected[0], expected[1], expected[2]};
  Require(w.type == TypeOf(form) && w.shape == expected, "input ", name, " must be ",
          NameOf(TypeOf(form)), " ", expected, " for K=", k, " N=", n, Described(form), ", got ",
          NameOf(w.type), " ", w.shape);
  const Size bytes = q4nx::BytesOfBlocks<Size>(n, k, form) * experts.value_or(1);
  Require(bytes == w.bytes, "input ", name, " has ", w.bytes, " bytes, expected ", bytes,
          " for K=", k, " N=", n);
  return {w.as<uint8_t>(), k, n, form};
}

}  // namespace ort_aie
