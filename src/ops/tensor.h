// An op's view of a tensor: type, shape, address. Owns nothing.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/size.h"
#include "ops/shape.h"

namespace ort_aie {

enum class DataType {
  kFloat32,
  kFloat16,
  kBfloat16,
  kUint8,
  kInt32,
  kInt64,
  kInt8,
  kInt4,  // for a KV cache, two in a byte; the tensor that holds them is uint8
  kOther
};

constexpr bool IsFloat(DataType type) {
  return type == DataType::kFloat32 || type == DataType::kFloat16 || type == DataType::kBfloat16;
}

// The types that a KV cache of integers can have.
constexpr bool IsInteger(DataType type) {
  return type == DataType::kInt8 || type == DataType::kUint8;
}

constexpr size_t SizeOf(DataType type) {
  switch (type) {
    case DataType::kFloat32:
    case DataType::kInt32:
      return 4;
    case DataType::kFloat16:
    case DataType::kBfloat16:
      return 2;
    case DataType::kInt64:
      return 8;
    default:
      return 1;
  }
}

// Bytes of an even number of elements.
constexpr int64_t BytesOf(DataType type, int64_t elements) {
  return type == DataType::kInt4 ? elements / 2 : elements * static_cast<int64_t>(SizeOf(type));
}
// The address of a later element.
inline const void* Advance(const void* p, DataType type, int64_t elements) {
  return static_cast<const uint8_t*>(p) + BytesOf(type, elements);
}
inline void* Advance(void* p, DataType type, int64_t elements) {
  return static_cast<uint8_t*>(p) + BytesOf(type, elements);
}

const char* NameOf(DataType type);

// ONNX's numbers of types (TensorProto.DataType).
inline constexpr int64_t kOnnxFloat = 1, kOnnxUint8 = 2, kOnnxInt8 = 3, kOnnxInt32 = 6,
                         kOnnxInt64 = 7, kOnnxFloat16 = 10, kOnnxBfloat16 = 16;
// kOther for any other number, which a model may contain.
DataType TypeOfNumber(int64_t number);
// 0 for a type that ONNX does not have, or that this library does not know.
int64_t NumberOf(DataType type);

inline Size ElementCount(const Shape& shape) {
  Size count = 1;
  for (int64_t dim : shape) count = count * dim;
  return count;
}

// Bytes of a tensor of this type and shape.
inline Size ByteCount(DataType type, const Shape& shape) {
  return ElementCount(shape) * SizeOf(type);
}

// An input. data is null if an optional input is absent (and may be null for an empty one).
struct Tensor {
  DataType type = DataType::kOther;
  Shape shape;
  const void* data = nullptr;
  bool present = false;
  int64_t bytes = 0;  // of a constant: how many may be read at data, whatever its shape says

  explicit operator bool() const { return present; }
  template <typename T>
  const T* as() const {
    return static_cast<const T*>(data);
  }
};

// Throw Error naming the input, what was expected and what came.
void RequireFloat(const char* input, const Tensor& tensor);
void RequireTensor(const char* input, const Tensor& tensor, DataType type, const Shape& shape);

}  // namespace ort_aie
