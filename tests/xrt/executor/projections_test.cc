// Projections for a token and for a prompt.
#include <algorithm>

#include "projection.h"

namespace ort_aie::npu_target {
namespace {

constexpr WeightForm kQ2NX = {WeightKind::kQ2NX};
constexpr WeightForm kSmall = {WeightKind::kQ4NX, 128, false};

void ProjectionsOfAToken() {
  for (const DataType type : {DataType::kFloat32, DataType::kFloat16, DataType::kBfloat16}) {
    for (const ProjectionCase& c :
         std::vector<ProjectionCase>{{.type = type},
                                     {.k = 300, .n = 200, .type = type, .bias = true},
                                     {.n = 97, .type = type},
                                     {.n = 1056, .type = type, .bias = true},
                                     {.k = 640, .type = type, .norm = true},
                                     {.k = 300, .type = type, .norm = true, .skip = true},
                                     {.type = type, .norm = true, .skip = true, .gated = true},
                                     {.n = 300, .type = type, .gated = true, .gelu = true},
                                     {.n = 128, .type = type, .norm = true, .gated = true},
                                     {.n = 40, .type = type, .gated = true},
                                     {.n = 96, .type = type, .bias = true},
                                     {.type = type, .skip = true},
                                     {.k = 300, .type = type, .form = kQ2NX},
                                     {.k = 300, .type = type, .form = kSmall},
                                     {.n = 40, .type = type, .gated = true, .form = kQ2NX}}) {
      for (const Designs& designs : {kAll, Designs{"fused_dqp"}}) {
        Bench bench(designs, {}, designs == kAll ? "npu2" : "npu1");
        Projection projection(c);
        const auto want = projection.OnHost();
        for (int call = 0; call < 2; ++call) {
          projection.y = Values(type, c.n);
          bench.Run({projection.Step()});
          projection.Compare(want);
        }
        Check(bench.runs() == 2, "one run a call, got ", bench.runs(), " for two");
        bench.OnlyDevice();
      }
    }
  }
}

// Few rows are multiplied by the quantised weights, where that overlay is in one context with
// gemm's; otherwise dequantisation and GEMM are a run each. Weights of bfloat16 stay pinned.
void ProjectionsOfAPrompt() {
  Designs with_short = kAll;
  with_short.insert("short_gemm");
  for (const int64_t rows : {2, 63, 64, 65, 130, 256, 257}) {
    for (const ProjectionCase& c : std::vector<ProjectionCase>{
             {.rows = rows, .k = 300, .n = 200, .type = DataType::kFloat16, .bias = true},
             {.rows = rows, .norm = true, .skip = true},
             {.rows = rows, .type = DataType::kBfloat16, .norm = true, .gated = true},
             {.rows = rows, .n = 288, .gated = true, .gelu = true},
             {.rows = rows, .n = 96, .bias = true},
             {.rows = rows, .n = 192, .gated = true},
             {.rows = rows, .skip = true},
             {.rows = rows, .k = 300, .form = kQ2NX},
             {.rows = rows, .k = 300, .form = kSmall},
             {.rows = rows, .n = 40, .norm = true, .gated = true, .form = kQ2NX},
             {.rows = rows, .k = 300, .n = 200, .bias = true, .form = kBf16},
             {.rows = rows, .k = 64, .n = 97, .type = DataType::kFloat16, .form = kBf16},
             {.rows = rows, .k = 300, .norm = true, .skip = true, .form = kBf16},
             {.rows = rows, .n = 160, .norm = true, .gated = true, .form = kBf16}}) {
      const bool floats = c.form.kind == WeightKind::kBf16;
      for (const Designs& designs : {floats ? Designs{"gemm"} : kAll, with_short}) {
        if (designs == with_short ? floats : rows > 130) continue;
        Bench bench(designs);
        Projection projection(c);
        const auto want = projection.OnHost();
        for (int call = 0; call < (floats ? 2 : 1); ++call) {
          projection.y = Values(c.type, c.rows * c.n);
          bench.Run({projection.Step()});
          projection.Compare(want);
        }
        bench.OnlyDevice();
        const bool is_short = designs == with_short && rows <= 256 && c.n >= 256;
        const int64_t products = c.gated ? 2 : 1;
        const auto count = std::ranges::count(bench.device->sequences, "project");
        Check(count == (is_short ? products : 0), rows, " rows: ", count, " short ones");
        if (designs != with_short) Check(bench.runs() == 2, "runs: ", bench.runs());
        if (!floats) continue;
        Check(bench.device->counters().buffers == 1, "the weights stay pinned, once");
        projection.kept = nullptr;
        Check(bench.device->counters().buffers == 0, "the op took them along");
      }
    }
  }
}

// Bands of out-features and ranges of rows, at their edges.
void LargePrompts() {
  const std::vector<std::pair<int64_t, int64_t>> sizes = {{256, 511}, {288, 512}, {288, 513},
                                                          {512, 513}, {544, 511}, {800, 1030}};
  for (const auto& [n, rows] : sizes) {
    ExecutorOptions options;
    options.weight_bytes = 256 * 256 * 2;  // of 256 out-features
    options.row_bytes = 1;
    Bench bench(kAll, options);
    Projection projection({.rows = rows,
                           .k = 256,
                           .n = n,
                           .bias = n == 288,
                           .norm = n == 512,
                           .skip = n == 512,
                           .gated = n == 544});
    const auto want = projection.OnHost();
    bench.Run({projection.Step()});
    projection.Compare(want);
    const int64_t bands = q4nx::CeilDiv(n, 256), runs = q4nx::CeilDiv(rows, 512);
    Check(bench.runs() == bands * (1 + runs), "expected ", bands, " bands of ", runs, " runs, got ",
          bench.runs(), " runs");
    bench.OnlyDevice();
    Bench floats(kAll, options);
    Projection unquantised({.rows = rows, .k = 256, .n = n, .bias = true, .form = kBf16});
    floats.Run({unquantised.Step()});
    unquantised.Compare(unquantised.OnHost());
    Check(floats.runs() == runs, "without bands, got ", floats.runs());
  }
}

// Too large for the cores: the host adds it.
void ABiasOfALargeVocabulary() {
  Bench bench;
  Projection projection({.k = 32, .n = 41000, .bias = true});
  const auto want = projection.OnHost();
  bench.Run({projection.Step()});
  projection.Compare(want);
  bench.OnlyDevice();
}

// Rows that are too long for the cores: 67 blocks in parts of 33 and 34, 129 blocks in three of 43.
void LongRowsGoInParts() {
  for (const ProjectionCase& c : std::vector<ProjectionCase>{{.k = 17000, .n = 160},
                                                             {.k = 33024, .bias = true},
                                                             {.k = 16640, .norm = true},
                                                             {.k = 16640, .gated = true}}) {
    Bench bench;
    Projection projection(c);
    const auto want = projection.OnHost();
    bench.Run({projection.Step()});
    const int64_t parts = q4nx::CeilDiv(c.k, kMatvecMaxK) * (c.gated ? 2 : 1);
    Check(std::ranges::count(bench.device->sequences, "matvec_part") == parts, "parts");
    projection.Compare(want);
    bench.OnlyDevice();
  }
  // The result of a gated projection stays on the device, as in Qwen3-14B.
  Bench bench;
  Projection up({.k = 256, .n = 17408, .gated = true}), down({.k = 17408, .n = 128});
  MatMulStep first = up.Step(), second = down.Step();
  second.a = up.y.data();
  bench.Run({first, second});
  Check(bench.device->counters().submissions == 1, "one submission");
  bench.OnlyDevice();
  up.Compare(up.OnHost());
  down.a = up.y;
  down.Compare(down.OnHost());
}

// Weights of 2 bits are copied once, and freed with the op, or with the plan.
void CopiedWeightsAreKept() {
  Bench bench;
  Projection gated({.gated = true, .form = kQ2NX}), few({.n = 32});
  for (const bool plan : {false, true}) {
    auto kept = plan ? std::make_shared<KeptState>() : nullptr;
    for (int call = 0; call < 2; ++call) {
      if (plan) {
        Plan both = {gated.Step(), few.Step()};
        both.kept = kept;
        bench.Run(both);
      } else {
        bench.Run({gated.Step()});
        bench.Run({few.Step()});
      }
      // W and U of 256 x 512, and 128 out-features, 96 of them zeros.
      const Counters counters = bench.device->counters();
      const int64_t blocks = 2 * 8 * 2 + 4 * 2;
      // A plan has them in one buffer, and keeps a second one for its rows, of a few kilobytes.
      const int64_t rows = counters.buffer_bytes - blocks * q4nx::kBlockBytes;
      Check(plan ? rows > 0 && rows < 16'384 : rows == 0, "got ", counters.buffer_bytes);
      Check(counters.buffers == 2, "got ", counters.buffers, " buffers");
    }
    gated.kept->object = few.kept->object = nullptr;
    kept = nullptr;
    Check(bench.device->counters().buffers == 0, "they went along");
  }
  bench.OnlyDevice();
}

const Cases kProjectionsCases({
    {"a_bias_of_a_large_vocabulary", ABiasOfALargeVocabulary},
    {"long_rows_go_in_parts", LongRowsGoInParts},
    {"copied_weights_are_kept", CopiedWeightsAreKept},
    {"projections_of_a_token", ProjectionsOfAToken},
    {"projections_of_a_prompt", ProjectionsOfAPrompt},
    {"large_prompts", LargePrompts},
});

}  // namespace
}  // namespace ort_aie::npu_target
