// What the steps of a session read and no call gives: weights, packed from MatMulNBits when the
// model is compiled, and other initializers, which ONNX Runtime does not keep for the provider.
#pragma once

#include <cstdlib>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "ort/ep/claimed.h"

namespace ort_aie::ep {

// An initializer of a graph that is compiled, as long as that graph is there.
struct Initializer {
  Tensor tensor;
  const OrtValueInfo* info = nullptr;
};
using Initializers = std::map<std::string, Initializer, std::less<>>;

// A region with all that it takes to run it.
struct Part {
  Recipe recipe;
  std::vector<std::string> inputs, outputs;              // by the recipe's positions
  std::vector<Tensor> constants;                         // by place in the recipe
  std::vector<std::shared_ptr<const void>> memory = {};  // in which they lie
};

// The constants of regions that are compiled together, each once.
class Constants {
 public:
  struct Source {
    const ClaimedRegion::Constant* constant;
    Tensor tensor;  // type, shape and bytes
  };

  // Throws Error where an initializer is missing.
  Constants(const std::vector<const ClaimedRegion*>& regions, const Initializers& initializers);

  // In the order in which steps read them.
  const std::vector<Source>& sources() const { return sources_; }
  // The one that a constant of a region is.
  size_t IndexOf(const ClaimedRegion::Constant& constant) const;
  // Writes a constant's bytes; weights are packed, on all cores.
  void Fill(const Source& source, uint8_t* bytes) const;

  // All of them in memory, by index. They lie in one piece, because an NPU pins few, each on a page
  // of its own; large tables of data files in `folder` are mapped instead.
  std::vector<Tensor> Load(const OrtApi* api, const std::string& folder,
                           std::vector<std::shared_ptr<const void>>& memory) const;

 private:
  const Initializer& Find(const std::string& name) const;

  const Initializers& initializers_;
  std::vector<Source> sources_;
  std::map<std::string, size_t> index_;
};

}  // namespace ort_aie::ep
