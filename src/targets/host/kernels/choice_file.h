// The measurements of `ort-aie tune` on this machine, in a small file that overrides the rules.
//
//   ort_aie_ep kernels 1
//   cpu: AuthenticAMD family 26 model 2 stepping 1, AMD EPYC, avx512_bf16
//   kernels: 0123456789abcdef        a hash of the kernels' sources: others have other speeds
//   measured: 2026-11-22
//   one row, int8: avx512-nta        a line for each role that was measured
//   end
#pragma once

#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "targets/host/kernels/choice.h"

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
  std::string date;                            // of the measurement
  std::array<const char*, kRoles> variants{};  // by role; null: not measured
};

// In ORT_AIE_CACHE, or in ort_aie_ep in the user's cache; empty if neither is known. The file's
// name contains a hash of the CPU's name, for home folders that several machines share.
std::string MeasurementPath();

// Never throws for the content of the file.
Measurement ReadMeasurement(const std::string& path);
Measurement ParseMeasurement(std::string_view text);

// A hash of the sources from which this library's kernels were built.
const char* KernelsHash();

// The file's text. `variants` are as in Measurement.
std::string MeasurementText(const std::string& date,
                            const std::array<const char*, kRoles>& variants);

}  // namespace ort_aie::host
