#include "targets/npu/executor.h"

#include <algorithm>
#include <atomic>
#include <limits>
#include <optional>
#include <span>
#include <utility>

#include "base/error.h"
#include "ops/step_tensors.h"
#include "targets/npu/attention.h"
#include "targets/npu/batch.h"
#include "targets/npu/engine.h"
#include "targets/npu/experts.h"
#include "targets/npu/fused_decode/fused_decoder.h"
#include "targets/npu/layers.h"
#include "targets/npu/plan_memory.h"
#include "targets/npu/projection.h"
#include "targets/npu/reasons.h"
#include "targets/npu/vectors.h"
#include "targets/npu/weights.h"
#include "targets/step_span.h"

namespace ort_aie::npu_target {
namespace {

ProjectionFacts FactsOf(const MatMulStep& step) {
  return {.kind = step.form.kind,
          .rows = step.rows,
          .n = step.n,
          .k = step.k,
          .numerics = step.numerics};
}

ExpertsFacts FactsOf(const MoEStep& step) {
  return {.kind = step.form.kind,
          .down_kind = step.down_form.kind,
          .rows = step.rows,
          .hidden = step.hidden,
          .inter = step.inter,
          .numerics = step.numerics};
}

VectorFacts FactsOf(const NormStep& step) {
  return {.rows = step.rows, .k = step.k, .gated = step.gate != nullptr};
}
VectorFacts FactsOf(const ElementwiseStep& step) {
  return {.rows = step.rows, .k = step.k, .function = step.function};
}

// A step between projections. If its input is on the host, the host does it.
bool IsVector(const Step& step) {
  return std::holds_alternative<NormStep>(step) || std::holds_alternative<ElementwiseStep>(step) ||
         std::holds_alternative<CastStep>(step);
}

// Left padding is left out by beginning after it. This is whether other keys are hidden.
bool HidesMore(const AttentionStep& step) {
  if (step.key_mask != nullptr) return true;
  for (size_t b = 0; b < step.visible_keys.size(); ++b) {
    const Range keys = step.visible_keys[b];
    if (keys.end != step.total_length[b] || keys.first >= keys.end) return true;
  }
  return false;
}

// A step that cannot be done twice, because it overwrites its input.
bool IsForOnce(const Step& step) {
  const auto* attention = std::get_if<AttentionStep>(&step);
  return attention != nullptr && attention->windowed_cache &&
         (attention->past_key == attention->present_key ||
          attention->past_value == attention->present_value);
}

AttentionFacts FactsOf(const AttentionStep& step) {
  const auto beyond = [&](int64_t total) {
    return !step.windowed_cache && total > step.present_capacity;
  };
  return {.rows = step.sequence,
          .dim = step.dim,
          .other_keys = step.key_sequence != step.sequence,
          .hidden_keys = HidesMore(step),
          .has_bias = step.bias != nullptr,
          .has_head_sink = step.head_sink != nullptr,
          .smooth_softmax = step.smooth_softmax,
          .causal = step.causal,
          .window = step.window,
          .more_than_cache = std::ranges::any_of(step.total_length, beyond)};
}

class Executor final : public XrtTarget {
 public:
  Executor(std::shared_ptr<Device> device, const ExecutorOptions& options)
      : engine_(std::move(device), options), fused_(engine_, options.fused_decode) {
    if (!CanHaveDecode()) return;
    const std::string lost = WithoutDecode(engine_.overlays());
    if (!lost.empty()) engine_.Report(lost);
  }

  const char* Name() const override { return "xrt"; }
  ExecutorCounters counters() const override { return engine_.counters(); }
  bool device_in_use() const override { return in_use_; }

  void Execute(const Plan& plan, const ThreadPool& threads) const override {
    if (in_use_ && fused_.Execute(plan, threads)) return;
    RunAll(plan, threads);
    engine_.ReportNotices();
  }

 private:
  void RunAll(const Plan& plan, const ThreadPool& threads) const {
    const auto tokens = [this](const AttentionStep& step) {
      return WhyNot(step) == Reason::kNone ? TokensAtATime(engine_, step) : 0;
    };
    Progress progress{
        .caches = PlanCaches(engine_, plan, tokens, threads),
        .prompt = PromptWeights(engine_,
                                [this](const Step& step) { return WhyNot(step) == Reason::kNone; }),
        .decoder = DecoderOf(plan)};
    for (size_t next = 0; next < plan.steps.size();) {
      next = in_use_ ? OnDevice(plan, next, progress, threads)
                     : OnHost(plan, next, Reason::kGivenUp, progress, threads);
    }
    if (in_use_) progress.caches.PutBack();
  }

