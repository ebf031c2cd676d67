// The words of a TXN stream, version 0.1, as mlir-aie's TxnEncoding writes them: a header of four
// words, then operations. The words of a run go to XRT's instruction buffer unchanged.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "npu/registers.h"

namespace ort_aie::npu {

struct TxnDevice {
  int generation;  // kGenerationNpu1 or kGenerationNpu2
  int rows;
  int columns;
};

constexpr size_t kTxnHeaderWords = 4;
// Sets the number of operations and the length in a stream's header.
void SetTxnHeader(std::vector<uint32_t>& words, uint32_t operations);

// Appends operations. Every method returns the index of the first word that carries data.
class TxnWriter {
 public:
  explicit TxnWriter(const TxnDevice& device);

  size_t Write(uint32_t address, uint32_t value);
  size_t MaskWrite(uint32_t address, uint32_t value, uint32_t mask);
  size_t BlockWrite(uint32_t address, std::span<const uint32_t> data);
  // Waits for one token from the channel of every tile of a rectangle.
  size_t Wait(int column, int row, Direction direction, int channel, int columns = 1, int rows = 1);
  // Adds the address of a run's buffer `argument`, plus `plus` bytes, to the two words at `address`
  // of an earlier BlockWrite. The data are the two words of `plus`.
  size_t AddressPatch(uint32_t address, int argument, uint64_t plus);

  uint32_t operations() const { return operations_; }
  // The stream with its complete header.
  std::vector<uint32_t> Finish() &&;

 private:
  uint32_t& Begin(uint32_t opcode, size_t words);

  std::vector<uint32_t> words_;
  uint32_t operations_ = 0;
};

}  // namespace ort_aie::npu
