#include "targets/host/kernels/choice_file.h"

#include <algorithm>
#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <cstring>

#include "base/platform.h"

namespace ort_aie::host {
namespace {

constexpr std::string_view kFirstLine = "ort_aie_ep kernels 1";
constexpr size_t kMostBytes = 4096;  // many times the size of a real file

// A hash of a CPU's name for the file's name: FNV-1a.
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

}  // namespace

std::string MeasurementPath() {
  std::string folder = platform::Environment("ORT_AIE_CACHE");
  if (folder.empty()) {
    folder = platform::CacheFolder();
    if (folder.empty()) return "";
    folder += "/ort_aie_ep";
  }
  return folder + "/kernels-" + ShortHash(CpuName());
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
      !lines.Next("measured", &date) || !IsDate(date)) {
    return Malformed("line " + lines.number() + " is not the CPU, the kernels' hash or the date");
  }
  if (cpu != CpuName()) return Stale("it is for another CPU");
  if (kernels != KernelsHash()) return Stale("it is for another version's kernels");

  Measurement measurement;
  measurement.state = Measurement::State::kGood;
  measurement.date = date;
  for (std::string_view line = lines.Next(); line != "end"; line = lines.Next()) {
    size_t role = 0;
    const auto is_of = [&](const std::string& name) {
      return line.starts_with(name) && line.substr(name.size()).starts_with(": ");
    };
    while (role < kRoles && !is_of(NameOf(static_cast<Role>(role)))) ++role;
    if (role == kRoles) return Malformed("line " + lines.number() + " does not name a role");
    const std::string_view name =
        line.substr(std::string_view(NameOf(static_cast<Role>(role))).size() + 2);
    measurement.variants[role] = VariantOf(static_cast<Role>(role), name);
    if (measurement.variants[role] == nullptr) {
      return Malformed("line " + lines.number() + " does not name a variant of its role");
    }
  }
  if (!lines.done()) return Malformed("it continues after its end");
  return measurement;
}

std::string MeasurementText(const std::string& date,
                            const std::array<const char*, kRoles>& variants) {
  std::string text = std::string(kFirstLine) + "\ncpu: " + CpuName() +
                     "\nkernels: " + KernelsHash() + "\nmeasured: " + date + '\n';
  for (size_t role = 0; role < kRoles; ++role) {
    if (variants[role] == nullptr) continue;
    text += std::string(NameOf(static_cast<Role>(role))) + ": " + variants[role] + '\n';
  }
  return text + "end\n";
}

const char* KernelsHash() { return ORT_AIE_KERNELS_HASH; }

}  // namespace ort_aie::host