  // What runs on the overlay `fused_layer`.
  std::optional<Decoder> DecoderOf(const Plan& plan) const {
    if (!in_use_ || engine_.device().Overlay(kFusedLayer) == nullptr) return {};
    const WeightForm form = DeviceForm(PlanMemory::Of(engine_, plan).get());
    const npu::Manifest* overlay = engine_.device().Overlay(PackageOf(kFusedLayer, form));
    const bool decode = engine_.device().Overlay(kDecode) != nullptr;  // for when layers fail
    FoundDecoder found = FindDecoder(*overlay, plan, [&](const Step& step) {
      return decode ? WhyNot(step) : Reason::kNoVectors;
    });
    if (found.decoder && layers_failed_) found = {std::nullopt, Words(LayerReason::kFault)};
    if (!found.why_not.empty()) CountRefusal(found.why_not);
    return std::move(found.decoder);
  }
  void CountRefusal(const std::string& reason) const {
    engine_.Count([&](ExecutorCounters& counters) { ++counters.layers_refused[reason]; });
  }

  // NPU1 has too few columns for it.
  bool CanHaveDecode() const {
    return std::ranges::any_of(kDesigns, [this](const char* design) {
      const npu::Manifest* const manifest = engine_.device().Overlay(design);
      return manifest != nullptr && manifest->generation != npu::kGenerationNpu1;
    });
  }

  // The progress of a plan.
  struct Progress {
    PlanCaches caches;
    PromptWeights prompt;
    std::optional<Decoder> decoder;  // of a token, on an overlay of its own
    std::shared_ptr<PlanMemory> memory = nullptr;
    bool on_device = false;                  // whether the device has done steps
    std::vector<Reason> host_after{};        // for each step that the host did after them
    std::shared_ptr<Buffer> rows = nullptr;  // for a prompt's batches
    // The device has no room for more steps than this together.
    size_t most_steps = std::numeric_limits<size_t>::max();
  };

  // Each of these executes step `first` of the plan, and perhaps some that follow, and returns the
  // step after them.

  // Executes the group and, if the device fails, executes it again in a fresh context. Whole layers
  // that fail there too run step by step in one more, because their overlay may be the reason. That
  // is possible because a group changes nothing but its outputs, and does not read them.
  size_t OnDevice(const Plan& plan, size_t first, Progress& progress,
                  const ThreadPool& threads) const {
    std::string fault;
    int faults = 0;
    bool by_steps = false;
    while (true) {
      const uint64_t generation = engine_.generation();
      try {
        const size_t next = Group(plan, first, plan.steps.size(), progress, threads);
        if (by_steps) {
          CountRefusal(Words(LayerReason::kFault));
          layers_failed_ = true;
          Report(fault, "a fresh context did not help; running layers step by step does");
        } else if (faults > 0 && !cured_.exchange(true)) {
          Report(fault, "running it again in a fresh context helped");
        }
        return next;
      } catch (const DeviceError& error) {
        progress.prompt.Forget();
        progress.rows.reset();
        if (++faults == 1) {
          engine_.Count([](ExecutorCounters& counters) { ++counters.retries; });
        } else if (progress.decoder && progress.decoder->first == first) {
          by_steps = true;
          progress.decoder.reset();
        } else {
          return GivenUp(error, first);
        }
        fault = error.what();
      }
      engine_.Renew(generation);
    }
  }

  // The device has failed in a fresh context, too.
  size_t GivenUp(const DeviceError& error, size_t first) const {
    if (engine_.options().raise_on_error) {
      engine_.Forget();
      Fail(ErrorCode::kRuntime, engine_.device().name(), ": ", error.what(),
           "; a fresh context did not help");
    }
    engine_.Count([](ExecutorCounters& counters) { ++counters.fallbacks; });
    if (in_use_.exchange(false)) {
      engine_.GiveUp();
      Report(error.what(), "a fresh context did not help; continuing on this CPU");
    }
    return first;
  }

