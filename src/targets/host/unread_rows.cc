#include "targets/host/unread_rows.h"

#include <algorithm>
#include <span>
#include <variant>

#include "ops/step_tensors.h"
#include "targets/host/host_target.h"

namespace ort_aie::host {
namespace {

template <typename T>
void SkipElements(T*& tensor, DataType type, int64_t elements) {
  if (tensor != nullptr) tensor = Advance(tensor, type, elements);
}

// Steps that compute a row from the same row of their inputs: how many rows they have. 0: others.
struct OwnRows {
  int64_t operator()(const MatMulStep& step) const { return step.rows; }
  int64_t operator()(const NormStep& step) const { return step.rows; }
  int64_t operator()(const ElementwiseStep& step) const { return step.rows; }
  // A window's queries share chunks of keys by where their tile begins.
  int64_t operator()(const AttentionStep& step) const {
    return step.batch == 1 && step.window <= 0 && !step.windowed_cache ? step.sequence : 0;
  }
  template <typename Other>
  int64_t operator()(const Other&) const {
    return 0;
  }
};

// The step without its first rows.
struct DropFirst {
  int64_t rows;

  void operator()(MatMulStep& step) const {
    step.rows -= rows;
    SkipElements(step.a, step.type, rows * step.k);
    SkipElements(step.skip, step.type, rows * step.k);
    SkipElements(step.sum, step.type, rows * step.k);
    SkipElements(step.y, step.type, rows * step.n);
  }
  void operator()(NormStep& step) const {
    step.rows -= rows;
    for (const void** tensor : {&step.a, &step.skip, &step.gate}) {
      SkipElements(*tensor, step.type, rows * step.k);
    }
    SkipElements(step.y, step.type, rows * step.k);
    SkipElements(step.sum, step.type, rows * step.k);
  }
  void operator()(ElementwiseStep& step) const {
    step.rows -= rows;
    SkipElements(step.a, step.type, rows * step.k);
    if (step.b_is == ElementwiseStep::Operand::kTensor)
      SkipElements(step.b, step.type, rows * step.k);
    SkipElements(step.y, step.type, rows * step.k);
  }
  void operator()(AttentionStep& step) const { step.unread = rows; }
  template <typename Other>
  void operator()(Other&) const {}
};

// Fewer rows than these may be added up in another order.
int64_t LeastRows(const Step& step, const Kernels& kernels) {
  const auto* projection = std::get_if<MatMulStep>(&step);
  if (projection == nullptr) return 1;
  return MostStreamedRows(kernels, projection->form, projection->numerics) + 1;
}

// How many of the first rows none of the later steps reads. What is not temporary, others read.
int64_t UnreadRows(const Step& step, int64_t rows, const Arena& temporaries,
                   std::span<const Step> later) {
  int64_t unread = rows;
  ForEachWrite(step, [&](const void* tensor, size_t bytes) {
    // Keys and values are written in any case.
    const auto* attention = std::get_if<AttentionStep>(&step);
    if (attention != nullptr && tensor != attention->output) return;
    if (!temporaries.Holds(tensor, bytes)) unread = 0;
    const auto* begin = static_cast<const uint8_t*>(tensor);
    for (const Step& reader : later) {
      ForEachRead(reader, [&](const void* read, size_t size) {
        const auto* first = static_cast<const uint8_t*>(read);
        if (first >= begin + bytes || first + size <= begin) return;
        const auto row = std::max<int64_t>(0, first - begin) / (static_cast<int64_t>(bytes) / rows);
        unread = std::min(unread, row);
      });
    }
  });
  return unread;
}

}  // namespace

std::optional<Plan> WithoutUnreadRows(const Plan& plan, const Kernels& kernels) {
  std::optional<Plan> shorter;
  for (size_t i = plan.steps.size(); i-- > 0;) {
    const std::span<const Step> all = shorter ? shorter->steps : plan.steps;
    const int64_t rows = std::visit(OwnRows(), all[i]);
    if (rows == 0 && !std::holds_alternative<GatherStep>(all[i])) break;
    const int64_t droppable = rows - LeastRows(all[i], kernels);
    if (droppable > 0) {
      const int64_t unread =
          std::min(droppable, UnreadRows(all[i], rows, plan.temporaries, all.subspan(i + 1)));
      if (unread > 0) {
        if (!shorter) shorter = plan;
        std::visit(DropFirst{unread}, shorter->steps[i]);
      }
    }
    if (std::holds_alternative<AttentionStep>(all[i])) break;
  }
  return shorter;
}

}  // namespace ort_aie::host
