// The device's copies of a cache: which rows are sent again.
#include <functional>

#include "generator.h"
#include "targets/npu/row_marks.h"

namespace ort_aie::npu_target {
namespace {

int64_t Sent(const Bench& bench, const std::function<void()>& what) {
  const int64_t before = bench.target->counters().cache_rows_sent;
  what();
  return bench.target->counters().cache_rows_sent - before;
}

constexpr int64_t kHeads = 4;  // keys and values of two heads

void GeneratorsTakeTurns() {
  const Layer layer;
  for (const int64_t capacity : {0, 64}) {
    Bench bench;
    std::vector<Generator> generators;
    for (size_t i = 0; i < 4; ++i) generators.emplace_back(layer, capacity);
    for (Generator& generator : generators) generator.Append(*bench.target, 10);
    for (int round = 0; round < 4; ++round) {
      for (Generator& generator : generators) {
        const int64_t sent = Sent(bench, [&] { generator.Append(*bench.target, 1); });
        Check(sent == kHeads, "each finds its copy; got ", sent, " rows sent");
      }
    }
    // A fifth generator takes the copy of the one that has waited longest, which then sends
    // everything.
    Generator fifth(layer, capacity);
    fifth.Append(*bench.target, 10);
    const int64_t sent = Sent(bench, [&] { generators[0].Append(*bench.target, 1); });
    Check(sent == 15 * kHeads, "got ", sent, " rows sent");
    bench.OnlyDevice();
  }
}

void RewindThenOtherTokens() {
  const Layer layer;
  for (const int64_t back : {1, 8, 13}) {
    Bench bench;
    Generator generator(layer, 64);
    generator.Append(*bench.target, 20);
    generator.Append(*bench.target, 1);
    generator.past = {21 - back};
    for (const int64_t tokens : {1, 3, 1}) {
      const int64_t sent = Sent(bench, [&] { generator.Append(*bench.target, tokens); });
      Check(sent == tokens * kHeads, "the rest of the past is kept; got ", sent, " rows sent");
    }
    generator.past = {0};  // and from the start: in the copy for this memory
    const int64_t buffers = bench.device->counters().buffers;
    generator.Append(*bench.target, 5);
    Check(bench.device->counters().buffers == buffers, "a copy of overwritten memory was kept");
    bench.OnlyDevice();
  }
}

void AnOlderRowChanged() {
  const Layer layer;
  for (const bool values : {false, true}) {
    for (const size_t row : {size_t{0}, size_t{7}, size_t{19}}) {
      Bench bench;
      Generator generator(layer, 64);
      generator.Append(*bench.target, 20);
      generator.Append(*bench.target, 1);
      Values& cache = values ? generator.values : generator.keys;
      cache.bytes[(64 + row) * 64 * 2 + 9] ^= 0x80;  // the sign of an element of the second head
      const int64_t sent = Sent(bench, [&] { generator.Append(*bench.target, 1); });
      Check(sent == 22 * kHeads, "all rows are sent again, got ", sent);
      bench.OnlyDevice();
    }
  }
}

// Two steps of a plan on one cache. The second one's copy is compared when its past is there.
void AStepReadsTheRowOfTheStepBeforeIt() {
  const Layer layers[2];
  Bench bench;
  Values keys(DataType::kBfloat16, Exact(2 * 64 * 16)), values(DataType::kBfloat16, keys.floats());
  for (int turn = 0; turn < 3; ++turn) {  // other tokens at the same positions
    std::vector<Values> rows, outputs(2, Values(DataType::kFloat32, 4 * 64));
    for (const int64_t heads : {4, 2, 2, 4, 2, 2}) {
      rows.emplace_back(DataType::kFloat32, Exact(heads * 64));
    }
    const auto steps = [&](Values& k, Values& v, std::vector<Values>& y) {
      Plan plan;
      for (size_t i = 0; i < 2; ++i) {
        Generator generator(layers[i], 16);
        generator.past = {4 + static_cast<int64_t>(i)};
        AttentionStep step = generator.Step(1, {});
        step.query = rows[3 * i].data();
        step.key = rows[3 * i + 1].data();
        step.value = rows[3 * i + 2].data();
        step.past_key = step.present_key = k.data();
        step.past_value = step.present_value = v.data();
        step.output = y[i].data();
        plan.steps.emplace_back(step);
      }
      return plan;
    };
    Values want_keys = keys, want_values = values;
    std::vector<Values> want = outputs;
    const Plan host = steps(want_keys, want_values, want);
    HostTarget().Execute(host, kThreads);
    bench.Run(steps(keys, values, outputs));
    Check(keys.bytes == want_keys.bytes && values.bytes == want_values.bytes, "the present");
    Near("output", outputs[1], want[1], 64);
  }
  bench.OnlyDevice();
}

// Keys are random, and two different rows have the same mark only with a probability of 2^-64.
void MarksOfRowsThatDiffer() {
  for (const int64_t bytes : {4, 8, 32, 64, 72, 128, 192, 1024}) {
    std::vector<uint8_t> row(static_cast<size_t>(bytes) + 1);
    for (size_t i = 0; i < row.size(); ++i) row[i] = static_cast<uint8_t>(i % 2 == 0 ? 0 : i);
    uint8_t* const x = row.data() + 1;  // rows have any alignment
    const RowMark mark = MarkOf(x, bytes);
    Check(MarkOf(std::vector<uint8_t>(x, x + bytes).data(), bytes) == mark, "of the same row");
    for (int64_t bit = 0; bit < 8 * bytes; ++bit) {
      x[bit / 8] ^= static_cast<uint8_t>(1 << bit % 8);
      Check(MarkOf(x, bytes) != mark, "bit ", bit, " of ", bytes, " bytes");
      x[bit / 8] ^= static_cast<uint8_t>(1 << bit % 8);
    }
    for (int64_t word = 0; word + 8 <= bytes; word += 4) {  // words that are swapped
      std::swap_ranges(x + word, x + word + 4, x + word + 4);
      Check(MarkOf(x, bytes) != mark, "word ", word / 4, " of ", bytes, " bytes");
      std::swap_ranges(x + word, x + word + 4, x + word + 4);
    }
  }
}

const Cases kCacheCases({
    {"marks_of_rows_that_differ", MarksOfRowsThatDiffer},
    {"generators_take_turns", GeneratorsTakeTurns},
    {"rewind_then_other_tokens", RewindThenOtherTokens},
    {"an_older_row_changed", AnOlderRowChanged},
    {"a_step_reads_the_row_of_the_step_before_it", AStepReadsTheRowOfTheStepBeforeIt},
});

}  // namespace
}  // namespace ort_aie::npu_target
