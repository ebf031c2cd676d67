// An aie.* op as an OrtCustomOp table: filled by hand, because the C++ wrapper of ONNX Runtime
// keeps one OrtApi for the whole process.
#pragma once

#include <memory>

#include "ops/op.h"
#include "ort/api.h"
#include "targets/session_options.h"

namespace ort_aie {

// What ONNX Runtime calls: an op, from either door.
class Kernel {
 public:
  // Throws Error for attributes or weights that do not fit together.
  Kernel(const OpDescription& op, const NodeInfo& info, const SessionOptions& options)
      : description_(op), options_(options), op_(op.create(info, options_)) {}

  void Compute(const KernelContext& context) const;

 private:
  const OpDescription& description_;
  const SessionOptions options_;
  const std::unique_ptr<Op> op_;
};

// Options as a node has them.
SessionOptions ReadOptions(const KernelInfo& info);

class CustomOp : public OrtCustomOp {
 public:
  CustomOp(const OpDescription& description, const RuntimeApi& runtime);

 private:
  const OpDescription& description_;
  const RuntimeApi runtime_;
};

}  // namespace ort_aie
