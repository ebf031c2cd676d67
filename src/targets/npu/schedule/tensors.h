// Where a batch has the model's tensors, and which steps the host may do before it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <vector>

#include "npu/interpreter.h"
#include "ops/plan.h"

namespace ort_aie::npu_target {

// The bytes of a tensor.
using Bytes = std::span<const uint8_t>;
inline Bytes BytesAt(const void* tensor, size_t bytes) {
  return {static_cast<const uint8_t*>(tensor), bytes};
}
inline bool Overlap(Bytes a, Bytes b) {
  return a.data() < b.data() + b.size() && b.data() < a.data() + a.size();
}
inline bool Contains(Bytes a, Bytes b) {
  return a.data() <= b.data() && b.data() + b.size() <= a.data() + a.size();
}

// Rows that a batch has made of tensors of the host or the device: x = a, or a + skip; y = the norm
// of x, or x.
struct InputRows {
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

class BatchTensors {
 public:
  // --- where tensors are ---

  // Registers a tensor of the model that the batch will write, and says under which number; absent
  // if it has no bytes. On the device its elements are bfloat16, if they are there in one piece,
  // with room for `room` of them.
  std::optional<size_t> Write(const void* tensor, int64_t elements, DataType type,
                              std::optional<npu::BufferView> view, int64_t room);

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
  // The host writes it before the run, and whether it writes any of it then.
  void Prepare(const void* tensor, size_t bytes) { prepared_.push_back(BytesAt(tensor, bytes)); }
  bool IsPrepared(const void* tensor, size_t bytes) const;

  // The row of that key, if the batch has made it and its tensors have not changed since.
  const InputRows* FindRows(const InputRows::Key& key) const;
  void KeepRows(const InputRows& rows);

  // --- the order of steps ---

  // A step is done, or its invocations are in the batch.
  void Appended(const Step& step);
  // Whether the host can do a step now, before the run: it has everything that the step reads, and
  // the step does not overwrite anything that an earlier step still needs.
  bool CanPrecede(const Step& step) const;
  // The host does it before the run, or after it.
  void Precedes(const Step& step);
  void Follows(const Step& step);

  // --- what the host reads after the run ---

  bool IsRead(size_t written) const { return written_[written].read; }
  // Calls read(tensor, bytes) for each tensor on the device that nothing reads yet: whether
  // anything does. Then calls keep(view, elements) for those that the host reads.
  void ReadBy(const std::function<bool(const void* tensor, size_t bytes)>& read,
              const std::function<void(npu::BufferView, int64_t)>& keep);

 private:
  struct Written {
    Bytes bytes;
    size_t element_bytes;
    std::optional<npu::BufferView> view;
    int64_t room;       // elements at the view
    bool read = false;  // by the host
  };
  // Which entry of written_ wrote a range last; the ranges are ascending.
  struct Last {
    const uint8_t* end;
    size_t written;
  };
  std::map<const uint8_t*, Last>::const_iterator FirstWrittenAt(const uint8_t* address) const;

  std::vector<Written> written_;
  std::map<const uint8_t*, Last> last_;
  std::vector<InputRows> rows_;
  std::vector<Bytes> read_;      // from the host, by steps of the batch
  std::vector<Bytes> prepared_;  // by the host before the run
};

}  // namespace ort_aie::npu_target
