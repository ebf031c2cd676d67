#include "targets/session_options.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cstdio>
#include <initializer_list>
#include <map>
#include <mutex>
#include <numeric>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/platform.h"
#include "targets/loader.h"
#include "targets/trace.h"

namespace ort_aie {
namespace {

constexpr std::array kNames = {"target",   "numerics",     "on_device_error", "log",
                               "overlays", "prompt_chunk", "prompt_logits",   "stoppable",
                               "weights",  "tune"};

// How many letters are added, left out or changed between two names.
size_t Distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);  // from the letters of `a` so far to each start of `b`
  std::iota(row.begin(), row.end(), size_t{0});
  for (const char letter : a) {
    size_t shorter = std::exchange(row[0], row[0] + 1);
    for (size_t i = 0; i < b.size(); ++i) {
      const size_t changed = shorter + (letter != b[i] ? 1 : 0);
      shorter = row[i + 1];
      row[i + 1] = std::min({changed, row[i] + 1, row[i + 1] + 1});
    }
  }
  return row.back();
}

std::string Read(const Settings& settings, const char* name, const char* fallback) {
  if (const auto set = settings.find(name); set != settings.end()) return set->second;
  std::string variable = "ORT_AIE_";
  for (const char* c = name; *c != '\0'; ++c) {
    variable += static_cast<char>(std::toupper(static_cast<unsigned char>(*c)));
  }
  const std::string value = platform::Environment(variable.c_str());
  return value.empty() ? fallback : value;
}

// One of `known`, of which the first is the default.
std::string ReadChoice(const Settings& settings, const char* name,
                       std::initializer_list<const char*> known) {
  std::string value = Read(settings, name, *known.begin());
  if (std::find(known.begin(), known.end(), value) != known.end()) return value;
  std::string expected;
  for (const char* const* choice = known.begin(); choice != known.end(); ++choice) {
    if (choice != known.begin()) expected += choice + 1 == known.end() ? " or " : ", ";
    expected += *choice;
  }
  Fail(ErrorCode::kInvalidArgument, "ort_aie.", name, "=", value, " is unknown; expected ",
       expected);
}

// A positive number of at most nine digits, or 0 if none is given.
int64_t ReadCount(const Settings& settings, const char* name) {
  const std::string value = Read(settings, name, "");
  if (value.empty()) return 0;
  int64_t count = 0;
  const char* end = value.data() + value.size();
  const auto parsed = std::from_chars(value.data(), end, count);
  const bool whole = parsed.ec == std::errc() && parsed.ptr == end;
  if (!whole || count < 1 || count > 999'999'999) {
    Fail(ErrorCode::kInvalidArgument, "ort_aie.", name, "=", value,
         " is not a number of tokens; expected 1 to 999999999");
  }
  return count;
}

std::shared_ptr<const Target> Host() { return {std::shared_ptr<const void>(), &HostTarget()}; }

// The target of `library`; the host if its device cannot be used, which is reported in one line per
// session. If the user named the target, it is an error when this build does not have it, or when
// the user asked for errors.
std::shared_ptr<const Target> NpuOrHost(NpuLibrary library, const NpuOptions& options,
                                        const void* session, bool any_target) {
  // The last session for which this was reported, by options: each node of a session asks by
  // itself.
  static std::mutex mutex;
  static auto& refused = *new std::map<std::pair<NpuLibrary, NpuOptions>, const void*>();
  const std::lock_guard lock(mutex);
  const auto before = refused.find({library, options});
  if (before != refused.end() && before->second == session) return Host();
  try {
    return OpenNpuTarget(library, options, session);
  } catch (const Error& error) {
    const bool wanted = options.on_device_error == "raise" || error.code() != ErrorCode::kRuntime;
    if (!any_target && wanted) throw;
    refused[{library, options}] = session;
    if (options.log != "quiet") {
      std::fprintf(stderr, "ort_aie_ep: the host computes, because the NPU cannot be used: %s\n",
                   error.what());
    }
    return Host();
  }
}

}  // namespace

void CheckNames(const Settings& settings) {
  for (const auto& [name, value] : settings) {
    if (std::ranges::find(kNames, name) != kNames.end()) continue;
    const auto distance = [&](std::string_view known) { return Distance(name, known); };
    std::string names;
    for (const char* known : kNames) names += Concat(names.empty() ? "" : ", ", known);
    Fail(ErrorCode::kInvalidArgument, "option '", name, "' is unknown, the nearest is '",
         *std::ranges::min_element(kNames, {}, distance), "'; expected one of ", names);
  }
}

SessionOptions ReadOptions(const Settings& settings, const void* session) {
  CheckNames(settings);
  SessionOptions options;
  const std::string numerics = ReadChoice(settings, "numerics", {"auto", "bf16", "int8"});
  if (numerics == "bf16") options.numerics = NumericsOption::kBf16;
  if (numerics == "int8") options.numerics = NumericsOption::kInt8;
  options.prompt_chunk = ReadCount(settings, "prompt_chunk");
  options.last_logits = ReadChoice(settings, "prompt_logits", {"all", "last"}) == "last";
  const std::string target = ReadChoice(settings, "target", {"auto", "host", "xrt", "sim"});
  const NpuOptions npu = {ReadChoice(settings, "on_device_error", {"host", "raise"}),
                          ReadChoice(settings, "log", {"warning", "quiet", "trace"}),
                          Read(settings, "overlays", "")};
  if (npu.log == "trace") options.trace = Trace::OfProcess().Join();
  const bool tune = ReadChoice(settings, "tune", {"on", "off"}) == "on";
  if (target == "host" || (target == "auto" && !HasNpu())) {
    options.target = tune ? HostTargetWithTrials() : Host();
  } else {
    const auto library = target == "sim" ? NpuLibrary::kSim : NpuLibrary::kXrt;
    options.target = NpuOrHost(library, npu, session, target == "auto");
  }
  const bool on_host = std::string_view(options.target->Name()) == "host";
  options.has_int8 = on_host;
  // An NPU gets all layers of a token at once, so that nothing could end a run between them.
  options.stoppable = ReadChoice(settings, "stoppable", {"no", "yes"}) == "yes" && on_host;
  const std::string weights = ReadChoice(settings, "weights", {"auto", "mapped", "copied"});
  if (on_host && weights == "auto") options.weights = WeightMemory::kAuto;
  if (on_host && weights == "copied") options.weights = WeightMemory::kCopied;
  return options;
}

}  // namespace ort_aie
