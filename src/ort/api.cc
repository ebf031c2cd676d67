#include "ort/api.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <memory>

#include "ort/weight_files.h"

namespace ort_aie {
namespace {

constexpr uint32_t kOldestApi = 23;

// If ONNX Runtime has no memory for a status, it returns null, which means success. So some memory
// is kept for the status.
constexpr size_t kReserve = 4096;
std::atomic<void*> reserve{std::malloc(kReserve)};

size_t BytesOf(const OrtApi* api, const OrtValue* value) {
  size_t bytes = 0;
  Check(api, api->GetTensorSizeInBytes(value, &bytes));
  return bytes;
}

ONNXTensorElementDataType TypeAndShape(const OrtApi* api, const OrtValue* value, Shape& shape) {
  ONNXTensorElementDataType type;
  OrtTensorTypeAndShapeInfo* raw = nullptr;
  Check(api, api->GetTensorTypeAndShape(value, &raw));
  const std::unique_ptr<OrtTensorTypeAndShapeInfo, decltype(api->ReleaseTensorTypeAndShapeInfo)>
      info(raw, api->ReleaseTensorTypeAndShapeInfo);
  Check(api, api->GetTensorElementType(raw, &type));
  size_t rank = 0;
  Check(api, api->GetDimensionsCount(raw, &rank));
  shape.resize(rank);
  Check(api, api->GetDimensions(raw, shape.data(), rank));
  return type;
}

// Reads the type and the shape without making an ONNX Runtime object for them.
ONNXTensorElementDataType TypeAndShapeInPlace(const RuntimeApi& runtime, const OrtValue* value,
                                              Shape& shape) {
#if ORT_API_VERSION >= 24
  if (runtime.version >= 24) {
    ONNXTensorElementDataType type;
    const int64_t* dims = nullptr;
    size_t rank = 0;
    Check(runtime.api,
          runtime.api->GetTensorElementTypeAndShapeDataReference(value, &type, &dims, &rank));
    shape = Shape(dims, dims + rank);
    return type;
  }
#endif
  return TypeAndShape(runtime.api, value, shape);
}

Tensor Describe(const OrtApi* api, const OrtValue* value, ONNXTensorElementDataType type,
                const Shape& shape) {
  Tensor tensor{.type = TypeOfNumber(type), .shape = shape, .present = true};
  if (type == ONNX_TENSOR_ELEMENT_DATA_TYPE_STRING) return tensor;  // objects, not bytes
  Check(api,
        api->GetTensorMutableData(const_cast<OrtValue*>(value), const_cast<void**>(&tensor.data)));
  return tensor;
}

// Releases `raw`, which may be null.
Entries TakeEntries(const OrtApi* api, OrtKeyValuePairs* raw) {
  if (raw == nullptr) return {};
  const std::unique_ptr<OrtKeyValuePairs, decltype(api->ReleaseKeyValuePairs)> pairs(
      raw, api->ReleaseKeyValuePairs);
  const char *const *keys = nullptr, *const *values = nullptr;
  size_t count = 0;
  api->GetKeyValuePairs(raw, &keys, &values, &count);
  Entries entries;
  for (size_t i = 0; i < count; ++i) entries[keys[i]] = values[i];
  return entries;
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
         " or newer, and this is ", text, ": install a newer onnxruntime");
  }
  return {base->GetApi(version), version, runtime};
}

void Check(const OrtApi* api, OrtStatus* status) {
  if (status == nullptr) return;
  const std::string message = api->GetErrorMessage(status);
  const OrtErrorCode code = api->GetErrorCode(status);
  api->ReleaseStatus(status);
  throw Error(code == ORT_INVALID_ARGUMENT ? ErrorCode::kInvalidArgument : ErrorCode::kRuntime,
              message);
}

Entries EntriesOf(const OrtApi* api, const OrtSessionOptions* options) {
  OrtKeyValuePairs* pairs = nullptr;
  Check(api, api->GetSessionOptionsConfigEntries(options, &pairs));
  return TakeEntries(api, pairs);
}

Entries StartingWith(std::string_view prefix, const Entries& entries) {
  Entries found;
  for (const auto& [name, value] : entries) {
    if (name.starts_with(prefix)) found[name.substr(prefix.size())] = value;
  }
  return found;
}

OrtStatus* OutOfMemory(const OrtApi* api) noexcept {
  std::free(reserve.exchange(nullptr));
  OrtStatus* status = api->CreateStatus(ORT_RUNTIME_EXCEPTION, "ort_aie_ep: out of memory");
  std::free(reserve.exchange(std::malloc(kReserve)));
  return status;
}

