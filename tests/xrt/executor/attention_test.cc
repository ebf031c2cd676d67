// Attention of tokens and prompts.
#include "generator.h"

namespace ort_aie::npu_target {
namespace {

void TokensOfAllKinds() {
  for (const Layer& layer :
       std::vector<Layer>{{},
                          {.type = DataType::kFloat16, .cache_type = DataType::kFloat16},
                          {.type = DataType::kBfloat16},
                          {.cache_type = DataType::kFloat32},
                          {.dim = 80},
                          {.heads = 2, .kv_heads = 1, .dim = 256},
                          {.heads = 8, .kv_heads = 8, .dim = 32},
                          {.window = 5},
                          {.softcap = 20},
                          {.causal = false},
                          {.batch = 3},
                          {.rotary = true}}) {
    for (const Designs& designs : {kAll, Designs{"flow_kv", "flow_qkv"}}) {
      for (const int64_t capacity : {0, 100}) {
        Bench bench(designs);
        Generator generator(layer, capacity);
        generator.Append(*bench.target, 1);
        generator.Append(*bench.target, 6);
        for (int i = 0; i < 12; ++i) generator.Append(*bench.target, 1);
        Check(bench.runs() == 13 + layer.batch, "a run a token, and a prompt's, got ",
              bench.runs());
        bench.OnlyDevice();
        const ExecutorCounters counters = bench.target->counters();
        const int64_t heads = 2 * layer.batch * layer.kv_heads;
        Check(counters.cache_rows_sent == 19 * heads, "every row is sent once, got ",
              counters.cache_rows_sent, " of ", 19 * heads);
      }
    }
  }
}

void BatchRowsOfDifferentLengths() {
  const Layer layer{.batch = 3};
  Bench bench;
  Generator generator(layer, 64);
  generator.Append(*bench.target, 9, {9, 1, 5});  // the others are padding
  for (int i = 0; i < 5; ++i) generator.Append(*bench.target, 1);
  generator.Append(*bench.target, 4);
  bench.OnlyDevice();
}

// Chunks of 64 queries, which see those before as past.
void PromptsOfAnyLength() {
  for (const Layer& layer : std::vector<Layer>{{},
                                               {.dim = 128},
                                               {.window = 70},
                                               {.causal = false},
                                               {.heads = 6, .kv_heads = 1, .dim = 40}}) {
    for (const int64_t tokens : {2, 7, 8, 9, 63, 64, 65, 128, 129}) {
      if (layer.dim != 64 && tokens > 65) continue;  // the edges are those of the chunks
      ExecutorOptions options;
      options.query_bytes = 1;
      Bench bench(kAll, options);
      Generator generator(layer, tokens % 2 == 0 ? 300 : 0);
      generator.Append(*bench.target, tokens);
      Check(bench.runs() == q4nx::CeilDiv(tokens, 64), "chunks of 64, got ", bench.runs(), " for ",
            tokens);
      generator.Append(*bench.target, 1);
      generator.Append(*bench.target, tokens);  // after a past
      generator.Append(*bench.target, 1);
      bench.OnlyDevice();
    }
  }
}

// The cache grows from 256 rows on the device; the model's limit is the present's.
void ContextUpToTheLimit() {
  const Layer layer{.heads = 1, .kv_heads = 1};
  for (const int64_t capacity : {0, 257, 264}) {
    Bench bench;
    Generator generator(layer, capacity);
    generator.Append(*bench.target, 254);
    for (int i = 0; i < 3; ++i) generator.Append(*bench.target, 1);  // 255, 256, 257
    const int64_t sent = bench.target->counters().cache_rows_sent;
    Check(sent <= 2 * (257 + 257), "a grown cache is sent once more, got ", sent, " rows");
    bench.OnlyDevice();
  }
}

const Cases registered({
    {"tokens_of_all_kinds", TokensOfAllKinds},
    {"batch_rows_of_different_lengths", BatchRowsOfDifferentLengths},
    {"prompts_of_any_length", PromptsOfAnyLength},
    {"context_up_to_the_limit", ContextUpToTheLimit},
});

}  // namespace
}  // namespace ort_aie::npu_target
