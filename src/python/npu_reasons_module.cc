#include <pybind11/stl.h>

#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "python/npu_module.h"
#include "targets/npu/schedule/reasons.h"

namespace py = pybind11;

namespace ort_aie::npu_target {
namespace {

using Designs = std::set<std::string, std::less<>>;
using Rows = std::optional<int64_t>;              // none: any number
using Form = std::tuple<int64_t, int64_t, bool>;  // bits, group, minima

// 16 bits for bfloat16, 0 for a form of GGUF files.
WeightKind KindOf(int64_t bits) {
  return bits == 16 ? WeightKind::kBf16 : bits == 0 ? WeightKind::kFile : q4nx::KindOfBits(bits);
}

WeightForm FormOf(const Form& form) {
  const auto& [bits, group, minima] = form;
  return {q4nx::KindOfBits(bits), group, minima};
}

HasOverlay In(const Designs& overlays) {
  return [&overlays](std::string_view design) { return overlays.contains(design); };
}

template <typename Reasons>
std::vector<std::string> AllWords() {
  std::vector<std::string> all;
  for (int i = static_cast<int>(Reasons::kNone) + 1; i < static_cast<int>(Reasons::kCount); ++i) {
    all.push_back(Words(static_cast<Reasons>(i)));
  }
  return all;
}

}  // namespace

void DefineReasons(py::module_& m) {
  m.def("reasons", &AllWords<Reason>);
  m.def("layer_reasons", &AllWords<LayerReason>);
  m.def(
      "why_not_layer",
      [](bool plan, bool standard, bool other_bias, bool quantised_cache, bool q_norm, bool k_norm,
         bool v_norm, bool norm_after_rotary, bool one_epsilon, bool inner_value) {
        return Words(WhyNotLayer({.plan = plan,
                                  .standard = standard,
                                  .other_bias = other_bias,
                                  .quantised_cache = quantised_cache,
                                  .q_norm = q_norm,
                                  .k_norm = k_norm,
                                  .v_norm = v_norm,
                                  .norm_after_rotary = norm_after_rotary,
                                  .one_epsilon = one_epsilon,
                                  .inner_value = inner_value}));
      },
      py::kw_only(), py::arg("plan") = true, py::arg("standard") = true,
      py::arg("other_bias") = false, py::arg("quantised_cache") = false, py::arg("q_norm") = false,
      py::arg("k_norm") = false, py::arg("v_norm") = false, py::arg("norm_after_rotary") = false,
      py::arg("one_epsilon") = true, py::arg("inner_value") = false);
  // Forms of Q4NX and Q2NX as (bits, group, minima); those of Q4NX as (group, minima).
  m.def(
      "form_of_plan",
      [](const std::vector<Form>& weights, const Designs& overlays) {
        std::vector<WeightForm> forms;
        for (const Form& form : weights) forms.push_back(FormOf(form));
        const WeightForm form = FormOfPlan(forms, In(overlays));
        return std::pair(form.group, form.minima);
      },
      py::arg("weights"), py::kw_only(), py::arg("overlays"));
  m.def(
      "why_widened",
      [](const Form& from, const std::pair<int64_t, bool>& to, bool planned,
         const Designs& overlays) {
        return WhyWidened(FormOf(from), {WeightKind::kQ4NX, to.first, to.second}, planned,
                          In(overlays));
      },
      py::arg("form"), py::arg("to"), py::kw_only(), py::arg("planned"), py::arg("overlays"));
  m.def("why_not_gather", [] { return Words(WhyNotGather()); });
  m.def(
      "why_not_experts",
      [](int64_t bits, int64_t down_bits, Rows rows, int64_t hidden, int64_t inter, bool int8,
         const Designs& overlays) {
        return Words(WhyNotExperts({.kind = KindOf(bits),
                                    .down_kind = KindOf(down_bits),
                                    .rows = rows.value_or(kAnyRows),
                                    .hidden = hidden,
                                    .inter = inter,
                                    .numerics = int8 ? Numerics::kInt8 : Numerics::kBf16},
                                   In(overlays)));
      },
      py::kw_only(), py::arg("bits"), py::arg("down_bits"), py::arg("rows"), py::arg("hidden"),
      py::arg("inter"), py::arg("int8") = false, py::arg("overlays"));
  // The device reads its own results without the cast. Every other cast is left to the host.
  m.def("why_not_move", [] { return Words(Reason::kMove); });
  m.def("why_not_recurrence", [] { return Words(Reason::kRecurrence); });
  m.def("why_not_cast", [] { return Words(Reason::kHostHasRow); });
  m.def(
      "why_not_projection",
      [](int64_t bits, Rows rows, int64_t n, int64_t k, bool int8, const Designs& overlays) {
        return Words(WhyNotProjection({.kind = KindOf(bits),
                                       .rows = rows.value_or(kAnyRows),
                                       .n = n,
                                       .k = k,
                                       .numerics = int8 ? Numerics::kInt8 : Numerics::kBf16},
                                      In(overlays)));
      },
      py::kw_only(), py::arg("bits"), py::arg("rows"), py::arg("n"), py::arg("k"),
      py::arg("int8") = false, py::arg("overlays"));
  m.def(
      "why_not_vector",
      [](Rows rows, int64_t k, const std::string& activation, bool gated, const Designs& overlays) {
        VectorFacts facts{.rows = rows.value_or(kAnyRows), .k = k, .gated = gated};
        if (activation == "multiply" || activation == "swiglu") {
          facts.function = activation == "swiglu" ? Function::kSwiglu : Function::kMultiply;
        } else if (!activation.empty()) {
          facts.function = ActivationFunction(activation);
        }
        return Words(WhyNotVector(facts, In(overlays)));
      },
      py::kw_only(), py::arg("rows"), py::arg("k"), py::arg("activation") = "",
      py::arg("gated") = false, py::arg("overlays"));
  m.def(
      "why_not_attention",
      [](Rows rows, int64_t dim, bool hidden_keys, bool has_bias, bool has_head_sink,
         bool smooth_softmax, bool causal, int64_t window, const Designs& overlays) {
        return Words(WhyNotAttention({.rows = rows.value_or(kAnyRows),
                                      .dim = dim,
                                      .hidden_keys = hidden_keys,
                                      .has_bias = has_bias,
                                      .has_head_sink = has_head_sink,
                                      .smooth_softmax = smooth_softmax,
                                      .causal = causal,
                                      .window = window},
                                     In(overlays)));
      },
      py::kw_only(), py::arg("rows"), py::arg("dim"), py::arg("hidden_keys") = false,
      py::arg("has_bias"), py::arg("has_head_sink"), py::arg("smooth_softmax"), py::arg("causal"),
      py::arg("window"), py::arg("overlays"));
}

}  // namespace ort_aie::npu_target
