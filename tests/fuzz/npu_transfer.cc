// Transfers of a sequence: planned as tasks, encoded as descriptors, and compared with the transfer
// that they implement.
//
// An input is a list of 64-bit integers, little endian: the buffer's bytes, the offset, the run,
// and (count, stride) of each outer dimension.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "base/error.h"
#include "npu/transfer.h"

namespace {

using namespace ort_aie;
using namespace ort_aie::npu;

constexpr int64_t kMostTasks = 1 << 12;
constexpr int64_t kMostWords = 1 << 16;  // checked one by one

// The words that a tap names, in the order in which they move.
std::vector<int64_t> WordsOf(const Tap& tap) {
  std::vector<int64_t> starts{tap.offset};
  for (const Dimension& dimension : tap.outer) {
    std::vector<int64_t> next;
    for (const int64_t start : starts) {
      for (int64_t i = 0; i < dimension.count; ++i) next.push_back(start + i * dimension.stride);
    }
    starts = std::move(next);
  }
  std::vector<int64_t> words;
  for (const int64_t start : starts) {
    for (int64_t i = 0; i < tap.run; i += 4) words.push_back(start + i);
  }
  return words;
}

// The words that tasks name.
std::vector<int64_t> WordsOf(const std::vector<Task>& tasks) {
  std::vector<int64_t> words;
  for (const Task& task : tasks) {
    const auto& d = task.data;
    const bool linear = std::ranges::all_of(d, [](Dimension one) { return one.count == 1; });
    for (int64_t run = 0; run < task.runs; ++run) {
      for (int64_t i = 0; i < task.length; ++i) {
        const int64_t inner = linear ? i
                                     : i % d[0].count * d[0].stride +
                                           i / d[0].count % d[1].count * d[1].stride +
                                           i / d[0].count / d[1].count * d[2].stride;
        words.push_back(task.offset + 4 * (run * task.iteration_step + inner));
      }
    }
  }
  return words;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::vector<int64_t> numbers(size / 8);
  if (numbers.size() < 3 || numbers.size() > 64) return -1;
  std::memcpy(numbers.data(), data, numbers.size() * 8);
  Tap tap{numbers[1], numbers[2], {}};
  for (size_t i = 3; i + 1 < numbers.size(); i += 2) {
    tap.outer.push_back({numbers[i], numbers[i + 1]});
  }
  try {
    const std::vector<Task> tasks = PlanTasks(tap, numbers[0], kMostTasks);
    if (tasks.size() > kMostTasks) std::abort();
    const bool empty =
        tap.run == 0 || std::ranges::any_of(tap.outer, [](Dimension d) { return d.count == 0; });
    if (tasks.empty() != empty) std::abort();
    if (empty) return 0;
    int64_t words = 0;
    for (const Task& task : tasks) {
      DescriptorWords(task, kGenerationNpu2, 3);
      if (task.length <= 0 || task.runs <= 0 || task.bytes() <= 0) std::abort();
      if (task.contiguous() <= 0) std::abort();
      words = std::min(kMostWords, words) + std::min(kMostWords, task.length * task.runs);
    }
    if (words < kMostWords && WordsOf(tasks) != WordsOf(tap)) std::abort();
  } catch (const Error&) {
  }
  return 0;
}

// Replaces one of the numbers; byte mutations seldom yield multiples of four.
extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t most);
extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t most, unsigned seed) {
  static constexpr int64_t kEdges[] = {0, 1, 2, 3, 4, 8, 12, 16, 64, 256, 1020, 1023, 1024, 4096};
  const size_t count = size / 8;
  if (count == 0 || seed % 4 == 0) return LLVMFuzzerMutate(data, size, most);
  const size_t at = seed / 4 % count * 8;
  int64_t number;
  std::memcpy(&number, data + at, 8);
  const auto bits = static_cast<uint64_t>(number);
  const unsigned kind = seed / 1024 % 4, choice = seed / 4096;
  if (kind == 0) number = kEdges[choice % std::size(kEdges)];
  if (kind == 1) number = int64_t{1} << choice % 63;
  if (kind == 2) number = static_cast<int64_t>(bits * (1 + choice % 7));
  if (kind == 3) number = static_cast<int64_t>(bits + 4 * (choice % 9) - 16);
  std::memcpy(data + at, &number, 8);
  return size;
}
