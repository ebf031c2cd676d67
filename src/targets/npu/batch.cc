#include "targets/npu/batch.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "base/places.h"
#include "ops/step_tensors.h"
#include "q4nx/layout.h"
#include "targets/host/work.h"
#include "targets/npu/conversions.h"

namespace ort_aie::npu_target {
namespace {

constexpr int64_t kAddressMultiple = 4;    // bytes: transfers start at multiples of this
constexpr int64_t kStoredTogether = 4096;  // elements stored by one host task
// So many unused bytes between two results are fetched along with them.
constexpr int64_t kFetchedTogether = 4096;

}  // namespace

void Batch::Invoke(const char* design, npu::Invocation invocation) {
  if (submissions_.empty() || submissions_.back().design != design) {
    submissions_.push_back({design, {}});
  }
  submissions_.back().plan.push_back(std::move(invocation));
}

npu::BufferView Batch::NewPiece(Piece piece) {
  piece.bytes = RoundUp(piece.bytes, kAlignment);
  pieces_.push_back(piece);
  return {kFirstPiece + 1 - static_cast<int>(pieces_.size()), 0};
}

void Batch::Keep(npu::BufferView view, int64_t elements) {
  Piece& piece = PieceOf(view);
  const int64_t end = std::min(view.offset + 2 * elements, piece.bytes);
  piece.read_first = piece.kept() ? std::min(piece.read_first, view.offset) : view.offset;
  piece.read_end = std::max(piece.read_end, end);
}

npu::BufferView Batch::View(std::shared_ptr<Buffer> buffer, int64_t offset) {
  auto found = std::ranges::find(buffers_, buffer);
  if (found == buffers_.end()) found = buffers_.insert(found, std::move(buffer));
  return {1 + static_cast<int>(found - buffers_.begin()), offset};
}

npu::BufferView Batch::Output(void* tensor, int64_t elements, DataType type, int64_t least) {
  // A tensor that is longer than any row of the device is never an input there.
  const bool zeros = elements % q4nx::kBlockCols != 0 && elements <= kMatvecMaxK;
  const int64_t room =
      std::max(zeros ? q4nx::PaddedCols(elements) : q4nx::PaddedRows(elements), least);
  const npu::BufferView view = NewPiece({.bytes = 2 * room, .zeros = zeros});
  Alias(tensor, elements, type, view, zeros ? room : elements);
  return view;
}

npu::BufferView Batch::OutputRows(void* tensor, int64_t elements, DataType type, int64_t room) {
  const npu::BufferView view = Scratch(room);
  Alias(tensor, elements, type, view, room);
  return view;
}

void Batch::Alias(void* tensor, int64_t elements, DataType type, npu::BufferView view, int64_t room,
                  std::function<void()> store) {
  const size_t at = written_.size();
  Writes(tensor, elements, type, view);
  if (written_.size() == at) return;
  written_[at].room = room;
  written_[at].stored_if_read = true;
  actions_.push_back([this, at, tensor, elements, type, view, store](const Results& results) {
    if (!written_[at].read) return;
    if (store) return store();
    const uint16_t* const from = results[view];
    threads_.ParallelFor(
        q4nx::CeilDiv(elements, kStoredTogether), host::PassNs(kStoredTogether), [&](int64_t i) {
          const int64_t first = i * kStoredTogether;
          FromBfloat16(engine_.kernels(), from + first, std::min(kStoredTogether, elements - first),
                       type, host::Advance(tensor, type, first));
        });
  });
}

void Batch::Writes(const void* tensor, int64_t elements, DataType type,
                   std::optional<npu::BufferView> view) {
  if (tensor == nullptr) return;
  const Span span = SpanOf(tensor, static_cast<size_t>(elements) * SizeOf(type));
  if (span.bytes == 0) return;
  // Of earlier writes, only the parts before and after it remain.
  const uint8_t* const end = span.first + span.bytes;
  for (auto other = FirstWrittenAt(span.first); other != last_.end() && other->first < end;) {
    const auto [first, last] = *other;
    other = last_.erase(other);
    if (first < span.first) last_[first] = {span.first, last.written};
    if (last.end > end) last_[end] = last;
  }
  last_[span.first] = {end, written_.size()};
  written_.push_back({span, SizeOf(type), view, elements});
}

// The first write that ends after `address`.
std::map<const uint8_t*, Batch::Last>::const_iterator Batch::FirstWrittenAt(
    const uint8_t* address) const {
  auto found = last_.upper_bound(address);
  if (found != last_.begin() && std::prev(found)->second.end > address) --found;
  return found;
}

Batch::Source Batch::Find(const void* tensor, size_t bytes) const {
  if (tensor == nullptr) return {};
  const Span span = SpanOf(tensor, bytes);
  // The last write to it counts.
  const Written* written = nullptr;
  for (auto at = FirstWrittenAt(span.first);
       at != last_.end() && at->first < span.first + span.bytes; ++at) {
    const Written& candidate = written_[at->second.written];
    if (written == nullptr || written < &candidate) written = &candidate;
  }
  if (written == nullptr) return {};
  if (!written->view || !written->span.Holds(span)) return Source::Later();
  const auto before = static_cast<int64_t>(static_cast<size_t>(span.first - written->span.first) /
                                           written->element_bytes);
  const npu::BufferView view{written->view->argument, written->view->offset + 2 * before};
  if (view.offset % kAddressMultiple != 0) return Source::Later();
  // Zeros follow only the last element.
  const bool last = span.first + bytes == written->span.first + written->span.bytes;
  return {
      .view = view,
      .room = last ? written->room - before : static_cast<int64_t>(bytes / written->element_bytes)};
}

void Batch::Appended(const Step& step) {
  ForEachRead(step, [&](const void* tensor, size_t bytes) {
    if (OnHost(tensor, bytes)) read_.push_back(SpanOf(tensor, bytes));
  });
  ForEachWrite(step, [&](const void* tensor, size_t bytes) {
    const Span span = SpanOf(tensor, bytes);
    std::erase_if(rows_, [&](const MadeRow& row) {
      const auto changes = [&](const void* x) {
        return x != nullptr &&
               span.Overlaps(SpanOf(x, static_cast<size_t>(row.key.k) * SizeOf(row.key.type)));
      };
      return changes(row.key.a) || changes(row.key.skip);
    });
  });
}

void Batch::KeepRow(const MadeRow& row) {
  constexpr size_t kMost = 4;  // projections that share a row follow one another
  if (rows_.size() == kMost) rows_.erase(rows_.begin());
  rows_.push_back(row);
}

const MadeRow* Batch::FindRow(const MadeRow::Key& key) const {
  const auto found = std::ranges::find(rows_, key, &MadeRow::key);
  return found == rows_.end() ? nullptr : &*found;
}

bool Batch::Before(const Step& step) const {
  bool possible = true;
  ForEachRead(step, [&](const void* tensor, size_t bytes) {
    possible = possible && OnHost(tensor, bytes);
  });
  ForEachWrite(step, [&](const void* tensor, size_t bytes) {
    const Span span = SpanOf(tensor, bytes);
    const auto overlaps = [&](const Span& other) { return other.Overlaps(span); };
    possible = possible && OnHost(tensor, bytes) && std::ranges::none_of(read_, overlaps);
  });
  return possible;
}

void Batch::After(const Step& step, std::function<void()> execute) {
  ForEachRead(step, [&](const void* tensor, size_t bytes) {
    const Span span = SpanOf(tensor, bytes);
    for (Written& written : written_) {
      if (written.span.Overlaps(span)) written.read = true;
    }
    read_.push_back(span);
  });
  ForEachWrite(step, [&](const void* tensor, size_t bytes) {
    Writes(tensor, static_cast<int64_t>(bytes), DataType::kUint8, std::nullopt);
  });
  actions_.push_back([execute = std::move(execute)](const Results&) { execute(); });
}

npu::BufferView Batch::Place(npu::BufferView view) const {
  if (view.argument >= 0) return view;
  const int64_t start = view.argument == kInputs
                            ? 0
                            : pieces_[static_cast<size_t>(kFirstPiece - view.argument)].start;
  return {0, start + view.offset};
}

// What goes to the device comes first, and what comes back follows. Pieces that end with zeros may
// do both.
Batch::Extent Batch::PlacePieces() {
  auto end = static_cast<int64_t>(2 * inputs_.size());
  const auto place = [&](bool zeros, bool kept) {
    for (Piece& piece : pieces_) {
      if (piece.zeros != zeros || piece.kept() != kept) continue;
      piece.start = end;
      end += piece.bytes;
    }
    return end;
  };
  place(true, false);
  Extent extent{};
  extent.sent = place(true, true);
  extent.end = PlaceInTurns(place(false, true));
  return extent;
}

// An invocation is complete before the next one begins, so pieces that are never used together
// share memory.
int64_t Batch::PlaceInTurns(int64_t first) {
  struct Use {
    size_t first, last;  // invocations
  };
  std::map<size_t, Use> uses;  // of pieces
  size_t count = 0;
  for (const Submission& submission : submissions_) {
    for (const npu::Invocation& invocation : submission.plan) {
      for (const auto& [name, view] : invocation.arguments) {
        if (view.argument > kFirstPiece) continue;
        const auto i = static_cast<size_t>(kFirstPiece - view.argument);
        if (!pieces_[i].zeros && !pieces_[i].kept())
          uses.try_emplace(i, count, count).first->second.last = count;
      }
      ++count;
    }
  }
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

void Batch::Run(const std::function<bool(const void* tensor, size_t bytes)>& wanted) {
  for (Written& written : written_) {
    const auto* tensor = written.span.first;
    const size_t bytes = written.span.bytes;
    if (!written.stored_if_read) continue;
    written.read = written.read || !temporaries_.Holds(tensor, bytes) || wanted(tensor, bytes);
    if (!written.read || !IsResult(*written.view)) continue;
    Keep(*written.view, static_cast<int64_t>(bytes / written.element_bytes));
  }
  const Extent extent = PlacePieces();
  PlanMemory::Activations arena = TakeArena(extent);
  Send(arena, extent.sent);
  std::vector<Buffer*> buffers = {arena.buffer.get()};
  for (const auto& buffer : buffers_) buffers.push_back(buffer.get());
  for (Submission& submission : submissions_) {
    for (npu::Invocation& invocation : submission.plan) {
      for (auto& [name, view] : invocation.arguments) view = Place(view);
    }
    engine_.Run(PackageOf(submission.design, form_), submission.plan, buffers);
  }
  Fetch(*arena.buffer);
  const Results completed(*this, arena.buffer->host());
  for (const auto& action : actions_) action(completed);
  if (memory_ != nullptr) memory_->PutBack(first_, std::move(arena));
}

void Batch::Fetch(Buffer& arena) const {
  constexpr int64_t kLine = 64;  // cache lines are transferred whole
  std::vector<std::pair<int64_t, int64_t>> ranges;
  for (const Piece& piece : pieces_) {
    if (!piece.kept()) continue;
    ranges.emplace_back(piece.start + piece.read_first / kLine * kLine,
                        piece.start + RoundUp(piece.read_end, kLine));
  }
  std::ranges::sort(ranges);
  for (size_t i = 0; i < ranges.size();) {
    const int64_t first = ranges[i].first;
    int64_t end = ranges[i].second;
    for (++i; i < ranges.size() && ranges[i].first <= end + kFetchedTogether; ++i) {
      end = std::max(end, ranges[i].second);
    }
    arena.FromDevice(static_cast<size_t>(first), static_cast<size_t>(end - first));
  }
}

PlanMemory::Activations Batch::TakeArena(const Extent& extent) const {
  const auto bytes = static_cast<size_t>(extent.end);
  if (bytes > kMaxBufferBytes) {
    throw NoRoom(
        Concat("the rows of a plan take ", bytes, " bytes, expected at most ", kMaxBufferBytes));
  }
  try {
    if (memory_ != nullptr) return memory_->TakeActivations(first_, bytes, Layout(extent.sent));
    if (rows_buffer_ == nullptr) return {engine_.device().Allocate(bytes), {}, false};
    if (*rows_buffer_ == nullptr || (*rows_buffer_)->size() < bytes) {
      rows_buffer_->reset();  // free it before the next is allocated
      *rows_buffer_ = engine_.device().Allocate(bytes);
    }
    return {*rows_buffer_, {}, false};
  } catch (const DeviceError& error) {
    if (error.fault() != Fault::kAllocation) throw;
    throw NoRoom(error.what());
  }
}

std::vector<int64_t> Batch::Layout(int64_t sent) const {
  std::vector<int64_t> layout = {static_cast<int64_t>(inputs_.size()), sent};
  for (const Piece& piece : pieces_) {
    if (piece.zeros) layout.insert(layout.end(), {piece.start, piece.bytes});
  }
  return layout;
}

void Batch::Send(PlanMemory::Activations& arena, int64_t sent) const {
  const auto* const inputs = reinterpret_cast<const uint8_t*>(inputs_.data());
  const size_t inputs_end = 2 * inputs_.size();
  uint8_t* const host = arena.buffer->host();
  if (!arena.sent) {
    std::memcpy(host, inputs, inputs_end);
    std::memset(host + inputs_end, 0, static_cast<size_t>(sent) - inputs_end);
    arena.buffer->ToDevice(0, static_cast<size_t>(sent));
    arena.sent = true;
    return;
  }
  // Weights of norms and the like usually equal those of the last call. Adjacent lines that differ
  // are sent together.
  constexpr size_t kLine = kAlignment;
  size_t begin = 0, end = 0;
  const auto send = [&] {
    if (begin == end) return;
    std::memcpy(host + begin, inputs + begin, end - begin);
    arena.buffer->ToDevice(begin, end - begin);
  };
  for (size_t line = 0; line < inputs_end; line += kLine) {
    if (std::memcmp(host + line, inputs + line, kLine) == 0) continue;
    if (line != end) {
      send();
      begin = line;
    }
    end = line + kLine;
  }
  send();
}

}  // namespace ort_aie::npu_target