  // Up to `most` steps in one submission. A single step may take several submissions, or run on the
  // host.
  size_t Group(const Plan& plan, size_t first, size_t most, Progress& progress,
               const ThreadPool& threads) const {
    const Reason reason = WhyNot(plan.steps[first]);
    if (reason != Reason::kNone) return OnHost(plan, first, reason, progress, threads);
    if (IsVector(plan.steps[first]))
      return OnHost(plan, first, Reason::kHostHasRow, progress, threads);
    if (const auto* experts = std::get_if<MoEStep>(&plan.steps[first])) {
      return Experts(plan, *experts, first, progress, threads);
    }
    progress.caches.Refresh();
    if (progress.decoder && progress.decoder->first == first) {
      return Layers(plan, most, progress, threads);
    }
    size_t next = first;
    const char* const design = DesignOf(plan, plan.steps[first]);
    most = std::min(most, progress.most_steps);
    const size_t count = design == nullptr ? 1 : std::min(plan.steps.size() - first, most);
    try {
      PlanMemory* const memory = MemoryOf(plan, progress);
      if (design != nullptr) {
        next = Submit(plan, first, first + count, memory, design, progress, threads);
        if (next == first + progress.most_steps) Divide(Reason::kNoRoom, progress);
      } else {
        const StepSpan traced("step", plan, first);
        ByItself(memory, plan.steps[first], progress, threads);
        next = first + 1;
        CountDeviceSteps(1, progress);
      }
    } catch (const NoRoom& error) {
      progress.prompt.Forget();
      const size_t steps = error.steps > 0 ? error.steps : count;
      if (steps == 1) throw DeviceError(Fault::kAllocation, error.what());
      progress.most_steps = steps / 2;
      return Group(plan, first, most, progress, threads);
    } catch (const Error& error) {  // about the device's work; DeviceError is a different class
      progress.prompt.Forget();
      if (count > 1) {
        // Try half as many, until the step is alone.
        next = Group(plan, first, count / 2, progress, threads);
        if (next == first + count / 2) Divide(Reason::kRefused, progress);
        return next;
      }
      if (!refused_.exchange(true)) Report(error.what(), "running this step on this CPU instead");
      return OnHost(plan, first, Reason::kRefused, progress, threads);
    }
    return next;
  }

  // All layers of a token and its vocabulary, and steps of the host after them. If the overlay does
  // not take them after all, they run step by step.
  size_t Layers(const Plan& plan, size_t most, Progress& progress,
                const ThreadPool& threads) const {
    const size_t first = progress.decoder->first;
    try {
      PlanMemory* const memory = MemoryOf(plan, progress);
      const size_t next =
          Submit(plan, first, plan.steps.size(), memory, kFusedLayer, progress, threads);
      engine_.Count([](ExecutorCounters& counters) { ++counters.layer_tokens; });
      return next;
    } catch (const Error& error) {  // about the device's work; DeviceError is a different class
      if (!refused_.exchange(true))
        Report(error.what(), "running these layers step by step instead");
    }
    progress.decoder.reset();
    CountRefusal(Words(Reason::kRefused));
    return Group(plan, first, most, progress, threads);
  }

  // The host chooses the experts, whose projections are a plan.
  size_t Experts(const Plan& plan, const MoEStep& step, size_t first, Progress& progress,
                 const ThreadPool& threads) const {
    const StepSpan traced("step", plan, first);
    progress.prompt.Forget();  // the projections need its memory
    progress.rows.reset();
    Divide(Reason::kHostChooses, progress);
    RunExperts(engine_, step, threads,
               [&](const Plan& projections) { RunAll(projections, threads); });
    return first + 1;
  }

  // The memory that the plan keeps on the device, with all of its weights; null for an op by
  // itself.
  PlanMemory* MemoryOf(const Plan& plan, Progress& progress) const {
    auto& memory = progress.memory;
    if (memory == nullptr || memory->generation() != engine_.generation()) {
      memory = nullptr;  // free it before the next is allocated
      memory = PlanMemory::Of(engine_, plan);
      if (memory == nullptr) return nullptr;
      memory->Pin(plan, [this](const Step& step) { return WhyNot(step) == Reason::kNone; });
    }
    return memory.get();
  }

