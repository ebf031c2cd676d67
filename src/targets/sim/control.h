// What tests and the simulated target can ask of the stand-in for XRT, in addition to XRT's own
// interface.
#pragma once

#include <cstddef>
#include <cstdint>

#ifdef __cplusplus
extern "C" {
#endif

// The live objects of this process, and what it has done.
struct ort_aie_sim_counts {
  int64_t buffers;            // xrt::bo with their own memory
  int64_t buffer_bytes;       // theirs
  int64_t instruction_bytes;  // part of buffer_bytes, in the heap for instructions
  int64_t contexts;
  int64_t runs;           // ended on the device, in any state
  int64_t bytes_synced;   // in both directions
  double device_seconds;  // duration of the runs, in the device's time
};

void ort_aie_sim_get_counts(struct ort_aie_sim_counts* counts);

// Injects faults, in the syntax of ORT_AIE_SIM_FAULTS: a list of NAME@N or NAME@N..M, separated by
// commas. The N-th operation from now on (from 1; default 1) fails, or the N-th to the M-th. Names,
// and what is counted:
//   run_timeout, run_error   runs
//   run_unanswered           runs; the end is never reported
//   device_removed           runs; the child is killed
//   context_refused          hardware contexts
//   overlay_corrupted        hardware contexts
//   overlay_wrong            hardware contexts; as if the overlay were for another NPU
//   allocation               buffers
// The list replaces the former one; null or "" means no faults. Returns 0, or -1 for a list that
// cannot be parsed, which changes nothing.
int ort_aie_sim_inject(const char* faults);

// The process id of the modelled NPU, or 0 if no device is open.
int ort_aie_sim_child(void);

// Makes a removed device present again.
void ort_aie_sim_plug_in(void);

// Writes the design packages of the modelled NPU to `folder`/NAME, and keeps those that are there
// and fit. Returns 0, or -1 with a message in `error` (`bytes` long, may be 0).
int ort_aie_sim_write_packages(const char* folder, char* error, size_t bytes);

#ifdef __cplusplus
}
#endif
