#include "targets/npu/fused_decode/decoder_plan.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "ops/step_tensors.h"
#include "q4nx/layout.h"

namespace ort_aie::fused_decode {
namespace {

// Scores are multiplied by 1 / sqrt(head_dim), with the precision of the model's float.
constexpr double kScaleTolerance = 1e-5;

// Why the plan does not fit; thrown and caught by the reader.
struct Refusal {
  std::string reason;
};

template <typename... Parts>
void Want(bool condition, const Parts&... parts) {
  if (!condition) throw Refusal{Concat(parts...)};
}

class Reader {
 public:
  Reader(const Plan& plan, const Geometry& geometry, int64_t positions, bool any_epsilon,
         DecoderPlan& decoder)
      : plan_(plan),
        geometry_(geometry),
        positions_(positions),
        any_epsilon_(any_epsilon),
        decoder_(decoder) {}

  void Read() {
    decoder_ = {};
    while (next_ < plan_.steps.size() && !std::holds_alternative<MatMulStep>(plan_.steps[next_])) {
      ++next_;
    }
    decoder_.first = next_;
    const MatMulStep& first = Next<MatMulStep>("a projection");
    --next_;
    decoder_.x = residual_ = first.a;
    decoder_.type = first.type;
    for (int64_t i = 0; i < geometry_.layers; ++i) {
      Want(next_ + 1 < plan_.steps.size(), "the model has fewer than ", geometry_.layers,
           " layers");
      ReadLayer();
    }
    decoder_.head = &Next<MatMulStep>("the LM head");
    decoder_.last_norm = Normed(*decoder_.head);
    Want(next_ == plan_.steps.size(), "the model has more than ", geometry_.layers, " layers");
    const int64_t n = decoder_.head->n;
    const int64_t most = geometry_.head_chunks * geometry_.head_rows;
    Want(n <= most && n > most - geometry_.head_rows, "its vocabulary has ", n,
         " entries, which does not fit the overlay's ", most);
    Matrix(*decoder_.head, "the LM head", n, geometry_.hidden);
    Want(decoder_.head->up_weights == nullptr, "the LM head is gated");
    NobodyElseReads();
  }

 private:
  template <typename S>
  const S& Next(const char* what) {
    Want(next_ < plan_.steps.size(), "the plan ends before ", what);
    const S* const step = std::get_if<S>(&plan_.steps[next_]);
    Want(step != nullptr, plan_.NameOf(next_), " is where the overlay has ", what);
    ++next_;
    return *step;
  }

  void Matrix(const MatMulStep& step, const char* what, int64_t n, int64_t k) const {
    Want(step.rows == 1, "it is not one token at ", what);
    Want(step.n == n && step.k == k, "the weights of ", what, " are ", step.n, " x ", step.k,
         ", but the overlay's are ", n, " x ", k);
    Want(step.form.kind == WeightKind::kQ4NX, "the weights of ", what, " do not have 4 bits");
    Want(step.bias == nullptr, "there is a bias for ", what);
    Want(step.type == decoder_.type, "the type of ", what, " is not the embedding's");
  }

  void Epsilon(float epsilon) const {
    Want(any_epsilon_ || epsilon == kEpsilon, "its norms have eps ", epsilon,
         ", but the overlay's have ", kEpsilon, " (package-overlay --any-epsilon accepts that)");
  }

  // The norm before a projection: the norm of the residual plus what was left for it.
  const void* Normed(const MatMulStep& step) {
    Want(step.norm_weight != nullptr,
         "a projection has no norm before it, but the overlay has one there");
    Epsilon(step.norm_epsilon);
    if (left_ == nullptr) {
      Want(step.a == residual_ && step.skip == nullptr, "the first norm is of a sum");
      return step.norm_weight;
    }
    Want((step.a == residual_ && step.skip == left_) || (step.a == left_ && step.skip == residual_),
         "a norm is not of the residual plus the block before it");
    sum_ = step.sum;
    return step.norm_weight;
  }
  void Added() {
    if (left_ != nullptr) residual_ = sum_;
    left_ = nullptr;
  }

  // What is added to the residual: the result of a projection, or its norm.
  void Leave(const MatMulStep& step, DecoderPlan::Layer& layer) {
    left_ = step.y;
    if (geometry_.norms == 2) return;
    const NormStep& norm = Next<NormStep>("a norm");
    Want(norm.a == step.y && norm.skip == nullptr && norm.gate == nullptr && norm.rows == 1,
         "a norm does not read the projection before it");
    Want(norm.type == decoder_.type, "a norm has a different type from the embedding");
    Epsilon(norm.epsilon);
    layer.norms.push_back(norm.weight);
    left_ = norm.y;
  }

