// What tests and the simulated target may ask of the stand-in of XRT, beside XRT's own interface.
#pragma once

#include <cstddef>
#include <cstdint>

#ifdef __cplusplus
extern "C" {
#endif

// What is alive in this process, and what it has done.
struct ort_aie_sim_counts {
  int64_t buffers;            // xrt::bo with memory of their own
  int64_t buffer_bytes;       // theirs
  int64_t instruction_bytes;  // of them, in the heap for instructions
  int64_t contexts;
  int64_t runs;           // that the device has ended, in whatever state
  int64_t bytes_synced;   // in both directions
  double device_seconds;  // that runs took, in time of the device
};

void ort_aie_sim_get_counts(struct ort_aie_sim_counts* counts);

// Faults to come, as ORT_AIE_SIM_FAULTS has them: a list of NAME@N or NAME@N..M, with commas. The
// N-th operation from now on (from 1; default 1) fails, or the N-th to the M-th. Names, and what is
// counted:
//   run_timeout, run_error   runs
//   run_unanswered           runs; nobody hears of the end
//   device_removed           runs; the child is killed
//   context_refused          hardware contexts
//   overlay_corrupted        hardware contexts
//   overlay_wrong            hardware contexts; it is as if the overlay were another NPU's
//   allocation               buffers
// The list takes the place of the former one; null or "" is none. Returns 0, or -1 for a list that
// is not understood, which changes nothing.
int ort_aie_sim_inject(const char* faults);

// The process id of the modelled NPU, or 0 if no device is open.
int ort_aie_sim_child(void);

// Puts a device that was removed back.
void ort_aie_sim_plug_in(void);

// Writes the design packages of the modelled NPU to `folder`/NAME; those that are there and fit are
// kept. Returns 0, or -1 with a message in `error` (`bytes` long, may be 0).
int ort_aie_sim_write_packages(const char* folder, char* error, size_t bytes);

#ifdef __cplusplus
}
#endif
