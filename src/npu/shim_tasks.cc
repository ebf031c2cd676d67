#include "npu/shim_tasks.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/error.h"

namespace ort_aie::npu {

ShimTasks::ShimTasks(const Manifest& manifest) : manifest_(manifest) {
  for (int column = 0; column < manifest.columns; ++column) {
    for (const Direction direction : {Direction::kS2mm, Direction::kMm2s}) {
      for (int channel = 0; channel < kShimChannels; ++channel) {
        channels_.push_back({column, direction, channel, {}});
      }
    }
  }
  CompleteAll();
}

// Marks every task as complete, and every descriptor as free.
void ShimTasks::CompleteAll() {
  for (Channel& channel : channels_) channel.tasks.clear();
  descriptors_.clear();
  for (const auto& ids : manifest_.descriptors) descriptors_.emplace_back(ids.begin(), ids.end());
  used_.assign(manifest_.fifos.size(), false);
}

ShimTasks::Channel& ShimTasks::ChannelOf(const Fifo& fifo) {
  return channels_[ShimChannelIndex(fifo.column, fifo.direction, fifo.channel)];
}

void ShimTasks::Start(const Worker& worker, std::span<const int64_t> values) {
  for (size_t i = 0; i < values.size(); ++i) {
    Require(values[i] >= std::numeric_limits<int32_t>::min() &&
                values[i] <= std::numeric_limits<int32_t>::max(),
            "the parameter \"", worker.parameters[i], "\" of the worker \"", worker.name,
            "\" has 32 bits, got ", values[i]);
    const auto offset = static_cast<uint32_t>(worker.address) + 4 * static_cast<uint32_t>(i);
    Emit(ParameterWrite{
        Register(static_cast<uint32_t>(worker.column), static_cast<uint32_t>(worker.row), offset),
        static_cast<int32_t>(values[i])});
  }
  Emit(LockWrite{CoreLock(worker.column, worker.row, worker.lock), 1});
}

void ShimTasks::Transfer(int fifo_index, const Task& task, int argument) {
  const Fifo& fifo = manifest_.fifos[static_cast<size_t>(fifo_index)];
  Channel& channel = ChannelOf(fifo);
  if (channel.tasks.size() == kQueueDepth) WaitUntil(channel, 0);
  const int descriptor = AcquireDescriptor(fifo.column);
  channel.tasks.push_back({operations_.size(), fifo_index, descriptor, order_++});
  used_[static_cast<size_t>(fifo_index)] = true;
  Emit(Push{fifo.column, fifo.direction, fifo.channel, descriptor,
            DescriptorWords(task, manifest_.generation, fifo.packet), argument, task.offset,
            task.end(), task.runs, task.bytes(), task.contiguous(), false});
}

int ShimTasks::AcquireDescriptor(int column) {
  auto& free = descriptors_[static_cast<size_t>(column)];
  while (free.empty()) {
    Channel* oldest = nullptr;
    for (Channel& channel : channels_) {
      if (channel.column != column || channel.tasks.empty()) continue;
      if (oldest == nullptr || channel.tasks.front().order < oldest->tasks.front().order) {
        oldest = &channel;
      }
    }
    WaitUntil(*oldest, 0);
  }
  return free.extract(free.begin()).value();
}

// Waits for a task of a channel: gives it a token, and frees the descriptors of all tasks up to it.
void ShimTasks::WaitUntil(Channel& channel, size_t task) {
  std::get<Push>(operations_[channel.tasks[task].operation].what).token = true;
  Emit(TokenWait{channel.column, channel.direction, channel.channel});
  auto& free = descriptors_[static_cast<size_t>(channel.column)];
  for (size_t i = 0; i <= task; ++i) {
    free.insert(channel.tasks.front().descriptor);
    channel.tasks.pop_front();
  }
}

void ShimTasks::Wait(std::span<const int> fifos) {
  const bool any_used =
      std::ranges::any_of(fifos, [&](int fifo) { return used_[static_cast<size_t>(fifo)]; });
  Require(any_used || outstanding() == 0, "waits for fifos that have moved nothing, while ",
          outstanding(), " transfers on others are under way");
  Arrive(fifos);
  CompleteAll();
}

void ShimTasks::Arrive(std::span<const int> fifos) {
  const auto named = [&](const Outstanding& task) {
    return std::ranges::find(fifos, task.fifo) != fifos.end();
  };
  for (Channel& channel : channels_) {
    const auto last = std::find_if(channel.tasks.rbegin(), channel.tasks.rend(), named);
    if (last != channel.tasks.rend()) {
      WaitUntil(channel, static_cast<size_t>(channel.tasks.rend() - last) - 1);
    }
  }
}

size_t ShimTasks::outstanding() const {
  size_t tasks = 0;
  for (const Channel& channel : channels_) tasks += channel.tasks.size();
  return tasks;
}

std::vector<Operation> ShimTasks::Take() { return std::exchange(operations_, {}); }

}  // namespace ort_aie::npu
