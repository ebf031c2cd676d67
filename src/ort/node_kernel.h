// What ONNX Runtime calls, through either door: an op, or the program of a plan.
#pragma once

#include <memory>
#include <string>

#include "ops/program.h"
#include "ort/api.h"
#include "targets/session_options.h"

namespace ort_aie {

class NodeKernel {
 public:
  virtual ~NodeKernel() = default;
  virtual void Compute(const KernelContext& context) const = 0;
};

// `node` is ONNX Runtime's name of it. Both throw Error if attributes or constants do not fit
// together.
std::unique_ptr<NodeKernel> MakeKernel(const OpDescription& op, const NodeInfo& info,
                                       std::string node, const SessionOptions& options);
std::unique_ptr<NodeKernel> MakeKernel(Recipe recipe, const Program::Constants& constants,
                                       std::string node, const SessionOptions& options);

}  // namespace ort_aie
