// aie.FlowAttention as an op.
#include <algorithm>

#include "base/error.h"
#include "ops/flow_attention.h"
#include "ops/op.h"

namespace ort_aie {
namespace {

constexpr int64_t kMostHeads = std::numeric_limits<int32_t>::max();
constexpr int64_t kMostPositions = 1 << 24;  // exact in float32, and more than models have

FlowAttentionAttributes ReadAttributes(const NodeInfo& info) {
  FlowAttentionAttributes a;
  a.num_heads = info.Int("num_heads", 0);
  a.kv_num_heads = info.Int("kv_num_heads", 0);
  a.format = info.Int("format", 0);
  a.scale = info.Float("scale", 0.0f);
  a.softcap = info.Float("softcap", 0.0f);
  a.qk_norm_epsilon = info.Float("qk_norm_epsilon", a.qk_norm_epsilon);
  a.do_rotary = info.Int("do_rotary", 0);
  a.rotary_interleaved = info.Int("rotary_interleaved", 0);
  a.local_window_size = info.Int("local_window_size", a.local_window_size);
  a.smooth_softmax = info.Int("smooth_softmax", a.smooth_softmax);
  a.causal = info.Int("causal", a.causal);
  a.sliding_window_cache = info.Int("sliding_window_cache", 0);
  a.qk_output = info.Int("qk_output", 0);
  a.float32_products = info.Int("float32_products", 0);
  a.position_axes = info.Int("position_axes", 0);
  a.mrope_height = info.Int("mrope_height", 0);
  a.mrope_width = info.Int("mrope_width", 0);
  a.mrope_interleaved = info.Int("mrope_interleaved", 0);
  a.norm_after_rotary = info.Int("norm_after_rotary", 0);
  a.rotary_positions = info.Int("rotary_positions", 0);
  a.rotary_magnitude = info.Float("rotary_magnitude", 1.0f);
  a.k_quant_type = info.String("k_quant_type");
  a.v_quant_type = info.String("v_quant_type");
  a.kv_cache_bit_width = info.Int("kv_cache_bit_width", 0);
  return a;
}

class AttentionOp final : public Op {
 public:
  AttentionOp(const NodeInfo& info, const Options& options) : op_(ReadAttributes(info), options) {}

  void Describe(std::span<const Tensor> inputs, std::span<Output> outputs) const override {
    const FlowAttention::Outputs shapes = op_.OutputShapes(inputs);
    outputs[0] = {inputs[FlowAttention::kQuery].type, shapes.output};
    outputs[1] = outputs[2] = {shapes.cache, shapes.present};
  }
  void Append(std::span<const Tensor> inputs, std::span<const Output> outputs,
              std::span<void* const> buffers, Plan& plan) const override {
    op_.Append(inputs, {outputs[0].shape, outputs[1].shape, outputs[1].type}, buffers[0],
               buffers[1], buffers[2], plan);
  }

 private:
  const FlowAttention op_;
};

void InferAttention(const ShapeContext& context) {
  using Dim = ShapeContext::Dim;
  const auto query = context.Input(FlowAttention::kQuery);
  if (!query) Fail(ErrorCode::kInvalidGraph, "FlowAttention has no input query");
  const int64_t heads = context.Int("num_heads", 0), kv_heads = context.Int("kv_num_heads", 0);
  const auto past = context.Input(FlowAttention::kPastKey);
  const auto key = context.Input(FlowAttention::kKey);
  const bool packed = !key;
  const bool known = query->dims.size() == 3;
  const Size all_heads = Size(heads) + Size(packed ? 2 : 0) * kv_heads;
  int64_t dim = -1;
  if (known && query->dims[2].value > 0 && 1 <= all_heads) {
    dim = query->dims[2].value / all_heads.As("a token");
  }
  const Dim batch = known ? query->dims[0] : Dim{};

  context.SetOutput(
      0,
      {query->type, {batch, known ? query->dims[1] : Dim{}, Dim{dim > 0 ? dim * heads : -1, ""}}});
  // The length of present. Without past and seqlens_k, it is that of the keys of the call. A
  // windowed cache keeps its capacity. Otherwise it is the larger of the past's length and the
  // total, which is known only at run time.
  const bool windowed = context.Int("sliding_window_cache", 0) == 1;
  Dim length{};
  if (windowed && past && past->dims.size() == 4) length = past->dims[2];
  if (!past && !context.Input(FlowAttention::kSeqlensK)) {
    const auto& keys = packed ? query->dims : key->dims;
    if (keys.size() == 3) length = keys[1];
  }
  // A cache of 4 bits has two channels in a byte.
  const int64_t bits = context.Int("kv_cache_bit_width", 0);
  const int64_t cache = bits == 8   ? kOnnxInt8
                        : bits == 4 ? kOnnxUint8
                        : past      ? past->type
                                    : query->type;
  const int64_t width = bits == 4 && dim > 0 ? dim / 2 : dim;
  const ShapeContext::Value present = {
      cache, {batch, Dim{std::max<int64_t>(-1, kv_heads), ""}, length, Dim{width, ""}}};
  context.SetOutput(1, present);
  context.SetOutput(2, present);
}

}  // namespace

const OpDescription& FlowAttentionDescription() {
  static const OpDescription description = {
      .name = "FlowAttention",
      .inputs = FlowAttention::kInputCount,
      .required_inputs = 1,
      .outputs = 3,
      .required_outputs = 1,  // without present: a shared cache
      .typed_outputs = 3,
      .attributes = {{.name = "format", .required = true},
                     {.name = "num_heads", .required = true, .least = 1, .most = kMostHeads},
                     {.name = "kv_num_heads", .required = true, .least = 1, .most = kMostHeads},
                     {.name = "do_rotary"},
                     {.name = "rotary_interleaved"},
                     {.name = "local_window_size"},
                     {.name = "smooth_softmax"},
                     {.name = "causal"},
                     {.name = "sliding_window_cache"},
                     {.name = "qk_output"},
                     {.name = "float32_products"},
                     {.name = "position_axes"},
                     {.name = "mrope_height", .least = 0, .most = kMostHeads},
                     {.name = "mrope_width", .least = 0, .most = kMostHeads},
                     {.name = "mrope_interleaved"},
                     {.name = "norm_after_rotary"},
                     {.name = "rotary_positions", .least = 0, .most = kMostPositions},
                     {.name = "rotary_magnitude", .kind = AttributeRule::kFloat},
                     {.name = "kv_cache_bit_width"},
                     {.name = "scale", .kind = AttributeRule::kFloat},
                     {.name = "softcap", .kind = AttributeRule::kFloat},
                     {.name = "qk_norm_epsilon", .kind = AttributeRule::kFloat},
                     {.name = "k_quant_type", .kind = AttributeRule::kString},
                     {.name = "v_quant_type", .kind = AttributeRule::kString}},
      .create = [](const NodeInfo& info, const Options& options) -> std::unique_ptr<Op> {
        return std::make_unique<AttentionOp>(info, options);
      },
      .infer = InferAttention,
      .anchor = true};
  return description;
}

}  // namespace ort_aie
