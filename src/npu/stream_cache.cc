#include "npu/stream_cache.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace ort_aie::npu {
namespace {

// Whether two runs differ in nothing but their variable words.
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

bool SameSkeleton(const Stream& a, const Stream& b) {
  return std::ranges::equal(a.runs, b.runs,
                            [](const Run& x, const Run& y) { return SameSkeleton(x, y); });
}

// Brings `kept` to `fresh`, and says which words that changed.
std::vector<WordRange> Patch(Stream& kept, Stream fresh) {
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
  return changed;
}

}  // namespace

StreamCache::StreamCache(Manifest manifest, size_t capacity)
    : manifest_(std::move(manifest)), capacity_(capacity) {
  Require(capacity > 0, "a cache keeps at least one stream, got a capacity of 0");
}

StreamCache::Lookup StreamCache::Get(const Plan& plan) {
  const auto to_front = [&](std::list<Entry>::iterator entry) -> Entry& {
    entries_.splice(entries_.begin(), entries_, entry);
    return entries_.front();
  };
  const auto same = std::ranges::find(entries_, plan, &Entry::plan);
  if (same != entries_.end()) {
    const Entry& entry = to_front(same);
    return {entry.stream, entry.id, Outcome::kSame, {}};
  }
  Stream fresh = BuildStream(manifest_, plan);
  const auto similar = std::ranges::find_if(
      entries_, [&](const Entry& entry) { return SameSkeleton(entry.stream, fresh); });
  if (similar != entries_.end()) {
    Entry& entry = to_front(similar);
    entry.plan = plan;
    std::vector<WordRange> changed = Patch(entry.stream, std::move(fresh));
    return {entry.stream, entry.id, Outcome::kPatched, std::move(changed)};
  }
  if (entries_.size() == capacity_) entries_.pop_back();
  entries_.push_front({next_id_++, plan, std::move(fresh)});
  return {entries_.front().stream, entries_.front().id, Outcome::kEncoded, {}};
}

}  // namespace ort_aie::npu
