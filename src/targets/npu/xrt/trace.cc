#include "targets/npu/xrt/trace.h"

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <system_error>

namespace ort_aie::npu_target {
namespace {

// About 100 MB of memory and 150 MB of file; a viewer takes no more either.
constexpr size_t kMaxEvents = 1'000'000;

std::string PathOfTrace() {
  const char* path = std::getenv("ORT_AIE_TRACE");
  return path != nullptr && *path != '\0' ? path : "ort_aie_trace.json";
}

int ThisThread() {
  static std::atomic<int> next = 1;
  thread_local const int number = next++;
  return number;
}

int64_t Nanoseconds(std::chrono::steady_clock::duration time) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(time).count();
}

}  // namespace

Trace& Trace::OfProcess() {
  static Trace trace;
  return trace;
}

Trace::Trace() : path_(PathOfTrace()) {}

void Trace::Join() { ++users_; }

void Trace::Leave() {
  if (--users_ == 0) Write();
}

void Trace::Add(const char* category, std::string_view name, Time begin, Time end, int64_t bytes) {
  const int thread = ThisThread();
  const std::lock_guard lock(mutex_);
  written_ = false;
  if (events_.size() == kMaxEvents) {
    ++left_out_;
    return;
  }
  events_.push_back({category, std::string(name), Nanoseconds(begin - start_),
                     Nanoseconds(end - begin), bytes, thread});
}

void Trace::Write() noexcept try {
  const std::lock_guard lock(mutex_);
  if (written_) return;
  const std::string partial = path_ + "." + std::to_string(getpid());
  {
    std::ofstream file(partial);
    file << "{\"displayTimeUnit\":\"ns\",\"otherData\":{\"events_left_out\":" << left_out_
         << "},\"traceEvents\":[\n";
    const char* comma = "";
    for (const Event& event : events_) {
      nlohmann::json line = {{"ph", "X"},
                             {"pid", getpid()},
                             {"tid", event.thread},
                             {"cat", event.category},
                             {"name", event.name},
                             {"ts", static_cast<double>(event.begin) / 1e3},
                             {"dur", static_cast<double>(event.nanoseconds) / 1e3}};
      if (event.bytes >= 0) line["args"] = {{"bytes", event.bytes}};
      file << comma << line.dump();
      comma = ",\n";
    }
    file << "\n]}\n";
    file.close();
    if (!file) throw std::filesystem::filesystem_error("write", partial, std::error_code());
  }
  std::filesystem::rename(partial, path_);
  written_ = true;
} catch (const std::exception& error) {
  std::fprintf(stderr, "ort_aie_ep: the trace cannot be written to %s: %s\n", path_.c_str(),
               error.what());
  written_ = true;
}

}  // namespace ort_aie::npu_target
