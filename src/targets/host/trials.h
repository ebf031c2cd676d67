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
  // Weights are in a mapped file, like a model's, because the fastest variant depends on the pages
  // that the file system gives. The file is made in `folder`, has no name, and disappears with this
  // object. It has about `bytes` bytes; 0 means many times the last cache. Throws Error if it
  // cannot be made.
  Trials(const std::string& folder, int threads, int64_t bytes = 0);
  ~Trials();

  // The variants that are worth measuring; none if there is no choice.
  static std::vector<const char*> Candidates(Role role);
  // Bytes of weights and cache that a turn of a role reads; 0 if arithmetic is the limit.
  int64_t BytesOf(Role role) const;
  // The shortest turn of each candidate in seconds. The candidates run in turn for about `seconds`.
  std::vector<double> Measure(Role role, double seconds) const;
  // The best rate, in bytes per second, at which the same threads read the same weights in the same
  // tasks.
  double ReadBandwidth(double seconds) const;

 private:
  void Turn(Role role, const Kernels& kernels) const;
  void Project(const Kernels& kernels, Numerics numerics, const WeightForm& form) const;
  void MultiplyRows(const Kernels& kernels, Numerics numerics) const;
  void Attend(const Kernels& kernels, int64_t queries, int64_t keys) const;

  struct Mapping;
  std::unique_ptr<Mapping> weights_;
  std::unique_ptr<TrialThreads> threads_;
};

}  // namespace ort_aie::host
