#include "targets/npu/executor.h"

#include <algorithm>
#include <atomic>
#include <optional>
#include <utility>

#include "base/error.h"
#include "targets/host/host_target.h"
#include "targets/npu/batch_runner.h"
#include "targets/npu/engine.h"
#include "targets/npu/experts.h"
#include "targets/npu/fused_decode/fused_decoder.h"
#include "targets/npu/plan_contents.h"
#include "targets/npu/schedule/scheduler.h"
#include "targets/step_span.h"

namespace ort_aie::npu_target {
namespace {

class Executor final : public XrtTarget {
 public:
  Executor(std::shared_ptr<Device> device, const ExecutorOptions& options)
      : engine_(std::move(device), options), fused_(engine_, options.fused_decode) {
    if (!CanHaveDecode()) return;
    const std::string lost = WithoutDecode(engine_.overlays());
    if (!lost.empty()) engine_.Report(lost);
  }

  const char* Name() const override { return "xrt"; }
  bool ReadsInPlace(const WeightForm& form) const override {
    return form.kind == WeightKind::kQ4NX && FormOfPlan({&form, 1}, engine_.overlays()) == form;
  }
  ExecutorCounters counters() const override { return engine_.counters(); }
  bool device_in_use() const override { return in_use_; }

  void Execute(const Plan& plan, const ThreadPool& threads) const override {
    if (in_use_ && fused_.Execute(plan, threads)) return;
    RunAll(plan, threads);
    engine_.ReportNotices();
  }

 private:
  // The execution of a plan.
  struct Call {
    const Plan& plan;
    const ThreadPool& threads;
    PlanContents contents;
    Scheduler scheduler;
    std::shared_ptr<Buffer> rows = nullptr;  // for a prompt's batches

    Call(Engine& engine, const Plan& plan, const ThreadPool& threads)
        : plan(plan),
          threads(threads),
          contents(engine, plan, threads),
          scheduler(engine.facts(), contents, plan, threads) {}
  };

  void RunAll(const Plan& plan, const ThreadPool& threads) const {
    Call call(engine_, plan, threads);
    if (in_use_) {
      const std::string why_not = call.scheduler.FindLayers(!layers_failed_);
      if (!why_not.empty()) CountRefusal(why_not);
    }
    while (!call.scheduler.done()) {
      if (in_use_) {
        RunNext(call);
      } else {
        RunOnHost(call, call.scheduler.OnHost(Reason::kGivenUp));
      }
    }
    if (in_use_) call.contents.PutBack();
  }

  void CountRefusal(const std::string& reason) const {
    engine_.Count([&](ExecutorCounters& counters) { ++counters.layers_refused[reason]; });
  }

  // NPU1 has too few columns for it.
  bool CanHaveDecode() const {
    return std::ranges::any_of(kDesigns, [this](Design design) {
      const npu::Manifest* const manifest = engine_.device().Overlay(design);
      return manifest != nullptr && manifest->generation != npu::kGenerationNpu1;
    });
  }

  // Runs the next stage and, if the device fails, runs it again in a fresh context. Whole layers
  // that fail there too run step by step in one more, because their overlay may be the reason.
  void RunNext(Call& call) const {
    std::string fault;  // the last one
    bool by_steps = false;
    const auto run = [&] {
      call.contents.Refresh();
      Attempt(call);
    };
    const auto again = [&](const DeviceError& error, int faults) {
      call.scheduler.Forget();
      call.rows.reset();
      if (faults > 1) {
        if (!call.scheduler.NextIsLayers()) return false;
        by_steps = true;
        call.scheduler.WithoutLayers();
      }
      fault = error.what();
      return true;
    };
    try {
      engine_.Retry(run, again);
    } catch (const DeviceError& error) {
      engine_.Fallback(error);
      if (!in_use_.exchange(false)) return;
      engine_.GiveUp();
      return Report(error.what(), "a fresh context did not help; continuing on this CPU");
    }
    if (by_steps) {
      CountRefusal(Words(LayerReason::kFault));
      layers_failed_ = true;
      Report(fault, "a fresh context did not help; running layers step by step does");
    } else if (!fault.empty() && !cured_.exchange(true)) {
      Report(fault, "running it again in a fresh context helped");
    }
  }

