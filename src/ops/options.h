// Options of a session: session config entries `ort_aie.<name>`, else the environment
// `ORT_AIE_<NAME>`, else the default.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "targets/target.h"

namespace ort_aie {

enum class NumericsOption { kAuto, kBf16, kInt8 };

struct Options {
  const Target* target = nullptr;
  NumericsOption numerics = NumericsOption::kAuto;

  // auto follows the node's accuracy_level: int8 only where the model allows it (4).
  Numerics NumericsFor(int64_t accuracy_level) const;
};

// entry(name) gives the session's config entry ort_aie.<name>, if it has one.
using ConfigEntry = std::function<std::optional<std::string>(const char* name)>;

// Throws Error naming the option, the value and what is accepted.
Options ReadOptions(const ConfigEntry& entry);

}  // namespace ort_aie
