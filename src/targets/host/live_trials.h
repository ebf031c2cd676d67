// Trials of kernels on the work of sessions, for a machine on which nobody has run `ort-aie tune`.
//
// One in 127 projections of one row, of those large enough to come from memory, is a trial: the
// rule's kernels do one half of it, and a candidate that gives the same bits does the other. What
// follows from the samples (kernels/samples.h) is used for the plans after that, and what they say
// is kept in the file of `ort-aie tune` for later processes.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "targets/host/host_target.h"
#include "targets/host/kernels/samples.h"

namespace ort_aie::host {

class LiveTrials {
 public:
  // Those of this process; the last one that lets go of them writes the file. Null if there is
  // nothing to try: ORT_AIE_ISA or `ort-aie tune` has chosen, or the rules' variants are the only
  // ones with their bits.
  static std::shared_ptr<LiveTrials> Join();
  ~LiveTrials();
  LiveTrials(const LiveTrials&) = delete;
  LiveTrials& operator=(const LiveTrials&) = delete;

  // The fastest kernels so far, which live as long as this object.
  const Kernels& Now() const { return now_.load(std::memory_order_acquire)->kernels; }
  Choice choice() const { return now_.load(std::memory_order_acquire)->choice; }
  // Runs a projection with these kernels, or as a trial.
  void Run(const MatMulStep& step, const Kernels& kernels, const ThreadPool& threads);

 private:
  struct Tried {
    std::vector<std::unique_ptr<Selection>> candidates;  // each in place of the rule's variant
    std::atomic<size_t> trials = 0;
  };

  LiveTrials();
  bool HasCandidates() const;
  void Try(Role role, const MatMulStep& step, const ThreadPool& threads);
  void Record(Role role, const char* variant, int threads, int ratio);

  const std::string path_;
  std::array<Tried, kRoles> tried_;
  std::atomic<size_t> projections_ = 0;  // large ones
  std::atomic<const Selection*> now_;
  std::mutex mutex_;  // of what follows
  Samples kept_, run_;
  int threads_ = 0;  // the most so far, as in Candidate
  std::vector<std::unique_ptr<Selection>> chosen_;
};

}  // namespace ort_aie::host
