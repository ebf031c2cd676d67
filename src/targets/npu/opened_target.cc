#include "targets/npu/opened_target.h"

#include <cstdio>
#include <mutex>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "targets/npu/executor.h"
#include "targets/npu/fused_decode/package.h"
#include "targets/npu/xrt/xrt_device.h"

namespace ort_aie::npu_target {
namespace {

using Json = nlohmann::json;

void Add(ExecutorCounters& sum, const ExecutorCounters& more) {
  sum.device_steps += more.device_steps;
  for (const auto& [reason, count] : more.host_steps) sum.host_steps[reason] += count;
  for (const auto& [reason, count] : more.host_steps_between) {
    sum.host_steps_between[reason] += count;
  }
  for (const auto& [reason, count] : more.widened) sum.widened[reason] += count;
  sum.layer_tokens += more.layer_tokens;
  for (const auto& [reason, count] : more.layers_refused) sum.layers_refused[reason] += count;
  sum.fused_tokens += more.fused_tokens;
  for (const auto& [reason, count] : more.fused_refused) sum.fused_refused[reason] += count;
  sum.retries += more.retries;
  sum.fallbacks += more.fallbacks;
  sum.cache_rows_sent += more.cache_rows_sent;
  sum.cache_rows_kept += more.cache_rows_kept;
  sum.cache_bytes_compared += more.cache_bytes_compared;
  sum.compare_seconds += more.compare_seconds;
}

class OpenedTarget;

// The open targets, and the counters of those that were closed.
struct Registry {
  std::mutex mutex;
  std::set<const OpenedTarget*> open;
  ExecutorCounters closed;

  static Registry& OfProcess() {
    static auto& registry = *new Registry();  // targets may be closed when the process ends
    return registry;
  }
};

class OpenedTarget final : public Target {
 public:
  OpenedTarget(const char* name, const std::shared_ptr<Device>& device,
               const std::vector<std::filesystem::path>& folders, const ModuleOptions& options)
      : name_(name) {
    std::vector<std::string> refusals;
    ExecutorOptions executor;
    executor.fused_decode = fused_decode::FindPackages(folders, DeviceKind(*device), refusals);
    executor.raise_on_error = options.raise;
    executor.report = [quiet = options.quiet](const std::string& line) {
      if (!quiet) std::fprintf(stderr, "ort_aie_ep: %s\n", line.c_str());
    };
    for (const std::string& line : refusals) executor.report(line);
    try {
      RequireOverlays(*device);
    } catch (const DeviceError& error) {
      if (executor.fused_decode.empty()) throw;
      executor.report(Concat("prompts, and tokens that no package of a fused decode fits, stay on ",
                             "this CPU: ", error.what()));
    }
    target_ = MakeXrtTarget(device, executor);
    Registry& registry = Registry::OfProcess();
    const std::lock_guard lock(registry.mutex);
    registry.open.insert(this);
  }

  ~OpenedTarget() override {
    Registry& registry = Registry::OfProcess();
    const std::lock_guard lock(registry.mutex);
    registry.open.erase(this);
    Add(registry.closed, target_->counters());
  }

  const char* Name() const override { return name_; }

  void Execute(const Plan& plan, const ThreadPool& threads) const override {
    target_->Execute(plan, threads);
  }

  ExecutorCounters counters() const { return target_->counters(); }

 private:
  const char* name_;
  std::unique_ptr<XrtTarget> target_;
};

}  // namespace

ModuleOptions ParseOptions(const char* text) {
  const Json options = Json::parse(text);
  const std::string log = options.at("log");
  return {options.at("on_device_error") == "raise", log == "quiet", options.at("overlays")};
}

std::unique_ptr<Target> OpenTarget(const char* name, const std::shared_ptr<Device>& device,
                                   const std::vector<std::filesystem::path>& folders,
                                   const ModuleOptions& options) {
  return std::make_unique<OpenedTarget>(name, device, folders, options);
}

std::string CountersText() {
  ExecutorCounters executors;
  {
    Registry& registry = Registry::OfProcess();
    const std::lock_guard lock(registry.mutex);
    executors = registry.closed;
    for (const OpenedTarget* target : registry.open) Add(executors, target->counters());
  }
  const Counters device = CountersOfProcess();
  return Json{{"runs", device.runs},
              {"submissions", device.submissions},
              {"bytes_to", device.bytes_to},
              {"bytes_from", device.bytes_from},
              {"streams_kept", device.streams_kept},
              {"streams_built", device.streams_built},
              {"streams_dropped", device.streams_dropped},
              {"stream_bytes", device.stream_bytes},
              {"buffers", device.buffers},
              {"buffer_bytes", device.buffer_bytes},
              {"device_steps", executors.device_steps},
              {"host_steps", executors.host_steps},
              {"host_steps_between", executors.host_steps_between},
              {"widened", executors.widened},
              {"layer_tokens", executors.layer_tokens},
              {"layers_refused", executors.layers_refused},
              {"fused_tokens", executors.fused_tokens},
              {"fused_refused", executors.fused_refused},
              {"retries", executors.retries},
              {"fallbacks", executors.fallbacks},
              {"cache_rows_sent", executors.cache_rows_sent},
              {"cache_rows_kept", executors.cache_rows_kept},
              {"cache_bytes_compared", executors.cache_bytes_compared},
              {"compare_seconds", executors.compare_seconds}}
      .dump();
}

}  // namespace ort_aie::npu_target
