// Cosines and sines of positions, made when a call first reaches them: a model whose frequencies
// are known needs no tables, which for a long context are larger than a layer.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

namespace ort_aie {

// (positions, frequencies) float32: cos and sin of position * frequency, rounded to float32 each,
// times a magnitude. Rows stay where they are, so steps of a call may point to them.
class RotationTable {
 public:
  RotationTable(std::span<const float> frequencies, float magnitude, int64_t positions);

  // Makes the rows of positions below `end` that are not made yet.
  void Reach(int64_t end);
  const float* cos() const { return cos_.get(); }
  const float* sin() const { return sin_.get(); }
  bool Is(std::span<const float> frequencies, float magnitude, int64_t positions) const;

 private:
  const std::vector<float> frequencies_;
  const float magnitude_;
  const int64_t positions_;
  std::mutex mutex_;
  int64_t made_ = 0;
  // Room for all rows; the system gives memory where rows are written.
  const std::unique_ptr<float[]> cos_, sin_;
};

// The table of an op, which the ops of a process with the same numbers share.
class KeptRotations {
 public:
  std::shared_ptr<RotationTable> Of(std::span<const float> frequencies, float magnitude,
                                    int64_t positions);

 private:
  std::mutex mutex_;
  std::shared_ptr<RotationTable> table_;
};

}  // namespace ort_aie
