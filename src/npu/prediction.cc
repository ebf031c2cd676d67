#include "npu/prediction.h"

#include <algorithm>

namespace ort_aie::npu {
namespace {

constexpr double kMinBurstBytes = 64;  // a shorter run costs the memory as much

}  // namespace

void Predictor::Complete(size_t operation) {
  // Nothing was pushed and nothing worked since the last one.
  if (cycles_ == 0 && !stretches_.empty() && stretches_.back().end == operation) return;
  stretches_.push_back({operation, cycles_});
  cycles_ = 0;
}

double Predictor::Seconds(std::span<const Operation> operations) {
  Complete(operations.size());
  now_ = begin_ = 0;
  memory_free_.fill(0);
  for (Channel& channel : channels_) {
    channel.free = 0;
    channel.tokens.clear();
    channel.taken = 0;
  }
  size_t next = 0;
  for (const Stretch& stretch : stretches_) {
    for (; next < stretch.end; ++next) {
      std::visit([&](const auto& what) { Do(what); }, operations[next].what);
    }
    Settle(stretch.cycles);
  }
  stretches_.clear();
  return now_ / manifest_.clock_hz;
}

void Predictor::Settle(double cycles) {
  if (cycles > 0) now_ = std::max(now_, begin_ + cycles);
  for (Channel& channel : channels_) {
    now_ = std::max(now_, channel.free);
    channel.fed = false;
  }
  begin_ = now_;
}

void Predictor::Do(const ParameterWrite&) { now_ += manifest_.costs.write; }

void Predictor::Do(const LockWrite&) {
  now_ += manifest_.costs.write;
  begin_ = std::max(begin_, now_);
}

void Predictor::Do(const Push& push) {
  const Costs& costs = manifest_.costs;
  Channel& channel = channels_[ShimChannelIndex(push.column, push.direction, push.channel)];
  now_ += costs.block_write + costs.block_write_word * static_cast<double>(push.words.size()) +
          costs.address_patch + costs.write;
  if (push.token && !channel.named) {
    channel.named = true;
    now_ += costs.mask_write;
  }
  const bool reads = push.direction == Direction::kMm2s;
  const double gate = now_ >= channel.free ? costs.gate_idle : costs.gate_pipelined;
  const double start = std::max(now_, channel.free) + gate;
  const double bytes = static_cast<double>(push.bytes);
  const double run = static_cast<double>(push.contiguous);
  const double rate =
      (reads ? manifest_.ddr_bytes_per_second : manifest_.ddr_write_bytes_per_second) /
      manifest_.clock_hz;  // bytes per cycle
  if (reads && !channel.fed) {
    channel.fed = true;
    begin_ = std::max(begin_, start);
  }
  double& memory = memory_free_[static_cast<size_t>(push.direction)];
  memory = std::max(memory, start) + bytes * std::max(1.0, kMinBurstBytes / run) / rate;
  channel.free = std::max(start + bytes / costs.stream, memory);
  if (push.token) channel.tokens.push_back(channel.free);
}

void Predictor::Do(const TokenWait& wait) {
  Channel& channel = channels_[ShimChannelIndex(wait.column, wait.direction, wait.channel)];
  now_ = std::max(now_, channel.tokens[channel.taken++]) + manifest_.costs.wait;
}

}  // namespace ort_aie::npu