  // Executes steps from `first` on, to `end` at most, with no work of the host in between: in one
  // submission for each change of overlay. Work of the host among them does not divide the batch if
  // it can be done before or after it.
  size_t Submit(const Plan& plan, size_t first, size_t end, PlanMemory* memory, const char* design,
                Progress& progress, const ThreadPool& threads) const {
    // A token's rows are kept for the next token; those of a prompt are too large.
    const bool prompt = IsOfPrompts(design);
    Batch batch(engine_, threads, DeviceForm(memory), plan.temporaries, prompt ? nullptr : memory,
                first, prompt ? &progress.rows : nullptr);
    std::vector<Reason> before, after;  // of the host's steps
    Reason divides = Reason::kNone;     // for the step that the batch does not take
    int64_t device_steps = 0;
    size_t next = first, device_end = first;  // after the device's last step
    if (design == kFusedLayer) {
      const StepSpan traced("append", plan, first);
      AppendDecoder(engine_, *memory, batch, plan, *progress.decoder, progress.caches, threads);
      next = device_end = progress.decoder->end;
      device_steps = static_cast<int64_t>(next - first);
    }
    for (; next < end; ++next) {
      const Step& step = plan.steps[next];
      Reason reason = WhyNot(step);
      const bool by_host = reason != Reason::kNone || IsVector(step);
      if (by_host && !IsForOnce(step) && batch.Before(step)) {
        if (reason == Reason::kNone) reason = Reason::kHostHasRow;
        Host(plan, next, threads);
        before.push_back(reason);
      } else if (Selects(batch, step)) {
        ++device_steps;
        device_end = next + 1;
      } else if (reason == Reason::kNone) {
        StepSpan traced("append", plan, next);
        const char* const of_step = DesignOf(plan, step);
        const bool other = of_step != design && !(prompt && of_step != nullptr);
        if (other || !Append(memory, batch, of_step, std::span(plan.steps).subspan(next), progress,
                             threads)) {
          traced.Drop();
          divides = WhyDivided(step, other, of_step, !after.empty());
          break;
        }
        ++device_steps;
        device_end = next + 1;
      } else {
        batch.After(step, [&plan, next, &threads] { Host(plan, next, threads); });
        after.push_back(reason);
      }
      batch.Appended(step);
    }
    Require(device_end > first, "a step waits for its own result");
    try {
      batch.Run([&](const void* tensor, size_t bytes) {
        return std::any_of(plan.steps.begin() + static_cast<std::ptrdiff_t>(next), plan.steps.end(),
                           [&](const Step& step) { return Reads(step, tensor, bytes); });
      });
    } catch (NoRoom& error) {
      error.steps = next - first;
      throw;
    }
    CountDeviceSteps(device_steps, progress);
    CountHostSteps(before);
    CountHostSteps(after);
    progress.host_after = after;
    if (divides != Reason::kNone) progress.host_after.push_back(divides);
    return next;
  }

  // Why a step for the device is not in the same batch as those before it. Steps that the host does
  // after the batch have a reason already, and so has a vector step, because the host then does it.
  Reason WhyDivided(const Step& step, bool other, const char* design, bool host_steps) const {
    // Experts say themselves that they divide the plan.
    if (IsVector(step) || std::holds_alternative<MoEStep>(step)) return Reason::kNone;
    const auto* attention = std::get_if<AttentionStep>(&step);
    if (attention != nullptr &&
        (design == nullptr || (!other && HostPrepares(*attention, design)))) {
      return Reason::kHostPrepares;
    }
    if (other && design != nullptr) return Reason::kOtherOverlay;
    return host_steps ? Reason::kNone : Reason::kHostHasInput;
  }

  static Plan One(const Plan& plan, size_t step) {
    Plan one = {plan.steps[step]};
    one.node = plan.NameOf(step);
    return one;
  }

  static void Host(const Plan& plan, size_t step, const ThreadPool& threads) {
    HostTarget().Execute(One(plan, step), threads);
  }

  void CountHostSteps(const std::vector<Reason>& reasons) const {
    engine_.Count([&](ExecutorCounters& counters) {
      for (const Reason reason : reasons) ++counters.host_steps[Words(reason)];
    });
  }

  // Records why steps on the device are divided. A step that is refused alone after a refused batch
  // counts once.
  static void Divide(Reason reason, Progress& progress) {
    auto& reasons = progress.host_after;
    if (!progress.on_device) return;
    if (reason == Reason::kRefused && !reasons.empty() && reasons.back() == reason) return;
    reasons.push_back(reason);
  }

  // What the host has done since the last steps on the device has divided the plan.
  void CountDeviceSteps(int64_t count, Progress& progress) const {
    engine_.Count([&](ExecutorCounters& counters) {
      counters.device_steps += count;
      for (const Reason reason : progress.host_after) ++counters.host_steps_between[Words(reason)];
    });
    progress.on_device = true;
    progress.host_after.clear();
  }

  size_t OnHost(const Plan& plan, size_t first, Reason reason, Progress& progress,
                const ThreadPool& threads) const {
    Plan step = One(plan, first);
    if (!in_use_) {
      Release(plan, plan.steps[first]);
      // A model must not become less exact because its device is gone.
      auto* projection = std::get_if<MatMulStep>(step.steps.data());
      if (projection != nullptr) projection->numerics = Numerics::kBf16;
    }
    HostTarget().Execute(step, threads);
    CountHostSteps({reason});
    Divide(reason, progress);
    return first + 1;
  }

