#include "targets/host/host_target.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <variant>

#include "targets/host/live_trials.h"
#include "targets/host/unread_rows.h"
#include "targets/step_span.h"

namespace ort_aie {
namespace {

struct Run {
  const host::Kernels& kernels;
  const ThreadPool& threads;
  host::LiveTrials* trials;  // or null

  void operator()(const MatMulStep& step) const {
    if (trials != nullptr) return trials->Run(step, kernels, threads);
    host::RunMatMul(step, kernels, threads);
  }
  void operator()(const GatherStep& step) const { host::RunGather(step, kernels, threads); }
  void operator()(const AttentionStep& step) const { host::RunAttention(step, kernels, threads); }
  void operator()(const NormStep& step) const { host::RunNorm(step, kernels, threads); }
  void operator()(const ElementwiseStep& step) const {
    host::RunElementwise(step, kernels, threads);
  }
  void operator()(const CastStep& step) const { host::RunCast(step, kernels, threads); }
  void operator()(const MoEStep& step) const { host::RunMoE(step, kernels, threads); }
  void operator()(const MoveStep& step) const { host::RunMove(step, threads); }
  void operator()(const NarrowStep& step) const { host::RunNarrow(step, kernels, threads); }
  void operator()(const ConvStep& step) const { host::RunConv(step, kernels, threads); }
  void operator()(const RecurrenceStep& step) const { host::RunRecurrence(step, kernels, threads); }
  void operator()(const GateStep& step) const { host::RunGate(step, kernels); }
};

class Host final : public Target {
 public:
  explicit Host(std::shared_ptr<host::LiveTrials> trials = nullptr) : trials_(std::move(trials)) {}

  const char* Name() const override { return "host"; }

  void Execute(const Plan& plan, const ThreadPool& threads) const override {
    const Run run = {trials_ ? trials_->Now() : host::SelectedKernels(), threads, trials_.get()};
    const std::optional<Plan> shorter = host::WithoutUnreadRows(plan, run.kernels);
    const Plan& read = shorter ? *shorter : plan;
    if (Trace::OfProcess().on()) return Show(read, run);
    for (const Step& step : read.steps) std::visit(run, step);
  }

 private:
  static void Show(const Plan& plan, const Run& run) {
    for (size_t i = 0; i < plan.steps.size(); ++i) {
      const StepSpan span("step", plan, i);
      std::visit(run, plan.steps[i]);
    }
  }

  const std::shared_ptr<host::LiveTrials> trials_;
};

}  // namespace

const Target& HostTarget() {
  static const Host target;
  return target;
}

std::shared_ptr<const Target> HostTargetWithTrials() {
  std::shared_ptr<host::LiveTrials> trials = host::LiveTrials::Join();
  if (trials == nullptr) return {std::shared_ptr<const void>(), &HostTarget()};
  return std::make_shared<Host>(std::move(trials));
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
      std::copy_n(static_cast<const float*>(x), n, y);  // of no elements, also without a place
  }
}

void FromFloat(const Kernels& kernels, DataType type, const float* x, int64_t n, void* y) {
  switch (type) {
    case DataType::kFloat16:
      return kernels.float_to_float16(x, n, static_cast<uint16_t*>(y));
    case DataType::kBfloat16:
      return kernels.float_to_bfloat16(x, n, static_cast<uint16_t*>(y));
    default:
      std::copy_n(x, n, static_cast<float*>(y));
  }
}

const float* Floats(const Kernels& kernels, DataType type, const void* x, int64_t n,
                    Purpose purpose) {
  if (type == DataType::kFloat32) return static_cast<const float*>(x);
  float* floats = Scratch<float>(purpose, n);
  ToFloat(kernels, type, x, n, floats);
  return floats;
}

}  // namespace host
}  // namespace ort_aie
