#include "ops/options.h"

#include <cctype>
#include <cstdlib>

#include "ops/error.h"

namespace ort_aie {
namespace {

std::string Read(const ConfigEntry& entry, const char* name, const char* fallback) {
  if (std::optional<std::string> value = entry(name)) return *value;
  std::string variable = "ORT_AIE_";
  for (const char* c = name; *c != '\0'; ++c) {
    variable += static_cast<char>(std::toupper(static_cast<unsigned char>(*c)));
  }
  const char* value = std::getenv(variable.c_str());
  return value != nullptr && *value != '\0' ? value : fallback;
}

}  // namespace

Numerics Options::NumericsFor(int64_t accuracy_level) const {
  if (numerics == NumericsOption::kAuto) {
    return accuracy_level == 4 ? Numerics::kInt8 : Numerics::kBf16;
  }
  return numerics == NumericsOption::kInt8 ? Numerics::kInt8 : Numerics::kBf16;
}

Options ReadOptions(const ConfigEntry& entry) {
  Options options;
  const std::string target = Read(entry, "target", "auto");
  if (target == "auto" || target == "host") {
    options.target = &HostTarget();
  } else if (target == "xrt" || target == "sim") {
    Fail(ErrorCode::kInvalidArgument, "ort_aie.target=", target,
         ": this build has no such target; use auto or host");
  } else {
    Fail(ErrorCode::kInvalidArgument, "ort_aie.target=", target,
         " is unknown; expected auto, host, xrt or sim");
  }
  const std::string numerics = Read(entry, "numerics", "auto");
  if (numerics == "auto") {
    options.numerics = NumericsOption::kAuto;
  } else if (numerics == "bf16") {
    options.numerics = NumericsOption::kBf16;
  } else if (numerics == "int8") {
    options.numerics = NumericsOption::kInt8;
  } else {
    Fail(ErrorCode::kInvalidArgument, "ort_aie.numerics=", numerics,
         " is unknown; expected auto, bf16 or int8");
  }
  return options;
}

}  // namespace ort_aie
