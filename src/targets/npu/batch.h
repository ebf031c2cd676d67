// Steps that go to the device together: their invocations, their activations in one buffer, and
// what the host does before the run and with the results. A token's are of one overlay, and one
// submission; a prompt's are one for each time that the overlay changes, with nothing of the host's
// in between.
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

// Rows that a batch has made of tensors of the host or the device: x = a, or a + skip, and y, its
// norm, or x.
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

// The device has no room for the rows of a batch. Fewer steps may have it.
class NoRoom : public Error {
 public:
  explicit NoRoom(const std::string& message) : Error(ErrorCode::kRuntime, message) {}
  size_t steps = 0;  // of the batch, where that is known
};

class Batch {
 public:
  // Of steps of a plan with such temporaries, from `first` on; `memory` is what keeps its rows for
  // the next call, or null. Then `rows`, if not null, is a buffer that batches have one after the
  // other: gigabytes of a long prompt's rows are locked and flushed once.
  explicit Batch(Engine& engine, const ThreadPool& threads, const Arena& temporaries = {},
                 PlanMemory* memory = nullptr, size_t first = 0,
                 std::shared_ptr<Buffer>* rows = nullptr)
      : engine_(engine),
        threads_(threads),
        temporaries_(temporaries),
        memory_(memory),
        first_(first),
        rows_buffer_(rows) {}

  // --- memory of the plan ---

  // `elements` bfloat16, zeros but for what fill(uint16_t*) writes. What the same batch of the last
  // call sent there is not sent again: where the device writes, it does so before it reads.
  template <typename F>
  npu::BufferView Input(int64_t elements, const F& fill) {
    const npu::BufferView view{kInputs, static_cast<int64_t>(2 * inputs_.size())};
    inputs_.resize(inputs_.size() + static_cast<size_t>(RoundUp(2 * elements, kAlignment) / 2));
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
  npu::BufferView Result(int64_t elements) {
    const npu::BufferView view = NewPiece({.bytes = 2 * elements});
    Keep(view, elements);
    return view;
  }
  npu::BufferView Scratch(int64_t elements) { return NewPiece({.bytes = 2 * elements}); }
  // In a buffer of somebody else's.
  npu::BufferView View(std::shared_ptr<Buffer> buffer, int64_t offset);

  void Invoke(const char* design, npu::Invocation invocation);

  // --- the model's tensors ---

  // Where the device leaves a tensor of the model (null: one that perhaps gets a name by Alias), in
  // one piece, and may write `least` elements:
  // room for whole blocks, with zeros behind the tensor, which the device writes none but zeros to.
  // The host gets it after the run if somebody off the device reads it.
  npu::BufferView Output(void* tensor, int64_t elements, DataType type, int64_t least = 0);
  // The same of several rows, with room for `room` elements, which may be anything behind the
  // tensor.
  npu::BufferView OutputRows(void* tensor, int64_t elements, DataType type, int64_t room);
  // The same of a tensor whose values are at `view` already, with such zeros up to `room` elements.
  // store() brings it to the host where it is read there, instead of the device's values.
  void Alias(void* tensor, int64_t elements, DataType type, npu::BufferView view, int64_t room,
             std::function<void()> store = {});
  // Whether the host can read there after the run, which it does if it has asked for it.
  bool IsResult(npu::BufferView view) const { return view.argument <= kFirstPiece; }
  void Keep(npu::BufferView view, int64_t elements);
  // With all that lies there together with it.
  void Keep(npu::BufferView view) { Keep({view.argument, 0}, PieceOf(view).bytes / 2); }

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
  const ThreadPool& threads() const { return threads_; }
  // wanted(tensor, bytes): whether somebody reads that temporary after the batch. Throws NoRoom,
  // and then nothing has run.
  void Run(const std::function<bool(const void* tensor, size_t bytes)>& wanted);

 private:
  static constexpr int64_t kAlignment = 256;  // bytes: no two pieces share a cache line

  // Until they have a place in the first buffer, views name the inputs and each piece by negative
  // numbers.
  static constexpr int kInputs = -1, kFirstPiece = -2;
  struct Piece {
    int64_t bytes;
    bool zeros = false;                    // behind a tensor: the host sends them
    int64_t read_first = 0, read_end = 0;  // of these, by the host
    int64_t start = 0;                     // in the buffer, once it has a place

    bool kept() const { return read_end > 0; }
  };
  npu::BufferView NewPiece(Piece piece);
  Piece& PieceOf(npu::BufferView view) {
    return pieces_[static_cast<size_t>(kFirstPiece - view.argument)];
  }
  // Gives all pieces their places; those that only the device has share them in turns.
  struct Extent {
    int64_t sent, end;
  };
  Extent PlacePieces();
  int64_t PlaceInTurns(int64_t first);

  PlanMemory::Activations TakeArena(const Extent& extent) const;
  // What the host reads.
  void Fetch(Buffer& arena) const;
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
  // Consecutive invocations of an overlay.
  struct Submission {
    const char* design;
    npu::Plan plan;
  };

  Engine& engine_;
  const ThreadPool& threads_;
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
