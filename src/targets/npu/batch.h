// Steps of a token that go to the device together: their invocations, their activations in one
// buffer, and what the host does before the run and with the results.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "targets/npu/plan_memory.h"

namespace ort_aie::npu_target {

// A row that a batch has made of tensors of the host or the device: x = a, or a + skip, and y, its
// norm, or x.
struct MadeRow {
  struct Key {
    const void *a, *skip, *norm_weight;
    int64_t k;
    DataType type;
    float epsilon;
    bool operator==(const Key&) const = default;
  };
  Key key;
  npu::BufferView x, y;
};

class Batch {
 public:
  // Of steps of a plan with such temporaries, from `first` on; `memory` is what it keeps, or null.
  explicit Batch(Engine& engine, const char* design, const Arena& temporaries = {},
                 PlanMemory* memory = nullptr, size_t first = 0)
      : engine_(engine),
        design_(design),
        temporaries_(temporaries),
        memory_(memory),
        first_(first) {}

  // --- memory of the plan ---

  // `elements` bfloat16, zeros but for what fill(uint16_t*) writes. What the same batch of the last
  // call sent there is not sent again: where the device writes, it does so before it reads.
  template <typename F>
  npu::BufferView Input(int64_t elements, const F& fill) {
    const npu::BufferView view = Carve(kInputs, elements);
    inputs_.resize(static_cast<size_t>(sizes_[kInputs] / 2));
    fill(inputs_.data() + view.offset / 2);
    return view;
  }
  // The same for all who ask for it with the same key, a part of two tables.
  using TableKey = std::tuple<const void*, const void*, int64_t>;
  template <typename F>
  npu::BufferView SharedInput(const TableKey& key, int64_t elements, const F& fill) {
    const auto known = shared_.find(key);
    if (known != shared_.end()) return known->second;
    return shared_[key] = Input(elements, fill);
  }
  // Of `elements` bfloat16: what the host reads after the run, and what it does not.
  npu::BufferView Result(int64_t elements) { return Carve(kResults, elements); }
  npu::BufferView Scratch(int64_t elements) { return Carve(kScratch, elements); }
  // In a buffer of somebody else's.
  npu::BufferView View(std::shared_ptr<Buffer> buffer, int64_t offset);

  void Invoke(npu::Invocation invocation) { plan_.push_back(std::move(invocation)); }

  // --- the model's tensors ---

  // Where the device leaves a tensor of the model (null: one that perhaps gets a name by Alias), in
  // one piece, and may write `least` elements:
  // room for whole blocks, with zeros behind the tensor, which the device writes none but zeros to.
  // The host gets it after the run if somebody off the device reads it.
  npu::BufferView Output(void* tensor, int64_t elements, DataType type, int64_t least = 0);
  // The same of a tensor whose values are at `view` already, with such zeros up to `room` elements.
  // store() brings it to the host where it is read there, instead of the device's values.
  void Alias(void* tensor, int64_t elements, DataType type, npu::BufferView view, int64_t room,
             std::function<void()> store = {});
  // Whether the host can read there after the run, which it does if it has asked for it.
  bool IsResult(npu::BufferView view) const {
    return view.argument == kFirstRegion + kResults || view.argument <= kFirstOutput;
  }
  void Keep(npu::BufferView view);

  // Elements of a tensor of the model that this batch will write; on the device they are bfloat16,
  // if they are there in one piece.
  void Writes(const void* tensor, int64_t elements, DataType type,
              std::optional<npu::BufferView> view);
  // Where to read a tensor, or a part of one, from.
  struct Source {
    bool later = false;                   // from the host, after this batch
    std::optional<npu::BufferView> view;  // from the device; else from the host, now
    int64_t room = 0;  // elements at the view: those of the tensor, and zeros behind them
    bool on_host() const { return !later && !view; }
    static Source Later() { return {true, std::nullopt, 0}; }
  };
  Source Find(const void* tensor, size_t bytes) const;
  bool OnHost(const void* tensor, size_t bytes) const { return Find(tensor, bytes).on_host(); }

