// Steps that go to the device together: their invocations, their activations in one buffer, and
// what the host does before the run and with the results. A token's batch uses one overlay, in one
// submission. A prompt's batch is one submission for each change of overlay, with no work of the
// host in between.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "base/error.h"
#include "targets/npu/plan_memory.h"
#include "targets/target.h"

namespace ort_aie::npu_target {

// Rows that a batch has made of tensors of the host or the device: x = a, or a + skip; y = the norm
// of x, or x.
struct MadeRow {
  struct Key {
    const void *a, *skip, *norm_weight;
    int64_t rows, k;
    DataType type;
    float epsilon;
    bool operator==(const Key&) const = default;
  };
  Key key;
  npu::BufferView x, y;
};

// The device does not have room for the rows of a batch. It may have room for fewer steps.
class NoRoom : public Error {
 public:
  explicit NoRoom(const std::string& message) : Error(ErrorCode::kRuntime, message) {}
  size_t steps = 0;  // in the batch, if known
};

class Batch {
 public:
  // For overlays that read weights in `form`, and steps of a plan with such temporaries, from
  // `first` on. `memory` keeps the batch's rows for the next call; it may be null. In that case
  // `rows`, if not null, is a buffer that is passed from batch to batch, so that gigabytes of a
  // long prompt's rows are locked and flushed only once.
  Batch(Engine& engine, const ThreadPool& threads, const WeightForm& form,
        const Arena& temporaries = {}, PlanMemory* memory = nullptr, size_t first = 0,
        std::shared_ptr<Buffer>* rows = nullptr)
      : engine_(engine),
        threads_(threads),
        form_(form),
        temporaries_(temporaries),
        memory_(memory),
        first_(first),
        rows_buffer_(rows) {}

  // --- memory of the plan ---

  // An input of `elements` bfloat16, which are zeros except for what fill(uint16_t*) writes. Data
  // that the same batch sent there in the last call are not sent again, because the device writes
  // there only before it reads.
  template <typename F>
  npu::BufferView Input(int64_t elements, const F& fill) {
    const npu::BufferView view{kInputs, static_cast<int64_t>(2 * inputs_.size())};
    inputs_.resize(inputs_.size() + static_cast<size_t>(RoundUp(2 * elements, kAlignment) / 2));
    fill(inputs_.data() + view.offset / 2);
    return view;
  }
  // The same, shared by all callers with the same key: a part of two tables.
  using TableKey = std::tuple<const void*, const void*, int64_t>;
  template <typename F>
  npu::BufferView SharedInput(const TableKey& key, int64_t elements, const F& fill) {
    const auto known = shared_.find(key);
    if (known != shared_.end()) return known->second;
    return shared_[key] = Input(elements, fill);
  }
  // `elements` bfloat16 that the host reads after the run (Result), or does not read (Scratch).
  npu::BufferView Result(int64_t elements) {
    const npu::BufferView view = NewPiece({.bytes = 2 * elements});
    Keep(view, elements);
    return view;
  }
  npu::BufferView Scratch(int64_t elements) { return NewPiece({.bytes = 2 * elements}); }
  // A view of a buffer that belongs to someone else.
  npu::BufferView View(std::shared_ptr<Buffer> buffer, int64_t offset);

  void Invoke(const char* design, npu::Invocation invocation);

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
  // Whether the host can read there after the run, once it has asked for it.
  bool IsResult(npu::BufferView view) const { return view.argument <= kFirstPiece; }
  void Keep(npu::BufferView view, int64_t elements);
  // Keeps the whole piece.
  void Keep(npu::BufferView view) { Keep({view.argument, 0}, PieceOf(view).bytes / 2); }

