#include "npu/stream_cache.h"

#include <algorithm>
#include <optional>
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
  kept.pieces = std::move(fresh.pieces);
  return changed;
}

// Which invocations differ, if they do so in parameters and offsets at most.
std::optional<std::vector<size_t>> Differences(const Plan& a, const Plan& b) {
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

size_t WordsOf(const Stream& stream) {
  size_t words = 0;
  for (const Run& run : stream.runs) words += run.words.size();
  return words;
}

}  // namespace

StreamCache::StreamCache(Manifest manifest, size_t capacity, size_t most_words)
    : manifest_(std::move(manifest)), capacity_(capacity), most_words_(most_words) {
  Require(capacity > 0, "a cache keeps at least one stream, got a capacity of 0");
}

StreamCache::Lookup StreamCache::Get(const Plan& plan) {
  for (auto entry = entries_.begin(); entry != entries_.end(); ++entry) {
    if (entry->plan != plan) continue;
    ToFront(entry);
    return {entry->stream, entry->id, Outcome::kSame, {}};
  }
  // A token's plan differs from the one before in few invocations; of 36 layers, a tenth.
  for (auto entry = entries_.begin(); entry != entries_.end(); ++entry) {
    const std::optional<std::vector<size_t>> differences = Differences(entry->plan, plan);
    if (!differences) continue;
    auto changed = PatchStream(interpreter_, entry->stream, plan, *differences);
    if (!changed) continue;
    for (const size_t i : *differences) entry->plan[i] = plan[i];
    ToFront(entry);
    return {entry->stream, entry->id, Outcome::kPatched, std::move(*changed)};
  }
  Stream fresh = BuildStream(interpreter_, plan);
  // The same words may be those of other buffers.
  for (auto entry = entries_.begin(); entry != entries_.end(); ++entry) {
    if (!SameSkeleton(entry->stream, fresh)) continue;
    ToFront(entry);
    entry->plan = plan;
    std::vector<WordRange> changed = Patch(entry->stream, std::move(fresh));
    return {entry->stream, entry->id, Outcome::kPatched, std::move(changed)};
  }
  const size_t words = WordsOf(fresh);
  while (!entries_.empty() && (entries_.size() >= capacity_ || words_ + words > most_words_)) {
    words_ -= entries_.back().words;
    entries_.pop_back();
  }
  words_ += words;
  entries_.push_front({next_id_++, plan, std::move(fresh), words});
  return {entries_.front().stream, entries_.front().id, Outcome::kEncoded, {}};
}

}  // namespace ort_aie::npu
