#include "targets/host/trials.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <limits>
#include <string_view>
#include <thread>

#include "base/error.h"
#include "base/platform.h"
#include "q4nx/layout.h"

namespace ort_aie::host {
namespace {

using q4nx::kBlockCols;
using q4nx::kBlockRows;

constexpr int64_t kK = 2048, kN = 8192;  // size of a weight matrix
constexpr WeightForm kTrialForm = q4nx::SmallestForm(4, 32, /*symmetric=*/true);
constexpr int64_t kMatrixBytes = q4nx::BytesOfBlocks(kN, kK, kTrialForm);
constexpr int64_t kRows = 256;      // in a prompt's projection
constexpr int64_t kRowsN = 1024;    // its out-features
constexpr int64_t kPrompt = 256;    // tokens for attention, after as many earlier ones
constexpr int64_t kContext = 8192;  // keys for the attention of one token
constexpr int64_t kHeads = 32, kKvHeads = 8, kDim = 64;
constexpr int kLeastTurns = 5;

double Now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// A block with scales of 0.5.
std::vector<uint8_t> OneBlock() {
  std::vector<uint8_t> block(static_cast<size_t>(q4nx::BlockBytes(kTrialForm)), 0x35);
  constexpr uint16_t kScale = 0x3f00;
  for (int64_t i = 0; i < q4nx::ScalesOf(kTrialForm); ++i) {
    std::memcpy(block.data() + 2 * i, &kScale, 2);
  }
  return block;
}

}  // namespace

// Each thread takes tasks first from a run of its own and then from the others, as ONNX Runtime's
// threads do, so that a thread reads contiguous memory. Threads wait busily between turns.
class TrialThreads final : public ThreadPool {
 public:
  explicit TrialThreads(int threads) : runs_(static_cast<size_t>(std::max(1, threads))) {
    for (size_t i = 1; i < runs_.size(); ++i) {
      threads_.emplace_back([this, i](std::stop_token stop) { Serve(i, stop); });
    }
  }

 protected:
  void Run(int64_t count, Call call, void* job) const override {
    call_ = call;
    job_ = job;
    const auto threads = static_cast<int64_t>(runs_.size());
    for (int64_t i = 0; i < threads; ++i) {
      TaskRun& run = runs_[static_cast<size_t>(i)];
      run.next = count * i / threads;
      run.end = count * (i + 1) / threads;
    }
    working_ = threads - 1;
    turn_.fetch_add(1, std::memory_order_release);
    Work(0);
    while (working_.load(std::memory_order_acquire) > 0) std::this_thread::yield();
  }

 private:
  struct alignas(64) TaskRun {
    std::atomic<int64_t> next = 0;
    int64_t end = 0;
  };

  void Serve(size_t self, const std::stop_token& stop) const {
    for (int64_t seen = 0; !stop.stop_requested();) {
      if (turn_.load(std::memory_order_acquire) == seen) {
        std::this_thread::yield();
        continue;
      }
      ++seen;
      Work(self);
      working_.fetch_sub(1, std::memory_order_release);
    }
  }

  void Work(size_t self) const {
    for (size_t i = 0; i < runs_.size(); ++i) {
      TaskRun& run = runs_[(self + i) % runs_.size()];
      for (int64_t task = run.next++; task < run.end; task = run.next++) call_(job_, task);
    }
  }

