// Several projections of a prompt.
#include <map>

#include "projection.h"
#include "targets/npu/engine.h"
#include "targets/npu/schedule/projection.h"

namespace ort_aie::npu_target {
namespace {

// A gated projection that shares one of its matrices with an earlier projection.
void AWeightThatProjectionsShare() {
  ExecutorOptions options;
  options.weight_bytes = 2 * 256 * 512;  // of one matrix
  Bench bench(kAll, options);
  Projection plain({.rows = 5}), gated({.rows = 5, .gated = true});
  gated.weights = plain.weights;
  Plan plan = {plain.Step(), gated.Step()};
  std::get<MatMulStep>(plan.steps[1]).weights = plain.weights.data();
  plan.kept = std::make_shared<KeptState>();
  bench.Run(plan);
  for (Projection* projection : {&plain, &gated}) projection->Compare(projection->OnHost());
  bench.OnlyDevice();
}

// Four products of a prompt, on a device with room for the rows of a batch of two steps, of one, or
// of none.
void RowsWithoutRoomAreDivided() {
  const std::string no_room = "no room for the rows of more steps";
  std::vector<size_t> sizes;  // for the rows of one step, of two and of four
  for (const size_t steps : {size_t{1}, size_t{2}, size_t{4}, size_t{0}}) {
    Bench bench(Designs{"gemm"});
    std::vector<Projection> projections;
    Plan plan;
    for (size_t i = 0; i < 4; ++i)
      projections.emplace_back(ProjectionCase{.rows = 70, .form = kBf16});
    for (Projection& projection : projections) plan.steps.push_back(projection.Step());
    if (sizes.size() < 3) {  // with room for all
      bench.device->before_allocation = [&](size_t bytes) { sizes.push_back(bytes); };
      Plan some = plan;
      some.steps.resize(steps);
      bench.Run(some);
      continue;
    }
    for (const auto& [most, submissions] : {std::pair{2, 2}, {1, 4}, {0, 0}}) {
      Bench small(Designs{"gemm"});
      small.device->before_allocation = [&, most = most](size_t bytes) {
        if (most > 0 && bytes <= sizes[static_cast<size_t>(most - 1)]) return;
        throw DeviceError(Fault::kAllocation, Concat("no memory for ", bytes, " bytes"));
      };
      for (Projection& projection : projections) {
        projection.kept = std::make_shared<KeptState>();
        projection.y = Values(DataType::kFloat32, 70 * 256);
      }
      Plan again;
      for (Projection& projection : projections) again.steps.push_back(projection.Step());
      small.Run(again);
      for (Projection& projection : projections) projection.Compare(projection.OnHost());
      const ExecutorCounters counters = small.target->counters();
      Check(small.device->counters().submissions == submissions,
            "submissions: ", small.device->counters().submissions);
      Check(small.target->device_in_use() == (most > 0), "given up without any room alone");
      if (most == 0) continue;
      Check(counters.retries == 0 && counters.host_steps.empty(), "nothing has failed");
      const std::map<std::string, int64_t> between = {{no_room, submissions - 1}};
      Check(counters.host_steps_between == between, "and the reason is counted");
      small.OnlyDevice();
    }
  }
}

// A plan's batches share one buffer for rows and use it one after the other.
void BatchesOfAPromptShareABuffer() {
  Bench bench;
  std::vector<size_t> sizes;
  bench.device->before_allocation = [&](size_t bytes) { sizes.push_back(bytes); };
  std::vector<Projection> projections;
  std::vector<Projection> alone;  // for the host, so that they divide the plan
  Plan plan;
  for (int i = 0; i < 3; ++i) {
    projections.emplace_back(ProjectionCase{.rows = 70, .k = 256, .form = kBf16});
    alone.emplace_back(ProjectionCase{.rows = 70, .k = 256});
  }
  for (size_t i = 0; i < 3; ++i) {
    MatMulStep host = alone[i].Step();
    host.numerics = Numerics::kInt8;
    host.a = projections[i].y.data();  // after the device
    plan.steps.push_back(projections[i].Step());
    plan.steps.push_back(host);
    if (i < 2) std::get<MatMulStep>(plan.steps.back()).y = projections[i + 1].a.data();
  }
  bench.Run(plan);
  Check(bench.device->counters().submissions == 3,
        "submissions: ", bench.device->counters().submissions);
  for (Projection& projection : projections) projection.Compare(projection.OnHost());
  Check(sizes.size() == 1, "buffers for rows: ", sizes.size());
  Check(bench.device->counters().buffers <= 3, "and it goes with the plan");
}

// Rows that a plan leaves on the device need room there in one buffer. Without that room the device
// works on them in chunks, which is better than all of them on the host.
void ProductsThatOneBufferDoesNotHold() {
  const Bench bench;
  Engine engine(bench.device, {});
  const auto large = [&](int64_t rows, bool gated) {
    MatMulStep step{};
    step.rows = rows;
    step.k = 4096;
    step.n = 14336;
    step.type = DataType::kBfloat16;
    const std::vector<uint8_t> memory(1);  // never read
    step.weights = memory.data();
    if (gated) {
      step.up_weights = memory.data();
      step.activation = Activation::kSilu;
    }
    step.y = const_cast<uint8_t*>(memory.data());
    return IsLarge(engine.facts(), {memory.data(), size_t{1} << 40}, step);
  };
  Check(!large(1 << 15, true) && !large(1 << 16, false), "these have room");
  Check(large(1 << 16, true), "rows, gates, ups and their products take 6 GB");
  Check(large(1 << 18, false), "products alone take 7 GB");
}

const Cases kGemmCases({
    {"a_weight_that_projections_share", AWeightThatProjectionsShare},
    {"batches_of_a_prompt_share_a_buffer", BatchesOfAPromptShareABuffer},
    {"rows_without_room_are_divided", RowsWithoutRoomAreDivided},
    {"products_that_one_buffer_does_not_hold", ProductsThatOneBufferDoesNotHold},
});

}  // namespace
}  // namespace ort_aie::npu_target
