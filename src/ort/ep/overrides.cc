#include "ort/ep/overrides.h"

#include "ort/api.h"

namespace ort_aie::ep {

Overrides::Overrides(const OrtApi* api, const OrtSessionOptions* options)
    : api_(api), options_(Copy(api, options)) {}

Overrides::Options Overrides::Copy(const OrtApi* api, const OrtSessionOptions* options) {
  OrtSessionOptions* copy = nullptr;
  Check(api, api->CloneSessionOptions(options, &copy));
  return {copy, api->ReleaseSessionOptions};
}

// No function lists the overrides, but AddInitializer refuses a name that the options have already.
std::set<std::string> Overrides::Among(const std::set<std::string>& names) const {
  OrtMemoryInfo* memory = nullptr;
  Check(api_, api_->CreateCpuMemoryInfo(OrtDeviceAllocator, OrtMemTypeDefault, &memory));
  const std::unique_ptr<OrtMemoryInfo, decltype(api_->ReleaseMemoryInfo)> its_memory(
      memory, api_->ReleaseMemoryInfo);
  float element = 0;
  const int64_t shape = 1;
  OrtValue* value = nullptr;
  Check(api_, api_->CreateTensorWithDataAsOrtValue(memory, &element, sizeof(element), &shape, 1,
                                                   ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT, &value));
  const std::unique_ptr<OrtValue, decltype(api_->ReleaseValue)> its_value(value,
                                                                          api_->ReleaseValue);
  const Options copy = Copy(api_, options_.get());  // to which this adds names
  std::set<std::string> found;
  for (const std::string& name : names) {
    OrtStatus* status = api_->AddInitializer(copy.get(), name.c_str(), value);
    if (status == nullptr) continue;
    api_->ReleaseStatus(status);
    found.insert(name);
  }
  return found;
}

}  // namespace ort_aie::ep
