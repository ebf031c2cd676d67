// Threads that share ops and the modelled NPU, as sessions of ONNX Runtime do: generators with
// separate KV caches on one set of ops and one target, other targets that are opened and closed
// meanwhile, a thread that reads counters, and faults. Made for ThreadSanitizer; every result is
// also compared with the host target's.
//
//   threads_test [ROUNDS]
//
// Exit status 1 and a line with the reason when a result, a counter or the final state is wrong.
//
// All numbers are chosen so that both targets give the same results. Sums of projections are
// integers up to 256, which bfloat16 holds; gates are 32, for which sigmoid is 1 in float32. A
// query matches one key so much better than all others (by 48 at least, and e^-48 vanishes beside
// 1) that the result of attention is that key's value.
#include <dlfcn.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <initializer_list>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/error.h"
#include "ops/flow_attention.h"
#include "ops/format.h"
#include "ops/op.h"
#include "ops/recipe.h"
#include "q4nx/bfloat16.h"
#include "q4nx/pack.h"
#include "targets/loader.h"
#include "targets/session_options.h"
#include "targets/sim/control.h"

namespace {

using namespace ort_aie;

constexpr int64_t kIn = 256, kOut = 288;                       // of projections
constexpr int64_t kHeads = 4, kKvHeads = 2, kDim = 64;         // of attention
constexpr int64_t kChannels = (kHeads + 2 * kKvHeads) * kDim;  // of a token's q, k and v
constexpr int64_t kCapacity = 24;                              // of a cache that stays in one place

template <typename... Parts>
void Check(bool condition, const Parts&... parts) {
  if (!condition) throw std::logic_error(Concat(parts...));
}

// --- the stand-in of XRT -------------------------------------------------------------------------

// A function of the library that the loader has loaded or will load.
template <typename Function>
Function* OfStandIn(const char* name) {
  static void* const library = dlopen(
      (std::filesystem::read_symlink("/proc/self/exe").parent_path() / "libort_aie_sim.so").c_str(),
      RTLD_NOW | RTLD_LOCAL);
  Check(library != nullptr, "there is no libort_aie_sim.so: ", dlerror());
  void* const symbol = dlsym(library, name);
  Check(symbol != nullptr, "libort_aie_sim.so has no ", name);
  return reinterpret_cast<Function*>(symbol);
}

ort_aie_sim_counts Counts() {
  static auto* const get = OfStandIn<decltype(ort_aie_sim_get_counts)>("ort_aie_sim_get_counts");
  ort_aie_sim_counts counts;
  get(&counts);
  return counts;
}

void Inject(const char* faults) {
  static auto* const inject = OfStandIn<decltype(ort_aie_sim_inject)>("ort_aie_sim_inject");
  Check(inject(faults) == 0, "the faults ", faults, " are not understood");
}

// One of the sim target's counters.
int64_t Counter(const std::string& name) {
  const std::string all = NpuCounters(), key = "\"" + name + "\":";
  const size_t at = all.find(key);
  Check(at != std::string::npos, "no counter ", name, " in ", all);
  return std::stoll(all.substr(at + key.size()));
}

// --- a model -------------------------------------------------------------------------------------

Tensor TensorOf(DataType type, Shape shape, const void* data) {
  const auto bytes = ByteCount(type, shape).As("a test's tensor");
  return {type, std::move(shape), data, true, bytes};
}

// Weights of a projection: code - 8 with a scale of 1. In whole pages, so that they are pinned in
// place, and freed while other threads allocate.
class Weights {
 public:
  // Random codes, or the same one everywhere.
  explicit Weights(uint32_t seed, std::optional<int> everywhere = std::nullopt)
      : pages_(static_cast<size_t>(q4nx::CeilDiv(kBytes, sizeof(Page)))) {
    std::mt19937 random(seed);
    std::vector<uint8_t> codes(kOut * kIn);
    for (uint8_t& code : codes) {
      code = static_cast<uint8_t>(everywhere ? 8 + *everywhere : random() % 16);
    }
    const std::vector<uint16_t> scales(kOut * kIn / q4nx::kGroup, FloatToBfloat16(1));
    const std::vector<uint16_t> mins(scales.size(), FloatToBfloat16(-8));
    q4nx::Pack(codes.data(), scales.data(), mins.data(), kOut, kIn, pages_.data()->bytes,
               q4nx::kShipping);
  }

