#include "npu/txn.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace ort_aie::npu {
namespace {

constexpr uint32_t kWrite = 0, kBlockWrite = 1, kMaskWrite = 3, kWait = 0x80, kAddressPatch = 0x81;
constexpr uint32_t kMemoryTileRows = 1;

uint32_t Bytes(size_t words) { return static_cast<uint32_t>(words * 4); }

}  // namespace

TxnWriter::TxnWriter(const TxnDevice& device) {
  Require(device.generation == kGenerationNpu1 || device.generation == kGenerationNpu2,
          "device generation must be ", kGenerationNpu1, " or ", kGenerationNpu2, ", got ",
          device.generation);
  Require(device.rows >= 1 && device.rows <= 32 && device.columns >= 1 && device.columns <= 127,
          "a stream must name 1 to 32 rows and 1 to 127 columns, got ", device.rows, " and ",
          device.columns);
  const auto generation = static_cast<uint32_t>(device.generation);
  const auto rows = static_cast<uint32_t>(device.rows);
  const auto columns = static_cast<uint32_t>(device.columns);
  words_ = {rows << 24 | generation << 16 | 1u << 8, kMemoryTileRows << 8 | columns, 0, 0};
}

// Appends an operation of `words` words that are zero except for the opcode; returns the first.
uint32_t& TxnWriter::Begin(uint32_t opcode, size_t words) {
  const size_t start = words_.size();
  words_.resize(start + words);
  words_[start] = opcode;
  ++operations_;
  return words_[start];
}

size_t TxnWriter::Write(uint32_t address, uint32_t value) {
  uint32_t* op = &Begin(kWrite, 6);
  op[2] = address;
  op[4] = value;
  op[5] = Bytes(6);
  return words_.size() - 2;
}

size_t TxnWriter::MaskWrite(uint32_t address, uint32_t value, uint32_t mask) {
  uint32_t* op = &Begin(kMaskWrite, 7);
  op[2] = address;
  op[4] = value;
  op[5] = mask;
  op[6] = Bytes(7);
  return words_.size() - 3;
}

size_t TxnWriter::BlockWrite(uint32_t address, std::span<const uint32_t> data) {
  Require(!data.empty(), "a block write must carry at least one word");
  uint32_t* op = &Begin(kBlockWrite, 4 + data.size());
  op[2] = address;
  op[3] = Bytes(4 + data.size());
  std::copy(data.begin(), data.end(), op + 4);
  return words_.size() - data.size();
}

size_t TxnWriter::Wait(int column, int row, Direction direction, int channel, int columns,
                       int rows) {
  for (const int value : {column, row, channel, columns, rows}) {
    Require(value >= 0 && value <= 255, "a wait's fields have 8 bits, got ", value);
  }
  uint32_t* op = &Begin(kWait, 4);
  op[1] = Bytes(4);
  op[2] = static_cast<uint32_t>(direction) | static_cast<uint32_t>(row) << 8 |
          static_cast<uint32_t>(column) << 16;
  op[3] = static_cast<uint32_t>(rows) << 8 | static_cast<uint32_t>(columns) << 16 |
          static_cast<uint32_t>(channel) << 24;
  return words_.size() - 2;
}

size_t TxnWriter::AddressPatch(uint32_t address, int argument, uint64_t plus) {
  Require(argument >= 0 && argument <= kMaxArgument,
          "an address patch must name an argument from 0 to ", kMaxArgument, ", got ", argument);
  if (argument >= kTranslatedArguments) plus += kDdrAperture;
  uint32_t* op = &Begin(kAddressPatch, 12);
  op[1] = Bytes(12);
  op[6] = address;
  op[8] = static_cast<uint32_t>(argument);
  op[10] = static_cast<uint32_t>(plus);
  op[11] = static_cast<uint32_t>(plus >> 32);
  return words_.size() - 2;
}

std::vector<uint32_t> TxnWriter::Finish() && {
  SetTxnHeader(words_, operations_);
  return std::move(words_);
}

void SetTxnHeader(std::vector<uint32_t>& words, uint32_t operations) {
  Require(words.size() <= std::numeric_limits<uint32_t>::max() / 4, "a stream of ", words.size(),
          " words is too long for the length in its header");
  words[2] = operations;
  words[3] = Bytes(words.size());
}

}  // namespace ort_aie::npu
