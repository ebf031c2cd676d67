// Faults that tests ask for: see control.h.
#pragma once

#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

namespace ort_aie::sim {

class Faults {
 public:
  // Those of the process; at first what ORT_AIE_SIM_FAULTS says.
  static Faults& Get();

  // Takes the place of what was asked for before. Throws std::invalid_argument.
  void Set(std::string_view list);

  // Whether this operation, one more that fault `name` counts, is to fail.
  bool Happens(const std::string& name);

 private:
  struct Range {
    long first;
    long last;
  };
  struct Fault {
    std::vector<Range> ranges;
    long count = 0;
  };
  Faults();

  std::mutex mutex_;
  std::map<std::string, Fault> faults_;
};

}  // namespace ort_aie::sim