  Tensor tensor() const { return TensorOf(DataType::kUint8, kShape, pages_.data()->bytes); }

 private:
  struct alignas(4096) Page {
    uint8_t bytes[4096];
  };
  inline static const Shape kShape = {q4nx::RowBlocks(kOut), q4nx::ColBlocks(kIn),
                                      q4nx::kBlockBytes};
  static constexpr int64_t kBytes =
      q4nx::RowBlocks(kOut) * q4nx::ColBlocks(kIn) * q4nx::kBlockBytes;

  std::vector<Page> pages_;
};

struct Choices {
  const char* target = "sim";
  const char* on_device_error = "host";
  const char* log = "quiet";
};

// A session's ops and their target.
class Model {
 public:
  explicit Model(const Choices& settings)
      : options_(ReadOptions({{"target", settings.target},
                              {"on_device_error", settings.on_device_error},
                              {"log", settings.log}},
                             this)),
        projection_(
            Make({.op = "Q4NXMatMul", .name = "", .ints = kOfWeights}, {{}, weights_.tensor()})),
        mlp_(Make({.op = "Q4NXGatedMLP",
                   .name = "",
                   .ints = kOfWeights,
                   .strings = {{"activation", "silu"}}},
                  {{}, gate_weights_.tensor(), up_weights_.tensor()})),
        attention_(
            Make({.op = "FlowAttention",
                  .name = "",
                  .ints = {{"num_heads", kHeads}, {"kv_num_heads", kKvHeads}, {"format", kFormat}}},
                 {})) {}

  // (tokens, kOut)
  std::vector<float> Project(const std::vector<float>& x, const ThreadPool& threads) const {
    return Execute(*projection_, {Rows(x, kIn)}, threads);
  }

  // (tokens, kOut)
  std::vector<float> Mlp(const std::vector<float>& x, const ThreadPool& threads) const {
    return Execute(*mlp_, {Rows(x, kIn)}, threads);
  }

  // A cache that stays in place, with room for kCapacity tokens, or one that each call recreates.
  struct Cache {
    std::vector<float> keys, values;  // (kKvHeads, rows, kDim)
    int32_t length = 0;               // tokens
    bool in_place = false;
  };

  // (tokens, kHeads * kDim)
  std::vector<float> Attend(const std::vector<float>& qkv, Cache& cache,
                            const ThreadPool& threads) const {
    std::vector<Tensor> inputs(kMostInputs);
    Tensor& query = inputs[FlowAttention::kQuery] = Rows(qkv, kChannels);
    query.shape = {1, query.shape[0], query.shape[1]};
    const auto rows = static_cast<int64_t>(cache.keys.size()) / (kKvHeads * kDim);
    const auto past = [&](const std::vector<float>& data) {
      return TensorOf(DataType::kFloat32, {1, kKvHeads, rows, kDim}, data.data());
    };
    inputs[FlowAttention::kPastKey] = past(cache.keys);
    inputs[FlowAttention::kPastValue] = past(cache.values);
    const auto total = static_cast<int32_t>(cache.length + query.shape[1]), last = total - 1;
    inputs[FlowAttention::kSeqlensK] = TensorOf(DataType::kInt32, {1}, &last);
    inputs[FlowAttention::kTotalSequenceLength] = TensorOf(DataType::kInt32, {1}, &total);

    std::vector<float> keys, values;
    if (!cache.in_place) {
      keys.resize(static_cast<size_t>(kKvHeads * std::max<int64_t>(rows, total) * kDim));
      values = keys;
    }
    std::vector<float>& new_keys = cache.in_place ? cache.keys : keys;
    std::vector<float>& new_values = cache.in_place ? cache.values : values;
    std::vector<float> y = Execute(*attention_, inputs, threads, {&new_keys, &new_values});
    if (!cache.in_place) {
      cache.keys = std::move(keys);
      cache.values = std::move(values);
    }
    cache.length = total;
    return y;
  }

