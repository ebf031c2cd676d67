#include "targets/host/kernels/choice_file.h"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <optional>
#include <thread>

#include "base/platform.h"
#include "kernels_hash.h"

namespace ort_aie::host {
namespace {

constexpr std::string_view kFirstLine = "ort_aie_ep kernels 2";
constexpr std::string_view kSamples = "samples: ", kThreads = " threads";
constexpr size_t kMostBytes = 65536;  // more than a real file has
constexpr int kAttempts = 50;         // at the lock, 10 ms each

// A hash for the file's name: FNV-1a.
std::string ShortHash(std::string_view text) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const char c : text) hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001b3;
  char hex[20];
  std::snprintf(hex, sizeof hex, "%016" PRIx64, hash);
  return std::string(hex, 8);
}

Measurement Malformed(const std::string& why) {
  Measurement measurement;
  measurement.state = Measurement::State::kMalformed;
  measurement.why = why;
  return measurement;
}

Measurement Stale(const std::string& why) {
  Measurement measurement;
  measurement.state = Measurement::State::kStale;
  measurement.why = why;
  return measurement;
}

// The lines of a file, one by one.
class Lines {
 public:
  explicit Lines(std::string_view text) : rest_(text) {}
  std::string_view Next() {
    ++number_;
    const size_t end = rest_.find('\n');
    const std::string_view line = rest_.substr(0, end);
    rest_ = end == std::string_view::npos ? std::string_view() : rest_.substr(end + 1);
    return line;
  }
  // The text after "name: " on the next line, if the line starts with that.
  bool Next(std::string_view name, std::string_view* value) {
    const std::string_view line = Next();
    if (!line.starts_with(name) || !line.substr(name.size()).starts_with(": ")) return false;
    *value = line.substr(name.size() + 2);
    return true;
  }
  bool done() const { return rest_.empty(); }
  std::string number() const { return std::to_string(number_); }

 private:
  std::string_view rest_;
  int number_ = 0;
};

bool IsDate(std::string_view text) {
  constexpr std::string_view kForm = "0000-00-00";
  return text.size() == kForm.size() &&
         std::equal(text.begin(), text.end(), kForm.begin(), [](char c, char form) {
           return form == '0' ? c >= '0' && c <= '9' : c == form;
         });
}

// A variant of a role, by name; null if it does not exist or this CPU cannot run it.
const char* VariantOf(Role role, std::string_view name) {
  for (const char* variant : VariantsOf(role, ThisCpu())) {
    if (name == variant) return variant;
  }
  return nullptr;
}

// What `text` starts with before `end`, which is taken off with it; all of it if `end` is not
// there.
std::string_view Before(std::string_view end, std::string_view& text) {
  const size_t at = text.find(end);
  const std::string_view before = text.substr(0, at);
  text = at == std::string_view::npos ? std::string_view() : text.substr(at + end.size());
  return before;
}

std::optional<int> Number(std::string_view text) {
  int number = 0;
  const char* end = text.data() + text.size();
  const auto parsed = std::from_chars(text.data(), end, number);
  if (parsed.ec != std::errc() || parsed.ptr != end || number <= 0) return std::nullopt;
  return number;
}

std::optional<Role> RoleNamed(std::string_view name) {
  for (size_t role = 0; role < kRoles; ++role) {
    if (name == NameOf(static_cast<Role>(role))) return static_cast<Role>(role);
  }
  return std::nullopt;
}

// Reads "one row, int8; 2 threads; avx512-t1: 731 745 728"; whether it is such a text.
bool ReadSamples(std::string_view text, Samples& samples) {
  const std::optional<Role> role = RoleNamed(Before("; ", text));
  const std::optional<int> threads = Number(Before(std::string(kThreads) + "; ", text));
  const char* variant = role ? VariantOf(*role, Before(": ", text)) : nullptr;
  if (!threads || variant == nullptr) return false;
  Ratios& ratios = samples[{*role, *threads, variant}];
  while (!text.empty()) {
    const std::optional<int> ratio = Number(Before(" ", text));
    if (!ratio) return false;
    ratios.push_back(*ratio);
  }
  return true;
}

}  // namespace

std::string MeasurementPath() {
  std::string folder = platform::Environment("ORT_AIE_CACHE");
  if (folder.empty()) {
    folder = platform::CacheFolder();
    if (folder.empty()) return "";
    folder += "/ort_aie_ep";
  }
  return folder + "/kernels-" + ShortHash(CpuName() + KernelsHash());
}

