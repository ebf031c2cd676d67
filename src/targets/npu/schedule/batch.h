// Steps that go to the device together: their invocations, and what the host does before the run
// and with the results. A token's batch uses one overlay, in one submission. A prompt's batch uses
// several, with no work of the host in between: it is one submission if they are in one hardware
// context, else one for each change.
//
// A batch is made without a device, and does nothing by itself: what the host does is kept as
// functions, which batch_runner.h calls.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "targets/npu/schedule/memory.h"
#include "targets/npu/schedule/tensors.h"
#include "targets/target.h"

namespace ort_aie::npu_target {

class Batch {
 public:
  // Whether two designs' overlays are in one hardware context.
  using OneContext = std::function<bool(Design one, Design other)>;

  // For steps of a plan with such temporaries.
  explicit Batch(const ThreadPool& threads, const Arena& temporaries = {},
                 OneContext one_context = {})
      : threads_(threads), temporaries_(temporaries), one_context_(std::move(one_context)) {}
  Batch(const Batch&) = delete;
  Batch& operator=(const Batch&) = delete;

  BatchMemory memory;
  BatchTensors tensors;
  const ThreadPool& threads() const { return threads_; }

  void Invoke(Design design, npu::Invocation invocation);

  // --- before the run, in this order ---

  // An input of `elements` bfloat16, which are zeros except for what fill(y) writes. Data that the
  // same batch sent there in the last call are not sent again, because the device writes there only
  // before it reads.
  using Fill = std::function<void(uint16_t* y)>;
  npu::BufferView Input(int64_t elements, Fill fill = {});
  // The same, shared by all callers with the same key: a part of two tables.
  using TableKey = std::tuple<const void*, const void*, int64_t>;
  npu::BufferView SharedInput(const TableKey& key, int64_t elements, Fill fill);
  // Memory of which the device writes `used` elements, with zeros behind them. All uses for a
  // `purpose` share it, one after the other.
  npu::BufferView ZerosAfter(int purpose, int64_t used, int64_t elements);
  // Work of the host.
  void Prepare(std::function<void()> execute);
  // The same for a step, which can precede the batch.
  void Before(const Step& step, std::function<void()> execute);

  // --- the model's tensors ---

  // Where the device leaves a tensor of the model, in one piece. If `tensor` is null, Alias may
  // name it later. The device may write `least` elements: there is room for whole blocks, with
  // zeros after the tensor, and the device writes only zeros to these. The host gets the tensor
  // after the run if anything outside of the device reads it.
  npu::BufferView Output(void* tensor, int64_t elements, DataType type, int64_t least = 0);
  // The same for several rows, with room for `room` elements. The elements after the tensor may
  // have any value.
  npu::BufferView OutputRows(void* tensor, int64_t elements, DataType type, int64_t room);
  // The same for a tensor whose values are already at `view`, with zeros after it up to `room`
  // elements. If the host reads the tensor, store() makes it there, instead of the device's values.
  void Alias(void* tensor, int64_t elements, DataType type, npu::BufferView view, int64_t room,
             std::function<void()> store = {});
  // The host has a tensor only after the run.
  void WritesLater(const void* tensor, int64_t elements, DataType type) {
    tensors.Write(tensor, elements, type, std::nullopt, 0);
  }

  // --- after the run, in this order ---

  // Finds what the host reads.
  class Results {
   public:
    Results(const BatchMemory& memory, const uint8_t* arena) : memory_(memory), arena_(arena) {}
    const uint16_t* operator[](npu::BufferView result) const {
      return reinterpret_cast<const uint16_t*>(arena_ + memory_.OffsetOf(result));
    }

   private:
    const BatchMemory& memory_;
    const uint8_t* const arena_;
  };
  void Then(std::function<void(const Results&)> action) { actions_.push_back(std::move(action)); }
  // A step of the host.
  void After(const Step& step, std::function<void()> execute);

  // --- once all steps are there ---

  // wanted(tensor, bytes) says whether anything reads that temporary after the batch.
  void Finish(const std::function<bool(const void* tensor, size_t bytes)>& wanted);
  std::span<const Submission> submissions() const { return submissions_; }
  // The work before the run. `inputs` has room for the inputs, and holds zeros.
  void PrepareAll(uint8_t* inputs) const;
  // The work after it, with the buffer as the host sees it.
  void Complete(const uint8_t* arena) const;

 private:
  const ThreadPool& threads_;
  const Arena temporaries_;
  const OneContext one_context_;
  std::vector<Submission> submissions_;
  std::map<TableKey, npu::BufferView> shared_;
  std::map<std::tuple<int, int64_t, int64_t>, npu::BufferView> zeros_after_;
  std::vector<std::function<void(uint8_t* inputs)>> preparations_;
  std::vector<std::function<void(const Results&)>> actions_;
};

}  // namespace ort_aie::npu_target
