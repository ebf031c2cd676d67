#include "targets/host/live_trials.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <exception>

#include "base/platform.h"
#include "targets/host/kernels/choice_file.h"
#include "targets/host/projection_rows.h"
#include "targets/host/streamed_rows.h"

namespace ort_aie::host {
namespace {

// A prime number, so that trials do not come to the same few projections of a model again and
// again.
constexpr size_t kEvery = 127;
// Weights that are not read in so many bytes may be in a cache, and take too little time to
// measure.
constexpr int64_t kLeastBytes = 4 << 20;
constexpr size_t kMostOfRun = 128;  // samples of a candidate: the newest
constexpr double kLeastRatio = 1, kMostRatio = 9999;

size_t At(Role role) { return static_cast<size_t>(role); }

// The role of a projection that can be a trial; kCount for others.
Role RoleOf(const MatMulStep& step) {
  const WeightKind kind = step.form.kind;
  const bool no_role = kind == WeightKind::kBf16 || kind == WeightKind::kFile;
  if (step.rows != 1 || no_role || step.n <= q4nx::kBlockRows) return Role::kCount;
  const int64_t matrices = IsGated(step) ? 2 : 1;
  if (matrices * q4nx::RowBlocks(step.n) * RowBytes(step) < kLeastBytes) return Role::kCount;
  if (kind == WeightKind::kQ2NX) return Role::kLookups;
  return step.numerics == Numerics::kInt8 ? Role::kOneRowInt8 : Role::kOneRowBf16;
}

// Counts the threads that take a task, because ONNX Runtime does not say how many it has.
class CountedThreads final : public ThreadPool {
 public:
  explicit CountedThreads(const ThreadPool& threads) : threads_(threads) {}
  int count() const {
    return static_cast<int>(std::ranges::count_if(ids_, [](const auto& id) { return id != 0; }));
  }

 protected:
  void Run(int64_t count, Call call, void* job) const override {
    threads_.ParallelFor(count, [&](int64_t task) {
      Note(platform::ThreadId());
      call(job, task);
    });
  }

 private:
  void Note(int id) const {
    for (std::atomic<int>& its : ids_) {
      int none = 0;
      if (its == id || its.compare_exchange_strong(none, id) || none == id) return;
    }
  }

  const ThreadPool& threads_;
  mutable std::array<std::atomic<int>, 256> ids_{};
};

std::unique_ptr<Selection> PutTogether(const Choice& choice) {
  auto selection = std::make_unique<Selection>();
  selection->PutTogether(choice);
  return selection;
}

bool Same(const Choice& a, const Choice& b) {
  return std::ranges::equal(a, b, [](const Chosen& one, const Chosen& other) {
    return std::strcmp(one.variant, other.variant) == 0;
  });
}

}  // namespace

LiveTrials::LiveTrials() : path_(MeasurementPath()), now_(&Selected()) {
  const Choice& rules = Selected().choice;
  for (size_t role = 0; role < kRoles; ++role) {
    if (rules[role].origin != Origin::kRule) continue;
    for (const char* name :
         CandidatesFor(static_cast<Role>(role), rules[role].variant, ThisCpu())) {
      Choice choice = rules;
      choice[role].variant = name;
      tried_[role].candidates.push_back(PutTogether(choice));
    }
  }
  if (HasCandidates()) kept_ = ReadMeasurement(path_).samples;
}

LiveTrials::~LiveTrials() {
  try {
    KeepSamples(path_, run_);
  } catch (const std::exception&) {  // no memory
  }
}

bool LiveTrials::HasCandidates() const {
  return std::ranges::any_of(tried_, [](const Tried& tried) { return !tried.candidates.empty(); });
}

std::shared_ptr<LiveTrials> LiveTrials::Join() {
  // Sessions may outlive the statics of the process.
  static auto& mutex = *new std::mutex();
  static auto& last = *new std::weak_ptr<LiveTrials>();
  const std::lock_guard lock(mutex);
  std::shared_ptr<LiveTrials> trials = last.lock();
  if (trials == nullptr) {
    trials.reset(new LiveTrials());
    if (!trials->HasCandidates()) return nullptr;
    last = trials;
  }
  return trials;
}

void LiveTrials::Run(const MatMulStep& step, const Kernels& kernels, const ThreadPool& threads) {
  const Role role = RoleOf(step);
  if (role != Role::kCount && !tried_[At(role)].candidates.empty() &&
      projections_.fetch_add(1, std::memory_order_relaxed) % kEvery == kEvery - 1) {
    return Try(role, step, threads);
  }
  RunMatMul(step, kernels, threads);
}

void LiveTrials::Try(Role role, const MatMulStep& step, const ThreadPool& threads) {
  Tried& tried = tried_[At(role)];
  const size_t trial = tried.trials.fetch_add(1, std::memory_order_relaxed);
  const Selection& candidate = *tried.candidates[trial % tried.candidates.size()];
  // Each goes first in turn: threads may still be waking up.
  const size_t its = trial / tried.candidates.size() % 2;
  std::array<const Kernels*, 2> kernels;
  kernels[its] = &candidate.kernels;
  kernels[1 - its] = &SelectedKernels();
  const CountedThreads counted(threads);
  const std::array<double, 2> seconds = RunHalves(step, kernels, counted);
  const double ratio = 1000 * seconds[its] / seconds[1 - its];
  if (std::isnan(ratio)) return;  // a clock that stood still
  Record(role, candidate.choice[At(role)].variant, counted.count(),
         static_cast<int>(std::clamp(ratio, kLeastRatio, kMostRatio)));
}

void LiveTrials::Record(Role role, const char* variant, int threads, int ratio) {
  const std::lock_guard lock(mutex_);
  threads_ = std::max(threads_, static_cast<int>(std::bit_ceil(static_cast<unsigned>(threads))));
  Ratios& ratios = run_[{role, threads_, variant}];
  ratios.push_back(ratio);
  if (ratios.size() > kMostOfRun) ratios.erase(ratios.begin());

  Samples samples = kept_;
  AddRun(run_, samples);
  Choice choice = Selected().choice;
  for (size_t i = 0; i < kRoles; ++i) {
    if (tried_[i].candidates.empty()) continue;
    choice[i].variant = Fastest(static_cast<Role>(i), threads_, choice[i].variant, samples);
  }
  if (Same(choice, now_.load(std::memory_order_relaxed)->choice)) return;
  auto known = std::ranges::find_if(
      chosen_, [&](const auto& selection) { return Same(choice, selection->choice); });
  if (known == chosen_.end()) known = chosen_.insert(known, PutTogether(choice));
  now_.store(known->get(), std::memory_order_release);
}

}  // namespace ort_aie::host
