#include "targets/npu/fused_decode/decoder_plan.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "ops/step_tensors.h"
#include "q4nx/layout.h"

namespace ort_aie::fused_decode {

using npu_target::DecoderLayer;

namespace {

// Scores are multiplied by 1 / sqrt(head_dim), with the precision of the model's float.
constexpr double kScaleTolerance = 1e-5;

// Why the plan does not fit; thrown and caught here.
struct Refusal {
  std::string reason;
};

template <typename... Parts>
void Want(bool condition, const Parts&... parts) {
  if (!condition) throw Refusal{Concat(parts...)};
}

// Compares a decoder with a geometry.
class Comparison {
 public:
  Comparison(const Plan& plan, const Geometry& geometry, int64_t positions, bool any_epsilon,
             const DecoderPlan& decoder)
      : plan_(plan),
        geometry_(geometry),
        positions_(positions),
        any_epsilon_(any_epsilon),
        decoder_(decoder) {}

  void Compare() const {
    const auto layers = static_cast<int64_t>(decoder_.steps.layers.size());
    Want(decoder_.first().skip == nullptr, "the first norm is of a sum");
    for (const DecoderLayer& layer : decoder_.steps.layers) CompareLayer(layer);
    Want(layers >= geometry_.layers, "the model has fewer than ", geometry_.layers, " layers");
    Want(layers <= geometry_.layers, "the model has more than ", geometry_.layers, " layers");
    const MatMulStep& head = decoder_.head();
    const int64_t most = geometry_.head_chunks * geometry_.head_rows;
    Want(head.n <= most && head.n > most - geometry_.head_rows, "its vocabulary has ", head.n,
         " entries, which does not fit the overlay's ", most);
    Matrix(head, "the LM head", head.n, geometry_.hidden);
    Epsilon(head.norm_epsilon);
    NobodyElseReads();
  }

 private:
  void Matrix(const MatMulStep& step, const char* what, int64_t n, int64_t k) const {
    Want(step.rows == 1, "it is not one token at ", what);
    Want(step.n == n && step.k == k, "the weights of ", what, " are ", step.n, " x ", step.k,
         ", but the overlay's are ", n, " x ", k);
    Want(step.form.kind == WeightKind::kQ4NX, "the weights of ", what, " do not have 4 bits");
    Want(step.bias == nullptr, "there is a bias for ", what);
    Want(step.type == decoder_.type(), "the type of ", what, " is not the embedding's");
  }

  void Epsilon(float epsilon) const {
    Want(any_epsilon_ || epsilon == kEpsilon, "its norms have eps ", epsilon,
         ", but the overlay's have ", kEpsilon, " (package-overlay --any-epsilon accepts that)");
  }

  void CompareLayer(const DecoderLayer& layer) const {
    int64_t rows = 0;
    for (const MatMulStep* step : layer.qkv) {
      Matrix(*step, "queries, keys and values", step->n, geometry_.hidden);
      Want(step->n % q4nx::kBlockRows == 0, "a projection has ", step->n,
           " rows, which are not whole blocks");
      Epsilon(step->norm_epsilon);
      rows += step->n;
    }
    Want(rows == geometry_.qkv_rows(), "queries, keys and values have ", rows,
         " rows, but the overlay's have ", geometry_.qkv_rows());
    Check(*layer.attention);
    Matrix(*layer.output, "attention's output", geometry_.hidden,
           geometry_.heads * geometry_.head_dim);
    Matrix(*layer.gate, "gate and up", geometry_.intermediate, geometry_.hidden);
    Want(layer.gate->activation == geometry_.activation, "the MLP has a different activation");
    Epsilon(layer.gate->norm_epsilon);
    Matrix(*layer.down, "down", geometry_.hidden, geometry_.intermediate);
    Want((layer.attention_norm != nullptr) == (geometry_.norms != 2),
         geometry_.norms == 2 ? "outputs have norms, but the overlay's have none"
                              : "outputs have no norms, but the overlay's have");
    for (const NormStep* norm : {layer.attention_norm, layer.output_norm}) {
      if (norm == nullptr) continue;
      Want(norm->type == decoder_.type(), "a norm has a different type from the embedding");
      Epsilon(norm->epsilon);
    }
  }