  void ReadLayer() {
    DecoderPlan::Layer layer;
    int64_t rows = 0;
    const void* norm = nullptr;
    while (next_ < plan_.steps.size() && std::holds_alternative<MatMulStep>(plan_.steps[next_])) {
      const MatMulStep& step = Next<MatMulStep>("queries, keys and values");
      Matrix(step, "queries, keys and values", step.n, geometry_.hidden);
      Want(step.n % q4nx::kBlockRows == 0, "a projection has ", step.n,
           " rows, which are not whole blocks");
      Want(step.up_weights == nullptr, "queries, keys or values are gated");
      const void* const of_step = Normed(step);
      Want(norm == nullptr || norm == of_step, "queries, keys and values have different norms");
      norm = of_step;
      layer.qkv.push_back(&step);
      rows += step.n;
    }
    Want(rows == geometry_.qkv_rows(), "queries, keys and values have ", rows,
         " rows, but the overlay's have ", geometry_.qkv_rows());
    Added();
    layer.norms.push_back(norm);

    layer.attention = &Next<AttentionStep>("attention");
    Check(*layer.attention, layer.qkv);

    layer.o = &Next<MatMulStep>("attention's output");
    Matrix(*layer.o, "attention's output", geometry_.hidden, geometry_.heads * geometry_.head_dim);
    Want(layer.o->a == layer.attention->output && layer.o->norm_weight == nullptr &&
             layer.o->skip == nullptr && layer.o->up_weights == nullptr,
         "attention's output goes elsewhere");
    Leave(*layer.o, layer);

    layer.mlp = &Next<MatMulStep>("a gated MLP");
    Matrix(*layer.mlp, "gate and up", geometry_.intermediate, geometry_.hidden);
    Want(layer.mlp->up_weights != nullptr, "the MLP is not gated");
    Want(layer.mlp->activation == geometry_.activation, "the MLP has a different activation");
    layer.norms.push_back(Normed(*layer.mlp));
    Added();

    layer.down = &Next<MatMulStep>("the MLP's output");
    Matrix(*layer.down, "down", geometry_.hidden, geometry_.intermediate);
    Want(layer.down->a == layer.mlp->y && layer.down->norm_weight == nullptr &&
             layer.down->skip == nullptr && layer.down->up_weights == nullptr,
         "the MLP's output goes elsewhere");
    Leave(*layer.down, layer);
    decoder_.layers.push_back(std::move(layer));
  }

  void Check(const AttentionStep& step, const std::vector<const MatMulStep*>& qkv) const {
    Want(step.batch == 1 && step.sequence == 1 && step.key_sequence == 1, "it is not one token");
    Want(step.heads == geometry_.heads && step.kv_heads == geometry_.kv_heads &&
             step.dim == geometry_.head_dim,
         "attention has ", step.heads, " heads of ", step.dim, " on ", step.kv_heads,
         ", but the overlay's has ", geometry_.heads, " of ", geometry_.head_dim, " on ",
         geometry_.kv_heads);
    Want(qkv.size() == 1 || qkv.size() == 3, "queries, keys and values are ", qkv.size(),
         " projections");
    const void *key = nullptr, *value = nullptr;
    if (qkv.size() == 1) {
      const auto* const row = static_cast<const uint8_t*>(qkv[0]->y);
      key = row + BytesOf(step.type, step.heads * step.dim);
      value = row + BytesOf(step.type, (step.heads + step.kv_heads) * step.dim);
    } else {
      key = qkv[1]->y;
      value = qkv[2]->y;
    }
    Want(step.query == qkv[0]->y && step.key == key && step.value == value,
         "attention does not read the projections before it");
    Want(step.type == decoder_.type, "attention has a different type from the embedding");
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
    const AttentionStep* const before =
        decoder_.layers.empty() ? nullptr : decoder_.layers.front().attention;
    if (before == nullptr) return;
    Want(step.past_length == before->past_length && step.cache_type == before->cache_type,
         "layers have caches of different lengths or types");
    Want(geometry_.head_norms || (step.cos == before->cos && step.sin == before->sin &&
                                  step.positions == before->positions),
         "layers rotate differently, but the overlay has only one table");
  }

  // Values that the overlay does not give.
  void NobodyElseReads() const {
    for (size_t i = decoder_.first; i < plan_.steps.size(); ++i) {
      ForEachWrite(plan_.steps[i], [&](const void* tensor, size_t bytes) {
        const auto* const attention = std::get_if<AttentionStep>(&plan_.steps[i]);
        const bool wanted = tensor == decoder_.head->y ||
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
  DecoderPlan& decoder_;
  size_t next_ = 0;
  const void* residual_ = nullptr;
  const void* left_ = nullptr;  // what the next norm adds to the residual
  const void* sum_ = nullptr;
};

}  // namespace

std::string WhyNot(const Plan& plan, const Geometry& geometry, int64_t positions, bool any_epsilon,
                   DecoderPlan& decoder) {
  try {
    Reader(plan, geometry, positions, any_epsilon, decoder).Read();
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
