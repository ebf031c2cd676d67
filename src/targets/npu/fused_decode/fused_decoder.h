// Runs tokens of whole decoders on overlays that mlir-air built, in one dispatch each.
#pragma once

#include <atomic>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "targets/npu/engine.h"
#include "targets/npu/fused_decode/decoder_plan.h"
#include "targets/npu/fused_decode/package.h"

namespace ort_aie::npu_target {

// Thread-safe.
class FusedDecoder {
 public:
  FusedDecoder(Engine& engine, std::vector<fused_decode::Package> packages)
      : engine_(engine), packages_(std::move(packages)) {}

  // Executes the plan if it is a token of a model that has a package; else counts the reason, and
  // changes nothing. If a fresh context does not cure a fault of the device, the packages are not
  // used any more: this throws if the executor is set to raise errors, and otherwise leaves the
  // plan to others.
  bool Execute(const Plan& plan, const ThreadPool& threads);

 private:
  // Chooses a package and fills the plan's parts. Null, and the reason is counted, if no package
  // fits.
  const fused_decode::Package* Choose(const Plan& plan, fused_decode::DecoderPlan& decoder);
  void Token(const fused_decode::Package& package, const Plan& plan,
             const fused_decode::DecoderPlan& decoder, const ThreadPool& threads);
  // Reports each reason once.
  void Report(const std::string& reason);

  Engine& engine_;
  const std::vector<fused_decode::Package> packages_;
  std::atomic<bool> off_ = false;
  std::mutex mutex_;  // guards the members below
  std::set<std::string> reported_;
};

}  // namespace ort_aie::npu_target