Measurement ReadMeasurement(const std::string& path) {
  if (path.empty()) return {};
  const platform::File file = platform::File::Open(path);
  if (!file.is_open()) {
    if (errno == ENOENT || errno == ENOTDIR) return {};
    return Malformed(std::string("it cannot be opened: ") + std::strerror(errno));
  }
  std::string text(kMostBytes + 1, '\0');
  const int64_t size = file.Bytes() >= 0 ? file.Read(0, text.data(), text.size()) : -1;
  if (size < 0) return Malformed("it is not a regular file, or cannot be read");
  text.resize(static_cast<size_t>(size));
  if (text.size() > kMostBytes) return Malformed("it is too long");
  return ParseMeasurement(text);
}

Measurement ParseMeasurement(std::string_view text) {
  Lines lines(text);
  if (lines.Next() != kFirstLine) {
    return Malformed("line 1 is not \"" + std::string(kFirstLine) + '"');
  }
  std::string_view cpu, kernels, date;
  if (!lines.Next("cpu", &cpu) || !lines.Next("kernels", &kernels) ||
      !lines.Next("measured", &date) || (date != "no" && !IsDate(date))) {
    return Malformed("line " + lines.number() + " is not the CPU, the kernels' hash or the date");
  }
  if (cpu != CpuName()) return Stale("it is for another CPU");
  if (kernels != KernelsHash()) return Stale("it is for another version's kernels");

  Measurement measurement;
  measurement.state = Measurement::State::kGood;
  if (date != "no") measurement.date = date;
  for (std::string_view line = lines.Next(); line != "end"; line = lines.Next()) {
    if (line.starts_with(kSamples)) {
      if (ReadSamples(line.substr(kSamples.size()), measurement.samples)) continue;
      return Malformed("line " + lines.number() + " is not samples of a variant");
    }
    const std::optional<Role> role = RoleNamed(Before(": ", line));
    if (!role) return Malformed("line " + lines.number() + " does not name a role");
    const char* variant = VariantOf(*role, line);
    if (variant == nullptr) {
      return Malformed("line " + lines.number() + " does not name a variant of its role");
    }
    measurement.variants[static_cast<size_t>(*role)] = variant;
  }
  if (!lines.done()) return Malformed("it continues after its end");
  return measurement;
}

std::string MeasurementText(const Measurement& measurement) {
  std::string text = std::string(kFirstLine) + "\ncpu: " + CpuName() +
                     "\nkernels: " + KernelsHash() +
                     "\nmeasured: " + (measurement.date.empty() ? "no" : measurement.date) + '\n';
  for (size_t role = 0; role < kRoles; ++role) {
    if (measurement.variants[role] == nullptr) continue;
    text += std::string(NameOf(static_cast<Role>(role))) + ": " + measurement.variants[role] + '\n';
  }
  for (const auto& [candidate, ratios] : measurement.samples) {
    text += std::string(kSamples) + NameOf(candidate.role) + "; " +
            std::to_string(candidate.threads) + std::string(kThreads) + "; " + candidate.variant +
            ':';
    for (const int ratio : ratios) text += ' ' + std::to_string(ratio);
    text += '\n';
  }
  return text + "end\n";
}

void KeepSamples(const std::string& path, const Samples& run) {
  if (path.empty() || run.empty()) return;
  std::error_code ignored;
  std::filesystem::create_directories(platform::PathOf(path).parent_path(), ignored);
  // The lock is a file of its own, because the other one is replaced. It stays.
  platform::File lock = platform::File::Create(path + ".lock");
  if (!lock.is_open()) lock = platform::File::Open(path + ".lock");
  if (!lock.is_open()) return;
  for (int attempt = 0; !lock.Lock(); ++attempt) {
    if (attempt == kAttempts) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  Measurement measurement = ReadMeasurement(path);
  if (measurement.state == Measurement::State::kMalformed) return;  // not this library's
  if (measurement.state != Measurement::State::kGood) measurement = {};
  AddRun(run, measurement.samples);
  const std::string text = MeasurementText(measurement);
  const std::string beside = path + ".part";
  platform::Remove(beside);  // of a process that died
  platform::File file = platform::File::Create(beside);
  const bool written = file.is_open() && file.Write(0, text.data(), text.size()) && file.Settle();
  file.Close();
  if (!written || !platform::Replace(beside, path)) platform::Remove(beside);
}

const char* KernelsHash() { return ORT_AIE_KERNELS_HASH; }

}  // namespace ort_aie::host
