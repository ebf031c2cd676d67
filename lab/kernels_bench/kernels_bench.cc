// Measures the speed of each kernel of each table, and the limits of this machine for comparison.
//
//   kernels_bench [--isa NAME] [--kernel SUBSTRING] [--seconds S]
//
// Without a name it measures all tables except stand-ins, whose speed means nothing. S is how long
// each kernel is repeated. The best repetition counts, because other work on the machine can only
// slow a repetition down.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <map>
#include <numeric>
#include <string>
#include <string_view>
#include <thread>

#include "cases.h"
#include "limits.h"
#include "q4nx/layout.h"
#include "targets/host/weight_layout.h"

namespace ort_aie::host {
namespace {

const std::map<Limit, const char*> kLimitNames = {{Limit::kMemory, "memory"},
                                                  {Limit::kL1, "L1 copy"},
                                                  {Limit::kFp32, "fp32"},
                                                  {Limit::kBf16, "bf16"},
                                                  {Limit::kInt8, "int8"}};

// A sample is long compared with the clock's resolution. A sample from memory is longer, so that
// the few blocks fetched before it began do not count.
constexpr double kSample = 20e-6, kMemorySample = 1e-3;
// So many bytes that the start of a thread (about 30 µs) is short in comparison.
constexpr double kThreadSample = 32 << 20;

double Now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

struct Options {
  std::string isa, kernel;
  double seconds = 0.05;
};

class Runner {
 public:
  explicit Runner(const Options& options) : options_(options) {
    // Each thread gets whole rows of the largest K, so that all have the same work.
    const size_t threads = std::max(1u, std::thread::hardware_concurrency());
    const size_t row = kMaxK / q4nx::kBlockCols * q4nx::BlockBytes({WeightKind::kQ8NX});
    const size_t share = weights_.blocks().size() / row / threads * row;
    for (size_t i = 0; i < threads; ++i) {
      shares_.emplace_back(weights_.blocks().subspan(i * share, share));
    }
  }

  void Run(const Kernels& kernels) {
    MeasureLimits(LimitLoopsOf(kernels.name));
    std::printf("  %-36s %-18s %8s %8s  %s\n", "kernel", "size", "GB/s", "GFLOP/s", "of limit");
    for (const Bench<Streamed>& bench : StreamedBenches()) {
      OnOneThread<Streamed>(kernels, bench);
      if (shares_.size() > 1) OnAllThreads(kernels, bench);
    }
    for (const Bench<Cached>& bench : CachedBenches()) OnOneThread<Cached>(kernels, bench);
    std::printf("\n");
  }

 private:
  // The shortest time of one call.
  template <typename F>
  double BestTime(double sample, const F& call) const {
    double best = std::numeric_limits<double>::infinity();
    const double start = Now();
    for (int64_t calls = 1;;) {
      const double begin = Now();
      for (int64_t i = 0; i < calls; ++i) call();
      const double end = Now();
      best = std::min(best, (end - begin) / static_cast<double>(calls));
      if (end - begin < sample) {
        calls *= 2;
      } else if (end - start >= options_.seconds) {
        return best;
      }
    }
  }

  // Bytes per second of all threads, each with its share; f(share) returns the bytes of a call.
  template <typename F>
  double AllThreadsBandwidth(const F& f) {
    std::vector<double> bytes(shares_.size());
    const double time = BestTime(0, [&] {
      std::vector<std::jthread> threads;
      for (size_t i = 0; i < shares_.size(); ++i) {
        threads.emplace_back([&share = shares_[i], &sum = bytes[i], &f] {
          double read = 0;
          while (read < kThreadSample) read += f(share);
          sum = read;
        });
      }
    });
    return std::accumulate(bytes.begin(), bytes.end(), 0.0) / time;
  }

