// Executes plans on an NPU. Uses Device, not XRT.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "targets/npu/device.h"
#include "targets/npu/fused_decode/package.h"
#include "targets/npu/schedule/facts.h"
#include "targets/target.h"

namespace ort_aie::npu_target {

struct ExecutorOptions {
  // If a fresh context does not cure a fault of the device, throw it, instead of continuing on the
  // host.
  bool raise_on_error = false;
  // Receives a line for people: the first time that a fresh context has cured a fault, and when the
  // device is given up. Null: stderr.
  std::function<void(const std::string& line)> report;

  // Overlays that others built for whole decoders.
  std::vector<fused_decode::Package> fused_decode = {};

  // See schedule/facts.h.
  int64_t weight_bytes = kWeightBytes, row_bytes = kRowBytes, query_bytes = kQueryBytes;
};

// What a target has done since it was made.
struct ExecutorCounters {
  int64_t device_steps = 0;                   // steps that the device executed
  std::map<std::string, int64_t> host_steps;  // steps of the host target, by reason
  // What divides a plan between steps of the device: the reasons of the host's steps there, and of
  // steps of the device that could not follow the ones before them.
  std::map<std::string, int64_t> host_steps_between;
  // Matrices that are wider on the device than in the model, by reason.
  std::map<std::string, int64_t> widened;
  int64_t layer_tokens = 0;  // plans whose layers ran on the overlay fused_layer
  // Plans with a token's attention that did not, by reason; without plans, each attention.
  std::map<std::string, int64_t> layers_refused;
  int64_t fused_tokens = 0;  // plans that ran as one dispatch on an overlay that others built
  std::map<std::string, int64_t> fused_refused;  // plans that did not, by model and reason
  int64_t retries = 0;                           // plans that ran again in a fresh context
  int64_t fallbacks = 0;                         // plans that the host executed after a fault
  int64_t cache_rows_sent = 0;                   // K and V rows of one head, sent to the device
  int64_t cache_rows_kept = 0;                   // those that were already there
  int64_t cache_bytes_compared = 0;              // to find that out
  double compare_seconds = 0;
};

// Several threads and sessions may share one.
class XrtTarget : public Target {
 public:
  virtual ExecutorCounters counters() const = 0;
  // False after the target has given up the device.
  virtual bool device_in_use() const = 0;
};

std::unique_ptr<XrtTarget> MakeXrtTarget(std::shared_ptr<Device> device,
                                         const ExecutorOptions& options);

}  // namespace ort_aie::npu_target
