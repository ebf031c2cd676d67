#include "targets/host/host_target.h"

#include <cstring>

#include "base/error.h"

namespace ort_aie {
namespace {

class Host final : public Target {
 public:
  const char* Name() const override { return "host"; }

  void Execute(const Plan& plan, const ThreadPool& threads) const override {
    const host::Kernels& kernels = host::SelectedKernels();
    for (const Step& step : plan.steps) {
      if (const auto* matmul = std::get_if<MatMulStep>(&step)) {
        host::RunMatMul(*matmul, kernels, threads);
      } else if (const auto* gather = std::get_if<GatherStep>(&step)) {
        host::RunGather(*gather, kernels, threads);
      } else if (const auto* attention = std::get_if<AttentionStep>(&step)) {
        host::RunAttention(*attention, kernels, threads);
      } else {
        Fail(ErrorCode::kNotImplemented, "a step that the host does not have");
      }
    }
  }
};

}  // namespace

const Target& HostTarget() {
  static const Host target;
  return target;
}

const char* HostIsa() { return host::SelectedKernels().name; }

namespace host {

void ToFloat(const Kernels& kernels, DataType type, const void* x, int64_t n, float* y) {
  switch (type) {
    case DataType::kFloat16:
      return kernels.float16_to_float(static_cast<const uint16_t*>(x), n, y);
    case DataType::kBfloat16:
      return kernels.bfloat16_to_float(static_cast<const uint16_t*>(x), n, y);
    case DataType::kInt8:
      return kernels.int8_to_float(static_cast<const int8_t*>(x), n, y);
    case DataType::kInt4:
      return kernels.int4_to_float(static_cast<const uint8_t*>(x), n, y);
    default:
      std::memcpy(y, x, static_cast<size_t>(n) * sizeof(float));
  }
}

void FromFloat(const Kernels& kernels, DataType type, const float* x, int64_t n, void* y) {
  switch (type) {
    case DataType::kFloat16:
      return kernels.float_to_float16(x, n, static_cast<uint16_t*>(y));
    case DataType::kBfloat16:
      return kernels.float_to_bfloat16(x, n, static_cast<uint16_t*>(y));
    default:
      std::memcpy(y, x, static_cast<size_t>(n) * sizeof(float));
  }
}

}  // namespace host
}  // namespace ort_aie