 private:
  inline static const std::map<std::string, int64_t> kOfWeights = {
      {"K", kIn}, {"N", kOut}, {"format", kFormat}, {"symmetric", 1}};

  static Tensor Rows(const std::vector<float>& x, int64_t width) {
    return TensorOf(DataType::kFloat32, {static_cast<int64_t>(x.size()) / width, width}, x.data());
  }
  std::unique_ptr<const Op> Make(const Recipe::Step& step,
                                 const std::vector<Tensor>& constants) const {
    return FindOp(step.op)->create(StepInfo(step, constants), options_);
  }
  // Returns the first output; `others` are the buffers of the next ones.
  std::vector<float> Execute(const Op& op, std::vector<Tensor> inputs, const ThreadPool& threads,
                             const std::vector<std::vector<float>*>& others = {}) const {
    inputs.resize(kMostInputs);
    std::vector<Op::Output> outputs(kMostOutputs);
    op.Describe(inputs, outputs);
    std::vector<float> y(ElementCount(outputs[0].shape).As<size_t>("a result"));
    std::vector<void*> buffers = {y.data()};
    for (std::vector<float>* other : others) buffers.push_back(other->data());
    buffers.resize(kMostOutputs);
    Plan plan;
    op.Append(inputs, outputs, buffers, plan);
    options_.target->Execute(plan, threads);
    return y;
  }

  const Weights weights_{1}, up_weights_{2}, gate_weights_{3, 4};
  const SessionOptions options_;
  const std::unique_ptr<const Op> projection_, mlp_, attention_;
};

// --- users of the target -------------------------------------------------------------------------

// The caller and one more thread.
class TwoThreads final : public ThreadPool {
 protected:
  void Run(int64_t count, Call call, void* job) const override {
    std::atomic<int64_t> next = 0;
    const auto work = [&]() noexcept {
      for (int64_t i = next++; i < count; i = next++) call(job, i);
    };
    std::thread other(work);
    work();
    other.join();
  }
};

// A generator: a model's calls for a prompt or a token, with a separate cache.
class Generator {
 public:
  Generator(const Model& model, const Model& host, uint32_t seed)
      : model_(model), host_(host), random_(seed), even_(seed % 2 == 0) {
    cache_.in_place = even_;
    if (even_) cache_.keys.resize(kKvHeads * kCapacity * kDim);
    cache_.values = cache_.keys;
    host_cache_ = cache_;
  }

  void Step(int64_t tokens) {
    const TwoThreads two;
    const InlineThreadPool one;
    const ThreadPool& threads = even_ ? static_cast<const ThreadPool&>(two) : one;
    // Eight ones per row.
    std::vector<float> x(static_cast<size_t>(tokens * kIn));
    for (int64_t i = 0; i < 8 * tokens; ++i) x[static_cast<size_t>(32 * i + Pick(0, 31))] = 1;
    Compare("projection", model_.Project(x, threads), host_.Project(x, one));
    Compare("gated MLP", model_.Mlp(x, threads), host_.Mlp(x, one));
    const std::vector<float> qkv = QueriesKeysAndValues(tokens);
    Compare("attention", model_.Attend(qkv, cache_, threads), host_.Attend(qkv, host_cache_, one));
    Compare("keys", cache_.keys, host_cache_.keys);
    Compare("values", cache_.values, host_cache_.values);
  }

 private:
  int32_t Pick(int64_t least, int64_t most) {
    return static_cast<int32_t>(std::uniform_int_distribution<int64_t>(least, most)(random_));
  }

