#include "ops/weights.h"

#include <algorithm>

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
  if (form.kind == WeightKind::kFile) return Concat(" type=", q4nx::FileFormOf(form.type).name);
  if (form.kind != WeightKind::kQ4NX) text = Concat(" bits=", q4nx::BitsOf(form.kind));
  if (form == WeightForm{form.kind}) return text;
  return Concat(text, " group=", form.group, " minima=", form.minima ? 1 : 0);
}

WeightForm FormOf(const WeightAttributes& attributes) {
  const auto& [k, n, bits, format, group, minima, type, bf16] = attributes;
  if (bf16) return {WeightKind::kBf16};
  if (!type.empty()) {
    Require(format == kFormatOfFiles, "attribute type needs format ", kFormatOfFiles, ", got ",
            format);
    return q4nx::FormOf(FileTypeNamed(type));
  }
  Require(q4nx::IsBits(bits), "attribute bits must be 2, 4 or 8, got ", bits);
  if (format == kFormat) return {q4nx::KindOfBits(bits)};
  Require(q4nx::IsGroup(group), "attribute group must be 32, 64, 128 or 256, got ", group);
  Require(minima == 0 || minima == 1, "attribute minima must be 0 or 1, got ", minima);
  return {q4nx::KindOfBits(bits), group, minima == 1};
}

}  // namespace

FileType FileTypeNamed(const std::string& name) {
  const auto found = std::ranges::find(q4nx::kFileForms, name, &q4nx::FileForm::name);
  if (found != std::ranges::end(q4nx::kFileForms)) {
    return static_cast<FileType>(found - q4nx::kFileForms);
  }
  std::string names;
  for (const q4nx::FileForm& form : q4nx::kFileForms) names += Concat(", ", form.name);
  Fail(ErrorCode::kInvalidGraph, "attribute type must be one of ", names.substr(2), ", got '", name,
       "'");
}

OpDescription WithForm(OpDescription op) {
  op.last_format = kFormatOfFiles;
  op.attributes.push_back({.name = "bits", .least = 2, .most = 8});
  op.attributes.push_back({.name = "group", .least = 32, .most = 256});
  op.attributes.push_back({.name = "minima", .least = 0, .most = 1});
  op.attributes.push_back(TextAttribute("type"));
  return op;
}

WeightAttributes ReadWeightAttributes(const NodeInfo& info) {
  return {.k = info.Int("K", 0),
          .n = info.Int("N", 0),
          .bits = info.Int("bits", 4),
          .format = info.Int("format", 0),
          .group = info.Int("group", 0),
          .minima = info.Int("minima", 1),
          .type = info.String("type")};
}

void StateForm(const WeightForm& form, std::map<std::string, int64_t>& attributes) {
  attributes["format"] = kFormat;
  if (form.kind != WeightKind::kQ4NX) attributes["bits"] = q4nx::BitsOf(form.kind);
  if (form.group == q4nx::kGroup && form.minima) return;
  attributes["format"] = kFormatOfForms;
  attributes["group"] = form.group;
  attributes["minima"] = form.minima ? 1 : 0;
}

Shape BlocksShape(int64_t n, int64_t k, const WeightForm& form) {
  const auto element_bytes = static_cast<int64_t>(SizeOf(TypeOf(form)));
  return {q4nx::RowBlocks(n), q4nx::ColBlocks(k, form), q4nx::BlockBytes(form) / element_bytes};
}

Weights CheckWeights(const char* name, const WeightAttributes& attributes, const Tensor& w,
                     std::optional<int64_t> experts) {
  const WeightForm form = FormOf(attributes);
  const int64_t k = attributes.k, n = attributes.n;
  Require(k > 0 && n > 0, "attributes K and N must be positive, got K=", k, " N=", n);
  const int64_t columns = q4nx::ColumnsOf(form);
  Require(form.kind != WeightKind::kFile || k % columns == 0, "attribute K must be a multiple of ",
          columns, " for input ", name, " with", Described(form), ", got ", k);
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
