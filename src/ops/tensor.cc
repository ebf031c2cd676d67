#include "ops/tensor.h"

#include <algorithm>
#include <iterator>

#include "base/error.h"

namespace ort_aie {

namespace {

struct TypeRow {
  DataType type;
  const char* name;
  int64_t number;  // ONNX's; 0: none
};
constexpr TypeRow kTypes[] = {
    {DataType::kFloat32, "float", kOnnxFloat},
    {DataType::kFloat16, "float16", kOnnxFloat16},
    {DataType::kBfloat16, "bfloat16", kOnnxBfloat16},
    {DataType::kUint8, "uint8", kOnnxUint8},
    {DataType::kInt8, "int8", kOnnxInt8},
    {DataType::kInt32, "int32", kOnnxInt32},
    {DataType::kInt64, "int64", kOnnxInt64},
    {DataType::kInt4, "int4", 0},
    {DataType::kOther, "another type", 0},
};

const TypeRow& RowOf(DataType type) { return *std::ranges::find(kTypes, type, &TypeRow::type); }

}  // namespace

const char* NameOf(DataType type) { return RowOf(type).name; }

DataType TypeOfNumber(int64_t number) {
  if (number == 0) return DataType::kOther;
  const auto* found = std::ranges::find(kTypes, number, &TypeRow::number);
  return found != std::end(kTypes) ? found->type : DataType::kOther;
}

int64_t NumberOf(DataType type) { return RowOf(type).number; }

void RequireFloat(const char* input, const Tensor& tensor) {
  Require(IsFloat(tensor.type), "input ", input, " must be float, float16 or bfloat16, got ",
          NameOf(tensor.type));
}

void RequireTensor(const char* input, const Tensor& tensor, DataType type, const Shape& shape) {
  Require(tensor.type == type && tensor.shape == shape, "input ", input, " must be ", NameOf(type),
          " ", shape, ", got ", NameOf(tensor.type), " ", tensor.shape);
}

}  // namespace ort_aie
