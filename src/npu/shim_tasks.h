// The shim's resources over time: which descriptor a task gets, when its channel's queue has room,
// and which waits this needs.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <set>
#include <span>
#include <variant>
#include <vector>

#include "npu/manifest.h"
#include "npu/transfer.h"

namespace ort_aie::npu {

// The statement that made an operation: an invocation of the plan (0 until it is part of a stream),
// and an index into the paths of its sequence.
struct OpSource {
  int invocation;
  int path;
};

struct ParameterWrite {
  uint32_t address;
  int32_t value;
};
struct LockWrite {
  uint32_t address;
  uint32_t value;
};
struct Push {
  int column;
  Direction direction;
  int channel;
  int descriptor;
  ShimDescriptorWords words;
  int argument;  // of the sequence
  int64_t plus;  // bytes from its start
  int64_t end;   // the byte after the last that it touches
  int runs;
  int64_t bytes;       // of all runs
  int64_t contiguous;  // longest run of bytes without a gap
  bool token;          // a wait consumes it
};
struct TokenWait {
  int column;
  Direction direction;
  int channel;
};

struct Operation {
  std::variant<ParameterWrite, LockWrite, Push, TokenWait> what;
  OpSource source;
};

// Tasks of a channel complete in order, so one token proves that all tasks up to its own are
// complete. A task gets a token only when something waits for it.
class ShimTasks {
 public:
  explicit ShimTasks(const Manifest& manifest);

  // The operations that follow come from this statement.
  void From(OpSource source) { source_ = source; }

  void Start(const Worker& worker, std::span<const int64_t> values);
  // Queues a task. If its channel has kQueueDepth tasks outstanding, or no descriptor of the column
  // is free, first waits for the oldest task that is in the way.
  void Transfer(int fifo, const Task& task, int argument);
  // Waits for the last task of every fifo. After that every task counts as complete; the sequence
  // guarantees that this is true.
  void Wait(std::span<const int> fifos);
  // Waits for the last task of every fifo, which says nothing about other channels.
  void Arrive(std::span<const int> fifos);

  // Tasks that nothing has proven complete.
  size_t outstanding() const;
  size_t operations() const { return operations_.size(); }
  // The operations since the last call; no task may be outstanding.
  std::vector<Operation> Take();

 private:
  struct Outstanding {
    size_t operation;  // its Push
    int fifo;
    int descriptor;
    uint64_t order;
  };
  struct Channel {
    int column;
    Direction direction;
    int channel;
    std::deque<Outstanding> tasks;  // in the order of their pushes
  };

  void CompleteAll();
  Channel& ChannelOf(const Fifo& fifo);
  int AcquireDescriptor(int column);
  void WaitUntil(Channel& channel, size_t task);
  void Emit(decltype(Operation::what) what) { operations_.push_back({std::move(what), source_}); }

  const Manifest& manifest_;
  std::vector<Operation> operations_;
  std::vector<Channel> channels_;           // (column, direction, channel)
  std::vector<std::set<int>> descriptors_;  // free ones by column; mlir-aie too takes the lowest
  std::vector<bool> used_;                  // fifos with a task since the last Wait
  uint64_t order_ = 0;
  OpSource source_{};
};

}  // namespace ort_aie::npu
