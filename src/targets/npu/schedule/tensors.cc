#include "targets/npu/schedule/tensors.h"

#include <algorithm>
#include <iterator>

#include "ops/step_tensors.h"

namespace ort_aie::npu_target {
namespace {

constexpr int64_t kAddressMultiple = 4;  // bytes: transfers start at multiples of this

}  // namespace

std::optional<size_t> BatchTensors::Write(const void* tensor, int64_t elements, DataType type,
                                          std::optional<npu::BufferView> view, int64_t room) {
  if (tensor == nullptr || elements <= 0) return {};
  const Bytes bytes = BytesAt(tensor, static_cast<size_t>(elements) * SizeOf(type));
  // Of earlier writes, only the parts before and after it remain.
  const uint8_t* const begin = bytes.data();
  const uint8_t* const end = begin + bytes.size();
  for (auto other = FirstWrittenAt(begin); other != last_.end() && other->first < end;) {
    const auto [first, last] = *other;
    other = last_.erase(other);
    if (first < begin) last_[first] = {begin, last.written};
    if (last.end > end) last_[end] = last;
  }
  last_[begin] = {end, written_.size()};
  written_.push_back({bytes, SizeOf(type), view, room});
  return written_.size() - 1;
}

// The first write that ends after `address`.
std::map<const uint8_t*, BatchTensors::Last>::const_iterator BatchTensors::FirstWrittenAt(
    const uint8_t* address) const {
  auto found = last_.upper_bound(address);
  if (found != last_.begin() && std::prev(found)->second.end > address) --found;
  return found;
}

BatchTensors::Source BatchTensors::Find(const void* tensor, size_t bytes) const {
  if (tensor == nullptr) return {};
  const Bytes all = BytesAt(tensor, bytes);
  // The last write to it counts.
  const Written* written = nullptr;
  for (auto at = FirstWrittenAt(all.data());
       at != last_.end() && at->first < all.data() + all.size(); ++at) {
    const Written& candidate = written_[at->second.written];
    if (written == nullptr || written < &candidate) written = &candidate;
  }
  if (written == nullptr) return {};
  if (!written->view || !Contains(written->bytes, all)) return Source::Later();
  const auto before = static_cast<int64_t>(static_cast<size_t>(all.data() - written->bytes.data()) /
                                           written->element_bytes);
  const npu::BufferView view{written->view->argument, written->view->offset + 2 * before};
  if (view.offset % kAddressMultiple != 0) return Source::Later();
  // Zeros follow only the last element.
  const bool last = all.data() + all.size() == written->bytes.data() + written->bytes.size();
  return {
      .view = view,
      .room = last ? written->room - before : static_cast<int64_t>(bytes / written->element_bytes)};
}

bool BatchTensors::IsPrepared(const void* tensor, size_t bytes) const {
  const Bytes all = BytesAt(tensor, bytes);
  return tensor != nullptr &&
         std::ranges::any_of(prepared_, [&](Bytes other) { return Overlap(other, all); });
}

void BatchTensors::KeepRows(const InputRows& rows) {
  constexpr size_t kMost = 4;  // projections that share a row follow one another
  if (rows_.size() == kMost) rows_.erase(rows_.begin());
  rows_.push_back(rows);
}

const InputRows* BatchTensors::FindRows(const InputRows::Key& key) const {
  const auto found = std::ranges::find(rows_, key, &InputRows::key);
  return found == rows_.end() ? nullptr : &*found;
}

void BatchTensors::Appended(const Step& step) {
  ForEachRead(step, [&](const void* tensor, size_t bytes) {
    if (OnHost(tensor, bytes)) read_.push_back(BytesAt(tensor, bytes));
  });
  ForEachWrite(step, [&](const void* tensor, size_t bytes) {
    const Bytes written = BytesAt(tensor, bytes);
    std::erase_if(rows_, [&](const InputRows& rows) {
      const auto changes = [&](const void* x) {
        return x != nullptr && Overlap(written, BytesAt(x, static_cast<size_t>(rows.key.k) *
                                                               SizeOf(rows.key.type)));
      };
      return changes(rows.key.a) || changes(rows.key.skip);
    });
  });
}

bool BatchTensors::CanPrecede(const Step& step) const {
  bool possible = true;
  ForEachRead(step, [&](const void* tensor, size_t bytes) {
    possible = possible && OnHost(tensor, bytes);
  });
  ForEachWrite(step, [&](const void* tensor, size_t bytes) {
    const Bytes written = BytesAt(tensor, bytes);
    const auto overlaps = [&](Bytes other) { return Overlap(other, written); };
    possible = possible && OnHost(tensor, bytes) && std::ranges::none_of(read_, overlaps);
  });
  return possible;
}

void BatchTensors::Precedes(const Step& step) {
  ForEachWrite(step, [&](const void* tensor, size_t bytes) { Prepare(tensor, bytes); });
}

void BatchTensors::Follows(const Step& step) {
  ForEachRead(step, [&](const void* tensor, size_t bytes) {
    const Bytes all = BytesAt(tensor, bytes);
    for (Written& written : written_) {
      if (Overlap(written.bytes, all)) written.read = true;
    }
    read_.push_back(all);
  });
  ForEachWrite(step, [&](const void* tensor, size_t bytes) {
    Write(tensor, static_cast<int64_t>(bytes), DataType::kUint8, std::nullopt, 0);
  });
}

void BatchTensors::ReadBy(const std::function<bool(const void* tensor, size_t bytes)>& read,
                          const std::function<void(npu::BufferView, int64_t)>& keep) {
  for (Written& written : written_) {
    if (!written.view) continue;
    written.read = written.read || read(written.bytes.data(), written.bytes.size());
    if (!written.read) continue;
    keep(*written.view, static_cast<int64_t>(written.bytes.size() / written.element_bytes));
  }
}

}  // namespace ort_aie::npu_target
