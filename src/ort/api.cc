#include "ort/api.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <memory>

namespace ort_aie {
namespace {

constexpr uint32_t kOldestApi = 23;

// Where ONNX Runtime has no memory for a status it gives null, which means success: some is kept
// for it.
constexpr size_t kReserve = 4096;
std::atomic<void*> reserve{std::malloc(kReserve)};

size_t BytesOf(const OrtApi* api, const OrtValue* value) {
  size_t bytes = 0;
  Check(api, api->GetTensorSizeInBytes(value, &bytes));
  return bytes;
}

}  // namespace

RuntimeApi NegotiateApi(const OrtApiBase* base) {
  // "1.<minor>.<patch>": the minor version is the API version. GetApi of a version that the runtime
  // lacks would print to stderr.
  const std::string text = base->GetVersionString();
  const size_t dot = text.find('.');
  const auto runtime = static_cast<uint32_t>(
      dot == std::string::npos ? 0 : std::strtoul(text.c_str() + dot + 1, nullptr, 10));
  const uint32_t version = std::min<uint32_t>(ORT_API_VERSION, runtime);
  const OrtApi* api = base->GetApi(std::max<uint32_t>(1, std::min(version, kOldestApi)));
  if (version < kOldestApi || api == nullptr) {
    Fail(ErrorCode::kNotImplemented, "ort_aie_ep needs ONNX Runtime 1.", kOldestApi,
         " or later, this is ", text);
  }
  return {base->GetApi(version), version};
}

void Check(const OrtApi* api, OrtStatus* status) {
  if (status == nullptr) return;
  const std::string message = api->GetErrorMessage(status);
  const OrtErrorCode code = api->GetErrorCode(status);
  api->ReleaseStatus(status);
  throw Error(code == ORT_INVALID_ARGUMENT ? ErrorCode::kInvalidArgument : ErrorCode::kRuntime,
              message);
}

OrtStatus* OutOfMemory(const OrtApi* api) noexcept {
  std::free(reserve.exchange(nullptr));
  OrtStatus* status = api->CreateStatus(ORT_RUNTIME_EXCEPTION, "ort_aie_ep: out of memory");
  std::free(reserve.exchange(std::malloc(kReserve)));
  return status;
}

DataType FromOnnxType(int64_t type) {
  switch (type) {
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT:
      return DataType::kFloat32;
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16:
      return DataType::kFloat16;
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_BFLOAT16:
      return DataType::kBfloat16;
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT8:
      return DataType::kUint8;
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32:
      return DataType::kInt32;
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64:
      return DataType::kInt64;
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_INT8:
      return DataType::kInt8;
    default:
      return DataType::kOther;
  }
}

ONNXTensorElementDataType ToOnnxType(DataType type) {
  switch (type) {
    case DataType::kFloat32:
      return ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT;
    case DataType::kFloat16:
      return ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16;
    case DataType::kBfloat16:
      return ONNX_TENSOR_ELEMENT_DATA_TYPE_BFLOAT16;
    case DataType::kUint8:
      return ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT8;
    case DataType::kInt32:
      return ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32;
    case DataType::kInt64:
      return ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64;
    case DataType::kInt8:
      return ONNX_TENSOR_ELEMENT_DATA_TYPE_INT8;
    case DataType::kInt4:
    case DataType::kOther:
      break;
  }
  return ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED;
}

Tensor DescribeValue(const OrtApi* api, const OrtValue* value) {
  Tensor tensor;
  if (value == nullptr) return tensor;
  tensor.present = true;
  OrtTensorTypeAndShapeInfo* raw = nullptr;
  Check(api, api->GetTensorTypeAndShape(value, &raw));
  const std::unique_ptr<OrtTensorTypeAndShapeInfo, decltype(api->ReleaseTensorTypeAndShapeInfo)>
      info(raw, api->ReleaseTensorTypeAndShapeInfo);
  ONNXTensorElementDataType type;
  Check(api, api->GetTensorElementType(raw, &type));
  tensor.type = FromOnnxType(type);
  size_t rank = 0;
  Check(api, api->GetDimensionsCount(raw, &rank));
  tensor.shape.resize(rank);
  Check(api, api->GetDimensions(raw, tensor.shape.data(), rank));
  if (type == ONNX_TENSOR_ELEMENT_DATA_TYPE_STRING) return tensor;  // objects, not bytes
  Check(api,
        api->GetTensorMutableData(const_cast<OrtValue*>(value), const_cast<void**>(&tensor.data)));
  return tensor;
}

Tensor DescribeConstant(const OrtApi* api, const OrtValue* value) {
  Tensor tensor = DescribeValue(api, value);
  if (tensor.data != nullptr) tensor.bytes = Size(BytesOf(api, value)).As("a tensor");
  return tensor;
}

int64_t KernelInfo::Int(const char* attribute, int64_t fallback) const {
  int64_t value = fallback;
  if (OrtStatus* status = api_->KernelInfoGetAttribute_int64(info_, attribute, &value)) {
    api_->ReleaseStatus(status);
    return fallback;
  }
  return value;
}

float KernelInfo::Float(const char* attribute, float fallback) const {
  float value = fallback;
  if (OrtStatus* status = api_->KernelInfoGetAttribute_float(info_, attribute, &value)) {
    api_->ReleaseStatus(status);
    return fallback;
  }
  return value;
}

std::string KernelInfo::String(const char* attribute) const {
  size_t size = 0;
  if (OrtStatus* status = api_->KernelInfoGetAttribute_string(info_, attribute, nullptr, &size)) {
    api_->ReleaseStatus(status);
  }
  if (size == 0) return "";
  std::string value(size, '\0');
  Check(api_, api_->KernelInfoGetAttribute_string(info_, attribute, value.data(), &size));
  value.resize(size - 1);
  return value;
}

std::string KernelInfo::NodeName() const {
  size_t size = 0;
  if (OrtStatus* status = api_->KernelInfo_GetNodeName(info_, nullptr, &size)) {
    api_->ReleaseStatus(status);
  }
  if (size == 0) return "";
  std::string name(size, '\0');
  Check(api_, api_->KernelInfo_GetNodeName(info_, name.data(), &size));
  name.resize(size - 1);
  return name;
}

Tensor KernelInfo::ConstantInput(size_t index) const {
  int is_constant = 0;
  const OrtValue* value = nullptr;
  Check(api_, api_->KernelInfoGetConstantInput_tensor(info_, index, &is_constant, &value));
  return is_constant != 0 ? DescribeConstant(api_, value) : Tensor{};
}

std::optional<std::string> KernelInfo::ConfigEntry([[maybe_unused]] const char* name) const {
#if ORT_API_VERSION >= 24
  if (version_ >= 24) {
    OrtKeyValuePairs* raw = nullptr;
    Check(api_, api_->KernelInfo_GetConfigEntries(info_, &raw));
    const std::unique_ptr<OrtKeyValuePairs, decltype(api_->ReleaseKeyValuePairs)> entries(
        raw, api_->ReleaseKeyValuePairs);
    const std::string key = std::string("ort_aie.") + name;
    if (const char* value = api_->GetKeyValue(raw, key.c_str())) return value;
  }
#endif
  return std::nullopt;
}

const void* KernelInfo::Session() const {
  const OrtLogger* logger = nullptr;  // a session has one of its own
  Check(api_, api_->KernelInfo_GetLogger(info_, &logger));
  return logger;
}

size_t KernelContext::InputCount() const {
  size_t count = 0;
  Check(api_, api_->KernelContext_GetInputCount(context_, &count));
  return count;
}

Tensor KernelContext::Input(size_t index) const {
  if (map_ != nullptr) {
    if (index >= map_->inputs.size()) return {};
    const IoMap::Input& input = map_->inputs[index];
    if (input.index == IoMap::kAbsent) return input.constant;
    index = static_cast<size_t>(input.index);
  } else if (index >= InputCount()) {
    return {};
  }
  const OrtValue* value = nullptr;
  Check(api_, api_->KernelContext_GetInput(context_, index, &value));
  Tensor input = DescribeValue(api_, value);
  if (IsStandIn(input.type, input.shape)) input.present = false;
  return input;
}

void* KernelContext::Output(size_t index, DataType type, const Shape& shape) const {
  if (map_ != nullptr) {
    if (index >= map_->outputs.size() || map_->outputs[index] == IoMap::kAbsent) return nullptr;
    index = static_cast<size_t>(map_->outputs[index]);
  }
  OrtValue* value = nullptr;
  Check(api_, api_->KernelContext_GetOutput(context_, index, shape.data(), shape.size(), &value));
  if (value == nullptr) return nullptr;
  if (ByteCount(type, shape) != BytesOf(api_, value)) {
    Fail(ErrorCode::kInvalidArgument, "output ", index, " is ",
         NameOf(DescribeValue(api_, value).type), " in the model, expected ", NameOf(type));
  }
  void* data = nullptr;
  Check(api_, api_->GetTensorMutableData(value, &data));
  return data;
}

void OrtThreadPool::Run(int64_t count, Call call, void* job) const {
  if (count <= 0) return;
  if (count == 1) return call(job, 0);
  struct Work {
    Call call;
    void* job;
  } work{call, job};
  const auto one = [](void* data, size_t index) noexcept {
    const auto& w = *static_cast<const Work*>(data);
    w.call(w.job, static_cast<int64_t>(index));
  };
  Check(context_.api(), context_.api()->KernelContext_ParallelFor(
                            context_.context(), one, static_cast<size_t>(count), 0, &work));
}

}  // namespace ort_aie
