// Shared by the cases: random tensors, comparison, a target on a device that executes references.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "q4nx/pack.h"
#include "reference_device.h"
#include "targets/host/host_target.h"
#include "targets/host/kernels/kernels.h"
#include "targets/npu/executor.h"

namespace ort_aie::npu_target {

// Adds cases to the program.
class Cases {
 public:
  Cases(std::initializer_list<std::pair<const char*, void (*)()>> cases) {
    for (const auto& [name, run] : cases) All()[name] = run;
  }
  static std::map<std::string, void (*)()>& All();
};

using Designs = std::set<std::string>;

std::filesystem::path& Manifests();  // <device>/<design>.json

inline const Designs kAll = {"decode", "dequant", "gemm", "flow_qkv"};
inline const InlineThreadPool kThreads;
constexpr double kUnit = 0x1p-8;  // largest relative error of a rounding to bfloat16

template <typename... Parts>
void Check(bool condition, const Parts&... parts) {
  if (!condition) throw std::logic_error(Concat(parts...));
}

struct Values {
  DataType type = DataType::kFloat32;
  std::vector<uint8_t> bytes;

  Values() = default;
  Values(DataType t, const std::vector<float>& x) : type(t), bytes(x.size() * SizeOf(t)) {
    host::FromFloat(host::SelectedKernels(), t, x.data(), static_cast<int64_t>(x.size()), data());
  }
  // Filled with a pattern that no result has.
  Values(DataType t, int64_t count)
      : type(t), bytes(static_cast<size_t>(count) * SizeOf(t), 0xab) {}
  void* data() { return bytes.data(); }
  const void* data() const { return bytes.data(); }
  std::vector<float> floats() const {
    std::vector<float> x(bytes.size() / SizeOf(type));
    if (x.empty()) return x;
    host::ToFloat(host::SelectedKernels(), type, data(), static_cast<int64_t>(x.size()), x.data());
    return x;
  }
};

// Exact in bfloat16, so that neither the type nor a rounding to bfloat16 changes the values.
std::vector<float> Exact(int64_t count, float step = 0.125f, int most = 15);

// Blocks of random codes; scales from 0.005 to 0.02; each minimum is minus half the largest code's
// value.
std::vector<uint8_t> Weights(int64_t n, int64_t k, const WeightForm& form = {});

// Rounding to bfloat16 moves a value by 0.42 * 2^-8 in the root of the mean of squares
// (docs/architecture.md, Numerics), and errors of roundings are independent. At most ten lie
// between the device's row and the host's, which is a third of this.
constexpr double kNear = 0x1p-6;

// Each piece of each row of `width` elements is within `bound` of its size. Pieces have 64 to 127
// elements, or a row: one that is wrong is further away.
void Near(const char* what, const Values& got, const Values& want, int64_t width,
          double bound = kNear);

struct Bench {
  explicit Bench(const Designs& designs = kAll, ExecutorOptions options = {},
                 const char* device_name = "npu2");
  void Run(const Plan& plan) const { target->Execute(plan, kThreads); }
  int64_t runs() const { return device->counters().runs; }
  void OnlyDevice() const;

  std::vector<std::string> at_first, lines;  // reported at creation, and since then
  std::shared_ptr<ReferenceDevice> device;
  std::unique_ptr<XrtTarget> target;
};

}  // namespace ort_aie::npu_target
