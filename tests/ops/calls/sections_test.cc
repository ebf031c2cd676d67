// What a call hands to threads: nothing if one thread would finish before another begins. If a step
// opens other parallel sections than expected, it prints why and exits with status 1.
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "targets/target.h"

namespace {

using namespace ort_aie;

int failures = 0;

void Check(bool good, const char* what, int64_t got) {
  if (good) return;
  std::printf("%s: got %lld\n", what, static_cast<long long>(got));
  ++failures;
}

// Counts sections of more than one task.
class Counting final : public ThreadPool {
 public:
  mutable int64_t sections = 0, most_tasks = 0;

 protected:
  void Run(int64_t count, Call call, void* job) const override {
    sections += count > 1 ? 1 : 0;
    most_tasks = std::max(most_tasks, count);
    for (int64_t i = 0; i < count; ++i) call(job, i);
  }
};

int64_t SectionsOf(Step step) {
  const Counting threads;
  Plan plan;
  plan.steps.push_back(std::move(step));
  HostTarget().Execute(plan, threads);
  return threads.sections;
}

// One token after `tokens` past ones, with a cache in one place or in two.
int64_t SectionsOfAttention(int64_t heads, int64_t kv_heads, int64_t dim, int64_t tokens,
                            bool in_place) {
  const int64_t capacity = tokens + 8;
  const auto size = static_cast<size_t>(kv_heads * capacity * dim);
  std::vector<float> keys(size), values(size), new_keys(size), new_values(size);
  std::vector<float> qkv(static_cast<size_t>((heads + 2 * kv_heads) * dim));
  std::vector<float> y(static_cast<size_t>(heads * dim));
  AttentionStep step;
  step.batch = step.sequence = step.key_sequence = 1;
  step.heads = heads;
  step.kv_heads = kv_heads;
  step.dim = dim;
  step.query = qkv.data();
  step.key = qkv.data() + heads * dim;
  step.value = qkv.data() + (heads + kv_heads) * dim;
  step.query_stride = step.key_stride = step.value_stride = (heads + 2 * kv_heads) * dim;
  step.past_key = keys.data();
  step.past_value = values.data();
  step.present_key = in_place ? keys.data() : new_keys.data();
  step.present_value = in_place ? values.data() : new_values.data();
  step.past_capacity = step.present_capacity = capacity;
  step.past_length = {tokens};
  step.total_length = {tokens + 1};
  step.scale = 1;
  step.causal = true;
  step.output = y.data();
  return SectionsOf(step);
}

int64_t SectionsOfProjection(int64_t n, int64_t k, bool gated) {
  const auto blocks =
      static_cast<size_t>(q4nx::RowBlocks(n) * q4nx::ColBlocks(k) * q4nx::kBlockBytes);
  const std::vector<uint8_t> weights(blocks);
  const std::vector<float> a(static_cast<size_t>(k)), norm(static_cast<size_t>(k));
  std::vector<float> y(static_cast<size_t>(n));
  MatMulStep step{};
  step.weights = weights.data();
  step.up_weights = gated ? weights.data() : nullptr;
  step.rows = 1;
  step.k = k;
  step.n = n;
  step.a = a.data();
  step.norm_weight = norm.data();
  step.y = y.data();
  step.numerics = Numerics::kInt8;
  return SectionsOf(step);
}

// rows of k, with a residual and its sum.
int64_t SectionsOfNorm(int64_t rows, int64_t k) {
  const std::vector<float> a(static_cast<size_t>(rows * k));
  std::vector<float> y(a.size()), sum(a.size());
  return SectionsOf(NormStep{rows, k, a.data(), a.data(), a.data(), y.data(), sum.data(),
                             DataType::kFloat32, 1e-5f});
}

int64_t SectionsOfElementwise(Function function, int64_t rows, int64_t k) {
  const std::vector<float> a(static_cast<size_t>(rows * k));
  std::vector<float> y(a.size());
  return SectionsOf(ElementwiseStep{function, rows, k, a.data(), a.data(),
                                    ElementwiseStep::Operand::kTensor, y.data(),
                                    DataType::kFloat32});
}

void EachItemOnce(int64_t count, int64_t item_ns) {
  std::vector<int> times(static_cast<size_t>(count));
  const Counting threads;
  threads.ParallelFor(count, item_ns, [&](int64_t i) { ++times[static_cast<size_t>(i)]; });
  for (const int n : times) Check(n == 1, "an item was not done once", n);
  const int64_t total = count * item_ns;
  if (total < ThreadPool::kWorthSectionNs) {
    Check(threads.sections == 0, "a section for too little work", threads.sections);
  } else if (count > 1) {
    Check(threads.sections == 1, "no section for much work", threads.sections);
    Check(threads.most_tasks <= total / ThreadPool::kTaskNs, "tasks too small", threads.most_tasks);
  }
}

}  // namespace

int main() {
  for (const int64_t count : {0, 1, 2, 3, 7, 64, 1000}) {
    for (const int64_t item_ns : {0, 1, 30, 500, 3000, 100000}) EachItemOnce(count, item_ns);
  }
  // The demonstration model's layers, and one layer of a Llama with 1B parameters.
  Check(SectionsOfAttention(8, 2, 32, 20, true) == 0, "few keys", 1);
  Check(SectionsOfAttention(8, 2, 32, 20, false) == 0, "few keys, carried", 1);
  int64_t sections = SectionsOfAttention(32, 8, 64, 500, true);
  Check(sections == 1, "keys for all threads", sections);
  sections = SectionsOfAttention(32, 8, 64, 500, false);
  Check(sections == 2, "keys for all threads, carried", sections);
  sections = SectionsOfProjection(384, 256, false);
  Check(sections == 0, "a small projection", sections);
  sections = SectionsOfProjection(2048, 2048, true);
  Check(sections == 1, "a large projection", sections);
  // Rows of hidden states, and of an MLP between projections: for a token, and for a prompt.
  Check(SectionsOfNorm(1, 8192) == 0, "a norm", 1);
  Check(SectionsOfNorm(64, 2048) == 1, "norms of a prompt", 0);
  Check(SectionsOfElementwise(Function::kAdd, 1, 8192) == 0, "a sum", 1);
  Check(SectionsOfElementwise(Function::kAdd, 64, 2048) == 1, "sums of a prompt", 0);
  Check(SectionsOfElementwise(Function::kSilu, 1, 14336) == 0, "an activation", 1);
  Check(SectionsOfElementwise(Function::kSilu, 64, 8192) == 1, "activations of a prompt", 0);
  return failures == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
