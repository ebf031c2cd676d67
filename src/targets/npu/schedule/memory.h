// The memory of a batch on the device, before it has any: views of what the host sends, of what the
// device leaves, and of others' buffers.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "npu/interpreter.h"
#include "targets/npu/buffer.h"
#include "targets/npu/schedule/designs.h"

namespace ort_aie::npu_target {

// Consecutive invocations on one overlay.
struct DesignPart {
  Design design;
  npu::Invocations invocations;
};
// What is submitted together: parts on overlays in one hardware context.
using Submission = std::vector<DesignPart>;

// Until they have their places in the first buffer, views name the inputs and each piece by a
// negative number. All but a batch's own memory are views of buffers from the second on.
class BatchMemory {
 public:
  static constexpr int64_t kAlignment = 256;  // bytes: no two pieces share a cache line

  // --- before the places are known ---

  // `elements` bfloat16 that the host sends.
  npu::BufferView Input(int64_t elements);
  // `elements` bfloat16 that the host reads after the run (Result), or does not read (Scratch).
  npu::BufferView Result(int64_t elements);
  npu::BufferView Scratch(int64_t elements) { return NewPiece({.bytes = 2 * elements}); }
  // The host sends zeros there before the device writes.
  npu::BufferView Zeros(int64_t elements) {
    return NewPiece({.bytes = 2 * elements, .zeros = true});
  }
  // `elements` bfloat16 of which the device writes the first `used`; the host sends zeros for the
  // others before the run. No other piece takes this memory in turns.
  npu::BufferView ZerosAfter(int64_t used, int64_t elements) {
    return NewPiece({.bytes = 2 * elements, .used = 2 * used});
  }
  // A view of a buffer that belongs to someone else.
  npu::BufferView View(std::shared_ptr<Buffer> buffer, int64_t offset);

  // Whether the host can read there after the run, once it has asked for it.
  static bool IsResult(npu::BufferView view) { return view.argument <= kFirstPiece; }
  // The host reads so many elements there, or the whole piece.
  void Keep(npu::BufferView view, int64_t elements);
  void Keep(npu::BufferView view) { Keep({view.argument, 0}, PieceOf(view).bytes / 2); }

  // --- once all invocations are known ---

  // Gives everything its place, and the views of the invocations the buffers' numbers. What goes to
  // the device comes first, and what comes back follows; pieces that end with zeros may do both. An
  // invocation is complete before the next one begins, so pieces that only the device uses, and
  // never together, share memory.
  void PlaceAll(std::vector<Submission>& submissions);
  int64_t inputs_end() const { return inputs_end_; }  // bytes; from there to sent_end are zeros
  int64_t sent_end() const { return sent_end_; }
  int64_t end() const { return end_; }
  int64_t OffsetOf(npu::BufferView view) const { return Placed(view).offset; }
  struct ByteRange {
    int64_t first, end;
  };
  // What the host fetches, ascending and apart.
  std::vector<ByteRange> fetched() const;
  // Where it sends zeros, beyond sent_end.
  std::vector<ByteRange> zeros_after() const;
  // Of what the host sends; the same numbers mean the same contents but for the inputs.
  std::vector<int64_t> layout() const;
  const std::vector<std::shared_ptr<Buffer>>& others() const { return others_; }

 private:
  static constexpr int kInputs = -1, kFirstPiece = -2;
  struct Piece {
    int64_t bytes;
    bool zeros = false;
    int64_t used = 0;                      // if not 0: zeros follow
    int64_t read_first = 0, read_end = 0;  // the bytes of it that the host reads
    int64_t start = 0;                     // in the buffer, once it has a place

    bool kept() const { return read_end > 0; }
    // Whether other pieces can be there before and after.
    bool takes_turns() const { return !zeros && !kept() && used == 0; }
  };
  npu::BufferView NewPiece(Piece piece);
  Piece& PieceOf(npu::BufferView view) {
    return pieces_[static_cast<size_t>(kFirstPiece - view.argument)];
  }
  npu::BufferView Placed(npu::BufferView view) const;
  int64_t PlaceInTurns(const std::vector<Submission>& submissions, int64_t first);

  int64_t inputs_end_ = 0, sent_end_ = 0, end_ = 0;
  std::vector<Piece> pieces_;
  std::vector<std::shared_ptr<Buffer>> others_;
};

}  // namespace ort_aie::npu_target
