#include "npu/transfer.h"

#include <algorithm>

#include "npu/expression.h"

namespace ort_aie::npu {
namespace {

constexpr int64_t kWord = 4;
constexpr int64_t kMaxLengthWords = (int64_t{1} << 32) - 1;
constexpr uint64_t kAxCache = 2;  // mlir-aie and FastFlowLM write this

void RequireWords(int64_t value, const char* what) {
  Require(value >= 0 && value % kWord == 0, what,
          " must be a multiple of 4 bytes and not negative, got ", value);
}

// Refuses a tap that is malformed or leaves its buffer; false if it moves nothing.
bool CheckTap(const Tap& tap, int64_t buffer_bytes) {
  RequireWords(tap.offset, "the offset");
  RequireWords(tap.run, "the run");
  int64_t end = CheckedAdd(tap.offset, tap.run);
  bool empty = tap.run == 0;
  for (size_t i = 0; i < tap.outer.size(); ++i) {
    const auto [count, stride] = tap.outer[i];
    Require(count >= 0, "the count of outer dimension ", i, " must not be negative, got ", count);
    Require(stride >= 0 && stride % kWord == 0, "the stride of outer dimension ", i,
            " must be a multiple of 4 bytes and not negative, got ", stride);
    if (count == 0) {
      empty = true;
    } else {
      end = CheckedAdd(end, CheckedMultiply(count - 1, stride));
    }
  }
  Require(empty || end <= buffer_bytes, "the transfer touches bytes up to ", end,
          " of a buffer of ", buffer_bytes);
  return !empty;
}

// Dimensions in words, innermost first, including the run. Dimensions of size 1 are left out, and
// neighbours that continue each other are folded into one. At least one word moves.
std::vector<Dimension> Normalize(const Tap& tap) {
  std::vector<Dimension> dims;
  const auto add = [&](Dimension next) {
    if (next.count == 1) return;
    if (!dims.empty() && next.stride == CheckedMultiply(dims.back().count, dims.back().stride)) {
      dims.back().count = CheckedMultiply(dims.back().count, next.count);
    } else {
      dims.push_back(next);
    }
  };
  add({tap.run / kWord, 1});
  for (auto d = tap.outer.rbegin(); d != tap.outer.rend(); ++d) add({d->count, d->stride / kWord});
  return dims;
}

int64_t LargestDivisor(int64_t count, int64_t limit) {
  int64_t divisor = limit;
  while (count % divisor != 0) --divisor;
  return divisor;
}

// Splits dimensions of D0 and D1 that are too large for a wrap in two.
void Factor(std::vector<Dimension>& dims) {
  for (size_t d = 0; d < 2 && d < dims.size(); ++d) {
    if (dims[d].count <= kMaxWrap) continue;
    const int64_t inner = LargestDivisor(dims[d].count, kMaxWrap);
    const Dimension rest{dims[d].count / inner, CheckedMultiply(dims[d].stride, inner)};
    dims[d].count = inner;
    dims.insert(dims.begin() + static_cast<std::ptrdiff_t>(d) + 1, rest);
  }
}

std::string ToString(const std::vector<Dimension>& dims) {
  std::string text;
  for (auto d = dims.rbegin(); d != dims.rend(); ++d) {
    text += Concat(text.empty() ? "" : ", ", d->count, " x ", d->stride);
  }
  return text;
}

void RequireTasks(int64_t tasks, int64_t most) {
  Require(tasks <= most, "the transfer takes ", tasks, " tasks, expected at most ", most);
}

// The offsets, repeated for each index of a dimension in words.
std::vector<int64_t> Shifted(const std::vector<int64_t>& offsets, Dimension dimension) {
  std::vector<int64_t> all;
  for (const int64_t offset : offsets) {
    for (int64_t i = 0; i < dimension.count; ++i) {
      all.push_back(offset + i * dimension.stride * kWord);
    }
  }
  return all;
}

}  // namespace

std::vector<Task> PlanTasks(const Tap& tap, int64_t buffer_bytes, int64_t most) {
  if (!CheckTap(tap, buffer_bytes)) return {};
  std::vector<Dimension> dims = Normalize(tap);

  Dimension iterated{1, 0};
  int64_t most_runs = kMaxIterations;
  if (!dims.empty() && dims.back().stride == 0) {
    iterated = dims.back();
    most_runs = kMaxQueueRuns;
    dims.pop_back();
  }
  for (size_t d = 0; d < dims.size(); ++d) {
    Require(dims[d].stride > 0, "dimension ", d,
            ", counted from the innermost, has a stride of 0 (", ToString(dims),
            " words); only the outermost may repeat");
  }
  const bool linear = dims.empty() || (dims.size() == 1 && dims[0].stride == 1);
  if (!linear) Factor(dims);
  // The outermost dimensions whose stride does not fit a step become tasks of their own, unless all
  // of them repeat together.
  std::vector<int64_t> offsets{tap.offset};
  while (iterated.count == 1 && !dims.empty() && dims.back().stride > kMaxStepWords) {
    const Dimension apart = dims.back();
    dims.pop_back();
    RequireTasks(CheckedMultiply(static_cast<int64_t>(offsets.size()), apart.count), most);
    offsets = Shifted(offsets, apart);
  }
  for (size_t d = 0; d < dims.size(); ++d) {
    Require(dims[d].stride <= kMaxStepWords, "dimension ", d,
            ", counted from the innermost, has a stride of ", dims[d].stride * kWord, " bytes (",
            ToString(dims), " words), expected at most ", kMaxStepWords * kWord);
  }
  if (dims.size() == 4 && most_runs == kMaxIterations) {
    iterated = dims.back();
    dims.pop_back();
  }
  Require(dims.size() <= 3, "the transfer has ", dims.size() + (iterated.count > 1 ? 1 : 0),
          " dimensions (", ToString(dims), " words, outermost first",
          iterated.count > 1 ? Concat("; ", iterated.count, " x ", iterated.stride, " around") : "",
          "), expected at most 3 and one of iterations or repeats, D0 and D1 of at most ",
          kMaxWrap);
  int64_t length = 1;
  for (const Dimension& d : dims) length = CheckedMultiply(length, d.count);
  Require(length <= kMaxLengthWords, "the transfer has ", length,
          " words in one descriptor, expected at most ", kMaxLengthWords);
  const int64_t parts = iterated.count / most_runs + (iterated.count % most_runs == 0 ? 0 : 1);
  RequireTasks(CheckedMultiply(static_cast<int64_t>(offsets.size()), parts), most);

  Task task{tap.offset, length, {{{1, 1}, {1, 1}, {1, 1}}}, iterated.stride, 1};
  if (!linear) std::copy(dims.begin(), dims.end(), task.data.begin());
  std::vector<Task> tasks;
  for (const int64_t offset : offsets) {
    for (int64_t first = 0; first < iterated.count; first += most_runs) {
      task.offset = offset + first * iterated.stride * kWord;
      task.runs = static_cast<int>(std::min(most_runs, iterated.count - first));
      tasks.push_back(task);
    }
  }
  return tasks;
}

int64_t Task::contiguous() const {
  if (std::ranges::all_of(data, [](Dimension d) { return d.count == 1; })) return 4 * length;
  int64_t words = 1;
  for (const Dimension& d : data) {
    if (d.stride != words) break;
    words *= d.count;
  }
  return 4 * words;
}

int64_t Task::end() const {
  int64_t last = (runs - 1) * iteration_step;
  bool linear = true;
  for (const Dimension& d : data) {
    linear = linear && d.count == 1;
    last += (d.count - 1) * d.stride;
  }
  if (linear) last += length - 1;
  return offset + 4 * (last + 1);
}

ShimDescriptorWords DescriptorWords(const Task& task, int generation, std::optional<int> packet) {
  namespace bd = shim_descriptor;
  ShimDescriptorWords words{};
  const auto set = [&](const Field& field, int64_t value) {
    SetField(words, field, static_cast<uint64_t>(value));
  };
  set(bd::kLength, task.length);
  if (packet) {
    set(bd::kPacketId, *packet);
    set(bd::kEnablePacket, 1);
  }
  const bool linear = std::ranges::all_of(task.data, [](Dimension d) { return d.count == 1; });
  if (!linear) {
    for (size_t d = 0; d < task.data.size(); ++d) set(bd::kStep[d], task.data[d].stride - 1);
    for (size_t d = 0; d < 2; ++d) set(bd::kWrap[d], task.data[d].count);
  }
  set(bd::kBurst, generation == kGenerationNpu2 ? 3 : 2);  // the longest there is
  set(bd::kAxCache, static_cast<int64_t>(kAxCache));
  if (task.iteration_step > 0 && task.runs > 1) {
    set(bd::kIterationStep, task.iteration_step - 1);
    set(bd::kIterationWrap, task.runs - 1);
  }
  set(bd::kValid, 1);
  return words;
}

}  // namespace ort_aie::npu