  void MeasureLimits(const LimitLoops& loops) {
    const auto read_row = [&loops](Streamed& data) {
      constexpr BlockLayout kLayout = LayoutOf(q4nx::kShipping, false);
      const int64_t bytes = kMaxK / q4nx::kBlockCols * kLayout.bytes;
      loops.read(data.NextRow(bytes), bytes);
      return static_cast<double>(bytes);
    };
    const auto peak = [&](const PeakLoop& loop) {
      return 1000 * loop.flops / BestTime(kSample, [&] { loop.run(1000); });
    };
    const int64_t half = 8192;  // reading this and writing as much fits any L1
    double row_bytes = 0;
    const double row_time = BestTime(kMemorySample, [&] { row_bytes = read_row(cached_); });
    const double copy_time = BestTime(kSample, [&] {
      loops.copy(cached_.weights.data(), half, reinterpret_cast<uint8_t*>(cached_.panel));
    });
    limits_[Limit::kMemory] = row_bytes / row_time;
    limits_[Limit::kL1] = 2 * half / copy_time;
    limits_[Limit::kFp32] = peak(loops.fp32);
    limits_[Limit::kBf16] = peak(loops.bf16);
    limits_[Limit::kInt8] = peak(loops.int8);
    all_threads_limit_ = AllThreadsBandwidth(read_row);
    std::printf("%s\n  limits: memory %.1f GB/s, of %zu threads %.1f, L1 copy %.0f;", loops.isa,
                limits_[Limit::kMemory] / 1e9, shares_.size(), all_threads_limit_ / 1e9,
                limits_[Limit::kL1] / 1e9);
    std::printf(" fp32 %.0f GFLOP/s, bf16 %.0f, int8 %.0f\n", limits_[Limit::kFp32] / 1e9,
                limits_[Limit::kBf16] / 1e9, limits_[Limit::kInt8] / 1e9);
  }

  bool Wanted(const std::string& name) const {
    return name.find(options_.kernel) != std::string::npos;
  }

  template <typename T>
  void OnOneThread(const Kernels& kernels, const Bench<T>& bench) {
    if (!Wanted(bench.name)) return;
    for (int64_t size : bench.sizes) {
      Work work;
      const bool memory = bench.limit == Limit::kMemory;
      const double time = BestTime(memory ? kMemorySample : kSample,
                                   [&] { work = bench.run(kernels, cached_, size); });
      if (work.bytes + work.flops == 0) continue;  // not in this table
      Print(bench.name, bench.unit, size, {work.bytes / time, work.flops / time},
            limits_[bench.limit], kLimitNames.at(bench.limit));
    }
  }

  void OnAllThreads(const Kernels& kernels, const Bench<Streamed>& bench) {
    if (!Wanted(bench.name)) return;
    const std::string name =
        std::string(bench.name) + ", " + std::to_string(shares_.size()) + " threads";
    for (int64_t size : bench.sizes) {
      const double rate = AllThreadsBandwidth(
          [&](Streamed& share) { return bench.run(kernels, share, size).bytes; });
      Print(name, bench.unit, size, {.bytes = rate}, all_threads_limit_, "memory, all threads");
    }
  }

  // `rate` is per second.
  void Print(const std::string& name, const char* unit, int64_t size, const Work& rate,
             double limit, const char* limit_name) const {
    const auto number = [](double x) {
      char text[16];
      std::snprintf(text, sizeof text, "%.1f", x / 1e9);
      return x > 0 ? std::string(text) : std::string("-");
    };
    const double used = rate.bytes > 0 ? rate.bytes : rate.flops;
    std::printf("  %-36s %-18s %8s %8s  %3.0f %% %s\n", name.c_str(),
                (std::string(unit) + " " + std::to_string(size)).c_str(),
                number(rate.bytes).c_str(), number(rate.flops).c_str(), 100 * used / limit,
                limit_name);
    std::fflush(stdout);
  }

  Options options_;
  Weights weights_;
  Cached cached_{weights_.blocks()};
  std::vector<Streamed> shares_;
  // Bytes or operations per second.
  std::map<Limit, double> limits_;
  double all_threads_limit_ = 0;
};

int Main(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; i += 2) {
    const std::string name = argv[i];
    const char* value = i + 1 < argc ? argv[i + 1] : nullptr;
    if (name == "--isa" && value != nullptr) {
      options.isa = value;
    } else if (name == "--kernel" && value != nullptr) {
      options.kernel = value;
    } else if (name == "--seconds" && value != nullptr) {
      options.seconds = std::atof(value);
    } else {
      std::fprintf(stderr, "usage: %s [--isa NAME] [--kernel SUBSTRING] [--seconds S]\n", argv[0]);
      return 2;
    }
  }
  std::vector<const Kernels*> tables;
  for (const Kernels* const* table = AvailableKernels(); *table != nullptr; ++table) {
    const std::string_view name = (*table)->name;
    const bool wanted = options.isa.empty() ? !name.ends_with("_standin") : options.isa == name;
    if (wanted) tables.push_back(*table);
  }
  if (tables.empty()) {
    std::fprintf(stderr, "kernels_bench: --isa %s is not available on this CPU\n",
                 options.isa.c_str());
    return 2;
  }
  Runner runner(options);
  for (const Kernels* kernels : tables) runner.Run(*kernels);
  return 0;
}

}  // namespace
}  // namespace ort_aie::host

int main(int argc, char** argv) { return ort_aie::host::Main(argc, argv); }