  // Releases what a plan and its op keep on a device that was given up.
  static void Release(const Plan& plan, const Step& step) {
    const auto release = [](const std::shared_ptr<KeptState>& kept) {
      if (kept == nullptr) return;
      const std::lock_guard lock(kept->mutex);
      kept->object = nullptr;
    };
    release(plan.kept);
    std::visit(
        [&](const auto& s) {
          if constexpr (requires { s.kept; }) release(s.kept);
        },
        step);
  }

  Reason WhyNot(const Step& step) const {
    const HasOverlay has = engine_.overlays();
    if (const auto* projection = std::get_if<MatMulStep>(&step)) {
      return WhyNotProjection(FactsOf(*projection), has);
    }
    if (const auto* attention = std::get_if<AttentionStep>(&step)) {
      return WhyNotAttention(FactsOf(*attention), has);
    }
    if (const auto* norm = std::get_if<NormStep>(&step)) {
      return WhyNotVector(FactsOf(*norm), has);
    }
    if (const auto* elementwise = std::get_if<ElementwiseStep>(&step)) {
      return WhyNotVector(FactsOf(*elementwise), has);
    }
    if (std::holds_alternative<CastStep>(step)) return Reason::kNone;
    if (const auto* experts = std::get_if<MoEStep>(&step)) {
      return WhyNotExperts(FactsOf(*experts), has);
    }
    return WhyNotGather();
  }

  // The design for a step; null for a step that is executed alone.
  const char* DesignOf(const Plan& plan, const Step& step) const {
    if (const auto* projection = std::get_if<MatMulStep>(&step)) {
      if (projection->rows == 1) return ProjectionDesign(engine_.overlays());
      return IsLarge(engine_, plan.temporaries, *projection) ? nullptr : kGemm;
    }
    if (IsVector(step)) return RowsOf(step) > 1 ? kGemm : kDecode;
    if (std::holds_alternative<MoEStep>(step)) return nullptr;
    const auto* attention = std::get_if<AttentionStep>(&step);
    const bool token = attention != nullptr && attention->sequence == 1;
    return token ? AttentionDesign(engine_.overlays()) : nullptr;
  }
  static int64_t RowsOf(const Step& step) {
    if (const auto* norm = std::get_if<NormStep>(&step)) return norm->rows;
    const auto* elementwise = std::get_if<ElementwiseStep>(&step);
    return elementwise != nullptr ? elementwise->rows : 1;
  }
  // Selects a row that the batch leaves on the device.
  static bool Selects(Batch& batch, const Step& step) {
    const auto* gather = std::get_if<GatherStep>(&step);
    return gather != nullptr && AppendSelection(batch, *gather);
  }
  static bool IsOfPrompts(const char* design) { return design == kGemm; }

  // Appends the first of `steps`, which are the rest of the plan.
  bool Append(const PlanMemory* memory, Batch& batch, const char* design,
              std::span<const Step> steps, Progress& progress, const ThreadPool& threads) const {
    const Step& step = steps.front();
    if (const auto* projection = std::get_if<MatMulStep>(&step)) {
      if (projection->rows > 1) {
        return AppendPromptProjection(engine_, memory, progress.prompt, batch, steps);
      }
      return AppendProjection(engine_, memory, batch, design, *projection);
    }
    if (const auto* norm = std::get_if<NormStep>(&step)) return AppendNorm(engine_, batch, *norm);
    if (const auto* elementwise = std::get_if<ElementwiseStep>(&step)) {
      return AppendElementwise(engine_, batch, *elementwise);
    }
    if (const auto* cast = std::get_if<CastStep>(&step)) return AppendCast(batch, *cast);
    return AppendAttention(engine_, batch, design, std::get<AttentionStep>(step), progress.caches,
                           threads);
  }

  void ByItself(const PlanMemory* memory, const Step& step, Progress& progress,
                const ThreadPool& threads) const {
    if (const auto* projection = std::get_if<MatMulStep>(&step)) {
      ProjectLarge(engine_, memory, progress.prompt, *projection, threads);
    } else {
      AttendPrompt(engine_, std::get<AttentionStep>(step), progress.caches, threads);
    }
  }

  void Report(const std::string& fault, const char* outcome) const {
    engine_.Report(Concat(fault, "; ", outcome));
  }

  mutable Engine engine_;
  mutable FusedDecoder fused_;
  mutable std::atomic<bool> in_use_ = true, cured_ = false, refused_ = false,
                            layers_failed_ = false;
};

}  // namespace

std::unique_ptr<XrtTarget> MakeXrtTarget(std::shared_ptr<Device> device,
                                         const ExecutorOptions& options) {
  return std::make_unique<Executor>(std::move(device), options);
}

}  // namespace ort_aie::npu_target
