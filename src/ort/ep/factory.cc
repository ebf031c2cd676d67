#include "ort/ep/factory.h"

#include <map>
#include <memory>
#include <string>

#include "base/error.h"
#include "ort/ep/ep.h"
#include "targets/loader.h"

namespace ort_aie::ep {
namespace {

constexpr char kVendor[] = "ort_aie_ep";

// Options of the provider arrive as session config entries, named in lower case.
constexpr char kPrefix[] = "ep.aieexecutionprovider.";

// The name of an AMD NPU that the xrt target supports, or null. PCI ids are those of the amdxdna
// driver.
const char* NpuName(const OrtApi* api, const OrtHardwareDevice* device) {
  if (api->HardwareDevice_Type(device) != OrtHardwareDeviceType_NPU ||
      api->HardwareDevice_VendorId(device) != 0x1022) {
    return nullptr;
  }
  switch (api->HardwareDevice_DeviceId(device)) {
    case 0x1502:
      return "npu1";
    case 0x17f0:
      return "npu2";
    default:
      return nullptr;
  }
}

Ep* MakeEp(const RuntimeApi& runtime, const OrtSessionOptions* options, const OrtLogger* logger) {
  const auto entries = EntriesOf(runtime.api, options);
  const auto entry = [&](const char* key) {
    const auto found = entries.find(key);
    return found != entries.end() ? found->second : "";
  };
  // ONNX Runtime checks the mode since 1.32; 1.29 to 1.31 have only the other entry.
  std::string weightless = entry("ep.enable_weightless_mode");
  if (weightless.empty()) weightless = entry("ep.enable_weightless");
  Require(weightless.empty() || weightless == "0" || weightless == "1",
          "ep.enable_weightless_mode=", weightless,
          ": expected 0 or 1; a context model can refer to data files, and holds what is in the "
          "source's own file");
  Settings settings = StartingWith(kPrefix, entries);
  settings.merge(StartingWith(kOptionPrefix, entries));  // the provider's own win
  const ContextOptions context = {entry("ep.context_enable") == "1",
                                  entry("ep.context_embed_mode") == "1",
                                  entry("session.compile_only") == "1",
                                  entry("ep.context_file_path"),
                                  weightless == "1",
                                  entry("session.model_external_initializers_file_folder_path")};
  return new Ep(runtime, logger, std::move(settings), context, Overrides(runtime.api, options));
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
    auto* factory = static_cast<Factory*>(self);
    return Guard(factory->runtime_.api, [&] {
      *ep = MakeEp(factory->runtime_, options, logger);
      ++factory->users_;
    });
  };
  OrtEpFactory::ReleaseEp = [](OrtEpFactory* self, OrtEp* ep) noexcept {
    delete static_cast<Ep*>(ep);
    static_cast<Factory*>(self)->Release();
  };
  OrtEpFactory::ValidateCompiledModelCompatibilityInfo =
      [](OrtEpFactory*, const OrtHardwareDevice* const*, size_t, const char* info,
         OrtCompiledModelCompatibility* compatibility) noexcept -> OrtStatus* {
    // Q4NX is the same on every machine, so only the formats count.
    const bool known = info != nullptr && CompatibilityInfo() == info;
    *compatibility = known ? OrtCompiledModelCompatibility_EP_SUPPORTED_OPTIMAL
                           : OrtCompiledModelCompatibility_EP_UNSUPPORTED;
    return nullptr;
  };
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
    const char* npu = NpuName(api, devices[i]);
    const bool cpu = api->HardwareDevice_Type(devices[i]) == OrtHardwareDeviceType_CPU;
    if (!cpu && npu == nullptr) continue;
    OrtKeyValuePairs* raw = nullptr;
    api->CreateKeyValuePairs(&raw);
    const std::unique_ptr<OrtKeyValuePairs, decltype(api->ReleaseKeyValuePairs)> metadata(
        raw, api->ReleaseKeyValuePairs);
    const bool xrt = npu != nullptr && IsInstalled(NpuLibrary::kXrt);
    api->AddKeyValuePair(raw, "target", xrt ? "xrt" : "host");
    api->AddKeyValuePair(raw, "kernels", HostIsa());
    for (const char* key : {"weightless_supported_modes", "weightless_support"}) {
      api->AddKeyValuePair(raw, key, kWeightlessModes);  // since 1.32; before
    }
    if (npu != nullptr) {
      api->AddKeyValuePair(raw, "npu", npu);
      if (!xrt) api->AddKeyValuePair(raw, "why_not_npu", "this build has no xrt target");
    }
    Check(api,
          api->GetEpApi()->CreateEpDevice(this, devices[i], raw, nullptr, &ep_devices[(*found)++]));
  }
}

}  // namespace ort_aie::ep
