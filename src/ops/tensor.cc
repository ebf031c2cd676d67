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

void RequireTensor(const char* input, const Tensor& tensor, DataType type, const Shape& shape) {
  Require(tensor.type == type && tensor.shape == shape, "input ", input, " must be ", NameOf(type),
          " ", shape, ", got ", NameOf(tensor.type), " ", tensor.shape);
}

}  // namespace ort_aie
