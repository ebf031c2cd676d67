#include "targets/step_span.h"

#include <algorithm>
#include <type_traits>
#include <variant>

namespace ort_aie {
namespace {

const char* NameOf(Function function) {
  switch (function) {
    case Function::kAdd:
      return "Add";
    case Function::kMultiply:
      return "Mul";
    case Function::kSwiglu:
      return "SwiGLU";
    case Function::kSigmoid:
      return "Sigmoid";
    case Function::kSilu:
      return "Silu";
    case Function::kGelu:
      return "Gelu";
    case Function::kGeluTanh:
      return "GeluTanh";
    case Function::kUnit:
      return "Unit";
  }
  return "Elementwise";
}

struct Kind {
  const char* operator()(const MatMulStep& s) const {
    if (s.form.kind == WeightKind::kBf16) return s.up_weights != nullptr ? "GatedGEMM" : "GEMM";
    return s.up_weights != nullptr ? "GatedMLP" : "MatMul";
  }
  const char* operator()(const GatherStep&) const { return "Gather"; }
  const char* operator()(const AttentionStep&) const { return "Attention"; }
  const char* operator()(const NormStep& s) const {
    return s.gate != nullptr ? "GatedRMSNorm" : "RMSNorm";
  }
  const char* operator()(const ElementwiseStep& s) const { return NameOf(s.function); }
  const char* operator()(const CastStep&) const { return "Cast"; }
  const char* operator()(const MoEStep&) const { return "MoE"; }
  const char* operator()(const MoveStep&) const { return "Move"; }
  const char* operator()(const NarrowStep&) const { return "NarrowMatMul"; }
  const char* operator()(const ConvStep&) const { return "CausalConv"; }
  const char* operator()(const RecurrenceStep&) const { return "LinearAttention"; }
  const char* operator()(const GateStep&) const { return "LinearAttentionGate"; }
};

struct ShapeFacts {
  Trace::Facts operator()(const MatMulStep& s) const {
    return {{{"rows", s.rows}, {"k", s.k}, {"n", s.n}}};
  }
  Trace::Facts operator()(const GatherStep& s) const {
    return {{{"rows", s.count}, {"k", s.k}, {"n", s.n}}};
  }
  Trace::Facts operator()(const AttentionStep& s) const {
    int64_t keys = 0;  // in the longest batch row
    for (const int64_t total : s.total_length) keys = std::max(keys, total);
    return {{{"rows", s.batch * s.sequence},
             {"heads", s.heads},
             {"kv_heads", s.kv_heads},
             {"dim", s.dim},
             {"keys", keys}}};
  }
  Trace::Facts operator()(const NormStep& s) const { return {{{"rows", s.rows}, {"k", s.k}}}; }
  Trace::Facts operator()(const ElementwiseStep& s) const {
    return {{{"rows", s.rows}, {"k", s.k}}};
  }
  Trace::Facts operator()(const CastStep& s) const { return {{{"elements", s.count}}}; }
  Trace::Facts operator()(const MoEStep& s) const {
    return {{{"rows", s.rows}, {"k", s.hidden}, {"n", s.inter}, {"experts", s.top_k}}};
  }
  Trace::Facts operator()(const MoveStep& s) const { return {{{"bytes", s.bytes()}}}; }
  Trace::Facts operator()(const NarrowStep& s) const {
    return {{{"rows", s.rows}, {"k", s.k}, {"n", s.n}}};
  }
  Trace::Facts operator()(const ConvStep& s) const {
    return {{{"rows", s.batch * s.tokens}, {"k", s.channels}}};
  }
  Trace::Facts operator()(const RecurrenceStep& s) const {
    return {{{"rows", s.batch * s.tokens}, {"heads", s.heads}, {"dim", s.value_dim}}};
  }
  Trace::Facts operator()(const GateStep& s) const {
    return {{{"rows", s.rows}, {"heads", s.heads}}};
  }
};

// Texts and facts are needed only with a trace.
Trace::Facts FactsOf(const Step& step) {
  return Trace::OfProcess().on() ? std::visit(ShapeFacts(), step) : Trace::Facts{};
}

bool IsOne(const Plan& plan) { return plan.steps.size() == 1; }

}  // namespace

StepSpan::StepSpan(const char* category, const Plan& plan, size_t step)
    : TraceSpan(category, std::visit(Kind(), plan.steps[step]), plan.NameOf(step),
                FactsOf(plan.steps[step])) {}

PlanSpan::PlanSpan(const Plan& plan)
    : TraceSpan("node", IsOne(plan) ? std::visit(Kind(), plan.steps.front()) : "Plan", plan.node,
                IsOne(plan) ? FactsOf(plan.steps.front())
                            : Trace::Facts{{{"steps", static_cast<int64_t>(plan.steps.size())}}}) {}

}  // namespace ort_aie
