// The ops of the domain aie as OrtCustomOp tables. They are filled by hand, because the C++ wrapper
// of ONNX Runtime keeps one OrtApi for the whole process.
#pragma once

#include <functional>
#include <memory>

#include "ort/node_kernel.h"

namespace ort_aie {

class CustomOp : public OrtCustomOp {
 public:
  struct Table {
    const char* name;
    // With `variadic`, any number of each but at least the required outputs, of any types;
    // otherwise at most these numbers.
    bool variadic = false;
    size_t inputs = 1, required_inputs = 1, outputs = 1, required_outputs = 1;
    size_t typed_outputs = 0;  // required before ONNX Runtime 1.28 (OpDescription)
    std::function<std::unique_ptr<NodeKernel>(const KernelInfo& info,
                                              const SessionOptions& options)>
        make;
    std::function<void(const ShapeContext& context)> infer;
  };

  CustomOp(Table table, const RuntimeApi& runtime);

 private:
  const Table table_;
  const RuntimeApi runtime_;
};

CustomOp::Table TableOf(const OpDescription& op);
// aie.Plan: a region of a model in one node. Its attribute `recipe` (ops/recipe.h) describes the
// computation, and its inputs and outputs are those of the recipe.
CustomOp::Table PlanTable();

}  // namespace ort_aie