  // Keys are +-1 each; a query is 16 times the key of some token so far, so that the scores, an
  // eighth of the product, are 128 there and about 0 +- 16 elsewhere. No value is 0.
  std::vector<float> QueriesKeysAndValues(int64_t tokens) {
    std::vector<float> qkv;
    for (int64_t token = 0; token < tokens; ++token) {
      std::vector<float> key(kKvHeads * kDim), value(key);
      for (float& k : key) k = Pick(0, 1) == 0 ? -1.0f : 1.0f;
      for (float& v : value) v = static_cast<float>(Pick(1, 7)) / 4;
      keys_.push_back(key);
      for (int64_t head = 0; head < kHeads; ++head) {
        const auto chosen = static_cast<size_t>(Pick(0, static_cast<int64_t>(keys_.size()) - 1));
        const float* k = keys_[chosen].data() + head / (kHeads / kKvHeads) * kDim;
        std::transform(k, k + kDim, std::back_inserter(qkv), [](float x) { return 16 * x; });
      }
      qkv.insert(qkv.end(), key.begin(), key.end());
      qkv.insert(qkv.end(), value.begin(), value.end());
    }
    return qkv;
  }

  void Compare(const char* what, const std::vector<float>& got, const std::vector<float>& want) {
    Check(got.size() == want.size(), what, " has ", got.size(), " elements, not ", want.size());
    for (size_t i = 0; i < got.size(); ++i) {
      Check(got[i] == want[i], what, "[", i, "] after ", cache_.length, " tokens is ", got[i],
            ", and the host says ", want[i]);
    }
  }

  const Model &model_, &host_;
  std::mt19937 random_;
  const bool even_;  // has a cache that stays in place, and a pool of threads
  Model::Cache cache_, host_cache_;
  std::vector<std::vector<float>> keys_;  // of all tokens
};

// Threads; one that fails reports it and does not stop the others.
class Crew {
 public:
  ~Crew() { Join(); }
  void Start(const char* what, const std::function<void()>& work) {
    threads_.emplace_back([this, what, work] {
      try {
        work();
      } catch (const std::exception& error) {
        const std::lock_guard lock(mutex_);
        errors_ += Concat("\n  ", what, ": ", error.what());
      }
    });
  }
  void Join() {
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
  }
  void Finish() {
    Join();
    Check(errors_.empty(), "threads ended in errors:", errors_);
  }

