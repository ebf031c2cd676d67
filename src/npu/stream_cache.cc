#include "npu/stream_cache.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <utility>

#include "base/error.h"

namespace ort_aie::npu {
namespace {

// Whether two runs differ only in their variable words.
bool SameSkeleton(const Run& a, const Run& b) {
  if (a.words.size() != b.words.size() || a.variable != b.variable) return false;
  size_t begin = 0;
  for (const size_t variable : a.variable) {
    if (!std::equal(a.words.begin() + static_cast<std::ptrdiff_t>(begin),
                    a.words.begin() + static_cast<std::ptrdiff_t>(variable),
                    b.words.begin() + static_cast<std::ptrdiff_t>(begin))) {
      return false;
    }
    begin = variable + 1;
  }
  return std::equal(a.words.begin() + static_cast<std::ptrdiff_t>(begin), a.words.end(),
                    b.words.begin() + static_cast<std::ptrdiff_t>(begin));
}

bool SameSkeleton(const InstructionStream& a, const InstructionStream& b) {
  return std::ranges::equal(a.runs, b.runs,
                            [](const Run& x, const Run& y) { return SameSkeleton(x, y); });
}

// Changes `kept` into `fresh`, and returns which words changed.
std::vector<WordRange> Patch(InstructionStream& kept, InstructionStream fresh) {
  std::vector<WordRange> changed;
  for (size_t run = 0; run < kept.runs.size(); ++run) {
    Run& to = kept.runs[run];
    Run& from = fresh.runs[run];
    for (const size_t word : to.variable) {
      if (to.words[word] == from.words[word]) continue;
      to.words[word] = from.words[word];
      if (!changed.empty() && changed.back().run == run && changed.back().end == word) {
        ++changed.back().end;
      } else {
        changed.push_back({run, word, word + 1});
      }
    }
    to.predicted_seconds = from.predicted_seconds;
    to.sources = std::move(from.sources);
    to.buffers = std::move(from.buffers);
  }
  kept.pieces = std::move(fresh.pieces);
  return changed;
}

// Which invocations differ, if they differ only in parameters and offsets.
std::optional<std::vector<size_t>> Differences(const Invocations& a, const Invocations& b) {
  if (a.size() != b.size()) return std::nullopt;
  std::vector<size_t> changed;
  for (size_t i = 0; i < a.size(); ++i) {
    const auto same_place = [](const auto& x, const auto& y) {
      return x.first == y.first && x.second.argument == y.second.argument;
    };
    if (a[i].sequence != b[i].sequence ||
        !std::ranges::equal(a[i].arguments, b[i].arguments, same_place)) {
      return std::nullopt;
    }
    if (a[i] != b[i]) changed.push_back(i);
  }
  return changed;
}

}  // namespace

size_t RunBytes(size_t words) {
  return (words * sizeof(uint32_t) + kStreamUnit - 1) / kStreamUnit * kStreamUnit;
}

size_t StreamBytes(const InstructionStream& stream) {
  size_t bytes = 0;
  for (const Run& run : stream.runs) bytes += RunBytes(run.words.size());
  return bytes;
}

bool StreamMemory::DropOldest() {
  if (entries_.empty()) return false;
  const bool held = std::exchange(entries_.front().held, true);
  const bool dropped = MakeRoom();
  entries_.front().held = held;
  return dropped;
}

uint64_t StreamMemory::HoldLast() {
  entries_.front().held = true;
  return entries_.front().id;
}

void StreamMemory::Release(uint64_t id) {
  const auto entry = std::ranges::find(entries_, id, &Entry::id);
  if (entry != entries_.end()) entry->held = false;
}

bool StreamMemory::MakeRoom(const StreamCache* of) {
  for (auto entry = entries_.end(); entry != entries_.begin();) {
    --entry;
    if (entry->held || (of != nullptr && entry->owner != of)) continue;
    Drop(entry);
    ++dropped_;
    return true;
  }
  return false;
}

void StreamMemory::Drop(Place entry) {
  used_ -= entry->bytes;
  entries_.erase(entry);
}

StreamCache::StreamCache(Manifest manifest, std::shared_ptr<StreamMemory> memory, size_t capacity)
    : manifest_(std::move(manifest)), memory_(std::move(memory)), capacity_(capacity) {
  Require(capacity > 0, "a cache must keep at least one stream, got a capacity of 0");
}

StreamCache::~StreamCache() {
  auto& entries = memory_->entries_;
  for (auto entry = entries.begin(); entry != entries.end();) {
    const auto next = std::next(entry);
    if (entry->owner == this) memory_->Drop(entry);
    entry = next;
  }
}

StreamCache::Lookup StreamCache::Found(StreamMemory::Place entry, Outcome outcome,
                                       std::vector<WordRange> changed) const {
  auto& entries = memory_->entries_;
  entries.splice(entries.begin(), entries, entry);
  return {entry->stream, entry->id, outcome, std::move(changed), entry->companion};
}

StreamCache::Lookup StreamCache::Get(const Invocations& plan) {
  std::vector<StreamMemory::Place> ours;  // most recently used first
  for (auto entry = memory_->entries_.begin(); entry != memory_->entries_.end(); ++entry) {
    if (entry->owner != this || entry->held) continue;
    if (entry->plan == plan) return Found(entry, Outcome::kSame, {});
    ours.push_back(entry);
  }
  // A token's plan differs from the one before in few invocations: with 36 layers, in a tenth.
  for (const StreamMemory::Place entry : ours) {
    const std::optional<std::vector<size_t>> differences = Differences(entry->plan, plan);
    if (!differences) continue;
    auto changed = PatchStream(interpreter_, entry->stream, plan, *differences);
    if (!changed) continue;
    for (const size_t i : *differences) entry->plan[i] = plan[i];
    return Found(entry, Outcome::kPatched, std::move(*changed));
  }
  InstructionStream fresh = BuildStream(interpreter_, plan);
  // The same words may belong to other buffers.
  for (const StreamMemory::Place entry : ours) {
    if (!SameSkeleton(entry->stream, fresh)) continue;
    entry->plan = plan;
    std::vector<WordRange> changed = Patch(entry->stream, std::move(fresh));
    return Found(entry, Outcome::kPatched, std::move(changed));
  }
  StreamMemory& memory = *memory_;
  const size_t bytes = StreamBytes(fresh);
  Require(bytes <= memory.bytes_, "the instruction stream of ", plan.size(), " invocations, from ",
          Describe(plan.front()), " to ", Describe(plan.back()), " on the overlay ", manifest_.name,
          ", takes ", bytes, " bytes in ", fresh.runs.size(),
          " runs, but the device keeps at most ", memory.bytes_,
          " bytes of instructions; divide the plan");
  if (ours.size() >= capacity_) memory.MakeRoom(this);
  while (memory.used_ + bytes > memory.bytes_) {
    if (memory.MakeRoom()) continue;
    throw NoRoomForStream(Concat("no room for ", bytes, " bytes of instructions beside ",
                                 memory.used_, " bytes that are in use"));
  }
  memory.used_ += bytes;
  memory.entries_.push_front({this, memory.next_id_++, plan, std::move(fresh), bytes, nullptr});
  return Found(memory.entries_.begin(), Outcome::kEncoded, {});
}

}  // namespace ort_aie::npu
