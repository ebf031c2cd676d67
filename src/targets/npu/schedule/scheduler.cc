#include "targets/npu/schedule/scheduler.h"

#include <algorithm>
#include <span>
#include <utility>

#include "base/error.h"
#include "ops/step_tensors.h"
#include "targets/host/host_target.h"
#include "targets/npu/schedule/attention.h"
#include "targets/npu/schedule/steps.h"
#include "targets/step_span.h"

namespace ort_aie::npu_target {
namespace {

// A step that cannot be done twice, because it overwrites its input.
bool IsForOnce(const Step& step) {
  const auto* attention = std::get_if<AttentionStep>(&step);
  return attention != nullptr && attention->windowed_cache &&
         (attention->past_key == attention->present_key ||
          attention->past_value == attention->present_value);
}

DeviceFacts FactsFor(const Plan& plan, const DeviceFacts& facts, const DeviceContents& contents) {
  DeviceFacts of_plan = facts;
  of_plan.prompts = PromptOverlaysOf(facts, plan, contents.form());
  return of_plan;
}

bool IsOfPrompts(Design design) { return design == kGemm || design == kGemmBfp16; }

}  // namespace

Scheduler::Scheduler(const DeviceFacts& facts, DeviceContents& contents, const Plan& plan,
                     const ThreadPool& threads)
    : facts_(FactsFor(plan, facts, contents)),
      contents_(contents),
      plan_(plan),
      threads_(threads),
      prompt_(facts_, contents,
              [this](const Step& step) { return WhyNot(step) == Reason::kNone; }) {}

std::string Scheduler::FindLayers(bool works) {
  if (!facts_.has(kFusedLayer)) return "";
  const npu::Manifest* overlay = facts_.overlay(PackageOf(kFusedLayer, contents_.form()));
  const bool decode = facts_.has(kDecode);  // for when layers fail
  FoundDecoder found = FindDecoder(*overlay, plan_, [&](const Step& step) {
    return decode ? WhyNot(step) : Reason::kNoVectors;
  });
  if (found.decoder && !works) found = {std::nullopt, Words(LayerReason::kFault)};
  decoder_ = std::move(found.decoder);
  return std::move(found.why_not);
}

Reason Scheduler::WhyNot(const Step& step) const {
  return HandlerOf(step).why_not(step, facts_.has);
}

Stage Scheduler::OnHost(Reason reason) const {
  return {.kind = Stage::Kind::kHost, .first = next_, .end = next_ + 1, .reason = reason};
}

Stage Scheduler::Next() {
  const Step& step = plan_.steps[next_];
  const StepHandler& handler = HandlerOf(step);
  Reason reason = WhyNot(step);
  if (reason == Reason::kNone && handler.between) reason = Reason::kHostHasRow;
  if (reason == Reason::kNone && refused_) reason = Reason::kRefused;
  if (reason != Reason::kNone) return OnHost(reason);
  if (IsExperts(step)) {
    prompt_.Forget();  // the projections need its memory
    return {.kind = Stage::Kind::kExperts, .first = next_, .end = next_ + 1};
  }
  const size_t rest = plan_.steps.size() - next_;
  if (NextIsLayers()) {
    tried_ = {rest, true};
    return Together(plan_.steps.size(), kFusedLayer, true);
  }
  const Design design = handler.design(facts_, plan_, step);
  if (!design.empty()) {
    tried_ = {std::min({rest, most_now_, most_}), false};
    return Together(next_ + tried_.steps, design, false);
  }
  tried_ = {1, false};
  Stage stage{.kind = Stage::Kind::kAlone, .first = next_, .end = next_ + 1, .device_steps = 1};
  Scheduling scheduling{facts_, contents_, plan_, threads_, prompt_};
  handler.alone(scheduling, step, stage);
  for (const auto& batch : stage.batches) {
    batch->Finish([](const void*, size_t) { return true; });
  }
  return stage;
}

// Steps from the next one on, to `end` at most, with no work of the host in between: in one
// submission for each change of overlay. Work of the host among them does not divide the batch if
// it can be done before or after it.
Stage Scheduler::Together(size_t end, Design design, bool layers) {
  Stage stage{.kind = Stage::Kind::kTogether, .first = next_, .layers = layers};
  stage.prompt = IsOfPrompts(design);
  Batch& batch =
      stage.Add(threads_, plan_.temporaries,
                [&facts = facts_, form = contents_.form()](Design one, Design other) {
                  return facts.share_context(PackageOf(one, form), PackageOf(other, form));
                });
  Scheduling scheduling{facts_, contents_, plan_, threads_, prompt_};
  const auto on_host = [this](size_t step) {
    return [&plan = plan_, step, &threads = threads_] {
      HostTarget().Execute(OneStep(plan, step), threads);
    };
  };
  size_t next = next_, device_end = next_;  // after the device's last step
  if (layers) {
    const StepSpan traced("append", plan_, next);
    AppendDecoder(scheduling, batch, *decoder_);
    next = device_end = decoder_->end;
    stage.device_steps = static_cast<int64_t>(next - next_);
  }
  for (; next < end; ++next) {
    const Step& step = plan_.steps[next];
    const StepHandler& handler = HandlerOf(step);
    Reason reason = WhyNot(step);
    const bool by_host = reason != Reason::kNone || handler.between;
    if (by_host && !IsForOnce(step) && batch.tensors.CanPrecede(step)) {
      if (reason == Reason::kNone) reason = Reason::kHostHasRow;
      batch.Before(step, on_host(next));
      stage.before.push_back(reason);
    } else if (AppendIfSelection(batch, step)) {
      ++stage.device_steps;
      device_end = next + 1;
    } else if (reason == Reason::kNone) {
      StepSpan traced("append", plan_, next);
      Design of_step = handler.design(facts_, plan_, step);
      if (of_step.empty() && stage.prompt && handler.joins != nullptr) {
        of_step = handler.joins(facts_, step);
      }
      scheduling.divides = Reason::kNone;
      const bool other = of_step != design && !(stage.prompt && !of_step.empty());
      if (other ||
          !handler.append(scheduling, batch, of_step, std::span(plan_.steps).subspan(next))) {
        traced.Drop();
        stage.divides = scheduling.divides;
        if (stage.divides == Reason::kNone) {
          stage.divides = WhyDivided(step, other, of_step, !stage.after.empty());
        }
        break;
      }
      ++stage.device_steps;
      device_end = next + 1;
    } else {
      batch.After(step, on_host(next));
      stage.after.push_back(reason);
    }
    batch.tensors.Appended(step);
  }
  Require(device_end > next_, "a step waits for its own result");
  stage.end = next;
  batch.Finish([&](const void* tensor, size_t bytes) {
    return std::any_of(plan_.steps.begin() + static_cast<std::ptrdiff_t>(next), plan_.steps.end(),
                       [&](const Step& step) { return Reads(step, tensor, bytes); });
  });
  return stage;
}

// Why a step for the device is not in the same batch as those before it. Steps that the host does
// after the batch have a reason already, and so has a step between projections, because the host
// then does it.
Reason Scheduler::WhyDivided(const Step& step, bool other, Design design, bool host_steps) const {
  // Experts say themselves that they divide the plan.
  if (HandlerOf(step).between || IsExperts(step)) return Reason::kNone;
  const auto* attention = std::get_if<AttentionStep>(&step);
  if (attention != nullptr && (design.empty() || (!other && HostPrepares(*attention, design)))) {
    return Reason::kHostPrepares;
  }
  if (other && !design.empty()) return Reason::kOtherOverlay;
  return host_steps ? Reason::kNone : Reason::kHostHasInput;
}

// Records why steps on the device are divided. A step that is refused alone after a refused batch
// counts once.
void Scheduler::Divides(Reason reason) {
  if (!on_device_) return;
  if (reason == Reason::kRefused && !divided_by_.empty() && divided_by_.back() == reason) return;
  divided_by_.push_back(reason);
}

std::vector<Reason> Scheduler::Ran(const Stage& stage) {
  std::vector<Reason> between;
  if (stage.kind == Stage::Kind::kHost) {
    Divides(stage.reason);
  } else if (stage.kind == Stage::Kind::kExperts) {
    Divides(Reason::kHostChooses);
  } else {
    between = std::exchange(divided_by_, stage.after);
    if (stage.divides != Reason::kNone) divided_by_.push_back(stage.divides);
    on_device_ = true;
    const size_t steps = stage.end - stage.first;
    if (stage.kind == Stage::Kind::kTogether && !stage.layers) {
      if (steps == most_) Divides(Reason::kNoRoom);
      if (steps == most_now_) Divides(Reason::kRefused);
    }
  }
  next_ = stage.end;
  most_now_ = kAll;
  refused_ = false;
  return between;
}

Scheduler::Refused Scheduler::Refuse() {
  prompt_.Forget();
  if (tried_.layers) {
    decoder_.reset();
    return Refused::kLayers;
  }
  if (tried_.steps > 1) {
    most_now_ = tried_.steps / 2;
    return Refused::kSeveralSteps;
  }
  refused_ = true;
  return Refused::kOneStep;
}

bool Scheduler::Divide(const Stage& stage) {
  prompt_.Forget();
  const size_t steps = stage.end - stage.first;
  if (steps == 1) return false;
  most_ = steps / 2;
  return true;
}

}  // namespace ort_aie::npu_target
