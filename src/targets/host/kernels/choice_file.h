// What was measured on this machine, in a small file that overrides the rules: by `ort-aie tune`,
// which somebody asked for, and for the roles that it leaves by sessions while they ran
// (samples.h).
//
//   ort_aie_ep kernels 2
//   cpu: AuthenticAMD family 26 model 2 stepping 1, AMD EPYC, avx512_bf16
//   kernels: 0123456789abcdef        a hash of the kernels' sources: others have other speeds
//   measured: 2026-11-22             by `ort-aie tune`, or no
//   rows, bf16: avx512               a line for each role that it measured
//   samples: one row, int8; 2 threads; avx512-t1: 731 745 728
//   end
#pragma once

#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "targets/host/kernels/choice.h"
#include "targets/host/kernels/samples.h"

namespace ort_aie::host {

struct Measurement {
  enum class State {
    kNone,       // no file exists
    kStale,      // for another CPU or for other kernels
    kMalformed,  // not a file as above, or not readable
    kGood
  };
  State state = State::kNone;
  std::string why;                             // why it is not used
  std::string date;                            // of what `ort-aie tune` measured; empty: nothing
  std::array<const char*, kRoles> variants{};  // by role; null: not measured
  Samples samples;
};

// In ORT_AIE_CACHE, or in ort_aie_ep in the user's cache; empty if neither is known. The file's
// name contains a hash of the CPU's name and of the kernels, for home folders that several machines
// share, and for several versions on one.
std::string MeasurementPath();

// Never throws for the content of the file.
Measurement ReadMeasurement(const std::string& path);
Measurement ParseMeasurement(std::string_view text);

// A hash of the sources from which this library's kernels were built.
const char* KernelsHash();

// The file's text, of the members from `date` on.
std::string MeasurementText(const Measurement& measurement);

// Adds the samples of a run to the file. Other processes may do so at the same time. Where nothing
// can be written, nothing is kept.
void KeepSamples(const std::string& path, const Samples& run);

}  // namespace ort_aie::host
