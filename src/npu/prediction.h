// How long a segment takes on the modelled device. Streams are divided by it into runs that stay
// far below the limit of the driver's watchdog.
#pragma once

#include <array>
#include <span>
#include <vector>

#include "npu/manifest.h"
#include "npu/shim_tasks.h"

namespace ort_aie::npu {

// Goes through the operations as the command processor does, with the costs of the manifest. A task
// starts when it has been pushed and its channel is free, and then takes the time of its channel
// and of the memory. Work of the cores begins when the last core has been started and the last
// channel brings its first data; a stretch does not end before this work does. Not counted: hops,
// fifos within the array, and results that come after the work.
class Predictor {
 public:
  explicit Predictor(const Manifest& manifest) : manifest_(manifest) {}

  // The cores work for so many cycles on the data pushed since the last Complete.
  void Work(double cycles) { cycles_ += cycles; }
  // Everything is complete before the operation of this number.
  void Complete(size_t operation);
  // Of the operations since the last call.
  double Seconds(std::span<const Operation> operations);

 private:
  struct Stretch {
    size_t end;  // in operations
    double cycles;
  };
  struct Channel {
    bool named = false;          // its controller id is set
    bool fed = false;            // in this stretch
    double free = 0;             // cycles
    std::vector<double> tokens;  // when the tokens came that no wait has taken
    size_t taken = 0;
  };

  void Do(const ParameterWrite& write);
  void Do(const LockWrite& write);
  void Do(const Push& push);
  void Do(const TokenWait& wait);
  void Settle(double cycles);

  const Manifest& manifest_;
  std::vector<Stretch> stretches_;
  double cycles_ = 0;
  std::array<Channel, kMaxColumns * 2 * kShimChannels> channels_{};
  // Cycles since the segment began.
  double now_ = 0;
  double begin_ = 0;                     // of the work of this stretch
  std::array<double, 2> memory_free_{};  // by Direction
};

}  // namespace ort_aie::npu