  mutable std::vector<TaskRun> runs_;
  mutable std::atomic<int64_t> turn_ = 0, working_ = 0;
  mutable Call call_ = nullptr;
  mutable void* job_ = nullptr;
  std::vector<std::jthread> threads_;  // last: they must end before the members they use
};

struct Trials::Mapping {
  std::shared_ptr<const uint8_t> data;
  int64_t bytes = 0;
  std::vector<float> activations = std::vector<float>(kRows * kN, 0.5f);
  std::vector<float> results = std::vector<float>(kRows * kN);
  std::vector<uint16_t> cache = std::vector<uint16_t>(2 * kKvHeads * kContext * kDim, 0x3800);
};

Trials::Trials(const std::string& folder, int threads, int64_t bytes)
    : weights_(std::make_unique<Mapping>()), threads_(std::make_unique<TrialThreads>(threads)) {
  // The caches then hold little of the data from the turn before.
  if (bytes == 0) bytes = std::clamp<int64_t>(6 * platform::LastCacheBytes(), 192 << 20, 768 << 20);
  weights_->bytes = std::max<int64_t>(1, bytes / kMatrixBytes) * kMatrixBytes;
  platform::File file = platform::File::CreateTemporary(folder);
  const auto require = [&](bool good, const char* what) {
    if (good) return;
    Fail(ErrorCode::kRuntime, folder, ": ", weights_->bytes / 1000000,
         " MB to measure with cannot be ", what, ": ", std::strerror(errno));
  };
  require(file.is_open(), "made");
  std::vector<uint8_t> many;
  const std::vector<uint8_t> block = OneBlock();
  for (int i = 0; i < 256; ++i) many.insert(many.end(), block.begin(), block.end());
  const auto at_once = static_cast<int64_t>(many.size());
  for (int64_t done = 0; done < weights_->bytes; done += at_once) {
    const int64_t bytes = std::min(at_once, weights_->bytes - done);
    require(file.Write(done, many.data(), static_cast<size_t>(bytes)), "written");
  }
  // So that they are read like those of a model written long ago.
  file.LeaveCache();
  weights_->data = file.Map(0, weights_->bytes);
  require(weights_->data != nullptr, "mapped");
}

Trials::~Trials() = default;

std::vector<const char*> Trials::Candidates(Role role) {
  // Elementwise kernels take too little time to choose by, and tables without vectors are not
  // candidates.
  std::vector<const char*> names = VariantsOf(role, ThisCpu());
  std::erase_if(names, [](std::string_view name) {
    return name == "portable" || name.ends_with("_standin");
  });
  if (role == Role::kElementwise || names.size() < 2) names.clear();
  return names;
}

int64_t Trials::BytesOf(Role role) const {
  switch (role) {
    case Role::kOneRowInt8:
    case Role::kOneRowBf16:
    case Role::kLookups:
      return weights_->bytes;
    default:
      return 0;
  }
}

std::vector<double> Trials::Measure(Role role, double seconds) const {
  const std::vector<const char*> candidates = Candidates(role);
  std::vector<std::unique_ptr<Selection>> selections;
  for (const char* name : candidates) {
    Choice choice = Selected().choice;
    choice[static_cast<size_t>(role)].variant = name;
    selections.push_back(std::make_unique<Selection>());
    selections.back()->PutTogether(choice);
  }
  std::vector<double> least(candidates.size(), std::numeric_limits<double>::infinity());
  const double start = Now();
  for (int turn = 0; turn < kLeastTurns || Now() < start + seconds; ++turn) {
    for (size_t i = 0; i < selections.size(); ++i) {
      const double begin = Now();
      Turn(role, selections[i]->kernels);
      // The first turn reads the file and grows buffers, so it does not count.
      if (turn > 0) least[i] = std::min(least[i], Now() - begin);
    }
  }
  return least;
}

double Trials::ReadBandwidth(double seconds) const {
  constexpr int64_t kTask = 1 << 20;
  double least = std::numeric_limits<double>::infinity();
  const double start = Now();
  for (int turn = 0; turn < kLeastTurns || Now() < start + seconds; ++turn) {
    const double begin = Now();
    threads_->ParallelFor(weights_->bytes / kTask, [&](int64_t task) {
      // 16 bytes at a time, which every instruction set in this build has.
      typedef int64_t Vector __attribute__((vector_size(16)));
      const auto* p = reinterpret_cast<const Vector*>(weights_->data.get() + task * kTask);
      Vector sums[8] = {};
      for (int64_t i = 0; i < kTask / static_cast<int64_t>(sizeof(Vector)); i += 8) {
        for (int j = 0; j < 8; ++j) sums[j] |= p[i + j];
      }
      Vector sum = {};
      for (const Vector& part : sums) sum |= part;
      asm volatile("" : : "m"(sum));
    });
    if (turn > 0) least = std::min(least, Now() - begin);
  }
  return static_cast<double>(weights_->bytes) / least;
}

void Trials::Turn(Role role, const Kernels& kernels) const {
  switch (role) {
    case Role::kOneRowInt8:
      return Project(kernels, Numerics::kInt8, kTrialForm);
    case Role::kOneRowBf16:
      return Project(kernels, Numerics::kBf16, kTrialForm);
    case Role::kRowsInt8:
      return MultiplyRows(kernels, Numerics::kInt8);
    case Role::kRowsBf16:
      return MultiplyRows(kernels, Numerics::kBf16);
    case Role::kPromptAttention:
      return Attend(kernels, kPrompt, 2 * kPrompt);
    case Role::kFewRowsAttention:
      return Attend(kernels, 1, kContext);
    case Role::kLookups:
      return Project(kernels, Numerics::kInt8, {WeightKind::kQ2NX, 32, false});
    default:
      return;
  }
}

// One row by all weights.
void Trials::Project(const Kernels& kernels, Numerics numerics, const WeightForm& form) const {
  MatMulStep step{};
  step.form = form;
  step.rows = 1;
  step.k = kK;
  step.n = kMatrixBytes / (kK / kBlockCols * q4nx::BlockBytes(form)) * kBlockRows;
  step.a = weights_->activations.data();
  step.y = weights_->results.data();
  step.type = DataType::kFloat32;
  step.numerics = numerics;
  step.symmetric = true;
  for (int64_t at = 0; at < weights_->bytes; at += kMatrixBytes) {
    step.weights = weights_->data.get() + at;
    RunMatMul(step, kernels, *threads_);
  }
}

void Trials::MultiplyRows(const Kernels& kernels, Numerics numerics) const {
  MatMulStep step{};
  step.weights = weights_->data.get();
  step.rows = kRows;
  step.k = kK;
  step.n = kRowsN;
  step.a = weights_->activations.data();
  step.y = weights_->results.data();
  step.type = DataType::kFloat32;
  step.numerics = numerics;
  step.symmetric = true;
  RunMatMul(step, kernels, *threads_);
}

// The newest `queries` of `keys` tokens.
void Trials::Attend(const Kernels& kernels, int64_t queries, int64_t keys) const {
  AttentionStep step{};
  step.batch = 1;
  step.sequence = step.key_sequence = queries;
  step.heads = kHeads;
  step.kv_heads = kKvHeads;
  step.dim = kDim;
  step.query = step.key = step.value = weights_->activations.data();
  step.query_stride = kHeads * kDim;
  step.key_stride = step.value_stride = kKvHeads * kDim;
  step.type = DataType::kFloat32;
  step.past_key = step.present_key = weights_->cache.data();
  step.past_value = step.present_value = weights_->cache.data() + kKvHeads * kContext * kDim;
  step.past_capacity = step.present_capacity = kContext;
  step.cache_type = DataType::kFloat16;
  step.past_length = {keys - queries};
  step.total_length = {keys};
  step.scale = 0.125f;
  step.causal = true;
  step.output = weights_->results.data();
  RunAttention(step, kernels, *threads_);
}

}  // namespace ort_aie::host
