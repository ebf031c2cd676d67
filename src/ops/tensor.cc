#include "ops/tensor.h"

#include "base/error.h"

namespace ort_aie {

const char* NameOf(DataType type) {
  switch (type) {
    case DataType::kFloat32:
      return "float";
    case DataType::kFloat16:
      return "float16";
    case DataType::kBfloat16:
      return "bfloat16";
    case DataType::kUint8:
      return "uint8";
    case DataType::kInt32:
      return "int32";
    case DataType::kInt64:
      return "int64";
    case DataType::kInt8:
      return "int8";
    case DataType::kInt4:
      return "int4";
    case DataType::kOther:
      break;
  }
  return "another type";
}

DataType TypeOfNumber(int64_t number) {
  switch (number) {
    case kOnnxFloat:
      return DataType::kFloat32;
    case kOnnxFloat16:
      return DataType::kFloat16;
    case kOnnxBfloat16:
      return DataType::kBfloat16;
    case kOnnxUint8:
      return DataType::kUint8;
    case kOnnxInt8:
      return DataType::kInt8;
    case kOnnxInt32:
      return DataType::kInt32;
    case kOnnxInt64:
      return DataType::kInt64;
    default:
      return DataType::kOther;
  }
}

int64_t NumberOf(DataType type) {
  switch (type) {
    case DataType::kFloat32:
      return kOnnxFloat;
    case DataType::kFloat16:
      return kOnnxFloat16;
    case DataType::kBfloat16:
      return kOnnxBfloat16;
    case DataType::kUint8:
      return kOnnxUint8;
    case DataType::kInt8:
      return kOnnxInt8;
    case DataType::kInt32:
      return kOnnxInt32;
    case DataType::kInt64:
      return kOnnxInt64;
    case DataType::kInt4:
    case DataType::kOther:
      break;
  }
  return 0;
}

void RequireFloat(const char* input, const Tensor& tensor) {
  Require(IsFloat(tensor.type), "input ", input, " must be float, float16 or bfloat16, got ",
          NameOf(tensor.type));
}

void RequireTensor(const char* input, const Tensor& tensor, DataType type, const Shape& shape) {
  Require(tensor.type == type && tensor.shape == shape, "input ", input, " must be ", NameOf(type),
          " ", shape, ", got ", NameOf(tensor.type), " ", tensor.shape);
}

}  // namespace ort_aie