  // The row of that key, if the batch has made it and its tensors are still the same.
  const MadeRow* FindRow(const MadeRow::Key& key) const;
  void KeepRow(const MadeRow& row);

  // --- the order of steps ---

  // A step is done, or its invocations are in the batch.
  void Appended(const Step& step);
  // Whether the host can do a step now, before the run: it has all that the step reads, and nothing
  // that belongs to an earlier step is in the place of what it writes.
  bool Before(const Step& step) const;
  // What the host does after the run, at the step's turn.
  void After(const Step& step, std::function<void()> execute);

  // --- the run ---

  // What to do when the run has completed, in order; `Results` finds the bytes of what the host
  // reads.
  class Results {
   public:
    Results(const Batch& batch, const uint8_t* arena) : batch_(batch), arena_(arena) {}
    const uint16_t* operator[](npu::BufferView result) const {
      return reinterpret_cast<const uint16_t*>(arena_ + batch_.Place(result).offset);
    }

   private:
    const Batch& batch_;
    const uint8_t* const arena_;
  };
  void Then(std::function<void(const Results&)> action) { actions_.push_back(std::move(action)); }
  bool empty() const { return plan_.empty(); }
  // wanted(tensor, bytes): whether somebody reads that temporary after the batch.
  void Run(const std::function<bool(const void* tensor, size_t bytes)>& wanted);

 private:
  // Regions of the plan's first buffer; until they have a place, views name them by negative
  // numbers, and outputs by those below.
  enum Region { kInputs, kResults, kScratch, kRegions };
  static constexpr int kFirstRegion = -kRegions, kFirstOutput = kFirstRegion - 1;

  npu::BufferView Carve(Region region, int64_t elements);
  std::vector<int64_t> Layout(int64_t sent) const;
  // Brings the inputs, and zeros up to `sent`, to the device.
  void Send(PlanMemory::Activations& arena, int64_t sent) const;
  npu::BufferView Place(npu::BufferView view) const;

  struct Span {
    const uint8_t* first;
    size_t bytes;
    bool Overlaps(const Span& other) const {
      return first < other.first + other.bytes && other.first < first + bytes;
    }
    bool Holds(const Span& other) const {
      return first <= other.first && other.first + other.bytes <= first + bytes;
    }
  };
  static Span SpanOf(const void* tensor, size_t bytes) {
    return {static_cast<const uint8_t*>(tensor), bytes};
  }

  struct Written {
    Span span;
    size_t element_bytes;
    std::optional<npu::BufferView> view;
    int64_t room;                 // elements at the view
    bool stored_if_read = false;  // by an action of its own
    bool read = false;            // by the host
  };
  struct DeviceOutput {
    int64_t bytes;      // its room
    bool zeros;         // behind the tensor: the host sends them
    bool kept = false;  // the host reads it
    int64_t start = 0;  // in the buffer, once it has a place
  };
  DeviceOutput& OutputOf(npu::BufferView view);

  Engine& engine_;
  const char* design_;
  const Arena temporaries_;
  PlanMemory* const memory_;
  const size_t first_;
  npu::Plan plan_;
  std::vector<uint16_t> inputs_;
  std::map<TableKey, npu::BufferView> shared_;
  int64_t sizes_[kRegions] = {}, starts_[kRegions] = {};
  std::vector<DeviceOutput> outputs_;
  std::vector<std::shared_ptr<Buffer>> buffers_;  // of the plan, from the second on
  std::vector<Written> written_;
  // Which of these wrote last, from an address up to another.
  struct Last {
    const uint8_t* end;
    size_t written;
  };
  std::map<const uint8_t*, Last> last_;
  std::map<const uint8_t*, Last>::const_iterator FirstWrittenAt(const uint8_t* address) const;
  std::vector<MadeRow> rows_;
  std::vector<Span> read_;  // by steps of the batch, from the host
  std::vector<std::function<void(const Results&)>> actions_;
};

}  // namespace ort_aie::npu_target