  // Registers a tensor of the model that this batch will write. On the device its elements are
  // bfloat16, if they are there in one piece.
  void Writes(const void* tensor, int64_t elements, DataType type,
              std::optional<npu::BufferView> view);
  // Where to read a tensor, or a part of one.
  struct Source {
    bool later = false;                   // from the host, after this batch
    std::optional<npu::BufferView> view;  // from the device; else from the host, now
    int64_t room = 0;                     // elements at the view: the tensor, and zeros after it
    bool on_host() const { return !later && !view; }
    static Source Later() { return {true, std::nullopt, 0}; }
  };
  Source Find(const void* tensor, size_t bytes) const;
  bool OnHost(const void* tensor, size_t bytes) const { return Find(tensor, bytes).on_host(); }

  // The row of that key, if the batch has made it and its tensors have not changed since.
  const MadeRow* FindRow(const MadeRow::Key& key) const;
  void KeepRow(const MadeRow& row);

  // --- the order of steps ---

  // Call this when a step is done, or its invocations are in the batch.
  void Appended(const Step& step);
  // Whether the host can do a step now, before the run: it has everything that the step reads, and
  // the step does not overwrite anything that an earlier step still needs.
  bool Before(const Step& step) const;
  // Work of the host after the run, in the order of the steps.
  void After(const Step& step, std::function<void()> execute);

  // --- the run ---

  // Adds what to do when the run has completed, in order. `Results` finds the bytes that the host
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
  const ThreadPool& threads() const { return threads_; }
  // wanted(tensor, bytes) says whether anything reads that temporary after the batch. Throws
  // NoRoom; then nothing has run.
  void Run(const std::function<bool(const void* tensor, size_t bytes)>& wanted);

 private:
  static constexpr int64_t kAlignment = 256;  // bytes: no two pieces share a cache line

  // Until inputs and pieces have their places in the first buffer, views name them by negative
  // numbers.
  static constexpr int kInputs = -1, kFirstPiece = -2;
  struct Piece {
    int64_t bytes;
    bool zeros = false;                    // after a tensor: the host sends them
    int64_t read_first = 0, read_end = 0;  // the bytes of it that the host reads
    int64_t start = 0;                     // in the buffer, once it has a place

    bool kept() const { return read_end > 0; }
  };
  npu::BufferView NewPiece(Piece piece);
  Piece& PieceOf(npu::BufferView view) {
    return pieces_[static_cast<size_t>(kFirstPiece - view.argument)];
  }
  // Gives all pieces their places. Pieces that only the device uses share memory at different
  // times.
  struct Extent {
    int64_t sent, end;
  };
  Extent PlacePieces();
  int64_t PlaceInTurns(int64_t first);

  PlanMemory::Activations TakeArena(const Extent& extent) const;
  // Fetches what the host reads.
  void Fetch(Buffer& arena) const;
  std::vector<int64_t> Layout(int64_t sent) const;
  // Sends the inputs, and zeros up to `sent`, to the device.
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
    bool stored_if_read = false;  // by its own action
    bool read = false;            // by the host
  };
  // Consecutive invocations on one overlay.
  struct Submission {
    const char* design;
    npu::Plan plan;
  };

  Engine& engine_;
  const ThreadPool& threads_;
  const WeightForm form_;
  const Arena temporaries_;
  PlanMemory* const memory_;
  const size_t first_;
  std::shared_ptr<Buffer>* const rows_buffer_;
  std::vector<Submission> submissions_;
  std::vector<uint16_t> inputs_;
  std::map<TableKey, npu::BufferView> shared_;
  std::vector<Piece> pieces_;
  std::vector<std::shared_ptr<Buffer>> buffers_;  // of the plan, from the second on
  std::vector<Written> written_;
  // Which entry of written_ wrote a range last; the ranges are ascending.
  struct Last {
    const uint8_t* end;
    size_t written;
  };
  std::map<const uint8_t*, Last> last_;
  std::map<const uint8_t*, Last>::const_iterator FirstWrittenAt(const uint8_t* address) const;
  std::vector<MadeRow> rows_;
  std::vector<Span> read_;  // from the host, by steps of the batch
  std::vector<std::function<void(const Results&)>> actions_;
};

}  // namespace ort_aie::npu_target
