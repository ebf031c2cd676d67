#include "ort/node_kernel.h"

#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "base/error.h"
#include "targets/step_span.h"

namespace ort_aie {
namespace {

void Execute(Plan& plan, const std::string& node, const SessionOptions& options,
             const KernelContext& context) {
  plan.node = node;
  const PlanSpan span(plan);
  options.target->Execute(plan, OrtThreadPool(context));
}

class OpKernel final : public NodeKernel {
 public:
  OpKernel(const OpDescription& op, const NodeInfo& info, std::string node,
           const SessionOptions& options)
      : node_(std::move(node)),
        description_(op),
        options_(options),
        op_(MakeOp(op, info, options_)) {}

  void Compute(const KernelContext& context) const override {
    std::array<Tensor, kMostInputs> inputs;
    std::array<Op::Output, kMostOutputs> outputs;
    std::array<void*, kMostOutputs> buffers{};
    for (size_t i = 0; i < description_.inputs; ++i) inputs[i] = context.Input(i);
    op_->Describe(inputs, outputs);
    for (size_t i = 0; i < description_.outputs; ++i) {
      if (outputs[i].type == DataType::kOther) continue;
      buffers[i] = context.Output(i, outputs[i].type, outputs[i].shape);
    }
    Plan plan(context.memory());
    op_->Append(inputs, outputs, buffers, plan);
    Execute(plan, node_, options_, context);
  }

 private:
  const std::string node_;
  const OpDescription& description_;
  const SessionOptions options_;
  const std::unique_ptr<Op> op_;
};

// A stoppable session needs a node for each layer, and this node is already made.
void RequireStoppable(const Recipe& recipe, const SessionOptions& options) {
  if (!options.stoppable) return;
  const auto attentions = std::ranges::count(recipe.steps, "FlowAttention", &Recipe::Step::op);
  Require(attentions <= 1, "ort_aie.stoppable=yes: the node has ", attentions,
          " layers, and a run can end only between nodes; compile the model with stoppable "
          "(--stoppable), or write the context model with this option");
}

class PlanKernel final : public NodeKernel {
 public:
  PlanKernel(Recipe recipe, const Program::Constants& constants, std::string node,
             const SessionOptions& options)
      : node_(std::move(node)),
        options_(options),
        program_(std::move(recipe), constants, options_) {}

  void Compute(const KernelContext& context) const override {
    struct Io final : Program::Io {
      explicit Io(const KernelContext& its) : context(its) {}
      Tensor Input(int input) const override { return context.Input(static_cast<size_t>(input)); }
      void* Output(int output, DataType type, const Shape& shape) const override {
        return context.Output(static_cast<size_t>(output), type, shape);
      }
      const KernelContext& context;
    };
    program_.Call(Io(context), [&](Plan& plan) { Execute(plan, node_, options_, context); });
  }

 private:
  const std::string node_;
  const SessionOptions options_;
  const Program program_;
};

}  // namespace

std::unique_ptr<NodeKernel> MakeKernel(const OpDescription& op, const NodeInfo& info,
                                       std::string node, const SessionOptions& options) {
  return std::make_unique<OpKernel>(op, info, std::move(node), options);
}

std::unique_ptr<NodeKernel> MakeKernel(Recipe recipe, const Program::Constants& constants,
                                       std::string node, const SessionOptions& options) {
  RequireStoppable(recipe, options);
  return std::make_unique<PlanKernel>(std::move(recipe), constants, std::move(node), options);
}

}  // namespace ort_aie
