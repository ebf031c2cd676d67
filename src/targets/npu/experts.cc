#include "targets/npu/experts.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "ops/routing.h"
#include "targets/host/host_target.h"
#include "targets/host/work.h"
#include "targets/npu/weights.h"

namespace ort_aie::npu_target {
namespace {

// Rows whose experts are executed together. Their inputs and results are in the host's memory.
constexpr int64_t kMostRows = 512;

// What a layer keeps on the device: each expert's weights, as its two projections find them.
struct PinnedExperts {
  uint64_t generation;
  std::vector<std::shared_ptr<KeptState>> in, out;  // by expert
};

// The experts' matrices on the device, in the order of experts: all of them in one range if the
// device reads them in place.
std::vector<DeviceMemory> PinAll(Engine& engine, const uint8_t* blocks, int64_t experts, int64_t n,
                                 int64_t k, const WeightForm& form) {
  const int64_t bytes = q4nx::BytesOfBlocks(n, k, form);
  if (IsReadInPlace({blocks, n, k, form}, nullptr)) {
    const Matrix all{blocks, experts * q4nx::PaddedRows(n), k, form};
    const DeviceMemory first = PinWeights(engine, nullptr, {&all, 1}).front();
    std::vector<DeviceMemory> memory(static_cast<size_t>(experts), first);
    for (size_t e = 0; e < memory.size(); ++e) {
      memory[e].offset += static_cast<int64_t>(e) * bytes;
    }
    return memory;
  }
  std::vector<Matrix> matrices;
  for (int64_t e = 0; e < experts; ++e) matrices.push_back({blocks + e * bytes, n, k, form});
  return PinWeights(engine, nullptr, matrices);
}

std::shared_ptr<KeptState> Kept(uint64_t generation, DeviceMemory weights, DeviceMemory up) {
  auto state = std::make_shared<KeptState>();
  state->object =
      std::make_shared<PinnedWeights>(generation, WeightPlaces{std::move(weights), std::move(up)});
  return state;
}

std::shared_ptr<PinnedExperts> Pin(Engine& engine, const MoEStep& step) {
  const uint64_t generation = engine.generation();
  auto pinned = std::make_shared<PinnedExperts>();
  pinned->generation = generation;
  const auto in = [&](const uint8_t* blocks) {
    return PinAll(engine, blocks, step.experts, step.inter, step.hidden, step.form);
  };
  const std::vector<DeviceMemory> gate = in(step.gate);
  const std::vector<DeviceMemory> up =
      step.up != nullptr ? in(step.up) : std::vector<DeviceMemory>(gate.size());
  const std::vector<DeviceMemory> down =
      PinAll(engine, step.down, step.experts, step.hidden, step.inter, step.down_form);
  for (size_t e = 0; e < gate.size(); ++e) {
    pinned->in.push_back(Kept(generation, gate[e], up[e]));
    pinned->out.push_back(Kept(generation, down[e], {}));
  }
  return pinned;
}

std::shared_ptr<PinnedExperts> PinnedOf(Engine& engine, const MoEStep& step) {
  if (step.kept == nullptr) return Pin(engine, step);
  const std::lock_guard lock(step.kept->mutex);
  auto pinned = std::static_pointer_cast<PinnedExperts>(step.kept->object);
  if (pinned == nullptr || pinned->generation != engine.generation()) {
    step.kept->object = nullptr;  // free it before the next is made
    pinned = nullptr;
    pinned = Pin(engine, step);
    step.kept->object = pinned;
  }
  return pinned;
}

std::vector<float> FloatsOf(const host::Kernels& kernels, DataType type, const void* x,
                            int64_t count) {
  std::vector<float> floats(static_cast<size_t>(count));
  host::ToFloat(kernels, type, x, count, floats.data());
  return floats;
}

// `rows` rows of the step from `first` on.
void RunRows(const MoEStep& step, int64_t first, int64_t rows, const PinnedExperts& pinned,
             const host::Kernels& kernels, const ThreadPool& threads,
             const std::function<void(const Plan&)>& execute) {
  const auto floats = [&](const void* tensor, int64_t width) {
    if (tensor == nullptr) return std::vector<float>();
    return FloatsOf(kernels, step.type, Advance(tensor, step.type, first * width), rows * width);
  };
  const std::vector<float> logits = floats(step.router, step.experts);
  const std::vector<float> weights = floats(step.router_weights, step.experts);
  std::vector<int32_t> memory(static_cast<size_t>(RoutingWords(step, rows)));
  const Routing routing = RouteRows(step, rows, logits.data(),
                                    weights.empty() ? nullptr : weights.data(), memory.data());

  // The rows of each expert, one after the other. All experts of one row read the same one.
  std::vector<float> x = floats(step.x, step.hidden);
  const auto pairs = static_cast<int64_t>(routing.row.size());
  const auto row_of = [&](float* of, int64_t row, int64_t width) { return of + row * width; };
  if (rows > 1) {
    std::vector<float> gathered(static_cast<size_t>(pairs * step.hidden));
    threads.ParallelFor(pairs, host::SumNs(step.hidden), [&](int64_t pair) {
      const int64_t row = routing.row[static_cast<size_t>(pair)];
      std::copy_n(row_of(x.data(), row, step.hidden), step.hidden,
                  row_of(gathered.data(), pair, step.hidden));
    });
    x = std::move(gathered);
  }
  std::vector<float> h(static_cast<size_t>(pairs * step.inter));
  std::vector<float> y(static_cast<size_t>(pairs * step.hidden));

  // First what is before the activations, which the host may have to apply.
  Plan plan;
  std::vector<Step> after;
  for (const int32_t expert : routing.used) {
    const auto e = static_cast<size_t>(expert);
    const int64_t begin = routing.first[e];
    ExpertSteps steps = StepsOfExpert(
        step, expert, routing.RowsOf(expert), row_of(x.data(), rows > 1 ? begin : 0, step.hidden),
        row_of(h.data(), begin, step.inter), row_of(y.data(), begin, step.hidden));
    steps.in.kept = pinned.in[e];
    steps.out.kept = pinned.out[e];
    plan.steps.emplace_back(std::move(steps.in));
    after.emplace_back(std::move(steps.out));
  }
  for (Step& out : after) plan.steps.push_back(std::move(out));
  plan.temporaries = {reinterpret_cast<const uint8_t*>(h.data()), h.size() * sizeof(float)};
  execute(plan);

  std::vector<float> sums(static_cast<size_t>(rows * step.hidden));
  for (int64_t pair = 0; pair < pairs; ++pair) {
    const auto p = static_cast<size_t>(pair);
    const float weight = routing.weight[p];
    const float* from = row_of(y.data(), pair, step.hidden);
    float* to = row_of(sums.data(), routing.row[p], step.hidden);
    for (int64_t i = 0; i < step.hidden; ++i) to[i] += weight * from[i];
  }
  host::FromFloat(kernels, step.type, sums.data(), rows * step.hidden,
                  Advance(step.y, step.type, first * step.hidden));
}

}  // namespace

void RunExperts(Engine& engine, const MoEStep& step, const ThreadPool& threads,
                const std::function<void(const Plan&)>& execute) {
  const std::shared_ptr<PinnedExperts> pinned = PinnedOf(engine, step);
  const int64_t most = step.prompt_chunk > 0 ? step.prompt_chunk : kMostRows;
  for (int64_t first = 0; first < step.rows; first += most) {
    RunRows(step, first, std::min(most, step.rows - first), *pinned, engine.kernels(), threads,
            execute);
  }
}

}  // namespace ort_aie::npu_target
