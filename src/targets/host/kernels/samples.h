// What trials on the work of sessions said (live_trials.h), and what follows from it.
//
// A sample is the time of a candidate, divided by that of the rule's variant, which did the other
// half of the same projection: what else the machine did, and how fast its memory was then, is in
// both.
#pragma once

#include <compare>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "targets/host/kernels/choice.h"

namespace ort_aie::host {

// Samples in thousandths, the oldest first.
using Ratios = std::vector<int>;

// A variant that gives the same bits as the rule's.
struct Candidate {
  Role role;
  int threads;  // that took part, rounded up to a power of two: a trial does not see all of many
  std::string variant;
  auto operator<=>(const Candidate&) const = default;
};
using Samples = std::map<Candidate, Ratios>;

// Adds the samples of a run of a process to those of earlier ones. A run counts for at most eight
// of the 64 samples that are kept, so that one on a busy machine cannot outweigh the others, and
// later ones correct it.
void AddRun(const Ratios& run, Ratios& kept);
void AddRun(const Samples& run, Samples& kept);

// The index of the candidate to use in place of the rule's variant, if there is one: it has eight
// samples or more, and three of four were 3 % faster than the rule, and than what another candidate
// reached in three of four.
std::optional<size_t> Fastest(const std::vector<Ratios>& candidates);
// The variant to use for a role with so many threads: the rule's, or one of its candidates.
const char* Fastest(Role role, int threads, const char* by_rule, const Samples& samples);

// The median; 1000 if there are no samples.
int Middle(Ratios samples);

}  // namespace ort_aie::host