  void Check(const AttentionStep& step) const {
    Want(step.batch == 1 && step.sequence == 1 && step.key_sequence == 1, "it is not one token");
    Want(step.heads == geometry_.heads && step.kv_heads == geometry_.kv_heads &&
             step.dim == geometry_.head_dim,
         "attention has ", step.heads, " heads of ", step.dim, " on ", step.kv_heads,
         ", but the overlay's has ", geometry_.heads, " of ", geometry_.head_dim, " on ",
         geometry_.kv_heads);
    Want(step.type == decoder_.type(), "attention has a different type from the embedding");
    Want(step.cos != nullptr && step.sin != nullptr && step.rotary_dim == geometry_.rotary_dim,
         "attention rotates ", step.cos == nullptr ? 0 : step.rotary_dim,
         " channels, but the overlay rotates ", geometry_.rotary_dim);
    Want(!step.rotary_interleaved, "attention rotates neighbouring channels");
    Want(!step.mixed_positions, "a token has several positions");
    Want(
        step.v_norm == nullptr && !step.norm_after_rotary,
        "heads of values have a norm, or those of queries and keys have it after they are rotated");
    Want((step.q_norm != nullptr) == geometry_.head_norms &&
             (step.k_norm != nullptr) == geometry_.head_norms,
         geometry_.head_norms ? "heads have no norms, but the overlay's heads have"
                              : "heads have norms, but the overlay's heads have none");
    if (geometry_.head_norms) Epsilon(step.norm_epsilon);
    const double scale = 1 / std::sqrt(static_cast<double>(geometry_.head_dim));
    Want(std::abs(step.scale / scale - 1) < kScaleTolerance, "attention has the scale ", step.scale,
         ", but the overlay's is 1 / sqrt(", geometry_.head_dim, ")");
    Want(step.causal && step.softcap == 0 && step.bias == nullptr && step.head_sink == nullptr &&
             !step.smooth_softmax,
         "attention has a soft cap, a bias or a sink");
    Want(!step.key_scales && !step.value_scales, "the KV cache is quantised");
    const int64_t total = step.total_length[0];
    Want(total == step.past_length[0] + 1, "its context does not grow by the token");
    Want(step.key_mask == nullptr &&
             (step.visible_keys.empty() ||
              (step.visible_keys[0].first <= 0 && step.visible_keys[0].end >= total)),
         "keys of the context are hidden");
    // The length is left out, because it would give each token a reason of its own.
    Want(total <= positions_, "the context is longer than the overlay's ", positions_, " tokens");
    Want(step.window <= 0 || total <= step.window, "the context is longer than a window of ",
         step.window, " tokens, which the overlay does not have");
    Want(step.windowed_cache || total <= step.present_capacity, "the context outgrows its cache");
    const AttentionStep* const before = decoder_.steps.layers.front().attention;
    Want(step.past_length == before->past_length && step.cache_type == before->cache_type,
         "layers have caches of different lengths or types");
    Want(geometry_.head_norms || (step.cos == before->cos && step.sin == before->sin &&
                                  step.positions == before->positions),
         "layers rotate differently, but the overlay has only one table");
  }

  // Values that the overlay does not give.
  void NobodyElseReads() const {
    for (size_t i = decoder_.steps.first; i < plan_.steps.size(); ++i) {
      ForEachWrite(plan_.steps[i], [&](const void* tensor, size_t bytes) {
        const auto* const attention = std::get_if<AttentionStep>(&plan_.steps[i]);
        const bool wanted = tensor == decoder_.head().y ||
                            (attention != nullptr && (tensor == attention->present_key ||
                                                      tensor == attention->present_value));
        Want(wanted || plan_.temporaries.Holds(tensor, bytes),
             "the model gives more than logits: ", plan_.NameOf(i));
      });
    }
  }

  const Plan& plan_;
  const Geometry& geometry_;
  const int64_t positions_;
  const bool any_epsilon_;
  const DecoderPlan& decoder_;
};

}  // namespace

std::vector<const void*> NormsOf(const DecoderLayer& layer) {
  std::vector<const void*> norms = {layer.qkv.front()->norm_weight};
  if (layer.attention_norm != nullptr) norms.push_back(layer.attention_norm->weight);
  norms.push_back(layer.gate->norm_weight);
  if (layer.output_norm != nullptr) norms.push_back(layer.output_norm->weight);
  return norms;
}

std::string WhyNot(const Plan& plan, const Geometry& geometry, int64_t positions, bool any_epsilon,
                   DecoderPlan& decoder) {
  const std::string not_decoder = npu_target::ReadDecoder(plan, decoder.steps);
  if (!not_decoder.empty()) return Concat("it is not the decoder of the overlay: ", not_decoder);
  try {
    Comparison(plan, geometry, positions, any_epsilon, decoder).Compare();
  } catch (const Refusal& refusal) {
    return refusal.reason;
  }
  return "";
}

bool IsToken(const Plan& plan) {
  size_t attentions = 0;
  for (const Step& step : plan.steps) {
    const auto* const attention = std::get_if<AttentionStep>(&step);
    if (attention == nullptr) continue;
    if (attention->batch != 1 || attention->sequence != 1) return false;
    ++attentions;
  }
  return attentions > 1 && plan.kept != nullptr;
}

}  // namespace ort_aie::fused_decode
