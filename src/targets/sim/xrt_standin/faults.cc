#include "targets/sim/xrt_standin/faults.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <stdexcept>
#include <utility>

namespace ort_aie::sim {
namespace {

constexpr std::string_view kNames[] = {"run_timeout",    "run_error",        "run_unanswered",
                                       "device_removed", "context_refused",  "overlay_wrong",
                                       "allocation",     "overlay_corrupted"};

long Number(std::string_view text) {
  long value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 1) {
    throw std::invalid_argument("\"" + std::string(text) + "\" is not a count; the first is 1");
  }
  return value;
}

}  // namespace

Faults::Faults() {
  if (const char* list = std::getenv("ORT_AIE_SIM_FAULTS")) Set(list);
}

Faults& Faults::Get() {
  static auto* const faults = new Faults;  // threads may outlive static destruction
  return *faults;
}

void Faults::Set(std::string_view list) {
  std::map<std::string, Fault> faults;
  while (!list.empty()) {
    const size_t comma = std::min(list.find(','), list.size());
    const std::string_view entry = list.substr(0, comma);
    list.remove_prefix(std::min(comma + 1, list.size()));
    const size_t at = std::min(entry.find('@'), entry.size());
    const std::string_view name = entry.substr(0, at);
    if (std::find(std::begin(kNames), std::end(kNames), name) == std::end(kNames)) {
      throw std::invalid_argument("unknown fault \"" + std::string(name) + "\"");
    }
    Range range{1, 1};
    if (at < entry.size()) {
      const std::string_view counts = entry.substr(at + 1);
      const size_t dots = counts.find("..");
      range.first = Number(counts.substr(0, dots));
      range.last = dots == std::string_view::npos ? range.first : Number(counts.substr(dots + 2));
    }
    faults[std::string(name)].ranges.push_back(range);
  }
  const std::lock_guard lock(mutex_);
  faults_ = std::move(faults);
}

bool Faults::Happens(const std::string& name) {
  const std::lock_guard lock(mutex_);
  const auto found = faults_.find(name);
  if (found == faults_.end()) return false;
  Fault& fault = found->second;
  ++fault.count;
  return std::any_of(fault.ranges.begin(), fault.ranges.end(), [&](const Range& range) {
    return range.first <= fault.count && fault.count <= range.last;
  });
}

}  // namespace ort_aie::sim