Tensor DescribeValue(const RuntimeApi& runtime, const OrtValue* value) {
  if (value == nullptr) return {};
  Shape shape;
  const ONNXTensorElementDataType type = TypeAndShapeInPlace(runtime, value, shape);
  return Describe(runtime.api, value, type, shape);
}

Tensor DescribeConstant(const OrtApi* api, const OrtValue* value) {
  if (value == nullptr) return {};
  Shape shape;
  const ONNXTensorElementDataType type = TypeAndShape(api, value, shape);
  Tensor tensor = Describe(api, value, type, shape);
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

// What get(text, size) writes, which without a text only says the size.
template <typename Get>
std::string TextOf(const OrtApi* api, const Get& get) {
  size_t size = 0;
  if (OrtStatus* status = get(nullptr, &size)) api->ReleaseStatus(status);
  if (size == 0) return "";
  std::string text(size, '\0');
  Check(api, get(text.data(), &size));
  text.resize(size - 1);
  return text;
}

std::string KernelInfo::String(const char* attribute) const {
  return TextOf(api_, [&](char* text, size_t* size) {
    return api_->KernelInfoGetAttribute_string(info_, attribute, text, size);
  });
}

std::string KernelInfo::NodeName() const {
  return TextOf(api_, [&](char* text, size_t* size) {
    return api_->KernelInfo_GetNodeName(info_, text, size);
  });
}

Tensor KernelInfo::Initializer(size_t index) const {
  int is_constant = 0;
  const OrtValue* value = nullptr;
  Check(api_, api_->KernelInfoGetConstantInput_tensor(info_, index, &is_constant, &value));
  Tensor tensor = is_constant != 0 ? DescribeConstant(api_, value) : Tensor{};
  if (weights_ != nullptr) weights_->Place(tensor);
  return tensor;
}

Tensor KernelInfo::ConstantInput(size_t index) const {
  Tensor tensor = Initializer(index);
  return IsStandIn(tensor.type, tensor.shape) ? Tensor{} : tensor;
}

Entries KernelInfo::ConfigEntries() const {
  OrtKeyValuePairs* pairs = nullptr;
#if ORT_API_VERSION >= 24
  if (version_ >= 24) Check(api_, api_->KernelInfo_GetConfigEntries(info_, &pairs));
#endif
  return TakeEntries(api_, pairs);
}

const void* KernelInfo::Session() const {
  const OrtLogger* logger = nullptr;  // each session has its own
  Check(api_, api_->KernelInfo_GetLogger(info_, &logger));
  return logger;
}

IoMap KernelInfo::Map() const {
  IoMap map;
  size_t count = 0;
  Check(api_, api_->KernelInfo_GetInputCount(info_, &count));
  map.inputs.resize(count);
  for (size_t i = 0; i < count; ++i) {
    IoMap::Input& input = map.inputs[i];
    input.constant = ConstantInput(i);
    if (!input.constant && !Initializer(i)) input.index = static_cast<int>(i);
  }
  Check(api_, api_->KernelInfo_GetOutputCount(info_, &count));
  for (size_t i = 0; i < count; ++i) {
    size_t name = 0;  // with its terminator
    Check(api_, api_->KernelInfo_GetOutputName(info_, i, nullptr, &name));
    map.outputs.push_back(name > 1 ? static_cast<int>(i) : IoMap::kAbsent);
  }
  return map;
}

Tensor KernelContext::Input(size_t index) const {
  if (index >= map_.inputs.size()) return {};
  const IoMap::Input& known = map_.inputs[index];
  if (known.index == IoMap::kAbsent) return known.constant;
  const OrtValue* value = nullptr;
  Check(runtime_.api,
        runtime_.api->KernelContext_GetInput(context_, static_cast<size_t>(known.index), &value));
  Tensor input = DescribeValue(runtime_, value);
  if (IsStandIn(input.type, input.shape)) input.present = false;
  return input;
}

void* KernelContext::Output(size_t index, DataType type, const Shape& shape) const {
  if (index >= map_.outputs.size() || map_.outputs[index] == IoMap::kAbsent) return nullptr;
  index = static_cast<size_t>(map_.outputs[index]);
  OrtValue* value = nullptr;
  Check(runtime_.api,
        runtime_.api->KernelContext_GetOutput(context_, index, shape.data(), shape.size(), &value));
  if (value == nullptr) return nullptr;
  if (ByteCount(type, shape) != BytesOf(runtime_.api, value)) {
    Fail(ErrorCode::kInvalidArgument, "output ", index, " is ",
         NameOf(DescribeValue(runtime_, value).type), " in the model, expected ", NameOf(type));
  }
  void* data = nullptr;
  Check(runtime_.api, runtime_.api->GetTensorMutableData(value, &data));
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
