// Where the host reads weights: ort_aie.weights.
//
// ONNX Runtime maps each tensor of a data file by itself. Where a token reads all weights, pages of
// 2 MB are faster than those of 4 KB, and only the parts of a tensor's mapping that start at
// multiples of 2 MB in the file can be such pages. So the host maps the file once more, whole: then
// it does not matter where a tensor starts. A file that is cached in small pages already is cached
// anew while a session opens (a second at most), because pages that a session has touched stay as
// they are; `compile` opens what it writes, and so leaves it in large pages.
#pragma once

#include <memory>
#include <vector>

#include "base/platform.h"
#include "ops/tensor.h"
#include "targets/session_options.h"

namespace ort_aie {

// All bytes of a file, for as long as the pointer is held; null on failure. Sessions of a process
// share them.
std::shared_ptr<const uint8_t> WeightBytes(const platform::File& file, WeightMemory memory);

// For the constants of one node, while its kernel is made.
class WeightFiles {
 public:
  explicit WeightFiles(WeightMemory memory) : memory_(memory) {}

  // Changes where the tensor is read, if ONNX Runtime has mapped it from a large file.
  void Place(Tensor& tensor);
  // What the tensors need while they are read.
  std::vector<std::shared_ptr<const uint8_t>> TakeBytes() { return std::move(bytes_); }

 private:
  WeightMemory memory_;
  bool knows_files_ = false;
  std::vector<platform::MappedFile> files_;
  std::vector<std::shared_ptr<const uint8_t>> bytes_;
};

}  // namespace ort_aie
