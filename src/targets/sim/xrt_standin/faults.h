// Faults that tests inject: see control.h.
#pragma once

#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

namespace ort_aie::sim {

class Faults {
 public:
  // The faults of the process; at first those of ORT_AIE_SIM_FAULTS.
  static Faults& Get();

  // Replaces the former list. Throws std::invalid_argument.
  void Set(std::string_view list);

  // Counts an operation of fault `name`. Returns whether it has to fail.
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
