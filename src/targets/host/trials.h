// Measures the variants of a role against each other on this machine, for `ort-aie tune`.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "targets/host/host_target.h"
#include "targets/host/kernels/choice.h"

namespace ort_aie::host {

class TrialThreads;

class Trials {
 public:
  // Weights lie in a mapped file, as a model's do: it depends on the pages that the file system
  // gives which variant is fastest. The file is made in `folder`, has no name and goes with this.
  // It has about `bytes`; 0 is far beyond the last cache. Throws Error where it cannot be made.
  Trials(const std::string& folder, int threads, int64_t bytes = 0);
  ~Trials();

  // The variants that are worth a measurement: none where there is nothing to choose.
  static std::vector<const char*> Candidates(Role role);
  // Bytes of weights and cache that a turn of a role reads; 0 where arithmetic limits it.
  int64_t BytesOf(Role role) const;
  // The least seconds of a turn of each candidate, which take turns until about `seconds` are over.
  std::vector<double> Measure(Role role, double seconds) const;
  // Bytes a second that the same threads read of the same weights in the same tasks, at best.
  double ReadBandwidth(double seconds) const;

 private:
  void Turn(Role role, const Kernels& kernels) const;
  void Project(const Kernels& kernels, Numerics numerics, WeightForm form) const;
  void MultiplyRows(const Kernels& kernels, Numerics numerics) const;
  void Attend(const Kernels& kernels, int64_t queries, int64_t keys) const;

  struct Mapping;
  std::unique_ptr<Mapping> weights_;
  std::unique_ptr<TrialThreads> threads_;
};

}  // namespace ort_aie::host
