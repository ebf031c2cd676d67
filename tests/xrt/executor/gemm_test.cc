// Unquantised projections.
#include <map>
#include <optional>

#include "bench.h"
#include "q4nx/bfloat16.h"

namespace ort_aie::npu_target {
namespace {

struct GemmCase {
  int64_t rows = 3, k = 512, n = 256;
  DataType type = DataType::kFloat32;
  bool bias = false;
};

class UnquantisedProjection {
 public:
  explicit UnquantisedProjection(const GemmCase& c)
      : c(c), a(c.type, Exact(c.rows * c.k)), y(c.type, c.rows * c.n), matrix(Exact(c.n * c.k)) {
    const int64_t columns = q4nx::ColBlocks(c.k);
    blocks.resize(static_cast<size_t>(q4nx::RowBlocks(c.n) * columns * kBf16BlockElements));
    for (int64_t n = 0; n < c.n; ++n) {
      for (int64_t k = 0; k < c.k; ++k) {
        const int64_t block = n / 32 * columns + k / 256, tile = k % 256 / 8 * 4 + n % 32 / 8;
        blocks[static_cast<size_t>(block * kBf16BlockElements + tile * 64 + k % 8 * 8 + n % 8)] =
            FloatToBfloat16(matrix[static_cast<size_t>(n * c.k + k)]);
      }
    }
    if (c.bias) bias = Values(c.type, Exact(c.n));
  }

  GemmStep Step() {
    return {blocks.data(), c.rows, c.k, c.n, a.data(), c.bias ? bias.data() : nullptr,
            y.data(),      c.type, 0,   kept};
  }

  Values OnHost() {
    Values result(c.type, c.rows * c.n);
    GemmStep step = Step();
    step.y = result.data();
    HostTarget().Execute({step}, kThreads);
    return result;
  }

  // Operands are exact in bfloat16, so that what differs is the order of float32 sums, the device's
  // rounding of its products, and one of either's result to the type.
  void Compare(const Values& want) const {
    const std::vector<float> x = a.floats(), expected = want.floats();
    const double unit = c.type == DataType::kFloat32   ? 0x1p-24
                        : c.type == DataType::kFloat16 ? 0x1p-11
                                                       : kUnit;
    std::vector<double> bounds;
    for (int64_t i = 0; i < c.rows * c.n; ++i) {
      double product = 0, size = 0;
      for (int64_t j = 0; j < c.k; ++j) {
        const double term = double{x[static_cast<size_t>(i / c.n * c.k + j)]} *
                            double{matrix[static_cast<size_t>(i % c.n * c.k + j)]};
        product += term;
        size += std::abs(term);
      }
      const double sums = 2 * static_cast<double>(c.k) * 0x1p-24 * size;
      bounds.push_back(sums + kUnit * (std::abs(product) + sums) +
                       2 * unit * std::abs(expected[static_cast<size_t>(i)]) + 1e-6);
    }
    Near("y", y, want, bounds);
  }

  const GemmCase c;
  Values a, bias, y;
  std::vector<float> matrix;
  std::vector<uint16_t> blocks;
  std::shared_ptr<KeptState> kept = std::make_shared<KeptState>();
};

void UnquantisedProjections() {
  for (const DataType type : {DataType::kFloat32, DataType::kFloat16, DataType::kBfloat16}) {
    for (const int64_t rows : {2, 63, 64, 65, 130}) {
      for (const GemmCase& c :
           std::vector<GemmCase>{{.rows = rows, .k = 300, .n = 200, .type = type, .bias = true},
                                 {.rows = rows, .type = type},
                                 {.rows = rows, .k = 64, .n = 97, .type = type}}) {
        Bench bench(Designs{"gemm"});
        UnquantisedProjection projection(c);
        const Values want = projection.OnHost();
        for (int call = 0; call < 2; ++call) {
          projection.y = Values(type, c.rows * c.n);
          bench.Run({projection.Step()});
          projection.Compare(want);
        }
        Check(bench.runs() == 2, "one run a call, got ", bench.runs(), " for two");
        Check(bench.device->counters().buffers == 1, "the weights stay pinned, once");
        bench.OnlyDevice();
        projection.kept = nullptr;
        Check(bench.device->counters().buffers == 0, "the op took them along");
      }
    }
  }
}

// Runs of rows, at their edges.
void UnquantisedProjectionsOfManyRows() {
  for (const int64_t rows : {511, 512, 513, 1030}) {
    ExecutorOptions options;
    options.row_bytes = 1;
    Bench bench(kAll, options);
    UnquantisedProjection projection({.rows = rows, .k = 256, .n = 160, .bias = true});
    const Values want = projection.OnHost();
    bench.Run({projection.Step()});
    projection.Compare(want);
    Check(bench.runs() == q4nx::CeilDiv(rows, 512), "got ", bench.runs(), " runs");
    bench.OnlyDevice();
  }
}

void UnquantisedProjectionsForTheHost() {
  std::map<std::string, int64_t> expected;
  Bench bench;
  const auto run = [&](Bench& on, const GemmCase& c) {
    UnquantisedProjection projection(c);
    const Values want = projection.OnHost();
    on.Run({projection.Step()});
    Check(projection.y.bytes == want.bytes, "not the host's result");
  };
  run(bench, {.rows = 1});
  run(bench, {.n = 96});
  run(bench, {.rows = 2, .k = 65537, .n = 128});
  expected["a single row of an unquantised projection"] = 1;
  expected["a projection to fewer than 128 out-features"] = 1;
  expected["a projection from more than 65536 in-features"] = 1;
  Check(bench.runs() == 0 && bench.target->counters().host_steps == expected, "other reasons");
  Bench bare(Designs{"decode"});
  run(bare, {});
  Check(
      bare.target->counters().host_steps == std::map<std::string, int64_t>{{"no overlay gemm", 1}},
      "the overlay is missing");
}

void AFaultOfAnUnquantisedProjection() {
  for (const int64_t faults : {1, 2}) {
    Bench bench;
    bench.device->before_run = [&](int64_t run) {
      if (run >= 1 && run < 1 + faults) throw DeviceError(Fault::kTimeout, "it took 2.5 s");
    };
    UnquantisedProjection projection({.bias = true});
    const Values want = projection.OnHost();
    for (int call = 0; call < 3; ++call) {
      projection.y = Values(projection.c.type, projection.c.rows * projection.c.n);
      bench.Run({projection.Step()});
      projection.Compare(want);
    }
    const ExecutorCounters counters = bench.target->counters();
    Check(counters.retries == 1 && counters.fallbacks == faults - 1, "pinned anew, or given up");
    Check(bench.target->device_in_use() == (faults == 1), "given up after the second");
  }
}

const Cases registered({
    {"unquantised_projections", UnquantisedProjections},
    {"unquantised_projections_of_many_rows", UnquantisedProjectionsOfManyRows},
    {"unquantised_projections_for_the_host", UnquantisedProjectionsForTheHost},
    {"a_fault_of_an_unquantised_projection", AFaultOfAnUnquantisedProjection},
});

}  // namespace
}  // namespace ort_aie::npu_target