  // Runs one stage: that of the most steps that the device takes.
  void Attempt(Call& call) const {
    while (true) {
      Stage stage;
      try {
        stage = call.scheduler.Next();
        if (!stage.batches.empty()) RunBatches(call, stage);
      } catch (const NoRoom& error) {
        if (stage.layers) {
          Refused(call, error);
        } else if (!call.scheduler.Divide(stage)) {
          throw DeviceError(Fault::kAllocation, error.what());
        }
        continue;
      } catch (const Error& error) {  // about the device's work; DeviceError is a different class
        Refused(call, error);
        continue;
      }
      switch (stage.kind) {
        case Stage::Kind::kHost:
          return RunOnHost(call, stage);
        case Stage::Kind::kExperts:
          return RunExpertsOf(call, stage);
        default:
          return Count(call, stage);
      }
    }
  }

  void RunBatches(Call& call, const Stage& stage) const {
    BatchRows rows;
    // A token's rows are kept for the next token; those of a prompt are too large.
    if (stage.kind == Stage::Kind::kTogether) {
      if (stage.prompt) {
        rows.passed_on = &call.rows;
      } else {
        rows = {call.contents.memory(), stage.first};
      }
    }
    std::optional<StepSpan> traced;
    if (stage.kind == Stage::Kind::kAlone) traced.emplace("step", call.plan, stage.first);
    for (const auto& batch : stage.batches) {
      RunBatch(engine_, *batch, call.contents.form(), rows);
    }
  }

  void Count(Call& call, const Stage& stage) const {
    const std::vector<Reason> between = call.scheduler.Ran(stage);
    engine_.Count([&](ExecutorCounters& counters) {
      counters.device_steps += stage.device_steps;
      if (stage.layers) ++counters.layer_tokens;
      for (const Reason reason : stage.before) ++counters.host_steps[Words(reason)];
      for (const Reason reason : stage.after) ++counters.host_steps[Words(reason)];
      for (const Reason reason : between) ++counters.host_steps_between[Words(reason)];
    });
  }

  void Refused(Call& call, const Error& error) const {
    const Scheduler::Refused refused = call.scheduler.Refuse();
    if (refused == Scheduler::Refused::kLayers) CountRefusal(Words(Reason::kRefused));
    if (refused == Scheduler::Refused::kSeveralSteps || refused_.exchange(true)) return;
    Report(error.what(), refused == Scheduler::Refused::kLayers
                             ? "running these layers step by step instead"
                             : "running this step on this CPU instead");
  }

  // The host chooses the experts, whose projections are a plan.
  void RunExpertsOf(Call& call, const Stage& stage) const {
    const StepSpan traced("step", call.plan, stage.first);
    call.rows.reset();
    RunExperts(engine_, std::get<MoEStep>(call.plan.steps[stage.first]), call.threads,
               [&](const Plan& projections) { RunAll(projections, call.threads); });
    call.scheduler.Ran(stage);
  }

  void RunOnHost(Call& call, const Stage& stage) const {
    Plan step = OneStep(call.plan, stage.first);
    if (!in_use_) {
      Release(call.plan, call.plan.steps[stage.first]);
      // A model must not become less exact because its device is gone.
      auto* projection = std::get_if<MatMulStep>(step.steps.data());
      if (projection != nullptr) projection->numerics = Numerics::kBf16;
    }
    HostTarget().Execute(step, call.threads);
    engine_.Count([&](ExecutorCounters& counters) { ++counters.host_steps[Words(stage.reason)]; });
    call.scheduler.Ran(stage);
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
