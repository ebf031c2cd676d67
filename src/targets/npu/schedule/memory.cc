#include "targets/npu/schedule/memory.h"

#include <algorithm>
#include <map>
#include <utility>

#include "base/places.h"

namespace ort_aie::npu_target {
namespace {

// So many unused bytes between two results are fetched along with them.
constexpr int64_t kFetchedTogether = 4096;

template <typename Submissions, typename F>
void ForEachInvocation(Submissions& submissions, const F& f) {
  for (auto& submission : submissions) {
    for (auto& part : submission) {
      for (auto& invocation : part.invocations) f(invocation);
    }
  }
}

}  // namespace

npu::BufferView BatchMemory::Input(int64_t elements) {
  return {kInputs, std::exchange(inputs_end_, inputs_end_ + RoundUp(2 * elements, kAlignment))};
}

npu::BufferView BatchMemory::NewPiece(Piece piece) {
  piece.bytes = RoundUp(piece.bytes, kAlignment);
  pieces_.push_back(piece);
  return {kFirstPiece + 1 - static_cast<int>(pieces_.size()), 0};
}

npu::BufferView BatchMemory::Result(int64_t elements) {
  const npu::BufferView view = Scratch(elements);
  Keep(view, elements);
  return view;
}

void BatchMemory::Keep(npu::BufferView view, int64_t elements) {
  Piece& piece = PieceOf(view);
  const int64_t end = std::min(view.offset + 2 * elements, piece.bytes);
  piece.read_first = piece.kept() ? std::min(piece.read_first, view.offset) : view.offset;
  piece.read_end = std::max(piece.read_end, end);
}

npu::BufferView BatchMemory::View(std::shared_ptr<Buffer> buffer, int64_t offset) {
  auto found = std::ranges::find(others_, buffer);
  if (found == others_.end()) found = others_.insert(found, std::move(buffer));
  return {1 + static_cast<int>(found - others_.begin()), offset};
}

npu::BufferView BatchMemory::Placed(npu::BufferView view) const {
  if (view.argument >= 0) return view;
  const int64_t start = view.argument == kInputs
                            ? 0
                            : pieces_[static_cast<size_t>(kFirstPiece - view.argument)].start;
  return {0, start + view.offset};
}

void BatchMemory::PlaceAll(std::vector<Submission>& submissions) {
  int64_t end = inputs_end_;
  const auto place = [&](bool zeros, bool kept) {
    for (Piece& piece : pieces_) {
      if (piece.zeros != zeros || piece.kept() != kept) continue;
      piece.start = end;
      end += piece.bytes;
    }
    return end;
  };
  place(true, false);
  sent_end_ = place(true, true);
  place(false, true);
  for (Piece& piece : pieces_) {
    if (piece.used > 0 && !piece.kept()) piece.start = std::exchange(end, end + piece.bytes);
  }
  end_ = PlaceInTurns(submissions, end);
  ForEachInvocation(submissions, [&](npu::Invocation& invocation) {
    for (auto& [name, view] : invocation.arguments) view = Placed(view);
  });
}

int64_t BatchMemory::PlaceInTurns(const std::vector<Submission>& submissions, int64_t first) {
  struct Use {
    size_t first, last;  // invocations
  };
  std::map<size_t, Use> uses;  // of pieces
  size_t count = 0;
  ForEachInvocation(submissions, [&](const npu::Invocation& invocation) {
    for (const auto& [name, view] : invocation.arguments) {
      if (view.argument > kFirstPiece) continue;
      const auto i = static_cast<size_t>(kFirstPiece - view.argument);
      if (pieces_[i].takes_turns()) uses.try_emplace(i, count, count).first->second.last = count;
    }
    ++count;
  });
  std::vector<std::vector<size_t>> begin(count), end(count);
  for (const auto& [piece, use] : uses) {
    begin[use.first].push_back(piece);
    end[use.last].push_back(piece);
  }
  Places places;
  for (size_t i = 0; i < count; ++i) {
    for (const size_t piece : begin[i]) {
      pieces_[piece].start = first + places.Take(pieces_[piece].bytes);
    }
    for (const size_t piece : end[i]) {
      places.Give(pieces_[piece].start - first, pieces_[piece].bytes);
    }
  }
  return first + places.end();
}

std::vector<BatchMemory::ByteRange> BatchMemory::fetched() const {
  constexpr int64_t kLine = 64;  // cache lines are transferred whole
  std::vector<ByteRange> ranges;
  for (const Piece& piece : pieces_) {
    if (!piece.kept()) continue;
    ranges.push_back({piece.start + piece.read_first / kLine * kLine,
                      piece.start + RoundUp(piece.read_end, kLine)});
  }
  std::ranges::sort(ranges, {}, &ByteRange::first);
  std::vector<ByteRange> together;
  for (const ByteRange& range : ranges) {
    if (together.empty() || range.first > together.back().end + kFetchedTogether) {
      together.push_back(range);
    } else {
      together.back().end = std::max(together.back().end, range.end);
    }
  }
  return together;
}

std::vector<BatchMemory::ByteRange> BatchMemory::zeros_after() const {
  std::vector<ByteRange> ranges;
  for (const Piece& piece : pieces_) {
    if (piece.used == 0 || piece.used == piece.bytes) continue;
    ranges.push_back({piece.start + piece.used, piece.start + piece.bytes});
  }
  return ranges;
}

std::vector<int64_t> BatchMemory::layout() const {
  std::vector<int64_t> layout = {inputs_end_, sent_end_};
  for (const Piece& piece : pieces_) {
    if (piece.zeros || piece.used > 0) layout.insert(layout.end(), {piece.start, piece.bytes});
  }
  return layout;
}

}  // namespace ort_aie::npu_target
