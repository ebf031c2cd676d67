// What `ort-aie tune` has measured on this machine, kept in a small file that overrides the rules.
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
    kNone,       // there is no file
    kStale,      // of another CPU or of other kernels
    kMalformed,  // no such file as above, or one that cannot be read
    kGood
  };
  State state = State::kNone;
  std::string why;                             // it is not used
  std::string date;                            // on which it was measured
  std::array<const char*, kRoles> variants{};  // by role; null: not measured
};

// In ORT_AIE_CACHE, or in ort_aie_ep in the user's cache; empty where neither is known. A hash of
// the CPU's name is in the file's, for homes that several machines share.
std::string MeasurementPath();

// Never throws for what the file holds.
Measurement ReadMeasurement(const std::string& path);
Measurement ParseMeasurement(std::string_view text);

// Of the sources that this library's kernels were built from.
const char* KernelsHash();

// The file's text. `variants` as in Measurement.
std::string MeasurementText(const std::string& date,
                            const std::array<const char*, kRoles>& variants);

}  // namespace ort_aie::host
