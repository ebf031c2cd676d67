#include "decoder.h"

#include <tuple>

namespace ort_aie::npu_target {
namespace {

constexpr size_t kArenaBytes = 1 << 18;

Values Norm(int64_t n) {  // around 1, as in real models
  std::vector<float> x = Exact(n, 0.0625f, 4);
  for (float& value : x) value += 1;
  return Values(WholeDecoder::kType, x);
}

WholeDecoder::Model::Matrix NewMatrix(int64_t n, int64_t k, const WeightForm& form) {
  return {Weights(n, k, form), n, k, form};
}

double Spread(const std::vector<float>& x) {
  double sum = 0, squares = 0;
  for (const float value : x) {
    sum += value;
    squares += double{value} * value;
  }
  const auto n = static_cast<double>(x.size());
  return std::sqrt(squares / n - sum / n * sum / n);
}

}  // namespace

// The device rounds to bfloat16, each time by at most 2^-8 of the value. In a layer it rounds the
// row before and after two norms, the sum and its norm's result (with norms behind: two more),
// projections' results (q, k, v, o, gate and up, down), rotated and normalised q and k, the
// attention's output and the MLP's product. These errors are independent and add up in squares. A
// layer passes an error on at about its size, because its residual is its own input.
double Bound(int64_t layers) { return 0x1p-8 * std::sqrt(18.0 * static_cast<double>(layers)); }

void Close(const Values& got, const Values& want, double bound, bool by_host) {
  std::vector<float> x = got.floats();
  const std::vector<float> y = want.floats();
  double squares = 0;
  for (size_t i = 0; i < x.size(); ++i) squares += double{x[i] - y[i]} * (x[i] - y[i]);
  const double error = std::sqrt(squares / static_cast<double>(x.size())) / Spread(y);
  Check(error <= bound, "logits differ by ", error, " of their spread, expected ", bound);
  Check(error > 0 || by_host, "the host's logits, bit for bit");
}

WholeDecoder::Model::Model(const Family& f, int64_t count, const WeightForm& form,
                           const WeightForm& of_vocabulary)
    : family(f),
      vocabulary(NewMatrix(f.vocabulary, f.hidden, of_vocabulary)),
      norm(Norm(f.hidden)),
      scale(kType, std::vector<float>{16}) {
  for (int64_t i = 0; i < count; ++i) {
    std::vector<int64_t> widths = {f.heads * kDim, f.kv_heads * kDim, f.kv_heads * kDim};
    if (f.packed) widths = {(f.heads + 2 * f.kv_heads) * kDim};
    std::vector<Matrix> qkv;
    for (const int64_t n : widths) qkv.push_back(NewMatrix(n, f.hidden, form));
    const bool windowed = f.window > 0 && (f.every == 0 || (i + 1) % f.every != 0);
    Layer layer{.qkv = std::move(qkv),
                .o = NewMatrix(f.hidden, f.heads * kDim, form),
                .gate = NewMatrix(f.intermediate, f.hidden, form),
                .up = NewMatrix(f.intermediate, f.hidden, form),
                .down = NewMatrix(f.hidden, f.intermediate, form),
                .norm = Norm(f.hidden),
                .mlp_norm = Norm(f.hidden),
                .attention = {.heads = f.heads,
                              .kv_heads = f.kv_heads,
                              .dim = kDim,
                              .cache_type = f.cache_type,
                              .window = windowed ? f.window : 0,
                              .rotary = true,
                              .qk_norm = f.qk_norm,
                              .rotary_dim = f.rotary_dim,
                              .windowed_cache = windowed && f.windowed}};
    if (f.norms_behind) {
      layer.attention_norm_behind = Norm(f.hidden);
      layer.mlp_norm_behind = Norm(f.hidden);
    }
    layers.push_back(std::move(layer));
    caches.emplace_back(layers.back().attention, windowed && f.windowed ? f.window + 4 : f.capacity,
                        f.in_place);
    caches.back().past = {0};
  }
}

WholeDecoder::WholeDecoder(const Model& model, bool as_program)
    : logits(kType, model.family.vocabulary),
      caches(model.caches),
      model_(model),
      as_program_(as_program) {}

const Values& WholeDecoder::Present(size_t layer, bool values) const {
  if (model_.family.in_place) return values ? caches[layer].values : caches[layer].keys;
  return values ? presents_[layer].second : presents_[layer].first;
}

// In a program, each layer reuses the memory; otherwise each temporary has a separate place.
void* WholeDecoder::Temporary(int64_t elements) {
  const auto bytes = static_cast<size_t>(RoundUp(elements * 4, 64));
  Check(used_ + bytes <= arena_.size(), "the arena is too small");
  used_ += bytes;
  return arena_.data() + used_ - bytes;
}

Plan WholeDecoder::Tokens(const std::vector<int64_t>& ids) {
  const Family& f = model_.family;
  ids_ = ids;
  const auto rows = static_cast<int64_t>(ids.size());
  const size_t half = kArenaBytes / 2 * ids.size();
  arena_.assign(half * (as_program_ ? 2 : 8), 0xab);
  attentions_.clear();
  presents_.clear();
  Plan plan;
  const auto project = [&](const Model::Matrix& w, const void* a, void* y) -> MatMulStep& {
    MatMulStep step{};
    step.weights = w.blocks.data();
    step.form = w.form;
    step.rows = rows;
    step.k = w.k;
    step.n = w.n;
    step.a = a;
    step.y = y;
    step.type = kType;
    step.numerics = Numerics::kBf16;
    step.norm_epsilon = f.epsilon;
    step.kept = w.kept;
    plan.steps.push_back(step);
    return std::get<MatMulStep>(plan.steps.back());
  };
  // x = norm(a), or the norm of the sum of a and the residual, which the sum then replaces.
  const auto normalise = [&](MatMulStep& step, const Values& norm, const void*& residual,
                             void* sum) {
    step.norm_weight = norm.data();
    if (residual != step.a) {
      step.skip = residual;
      step.sum = sum;
    }
  };
  const auto norm_behind = [&](const void* a, const Values& norm) -> const void* {
    if (!f.norms_behind) return a;
    void* y = Temporary(rows * f.hidden);
    plan.steps.push_back(NormStep{.rows = rows,
                                  .k = f.hidden,
                                  .a = a,
                                  .skip = nullptr,
                                  .weight = norm.data(),
                                  .y = y,
                                  .sum = nullptr,
                                  .type = kType,
                                  .epsilon = f.epsilon});
    return y;
  };

  // The layers alternate between the two halves of the arena: each reads the previous one's
  // results.
  used_ = 0;
  void* embedding = Temporary(rows * f.hidden);
  plan.steps.push_back(GatherStep{.weights = model_.vocabulary.blocks.data(),
                                  .count = rows,
                                  .k = f.hidden,
                                  .n = f.vocabulary,
                                  .indices = ids_.data(),
                                  .index_type = DataType::kInt64,
                                  .y = embedding,
                                  .type = kType,
                                  .form = model_.vocabulary.form});
  if (f.norms_behind && f.scaled) {
    void* scaled = Temporary(rows * f.hidden);
    plan.steps.push_back(ElementwiseStep{.function = Function::kMultiply,
                                         .rows = rows,
                                         .k = f.hidden,
                                         .a = embedding,
                                         .b = model_.scale.data(),
                                         .b_is = ElementwiseStep::Operand::kScalar,
                                         .y = scaled,
                                         .type = kType});
    embedding = scaled;
  }
  const void *x = embedding, *residual = embedding;
  for (size_t i = 0; i < model_.layers.size(); ++i) {
    const Model::Layer& layer = model_.layers[i];
    if (as_program_) used_ = static_cast<size_t>(8 * f.hidden) * ids.size() + i % 2 * half;
    void* sum = Temporary(rows * f.hidden);
    std::array<void*, 3> parts{};
    int64_t stride = 0;
    for (size_t part = 0; part < layer.qkv.size(); ++part) {
      MatMulStep& step = project(layer.qkv[part], x, Temporary(rows * layer.qkv[part].n));
      normalise(step, layer.norm, residual, sum);
      parts[part] = step.y;
      stride = layer.qkv[part].n;
    }
    if (x != residual) residual = sum;
    AttentionStep attention = caches[i].Step(rows, {});
    const AttentionStep first = caches[0].Step(rows, {});  // the model has one table
    attention.cos = first.cos;
    attention.sin = first.sin;
    if (f.packed) {
      parts[1] = ort_aie::Advance(parts[0], kType, f.heads * kDim);
      parts[2] = ort_aie::Advance(parts[0], kType, (f.heads + f.kv_heads) * kDim);
      attention.query_stride = attention.key_stride = attention.value_stride = stride;
    }
    attention.query = parts[0];
    attention.key = parts[1];
    attention.value = parts[2];
    attention.norm_epsilon = f.epsilon;
    attention.past_key = attention.present_key = caches[i].keys.data();
    attention.past_value = attention.present_value = caches[i].values.data();
    if (!f.in_place) {
      auto& [keys, values] = presents_.emplace_back(caches[i].Rows(attention.present_capacity),
                                                    caches[i].Rows(attention.present_capacity));
      attention.present_key = keys.data();
      attention.present_value = values.data();
    }
    attention.output = Temporary(rows * f.heads * kDim);
    attentions_.push_back(attention);
    plan.steps.push_back(attention);
    x = norm_behind(project(layer.o, attention.output, Temporary(rows * f.hidden)).y,
                    layer.attention_norm_behind);
    void* mlp_sum = Temporary(rows * f.hidden);
    MatMulStep& mlp = project(layer.gate, x, Temporary(rows * f.intermediate));
    normalise(mlp, layer.mlp_norm, residual, mlp_sum);
    mlp.up_weights = layer.up.blocks.data();
    mlp.activation = f.gelu ? Activation::kGeluTanh : Activation::kSilu;
    residual = mlp_sum;
    const void* gated = mlp.y;
    x = norm_behind(project(layer.down, gated, Temporary(rows * f.hidden)).y,
                    layer.mlp_norm_behind);
  }
  // Of the last token only.
  last_ = rows - 1;
  const auto select = [&](const void* all) -> const void* {
    if (rows == 1) return all;
    void* y = Temporary(f.hidden);
    plan.steps.push_back(GatherStep{.weights = static_cast<const uint8_t*>(all),
                                    .count = 1,
                                    .k = f.hidden,
                                    .n = rows,
                                    .indices = &last_,
                                    .index_type = DataType::kInt64,
                                    .y = y,
                                    .type = kType,
                                    .is_table = true});
    return y;
  };
  x = select(x);
  residual = select(residual);
  MatMulStep& last = project(model_.vocabulary, x, logits.data());
  last.rows = 1;
  normalise(last, model_.norm, residual, Temporary(f.hidden));
  if (as_program_) {
    plan.kept = model_.kept;
    plan.temporaries = {arena_.data(), arena_.size()};
  }
  return plan;
}

void WholeDecoder::Advance() {
  for (size_t i = 0; i < caches.size(); ++i) {
    if (!model_.family.in_place) std::tie(caches[i].keys, caches[i].values) = presents_[i];
    caches[i].Advance(attentions_[i]);
  }
}

}  // namespace ort_aie::npu_target
