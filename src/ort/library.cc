// The shared library's exports: the custom-op door and the plugin-EP door.
#include <onnxruntime_c_api.h>

#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "base/libraries.h"
#include "ops/logits.h"
#include "ort/custom_op.h"
#include "targets/loader.h"
#if ORT_API_VERSION >= 24
#include "ort/ep/factory.h"
#endif

namespace ort_aie {
namespace {

// The ops for one runtime. ONNX Runtime keeps pointers to the domain and the ops in every session
// options object, so they live as long as the process: one set per runtime.
struct Domain {
  explicit Domain(const RuntimeApi& runtime) {
    Check(runtime.api, runtime.api->CreateCustomOpDomain("aie", &domain));
    const auto add = [&](CustomOp::Table table) {
      ops.push_back(std::make_unique<CustomOp>(std::move(table), runtime));
      Check(runtime.api, runtime.api->CustomOpDomain_Add(domain, ops.back().get()));
    };
    for (const OpDescription& op : AllOps()) add(TableOf(op));
    add(PlanTable());
  }

  std::vector<std::unique_ptr<CustomOp>> ops;
  OrtCustomOpDomain* domain = nullptr;
};

OrtCustomOpDomain* DomainOf(const RuntimeApi& runtime) {
  static std::mutex mutex;
  static auto& domains = *new std::map<const OrtApi*, std::unique_ptr<Domain>>();
  const std::lock_guard lock(mutex);
  std::unique_ptr<Domain>& domain = domains[runtime.api];
  if (domain == nullptr) domain = std::make_unique<Domain>(runtime);
  return domain->domain;
}

// A status needs an OrtApi of any version; version 1 exists in every runtime.
const OrtApi* AnyApi(const OrtApiBase* base) { return base->GetApi(1); }

}  // namespace
}  // namespace ort_aie

ORT_AIE_EXPORT OrtStatus* ORT_API_CALL RegisterCustomOps(OrtSessionOptions* options,
                                                         const OrtApiBase* base) {
  using namespace ort_aie;
  return Guard(AnyApi(base), [&] {
    const RuntimeApi runtime = NegotiateApi(base);
    // Kernels see all of a session's entries, but only from ONNX Runtime 1.24 on.
    CheckNames(StartingWith(kOptionPrefix, EntriesOf(runtime.api, options)));
    Check(runtime.api, runtime.api->AddCustomOpDomain(options, DomainOf(runtime)));
  });
}

// Before ONNX Runtime 1.24 the plugin interface lacks functions that the provider needs, so the
// library offers no device. Registering it still lets onnxruntime-genai find it by its bare name in
// `custom_ops_library`.
ORT_AIE_EXPORT OrtStatus* ORT_API_CALL CreateEpFactories(const char*, const OrtApiBase* base,
                                                         const OrtLogger*, OrtEpFactory** factories,
                                                         size_t most, size_t* count) {
  using namespace ort_aie;
  return Guard(AnyApi(base), [&] {
    // ONNX Runtime 1.22 passes no logger: of the arguments that are read, only `base` is in its
    // place, and `count` is invalid.
    [[maybe_unused]] const RuntimeApi runtime = NegotiateApi(base);
    *count = 0;
#if ORT_API_VERSION >= 24
    if (runtime.version < 24 || most == 0) return;
    factories[0] = new ep::Factory(runtime, DomainOf(runtime));
    *count = 1;
#else
    (void)factories, (void)most;
#endif
  });
}

ORT_AIE_EXPORT OrtStatus* ORT_API_CALL ReleaseEpFactory([[maybe_unused]] OrtEpFactory* factory) {
#if ORT_API_VERSION >= 24
  static_cast<ort_aie::ep::Factory*>(factory)->Release();
#endif
  return nullptr;
}

// The file of XRT that the xrt target loads; or null, and in `error` why it does not. The caller
// frees both with ort_aie_free. `ort-aie doctor` uses this.
ORT_AIE_EXPORT char* ort_aie_xrt_library(char** error) {
  try {
    return strdup(ort_aie::XrtLibrary().c_str());
  } catch (const std::exception& exception) {
    *error = strdup(exception.what());
    return nullptr;
  }
}

// Runs on the calling thread compute the logits of a sequence's last `tokens` tokens; 0: of all.
// Returns what held before. For ort_aie_ep.logits_of_last().
ORT_AIE_EXPORT int64_t ort_aie_keep_logits(int64_t tokens) { return ort_aie::KeepLogits(tokens); }

// JSON of what the NPU targets of this process have done; the caller frees it with ort_aie_free.
// For ort_aie_ep.npu_counters().
ORT_AIE_EXPORT char* ort_aie_npu_counters() { return strdup(ort_aie::NpuCounters().c_str()); }

// Frees what the functions above return: a process on Windows may have several C libraries.
ORT_AIE_EXPORT void ort_aie_free(char* text) { std::free(text); }
