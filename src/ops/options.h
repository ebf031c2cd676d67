// The session options that ops use (targets/session_options.h).
#pragma once

#include <cstdint>

#include "ops/plan.h"

namespace ort_aie {

enum class NumericsOption { kAuto, kBf16, kInt8 };

struct Options {
  NumericsOption numerics = NumericsOption::kAuto;
  bool has_int8 = true;      // whether the target has it
  int64_t prompt_chunk = 0;  // tokens; 0: the target chooses
  bool last_logits = false;  // of a prompt's last tokens alone

  // auto follows the node's accuracy_level: int8 only if the model allows it (4), and only on the
  // host, because no other target has it.
  Numerics NumericsFor(int64_t accuracy_level) const {
    if (numerics != NumericsOption::kAuto) {
      return numerics == NumericsOption::kInt8 ? Numerics::kInt8 : Numerics::kBf16;
    }
    return has_int8 && accuracy_level == 4 ? Numerics::kInt8 : Numerics::kBf16;
  }
};

}  // namespace ort_aie
