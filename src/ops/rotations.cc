#include "ops/rotations.h"

#include <algorithm>
#include <cmath>

#include "base/size.h"

namespace ort_aie {
namespace {

std::unique_ptr<float[]> Room(int64_t rows, size_t columns) {
  const int64_t count = (Size(rows) * static_cast<int64_t>(columns)).As("a table of rotations");
  return std::make_unique_for_overwrite<float[]>(static_cast<size_t>(count));
}

}  // namespace

RotationTable::RotationTable(std::span<const float> frequencies, float magnitude, int64_t positions)
    : frequencies_(frequencies.begin(), frequencies.end()),
      magnitude_(magnitude),
      positions_(positions),
      cos_(Room(positions, frequencies.size())),
      sin_(Room(positions, frequencies.size())) {}

void RotationTable::Reach(int64_t end) {
  const std::lock_guard lock(mutex_);
  float* cos = cos_.get() + made_ * static_cast<int64_t>(frequencies_.size());
  float* sin = sin_.get() + made_ * static_cast<int64_t>(frequencies_.size());
  for (; made_ < end; ++made_) {
    for (const float frequency : frequencies_) {
      // The angle is rounded, as in the tables of models.
      const double angle = static_cast<float>(made_) * frequency;
      *cos++ = static_cast<float>(std::cos(angle)) * magnitude_;
      *sin++ = static_cast<float>(std::sin(angle)) * magnitude_;
    }
  }
}

bool RotationTable::Is(std::span<const float> frequencies, float magnitude,
                       int64_t positions) const {
  return magnitude == magnitude_ && positions == positions_ &&
         std::ranges::equal(frequencies, frequencies_);
}

std::shared_ptr<RotationTable> KeptRotations::Of(std::span<const float> frequencies,
                                                 float magnitude, int64_t positions) {
  const std::lock_guard lock(mutex_);
  if (table_ && table_->Is(frequencies, magnitude, positions)) return table_;
  static std::mutex all_mutex;
  static std::vector<std::weak_ptr<RotationTable>> all;
  const std::lock_guard all_lock(all_mutex);
  std::erase_if(all, [](const auto& table) { return table.expired(); });
  for (const auto& table : all) {
    table_ = table.lock();
    if (table_ && table_->Is(frequencies, magnitude, positions)) return table_;
  }
  table_ = std::make_shared<RotationTable>(frequencies, magnitude, positions);
  all.push_back(table_);
  return table_;
}

}  // namespace ort_aie
