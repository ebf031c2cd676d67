// Addresses and fields of the array that a stream writes: the shim's DMA, and the parameters and
// locks of compute tiles. Sources: AM020 (register reference), mlir-aie's AIETargetModel and
// aie-rt's parameter headers, which agree. Everything here is the same on AIE2 and AIE2P.
#pragma once

#include <array>
#include <cstdint>

#include "base/error.h"

namespace ort_aie::npu {

enum class Direction { kS2mm = 0, kMm2s = 1 };  // the numbers of a token wait

constexpr int kGenerationNpu1 = 3;  // as stream headers number the generations
constexpr int kGenerationNpu2 = 4;

constexpr int kMaxColumns = 8;
constexpr int kShimChannels = 2;      // per direction
constexpr int kShimDescriptors = 16;  // per shim tile
// Tasks per channel, including the running one. Tasks pushed beyond this are lost silently
// (ort_aie_ep/npu/terms/device.py, MAX_QUEUED_TASKS, says why it is 4).
constexpr int kQueueDepth = 4;
constexpr int kMaxQueueRuns = 256;          // runs of one task: an 8-bit field that holds runs - 1
constexpr int kMaxIterations = 64;          // steps of the iteration counter: 6 bits, minus one
constexpr int kMaxWrap = 1023;              // D0 and D1 of a shim descriptor: 10 bits
constexpr int64_t kMaxStepWords = 1 << 20;  // 20 bits, minus one
constexpr int kMaxPacketId = 31;
constexpr int kMaxArgument = 31;  // in an address patch; aie-rt's limit
constexpr int kCoreLocks = 16;
constexpr int64_t kCoreMemoryBytes = 1 << 16;
constexpr int kFirstCoreRow = 2;

// The firmware adds the array's view of DDR to the first five buffers of a run. For later ones the
// builder of the stream does it (mlir-aie's TxnEncoding).
constexpr int kTranslatedArguments = 5;
constexpr uint64_t kDdrAperture = 0x80000000;

// How far descriptors reach into a buffer: the compilers' address patch has 32 bits (mlir-aie's
// TxnEncoding).
constexpr int64_t kBufferReach = int64_t{1} << 32;

constexpr uint32_t Register(uint32_t column, uint32_t row, uint32_t offset) {
  return column << 25 | row << 20 | (offset & 0xFFFFF);
}

constexpr uint32_t ShimDescriptor(int column, int id) {
  return Register(static_cast<uint32_t>(column), 0, 0x1D000 + 0x20 * static_cast<uint32_t>(id));
}

constexpr uint32_t ShimChannelControl(int column, Direction direction, int channel) {
  return Register(
      static_cast<uint32_t>(column), 0,
      0x1D200 + (direction == Direction::kMm2s ? 0x10 : 0) + 8 * static_cast<uint32_t>(channel));
}

constexpr uint32_t ShimTaskQueue(int column, Direction direction, int channel) {
  return ShimChannelControl(column, direction, channel) + 4;
}

constexpr uint32_t CoreLock(int column, int row, int lock) {
  return Register(static_cast<uint32_t>(column), static_cast<uint32_t>(row),
                  0x1F000 + 0x10 * static_cast<uint32_t>(lock));
}

// A dense index of the channels: by column, direction, number.
constexpr size_t ShimChannelIndex(int column, Direction direction, int channel) {
  return static_cast<size_t>((column * 2 + static_cast<int>(direction)) * kShimChannels + channel);
}

// The word of a shim descriptor that an address patch names.
constexpr uint32_t kAddressWordBytes = 4;

// Every token contains the controller's id from the control register. It is a packet id of 5 bits
// (mlir-aie writes all five since August 2025; FastFlowLM's streams leave the highest as it is).
constexpr uint32_t kControllerIdMask = 0x1F00;
constexpr uint32_t kControllerId = 15 << 8;

constexpr uint32_t TaskQueueWord(int descriptor, int runs, bool token) {
  return static_cast<uint32_t>(descriptor) | static_cast<uint32_t>(runs - 1) << 16 |
         (token ? 1u << 31 : 0u);
}

struct Field {
  const char* name;
  int word;
  int low;
  int bits;
};

using ShimDescriptorWords = std::array<uint32_t, 8>;

// Steps and the iteration's wrap are stored minus one, the other wraps as they are.
namespace shim_descriptor {
constexpr Field kLength{"length", 0, 0, 32};  // in words of 4 bytes
constexpr Field kPacketId{"packet id", 2, 19, 5};
constexpr Field kEnablePacket{"enable packet", 2, 30, 1};
constexpr Field kStep[] = {{"D0 step", 3, 0, 20}, {"D1 step", 4, 0, 20}, {"D2 step", 5, 0, 20}};
constexpr Field kWrap[] = {{"D0 wrap", 3, 20, 10}, {"D1 wrap", 4, 20, 10}};
constexpr Field kBurst{"burst length", 4, 30, 2};
constexpr Field kAxCache{"AxCACHE", 5, 24, 4};
constexpr Field kIterationStep{"iteration step", 6, 0, 20};
constexpr Field kIterationWrap{"iteration wrap", 6, 20, 6};
constexpr Field kValid{"valid", 7, 25, 1};
}  // namespace shim_descriptor

inline void SetField(ShimDescriptorWords& words, const Field& field, uint64_t value) {
  Require(value >> field.bits == 0, field.name, " of a shim descriptor has ", field.bits,
          " bits, got ", value);
  words[static_cast<size_t>(field.word)] |= static_cast<uint32_t>(value << field.low);
}

}  // namespace ort_aie::npu
