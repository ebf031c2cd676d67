// Attention for tokens and prompts.
#include "generator.h"
#include "targets/npu/kv_copies.h"

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
                          {.rotary = true},
                          {.rotary = true, .qk_norm = true, .v_norm = true},
                          {.rotary = true, .qk_norm = true, .norm_after_rotary = true},
                          {.batch = 2, .rotary = true, .mixed_positions = true},
                          {.rotary = true, .interleaved = true, .mixed_positions = true}}) {
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

// Chunks of 64 queries, which see earlier ones as past.
void PromptsOfAnyLength() {
  for (const Layer& layer : std::vector<Layer>{{},
                                               {.dim = 128},
                                               {.window = 70},
                                               {.causal = false},
                                               {.heads = 6, .kv_heads = 1, .dim = 40}}) {
    for (const int64_t tokens : {2, 7, 8, 9, 63, 64, 65, 128, 129}) {
      if (layer.dim != 64 && tokens > 65) continue;  // edge cases depend on the chunks
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

// On the device the cache grows from 256 rows; the present has the model's limit.
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

// Caches that keep only a window: the device's copy holds more than the window, and moves its rows
// now and then.
void CachesOfAWindow() {
  for (const Layer& layer : std::vector<Layer>{
           {.window = 8, .windowed_cache = true},
           {.heads = 2,
            .kv_heads = 1,
            .dim = 256,
            .window = 70,
            .rotary = true,
            .windowed_cache = true},
           {.batch = 2, .cache_type = DataType::kFloat32, .window = 5, .windowed_cache = true},
           {.batch = 2, .window = 20, .windowed_cache = true, .padding = {0, 9}}}) {
    for (const int64_t room : {0, 1, 30}) {
      for (const bool in_place : {false, true}) {
        ExecutorOptions options;
        options.query_bytes = 1;  // chunks of 64
        Bench bench(kAll, options);
        Generator generator(layer, layer.window + room, in_place);
        generator.Append(*bench.target, 12);
        int64_t tokens = 12;
        for (const int64_t prompt : {3, 150}) {
          for (int i = 0; i < 4; ++i) generator.Append(*bench.target, 1);
          generator.Append(*bench.target, prompt);
          tokens += 4 + prompt;
        }
        for (; tokens < 300; ++tokens) generator.Append(*bench.target, 1);
        bench.OnlyDevice();
        const int64_t heads = 2 * layer.batch * layer.kv_heads;
        const int64_t sent = bench.target->counters().cache_rows_sent;
        Check(sent <= 2 * tokens * heads, "each row is sent and moved once, got ", sent, " of ",
              tokens * heads);
        const int64_t bytes = bench.device->counters().buffer_bytes;
        Check(bytes <= heads * 256 * PaddedHeadDim(layer.dim) * 2, "room for 256 rows, got ",
              bytes);
      }
    }
  }
}

// A cache of all rows: the device keeps those of the window.
void AWindowOfALongCache() {
  const Layer layer{.window = 40};
  Bench bench;
  Generator generator(layer, 700);
  generator.Append(*bench.target, 500);
  for (int i = 0; i < 100; ++i) generator.Append(*bench.target, 1);
  bench.OnlyDevice();
  const int64_t compared = bench.target->counters().cache_bytes_compared;
  Check(compared > 0 && bench.target->counters().compare_seconds > 0, "comparing is counted");
  Check(compared <= 101 * 4 * 39 * 64 * 2, "what is out of the window is not compared, got ",
        compared);
}

void LeftPadding() {
  for (const Layer& layer : std::vector<Layer>{{.batch = 3, .rotary = true, .padding = {0, 9, 4}},
                                               {.batch = 2, .window = 7, .padding = {3, 20}},
                                               {.batch = 2, .causal = false, .padding = {0, 30}},
                                               {.dim = 80, .padding = {11}}}) {
    for (const int64_t capacity : {0, 100}) {
      ExecutorOptions options;
      options.query_bytes = 1;
      Bench bench(kAll, options);
      Generator generator(layer, capacity);
      generator.Append(*bench.target, 40);
      for (int i = 0; i < 10; ++i) generator.Append(*bench.target, 1);
      generator.Append(*bench.target, 9);
      generator.Append(*bench.target, 1);
      bench.OnlyDevice();
    }
  }
}

// Another mask for the same tokens: the device's rows begin elsewhere.
void AMaskThatChanges() {
  Layer layer{.padding = {5}};
  Bench bench;
  Generator generator(layer, 64);
  generator.Append(*bench.target, 20);
  for (const int64_t padding : {0, 8, 8, 0}) {
    layer.padding = {padding};
    generator.Append(*bench.target, 1);
  }
  bench.OnlyDevice();
}

// The device holds the codes, which are exact in bfloat16, and the host scales.
void CachesOfIntegers() {
  for (const DataType type : {DataType::kInt8, DataType::kInt4}) {
    for (const Layer& layer :
         std::vector<Layer>{{.cache_type = type},
                            {.dim = 80, .cache_type = type, .softcap = 20, .per_channel = true},
                            {.batch = 2,
                             .cache_type = type,
                             .window = 8,
                             .rotary = true,
                             .windowed_cache = true}}) {
      Bench bench;
      Generator generator(layer, layer.windowed_cache ? 16 : 100);
      generator.Append(*bench.target, 30);
      for (int i = 0; i < 10; ++i) generator.Append(*bench.target, 1);
      bench.OnlyDevice();
    }
  }
}

const Cases kAttentionCases({
    {"caches_of_a_window", CachesOfAWindow},
    {"a_window_of_a_long_cache", AWindowOfALongCache},
    {"left_padding", LeftPadding},
    {"a_mask_that_changes", AMaskThatChanges},
    {"caches_of_integers", CachesOfIntegers},
    {"tokens_of_all_kinds", TokensOfAllKinds},
    {"prompts_of_any_length", PromptsOfAnyLength},
    {"context_up_to_the_limit", ContextUpToTheLimit},
});

}  // namespace
}  // namespace ort_aie::npu_target
