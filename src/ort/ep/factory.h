// The plugin door: what ONNX Runtime calls before there is a session.
#pragma once

#include <onnxruntime_c_api.h>

#include <atomic>

#include "ort/api.h"

namespace ort_aie::ep {

class Factory : public OrtEpFactory {
 public:
  // `domain` holds the aie ops, for models that are already compiled. It must outlive the factory.
  Factory(const RuntimeApi& runtime, OrtCustomOpDomain* domain);
  // ONNX Runtime gives the factory back when the library is unregistered, but still calls it when a
  // session that is older ends.
  void Release() {
    if (--users_ == 0) delete this;
  }

 private:
  ~Factory() = default;
  void FindDevices(const OrtHardwareDevice* const* devices, size_t count, OrtEpDevice** ep_devices,
                   size_t most, size_t* found);

  const RuntimeApi runtime_;
  OrtCustomOpDomain* domain_;
  std::atomic<int> users_ = 1;  // the registration, and each session
};

}  // namespace ort_aie::ep
