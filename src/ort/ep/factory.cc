#include "ort/ep/factory.h"

#include <memory>
#include <string>

#include "ort/ep/ep.h"
#include "targets/host/kernels.h"

namespace ort_aie::ep {
namespace {

constexpr char kVendor[] = "ort_aie_ep";

// Options of the provider arrive as session config entries, named in lower case.
constexpr char kPrefix[] = "ep.aieexecutionprovider.";

Settings ReadSettings(const OrtApi* api, const OrtSessionOptions* options) {
  OrtKeyValuePairs* raw = nullptr;
  Check(api, api->GetSessionOptionsConfigEntries(options, &raw));
  const std::unique_ptr<OrtKeyValuePairs, decltype(api->ReleaseKeyValuePairs)> pairs(
      raw, api->ReleaseKeyValuePairs);
  const char *const *keys = nullptr, *const *values = nullptr;
  size_t count = 0;
  api->GetKeyValuePairs(raw, &keys, &values, &count);
  Settings settings;
  for (size_t i = 0; i < count; ++i) {
    const std::string key = keys[i];
    if (key.starts_with(kPrefix)) settings[key.substr(sizeof(kPrefix) - 1)] = values[i];
  }
  return settings;
}

}  // namespace

Factory::Factory(const RuntimeApi& runtime, OrtCustomOpDomain* domain)
    : OrtEpFactory{}, runtime_(runtime), domain_(domain) {
  ort_version_supported = runtime.version;
  OrtEpFactory::GetName = [](const OrtEpFactory*) noexcept { return kName; };
  OrtEpFactory::GetVendor = [](const OrtEpFactory*) noexcept { return kVendor; };
  OrtEpFactory::GetVendorId = [](const OrtEpFactory*) noexcept -> uint32_t { return 0; };
  OrtEpFactory::GetVersion = [](const OrtEpFactory*) noexcept { return ORT_AIE_VERSION; };
  OrtEpFactory::GetSupportedDevices =
      [](OrtEpFactory* self, const OrtHardwareDevice* const* devices, size_t count,
         OrtEpDevice** ep_devices, size_t most, size_t* found) noexcept -> OrtStatus* {
    auto* factory = static_cast<Factory*>(self);
    return Guard(factory->runtime_.api,
                 [&] { factory->FindDevices(devices, count, ep_devices, most, found); });
  };
  OrtEpFactory::CreateEp = [](OrtEpFactory* self, const OrtHardwareDevice* const*,
                              const OrtKeyValuePairs* const*, size_t,
                              const OrtSessionOptions* options, const OrtLogger* logger,
                              OrtEp** ep) noexcept -> OrtStatus* {
    const auto* factory = static_cast<const Factory*>(self);
    return Guard(factory->runtime_.api, [&] {
      *ep = new Ep(factory->runtime_, logger, ReadSettings(factory->runtime_.api, options));
    });
  };
  OrtEpFactory::ReleaseEp = [](OrtEpFactory*, OrtEp* ep) noexcept { delete static_cast<Ep*>(ep); };
  // Tensors are ordinary host memory: no allocators, no transfers, no streams.
  OrtEpFactory::CreateAllocator = [](OrtEpFactory*, const OrtMemoryInfo*, const OrtKeyValuePairs*,
                                     OrtAllocator** allocator) noexcept -> OrtStatus* {
    *allocator = nullptr;
    return nullptr;
  };
  OrtEpFactory::ReleaseAllocator = [](OrtEpFactory*, OrtAllocator*) noexcept {};
  OrtEpFactory::CreateDataTransfer = [](OrtEpFactory*,
                                        OrtDataTransferImpl** transfer) noexcept -> OrtStatus* {
    *transfer = nullptr;
    return nullptr;
  };
  OrtEpFactory::IsStreamAware = [](const OrtEpFactory*) noexcept { return false; };
  OrtEpFactory::GetNumCustomOpDomains = [](OrtEpFactory*, size_t* count) noexcept -> OrtStatus* {
    *count = 1;
    return nullptr;
  };
  OrtEpFactory::GetCustomOpDomains = [](OrtEpFactory* self, OrtCustomOpDomain** domains,
                                        size_t count) noexcept -> OrtStatus* {
    if (count > 0) domains[0] = static_cast<Factory*>(self)->domain_;
    return nullptr;
  };
}

void Factory::FindDevices(const OrtHardwareDevice* const* devices, size_t count,
                          OrtEpDevice** ep_devices, size_t most, size_t* found) {
  const OrtApi* api = runtime_.api;
  *found = 0;
  for (size_t i = 0; i < count && *found < most; ++i) {
    // The NPU joins when there is a target that runs on it.
    if (api->HardwareDevice_Type(devices[i]) != OrtHardwareDeviceType_CPU) continue;
    OrtKeyValuePairs* raw = nullptr;
    api->CreateKeyValuePairs(&raw);
    const std::unique_ptr<OrtKeyValuePairs, decltype(api->ReleaseKeyValuePairs)> metadata(
        raw, api->ReleaseKeyValuePairs);
    api->AddKeyValuePair(raw, "target", "host");
    api->AddKeyValuePair(raw, "kernels", host::SelectedKernels().name);
    Check(api,
          api->GetEpApi()->CreateEpDevice(this, devices[i], raw, nullptr, &ep_devices[(*found)++]));
  }
}

}  // namespace ort_aie::ep
