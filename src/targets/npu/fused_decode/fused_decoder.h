// Tokens of whole decoders on overlays that mlir-air built: one dispatch each.
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

// For several threads at once.
class FusedDecoder {
 public:
  FusedDecoder(Engine& engine, std::vector<fused_decode::Package> packages)
      : engine_(engine), packages_(std::move(packages)) {}

  // Executes the plan if it is a token of a model for which there is a package; else counts why
  // not, and changes nothing. A fault of the device that a fresh context does not cure ends the use
  // of the packages: it throws where the executor is to raise, else the plan is left to others.
  bool Execute(const Plan& plan, const ThreadPool& threads);

 private:
  // With the plan's parts; null, and the reason is counted, if there is none.
  const fused_decode::Package* Choose(const Plan& plan, fused_decode::DecoderPlan& decoder);
  void Token(const fused_decode::Package& package, const Plan& plan,
             const fused_decode::DecoderPlan& decoder, const ThreadPool& threads);
  // Each reason once.
  void Report(const std::string& reason);

  Engine& engine_;
  const std::vector<fused_decode::Package> packages_;
  std::atomic<bool> off_ = false;
  std::mutex mutex_;  // of what follows
  std::set<std::string> reported_;
};

}  // namespace ort_aie::npu_target
