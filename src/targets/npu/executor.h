// Plans on an NPU. Knows Device, not XRT.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "targets/npu/device.h"
#include "targets/npu/fused_decode/package.h"
#include "targets/target.h"

namespace ort_aie::npu_target {

struct ExecutorOptions {
  // Raise a fault of the device that a fresh context did not cure, instead of going on on the host.
  bool raise_on_error = false;
  // Gets one line for people when a fresh context has cured a fault, the first time, and one when
  // the device is given up. Null: stderr.
  std::function<void(const std::string& line)> report;

  // Overlays that others built for whole decoders.
  std::vector<fused_decode::Package> fused_decode = {};

  // What a prompt takes of the device's memory at most: dequantised weights, which has room for a
  // layer of 8 billion parameters, so that a layer changes to that overlay once; rows of
  // activations or of products; queries or outputs of attention. A larger matrix is done in bands
  // of out-features, a longer prompt in chunks.
  int64_t weight_bytes = 512 << 20, row_bytes = 32 << 20, query_bytes = 8 << 20;
};

// What a target has done since it was made.
struct ExecutorCounters {
  int64_t device_steps = 0;                   // steps that the device executed
  std::map<std::string, int64_t> host_steps;  // steps of the host target, by reason
  // What divides a plan, steps of the device before and behind it: those of the host's steps, and
  // steps of the device that could not follow the ones before them.
  std::map<std::string, int64_t> host_steps_between;
  int64_t fused_tokens = 0;  // plans that were one dispatch on another's overlay
  std::map<std::string, int64_t> fused_refused;  // plans that were not, by model and reason
  int64_t retries = 0;                           // plans run again in a fresh context
  int64_t fallbacks = 0;                         // plans that the host executed after a fault
  int64_t cache_rows_sent = 0;                   // K and V rows, of one head, to the device
  int64_t cache_rows_kept = 0;                   // those that were there already
  int64_t cache_bytes_compared = 0;              // to know that
  double compare_seconds = 0;
};

// Several threads and sessions may share one.
class XrtTarget : public Target {
 public:
  virtual ExecutorCounters counters() const = 0;
  // False once it has given the device up.
  virtual bool device_in_use() const = 0;
};

std::unique_ptr<XrtTarget> MakeXrtTarget(std::shared_ptr<Device> device,
                                         const ExecutorOptions& options);

}  // namespace ort_aie::npu_target