 private:
  std::vector<std::thread> threads_;
  std::mutex mutex_;
  std::string errors_;
};

// Two generators on one model and one on another, each with tokens and, at its own turn, a prompt,
// whose products take the simulator long; two threads that open and close sessions, which write a
// timeline; one that reads counters.
void Everybody(const Model& model, const Model& host) {
  const Model other({});
  std::atomic<int> generating = 3;
  Crew crew;
  for (const uint32_t seed : {11u, 12u, 13u}) {
    crew.Start("a generator", [&, seed] {
      const std::shared_ptr<void> last(nullptr, [&](void*) { --generating; });
      Generator generator(seed == 13 ? other : model, host, seed);
      for (const uint32_t turn : {11u, 12u, 13u}) generator.Step(turn == seed ? 3 : 1);
    });
  }
  for (const uint32_t first_seed : {20u, 40u}) {
    crew.Start("sessions", [&, first_seed] {
      for (uint32_t seed = first_seed; generating > 0; ++seed) {
        const Model another({.log = "trace"});
        Generator generator(another, host, seed);
        for (const int64_t tokens : {1, 1}) generator.Step(tokens);
      }
    });
  }
  crew.Start("counters", [&] {
    for (int64_t steps = 0, runs = 0; generating > 0;) {
      const int64_t more_steps = Counter("device_steps"), more_runs = Counter("runs");
      Check(more_steps >= steps && more_runs >= runs, "counters went back");
      steps = more_steps;
      runs = more_runs;
      Check(Counts().buffers >= 0, "less than no buffer");
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  });
  crew.Finish();
}

// --- cases ---------------------------------------------------------------------------------------

// Runs that had no answer when the device was removed: at most one each time, because a device does
// one after the other. XRT ends the process when such a run is destroyed, so it stays, with its
// context.
int64_t unanswered_runs = 0;

// Ops and targets give back everything else.
void NothingIsLeft() {
  const ort_aie_sim_counts counts = Counts();
  Check(counts.buffers == 0 && counts.contexts <= unanswered_runs, counts.buffers, " buffers of ",
        counts.buffer_bytes, " bytes and ", counts.contexts, " contexts are left");
}

void NothingFails() {
  const int64_t steps = Counter("device_steps"), retries = Counter("retries"),
                fallbacks = Counter("fallbacks");
  {
    const Model host({.target = "host"}), model({});
    Everybody(model, host);
  }
  // Three calls of three generators, each with two projections and attention, and sessions.
  Check(Counter("device_steps") >= steps + 27, Counter("device_steps") - steps, " steps");
  Check(Counter("retries") == retries && Counter("fallbacks") == fallbacks, NpuCounters());
}

// A fresh context cures each of these, unless one hits another's next attempt.
void RunsFail() {
  const int64_t retries = Counter("retries");
  {
    const Model host({.target = "host"}), model({});
    Inject("run_timeout@4,run_error@17,run_timeout@30,allocation@12,context_refused@7");
    Everybody(model, host);
    Inject("");
  }
  Check(Counter("retries") > retries, "no fault was met: ", NpuCounters());
}

// An open target continues on the host, for good; none can be opened until the device is back.
void TheDeviceIsRemoved() {
  const Model host({.target = "host"});
  const int64_t fallbacks = Counter("fallbacks");
  {
    const Model model({});
    ++unanswered_runs;
    Inject("device_removed@10");
    std::vector<std::unique_ptr<Generator>> generators;
    Crew crew;
    for (const uint32_t seed : {31u, 32u, 33u, 34u}) {
      generators.push_back(std::make_unique<Generator>(model, host, seed));
      crew.Start("a generator", [&generator = *generators.back()] {
        for (const int64_t tokens : {3, 1, 1}) generator.Step(tokens);
      });
    }
    crew.Finish();
    Check(Counter("fallbacks") > fallbacks, "no fault was met: ", NpuCounters());
    try {
      const Model another({.on_device_error = "raise"});
      Check(false, "a device that is gone was opened");
    } catch (const Error&) {
    }
    OfStandIn<decltype(ort_aie_sim_plug_in)>("ort_aie_sim_plug_in")();
    const int64_t steps = Counter("device_steps");
    const Model another({});
    Generator(another, host, 35).Step(1);
    Check(Counter("device_steps") == steps + 3, "a device that is back is not used");
    for (const auto& generator : generators) generator->Step(1);  // beside it, on the host
    Check(Counter("device_steps") == steps + 3, "a device that was given up is used");
  }
}

// Every thread whose target raises errors gets one, and may continue when the device works again.
void ErrorsAreRaised() {
  const Model host({.target = "host"}), model({.on_device_error = "raise"});
  Generator before(model, host, 41);
  before.Step(1);
  Inject("run_error@1..1000000");
  Crew crew;
  for (const uint32_t seed : {42u, 43u, 44u}) {
    crew.Start("a generator", [&, seed] {
      Generator generator(model, host, seed);
      try {
        generator.Step(1);
      } catch (const Error&) {
        return;
      }
      Check(false, "there was no error");
    });
  }
  crew.Finish();
  Inject("");
  before.Step(1);
  Generator(model, host, 45).Step(1);
}

int Main(int rounds) {
  const std::initializer_list<std::pair<const char*, void (*)()>> cases = {
      {"NothingFails", NothingFails},
      {"RunsFail", RunsFail},
      {"TheDeviceIsRemoved", TheDeviceIsRemoved},
      {"ErrorsAreRaised", ErrorsAreRaised}};
  const char* what = "the sim target cannot be opened";
  try {
    {
      const Model model({});
    }  // loads the library that has the counters
    for (int round = 0; round < rounds; ++round) {
      for (const auto& [name, run] : cases) {
        what = name;
        run();
        NothingIsLeft();
      }
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s: %s\n", what, error.what());
    return 1;
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) { return Main(argc > 1 ? std::atoi(argv[1]) : 1); }
