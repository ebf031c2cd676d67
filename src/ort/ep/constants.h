// The values that the steps of a session read and that no call gives: weights, packed from
// MatMulNBits and QMoE when the session starts, and other initializers, which ONNX Runtime does not
// keep for the provider.
#pragma once

#include <cstdlib>
#include <functional>
#include <istream>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "ort/ep/claimed.h"

namespace ort_aie::ep {

// An initializer of a graph that ONNX Runtime passes to Compile, valid as long as that graph; or
// one of a graph that a context model was made from, in a file that is mapped.
struct Initializer {
  Tensor tensor;
  const OrtValueInfo* info = nullptr;
  std::shared_ptr<const uint8_t> mapped = nullptr;
};
using Initializers = std::map<std::string, Initializer, std::less<>>;

// Where an initializer of a graph is in a data file of its model.
struct DataRange {
  std::string file;  // relative to the model's folder
  int64_t offset = 0;
  std::shared_ptr<const uint8_t> bytes;  // null if they cannot be mapped, or are in no data file
};
DataRange FindData(const OrtApi* api, const std::string& folder, const Initializer& initializer);

// How a constant is made, as words. `name` gives the word for an initializer.
std::string TextOf(const ClaimedRegion::Constant& constant,
                   const std::function<std::string(const std::string&)>& name);
// Takes such words, whose names have no blanks. Whether they can be meant.
bool ReadConstant(std::istream& words, ClaimedRegion::Constant& constant);

// A region with everything needed to run it.
struct Part {
  Recipe recipe;
  std::vector<std::string> inputs, outputs;              // by the recipe's positions
  std::vector<Tensor> constants;                         // in the recipe's order
  std::vector<std::shared_ptr<const void>> memory = {};  // owns their data
};

// The constants of regions that are compiled together. Each is stored once.
class Constants {
 public:
  struct Source {
    const ClaimedRegion::Constant* constant;
    Tensor tensor;  // type, shape and bytes
  };

  // Throws Error if an initializer is missing, or does not fit what is made of it.
  Constants(const std::vector<const ClaimedRegion*>& regions, const Initializers& initializers);

  // In the order in which steps read them.
  const std::vector<Source>& sources() const { return sources_; }
  // The index of a region's constant.
  size_t IndexOf(const ClaimedRegion::Constant& constant) const;
  // Writes a constant's bytes. Packs weights, on all cores.
  void Fill(const Source& source, uint8_t* bytes) const;

  // Loads all constants into memory, by index. They form one allocation with each constant on a
  // page of its own, because an NPU can pin only few. Large tables from data files in `folder` are
  // mapped instead, or stay in the files that are mapped already.
  std::vector<Tensor> Load(const OrtApi* api, const std::string& folder,
                           std::vector<std::shared_ptr<const void>>& memory) const;

 private:
  // Without a name: no tensor.
  Tensor Find(const std::string& name) const;

  const Initializers& initializers_;
  std::vector<Source> sources_;
  std::map<std::string, size_t> index_;
};

}  // namespace ort_aie::ep
