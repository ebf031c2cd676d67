#include "targets/npu/fused_decode/fused_decoder.h"

#include <algorithm>
#include <memory>
#include <set>
#include <utility>

#include "base/error.h"
#include "targets/npu/fused_decode/token_memory.h"
#include "targets/npu/plan_memory.h"
#include "targets/npu/schedule/reasons.h"

namespace ort_aie::npu_target {

using fused_decode::DecoderPlan;
using fused_decode::Package;

bool FusedDecoder::Execute(const Plan& plan, const ThreadPool& threads) {
  if (packages_.empty() || off_ || !fused_decode::IsToken(plan)) return false;
  DecoderPlan decoder;
  const Package* const package = Choose(plan, decoder);
  if (package == nullptr) return false;
  try {
    engine_.Retry([&] { Token(*package, plan, decoder, threads); },
                  [](const DeviceError&, int faults) { return faults == 1; });
  } catch (const DeviceError& error) {
    engine_.Forget();
    {
      // Releases gigabytes that no token will use, of a plan that may never ask for them again.
      const std::lock_guard lock(plan.kept->mutex);
      plan.kept->object = nullptr;
    }
    engine_.Fallback(error);
    off_ = true;
    Report(Concat(package->geometry.name, ": ", error.what(),
                  "; a fresh context did not help; going on without it"));
    return false;
  }
  const auto host = static_cast<int64_t>(decoder.steps.first);
  engine_.Count([&](ExecutorCounters& counters) {
    ++counters.fused_tokens;
    counters.device_steps += static_cast<int64_t>(plan.steps.size()) - host;
    if (host > 0) counters.host_steps[Words(Reason::kEmbedding)] += host;
  });
  return true;
}

const Package* FusedDecoder::Choose(const Plan& plan, DecoderPlan& decoder) {
  std::set<std::string> lines;  // packages of one model may give the same line
  for (const Package& package : packages_) {
    const std::string reason = fused_decode::WhyNot(
        plan, package.geometry, package.windows.back().positions, package.any_epsilon, decoder);
    if (reason.empty()) return &package;
    lines.insert(Concat(package.geometry.name, ": ", reason));
  }
  engine_.Count([&](ExecutorCounters& counters) {
    for (const std::string& line : lines) ++counters.fused_refused[line];
  });
  std::ranges::for_each(lines, [&](const std::string& line) { Report(line); });
  return nullptr;
}

void FusedDecoder::Token(const Package& package, const Plan& plan, const DecoderPlan& decoder,
                         const ThreadPool& threads) {
  Plan before;  // the steps that make the embedding
  before.steps.assign(plan.steps.begin(),
                      plan.steps.begin() + static_cast<std::ptrdiff_t>(decoder.steps.first));
  HostTarget().Execute(before, threads);
  const std::shared_ptr<PlanMemory> memory = PlanMemory::Of(engine_, plan);
  const std::shared_ptr<TokenMemory> token = memory->tokens(package);
  token->Token(decoder, threads);
}

void FusedDecoder::Report(const std::string& reason) {
  const std::lock_guard lock(mutex_);
  if (!reported_.insert(reason).second) return;
  engine_.Report(Concat("the fused decode of ", reason));
}

}  // namespace ort_aie::npu_target
