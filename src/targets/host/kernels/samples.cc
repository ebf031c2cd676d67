#include "targets/host/kernels/samples.h"

#include <algorithm>

namespace ort_aie::host {
namespace {

constexpr size_t kOfRun = 8, kKept = 64, kLeast = 8;
constexpr double kGain = 0.03;

}  // namespace

void AddRun(const Ratios& run, Ratios& kept) {
  if (run.size() <= kOfRun) {
    kept.insert(kept.end(), run.begin(), run.end());
  } else {
    Ratios sorted = run;
    std::ranges::sort(sorted);
    // Quantiles, so that those that are kept have the median and the spread of all.
    for (size_t i = 0; i < kOfRun; ++i) {
      kept.push_back(sorted[(2 * i + 1) * sorted.size() / (2 * kOfRun)]);
    }
  }
  if (kept.size() > kKept) {
    kept.erase(kept.begin(), kept.end() - static_cast<std::ptrdiff_t>(kKept));
  }
}

void AddRun(const Samples& run, Samples& kept) {
  for (const auto& [candidate, ratios] : run) AddRun(ratios, kept[candidate]);
}

std::optional<size_t> Fastest(const std::vector<Ratios>& candidates) {
  std::optional<size_t> fastest;
  int to_beat = 1000;  // the lower quartile of the fastest so far; the rule's samples are all 1
  for (size_t i = 0; i < candidates.size(); ++i) {
    Ratios sorted = candidates[i];
    if (sorted.size() < kLeast) continue;
    std::ranges::sort(sorted);
    const size_t quarter = (sorted.size() - 1) / 4;
    if (sorted[sorted.size() - 1 - quarter] >= (1 - kGain) * to_beat) continue;
    fastest = i;
    to_beat = sorted[quarter];
  }
  return fastest;
}

const char* Fastest(Role role, int threads, const char* by_rule, const Samples& samples) {
  const std::vector<const char*> names = CandidatesFor(role, by_rule, ThisCpu());
  std::vector<Ratios> candidates;
  for (const char* name : names) {
    const auto found = samples.find({role, threads, name});
    candidates.push_back(found == samples.end() ? Ratios() : found->second);
  }
  const std::optional<size_t> fastest = Fastest(candidates);
  return fastest ? names[*fastest] : by_rule;
}

int Middle(Ratios samples) {
  if (samples.empty()) return 1000;
  std::ranges::nth_element(samples,
                           samples.begin() + static_cast<std::ptrdiff_t>(samples.size() / 2));
  return samples[samples.size() / 2];
}

}  // namespace ort_aie::host
