#include "targets/npu/schedule/layers.h"

#include <algorithm>
#include <span>
#include <utility>

#include "base/error.h"
#include "ops/step_tensors.h"
#include "q4nx/layout.h"
#include "targets/host/work.h"
#include "targets/npu/conversions.h"
#include "targets/npu/schedule/attention.h"
#include "targets/npu/schedule/designs.h"
#include "targets/npu/schedule/projection.h"
#include "targets/npu/schedule/vectors.h"

namespace ort_aie::npu_target {
namespace {

// The residual stream after a layer or between its halves: a sum, or its two terms.
struct Residual {
  const void *a, *b = nullptr;

  // Whether a row of a step is this sum.
  bool Is(const void* row, const void* skip) const {
    return (row == a && skip == b) || (row == b && skip == a);
  }
};

bool IsPlain(const MatMulStep& step, const void* a) {
  return step.a == a && step.norm_weight == nullptr && step.skip == nullptr &&
         step.up_weights == nullptr && step.activation == Activation::kNone;
}

// Reads the steps of a plan in order.
class Reader {
 public:
  explicit Reader(const Plan& plan) : steps_(plan.steps) {
    const auto is_work = [](const Step& step) {
      return std::holds_alternative<MatMulStep>(step) || std::holds_alternative<MoEStep>(step) ||
             std::holds_alternative<AttentionStep>(step);
    };
    next_ = FirstFrom(0, is_work);
    decoder_.first = next_;
    standard_ = Layers() && Vocabulary() && FirstFrom(next_, is_work) == steps_.size();
    decoder_.end = next_;
  }

  bool standard() const { return standard_; }
  Decoder& decoder() { return decoder_; }

 private:
  template <typename F>
  size_t FirstFrom(size_t first, const F& is) const {
    const auto begin = steps_.begin() + static_cast<std::ptrdiff_t>(first);
    return static_cast<size_t>(std::find_if(begin, steps_.end(), is) - steps_.begin());
  }

  // The next step, if it is of that kind.
  template <typename T>
  const T* Take() {
    const T* step = next_ < steps_.size() ? std::get_if<T>(&steps_[next_]) : nullptr;
    if (step != nullptr) ++next_;
    return step;
  }

  bool Layers() {
    do {
      DecoderLayer layer;
      if (!Layer(layer)) return false;
      decoder_.layers.push_back(layer);
    } while (next_ + 1 < steps_.size() && std::holds_alternative<AttentionStep>(steps_[next_ + 1]));
    return true;
  }

  bool Layer(DecoderLayer& layer) {
    layer.qkv = Take<MatMulStep>();
    layer.attention = Take<AttentionStep>();
    layer.output = Take<MatMulStep>();
    if (layer.qkv == nullptr || layer.attention == nullptr || layer.output == nullptr) return false;
    const MatMulStep& qkv = *layer.qkv;
    const AttentionStep& attention = *layer.attention;
    const bool first = decoder_.layers.empty();
    if (qkv.rows != 1 || qkv.norm_weight == nullptr || qkv.up_weights != nullptr ||
        qkv.activation != Activation::kNone || (qkv.skip != nullptr && qkv.sum == nullptr) ||
        !(first || before_.Is(qkv.a, qkv.skip)) || !Packs(qkv, attention) ||
        !IsPlain(*layer.output, attention.output)) {
      return false;
    }
    const Residual x{qkv.skip == nullptr ? qkv.a : qkv.sum};
    const void* attended = layer.output->y;
    if (!Norm(layer.attention_norm, attended)) return false;

    layer.gate = Take<MatMulStep>();
    layer.down = Take<MatMulStep>();
    if (layer.gate == nullptr || layer.down == nullptr) return false;
    const MatMulStep& gate = *layer.gate;
    if (gate.norm_weight == nullptr || gate.up_weights == nullptr || gate.sum == nullptr ||
        !Residual{x.a, attended}.Is(gate.a, gate.skip) || !IsPlain(*layer.down, gate.y)) {
      return false;
    }
    const void* output = layer.down->y;
    if (!Norm(layer.output_norm, output)) return false;
    before_ = {gate.sum, output};
    const int64_t hidden = qkv.k, width = attention.heads * attention.dim;
    return (layer.attention_norm == nullptr) == (layer.output_norm == nullptr) &&
           layer.output->k == width && layer.output->n == hidden && gate.k == hidden &&
           layer.down->k == gate.n && layer.down->n == hidden;
  }

  // Whether attention takes the queries, keys and values of one token from one projection.
  static bool Packs(const MatMulStep& qkv, const AttentionStep& attention) {
    const auto at = [&](int64_t elements) { return host::Advance(qkv.y, qkv.type, elements); };
    const int64_t queries = attention.heads * attention.dim,
                  keys = attention.kv_heads * attention.dim;
    return attention.batch == 1 && attention.sequence == 1 && qkv.n == queries + 2 * keys &&
           attention.query == qkv.y && attention.key == at(queries) &&
           attention.value == at(queries + keys);
  }

  // Takes a norm of `row`, if it is next, whose result then takes the place of the row.
  bool Norm(const NormStep*& norm, const void*& row) {
    norm = Take<NormStep>();
    if (norm == nullptr) return true;
    if (norm->a != std::exchange(row, norm->y)) return false;
    return norm->skip == nullptr && norm->sum == nullptr && norm->gate == nullptr;
  }

  bool Vocabulary() {
    const auto* projection = decoder_.vocabulary = Take<MatMulStep>();
    return projection != nullptr && projection->norm_weight != nullptr &&
           projection->up_weights == nullptr && projection->activation == Activation::kNone &&
           before_.Is(projection->a, projection->skip);
  }

  const std::pmr::vector<Step>& steps_;
  size_t next_ = 0;
  Residual before_{nullptr};  // what the layers so far leave
  Decoder decoder_;
  bool standard_ = false;
};

LayerFacts FactsOf(const DecoderLayer& layer) {
  const MatMulStep& gate = *layer.gate;
  const AttentionStep& attention = *layer.attention;
  const float epsilon = layer.qkv->norm_epsilon;
  const bool head_norms = attention.q_norm != nullptr || attention.k_norm != nullptr;
  const auto same = [&](const NormStep* norm) {
    return norm == nullptr || norm->epsilon == epsilon;
  };
  return {.other_bias = layer.output->bias != nullptr || layer.down->bias != nullptr,
          .quantised_cache = attention.key_scales || attention.value_scales,
          .q_norm = attention.q_norm != nullptr,
          .k_norm = attention.k_norm != nullptr,
          .v_norm = attention.v_norm != nullptr,
          .norm_after_rotary = attention.norm_after_rotary,
          .mixed_positions = attention.mixed_positions,
          .one_epsilon = gate.norm_epsilon == epsilon && same(layer.attention_norm) &&
                         same(layer.output_norm) &&
                         (!head_norms || attention.norm_epsilon == epsilon)};
}

npu::Invocation LayerOf(const DecoderLayer& layer, int64_t context, int64_t capacity) {
  const AttentionStep& attention = *layer.attention;
  return {"layer",
          {{"hidden", layer.qkv->k},
           {"heads", attention.heads},
           {"kv_heads", attention.kv_heads},
           {"head_dim", attention.dim},
           {"rotary_dim", attention.cos != nullptr ? attention.rotary_dim : 0},
           {"interleaved", attention.cos != nullptr && attention.rotary_interleaved ? 1 : 0},
           {"ffn", layer.gate->n},
           {"gelu", layer.gate->activation == Activation::kGeluTanh ? 1 : 0},
           {"head_norm", attention.q_norm != nullptr ? 1 : 0},
           {"post_norm", layer.attention_norm != nullptr ? 1 : 0},
           {"bias", layer.qkv->bias != nullptr ? 1 : 0},
           {"context", context},
           {"capacity", capacity},
           {"window", std::max<int64_t>(attention.window, 0)},
           {"scale_bits", FloatBits(attention.scale)},
           {"softcap_bits", FloatBits(attention.softcap)},
           {"eps_bits", FloatBits(layer.qkv->norm_epsilon)}},
          {}};
}

npu::Invocation HeadOf(const MatMulStep& vocabulary) {
  return {"head",
          {{"N", DeviceRows(vocabulary.n)},
           {"hidden", vocabulary.k},
           {"eps_bits", FloatBits(vocabulary.norm_epsilon)}},
          {}};
}

// Whether a tensor that a step of the decoder writes is only in the array.
bool IsInner(const Decoder& decoder, const Step& step, const void* tensor) {
  if (const auto* attention = std::get_if<AttentionStep>(&step)) {
    return tensor == attention->output;
  }
  const auto* projection = std::get_if<MatMulStep>(&step);
  if (projection == nullptr) return true;
  // The sum of two layers' boundary is in memory, that between a layer's halves is not.
  const bool boundary = projection->up_weights == nullptr && tensor == projection->sum;
  return projection != decoder.vocabulary && !boundary;
}

// Whether anything outside of the decoder reads such a tensor.
bool ReadsInner(const Plan& plan, const Decoder& decoder) {
  std::vector<Bytes> inner;
  bool wanted = false;
  for (size_t i = decoder.first; i < plan.steps.size(); ++i) {
    const bool follows = i >= decoder.end;
    if (follows) {
      ForEachRead(plan.steps[i], [&](const void* tensor, size_t bytes) {
        const Bytes read = BytesAt(tensor, bytes);
        wanted =
            wanted || std::ranges::any_of(inner, [&](Bytes one) { return Overlap(one, read); });
      });
    }
    ForEachWrite(plan.steps[i], [&](const void* tensor, size_t bytes) {
      const Bytes written = BytesAt(tensor, bytes);
      std::erase_if(inner, [&](Bytes one) { return Overlap(one, written); });
      if (follows || !IsInner(decoder, plan.steps[i], tensor)) return;
      inner.push_back(written);
      wanted = wanted || !plan.temporaries.Holds(tensor, bytes);
    });
  }
  return wanted;
}

// Adds the layers of a decoder.
class Layers {
 public:
  Layers(Scheduling& scheduling, Batch& batch) : scheduling_(scheduling), batch_(batch) {}

  // x and y: the residual stream before and after the layer.
  void Layer(const DecoderLayer& layer, npu::BufferView x, npu::BufferView y) {
    const AttentionStep& attention = *layer.attention;
    const int64_t hidden = layer.qkv->k;
    Require(RestOnHost(batch_, attention), "attention waits for the host");
    const TokenCache cache = AppendCache(scheduling_, batch_, attention);
    const CacheRows& rows = cache.rows;
    npu::Invocation invocation =
        LayerOf(layer, attention.total_length[0] - cache.first[0], rows.capacity());
    const WeightPlaces qkv = Weights(*layer.qkv), output = Weights(*layer.output),
                       gate = Weights(*layer.gate), down = Weights(*layer.down);
    // An argument without bytes is anywhere.
    const auto vector = [&](const void* data, DataType type, int64_t elements) {
      return data == nullptr ? x : Vector(data, type, elements);
    };
    const auto norm = [&](const NormStep* step) {
      return step == nullptr ? x : Vector(step->weight, step->type, hidden);
    };
    invocation.arguments = {{"x", x},
                            {"input_norm", Vector(layer.qkv->norm_weight, layer.qkv->type, hidden)},
                            {"bias", vector(layer.qkv->bias, layer.qkv->type, layer.qkv->n)},
                            {"q_norm", vector(attention.q_norm, attention.type, attention.dim)},
                            {"k_norm", vector(attention.k_norm, attention.type, attention.dim)},
                            {"table", RotaryTable(batch_, attention, 0)},
                            {"attention_norm", norm(layer.attention_norm)},
                            {"ffn_norm", Vector(layer.gate->norm_weight, layer.gate->type, hidden)},
                            {"output_norm", norm(layer.output_norm)},
                            {"w_qkv", View(qkv.weights)},
                            {"w_o", View(output.weights)},
                            {"w_gate", View(gate.weights)},
                            {"w_up", View(gate.up)},
                            {"w_down", View(down.weights)},
                            {"k", batch_.memory.View(rows.buffer(), rows.KeyOffset(0))},
                            {"v", batch_.memory.View(rows.buffer(), rows.ValueOffset(0))},
                            {"y", y}};
    batch_.Invoke(kFusedLayer, std::move(invocation));
  }

  void Vocabulary(const MatMulStep& step, npu::BufferView x) {
    npu::Invocation invocation = HeadOf(step);
    invocation.arguments = {{"x", x},
                            {"norm", Vector(step.norm_weight, step.type, step.k)},
                            {"w", View(Weights(step).weights)},
                            {"y", batch_.Output(step.y, step.n, step.type, DeviceRows(step.n))}};
    batch_.Invoke(kFusedLayer, std::move(invocation));
  }

 private:
  // A constant of the model.
  npu::BufferView Vector(const void* data, DataType type, int64_t elements) {
    Require(batch_.tensors.OnHost(data, static_cast<size_t>(elements) * SizeOf(type)),
            "a layer waits for a weight");
    return batch_.Input(elements, [=](uint16_t* to) {
      ToBfloat16(host::SelectedKernels(), type, data, elements, to);
    });
  }
  WeightPlaces Weights(const MatMulStep& step) { return scheduling_.contents.Weights(step); }
  npu::BufferView View(const DeviceMemory& memory) {
    return batch_.memory.View(memory.buffer, memory.offset);
  }

  Scheduling& scheduling_;
  Batch& batch_;
};

}  // namespace

FoundDecoder FindDecoder(const npu::Manifest& overlay, const Plan& plan,
                         const std::function<Reason(const Step&)>& why_not) {
  const AttentionStep* token = nullptr;
  for (const Step& step : plan.steps) {
    const auto* attention = std::get_if<AttentionStep>(&step);
    if (attention != nullptr && attention->sequence == 1) token = attention;
  }
  if (token == nullptr) return {};
  Reader reader(plan);
  const LayerReason form = WhyNotLayer({.plan = plan.kept != nullptr,
                                        .one_sequence = token->batch == 1,
                                        .standard = reader.standard()});
  if (form != LayerReason::kNone) return {std::nullopt, Words(form)};
  Decoder& decoder = reader.decoder();
  for (size_t i = decoder.first; i < decoder.end; ++i) {
    const Reason reason = why_not(plan.steps[i]);
    if (reason != Reason::kNone) return {std::nullopt, Words(reason)};
  }
  for (const DecoderLayer& layer : decoder.layers) {
    std::string unmet = Words(WhyNotLayer(FactsOf(layer)));
    if (unmet.empty()) {
      constexpr int64_t kSomeCapacity = 4096;  // for any head size
      unmet = npu::UnmetRequirement(overlay, LayerOf(layer, 1, kSomeCapacity));
    }
    if (!unmet.empty()) return {std::nullopt, std::move(unmet)};
  }
  std::string unmet = Words(WhyNotLayer({.other_bias = decoder.vocabulary->bias != nullptr}));
  if (unmet.empty()) unmet = npu::UnmetRequirement(overlay, HeadOf(*decoder.vocabulary));
  if (!unmet.empty()) return {std::nullopt, std::move(unmet)};
  unmet = Words(WhyNotLayer({.inner_value = ReadsInner(plan, decoder)}));
  if (!unmet.empty()) return {std::nullopt, std::move(unmet)};
  return {std::move(decoder), ""};
}

void AppendDecoder(Scheduling& scheduling, Batch& batch, const Decoder& decoder) {
  const MatMulStep& first = *decoder.layers.front().qkv;
  RowInput input(batch, false,
                 {first.a, first.skip, nullptr, first.sum, 1, first.k, first.type, 0});
  Require(input.Ready(), "the first layer waits for its input");
  npu::BufferView x = input.Make();
  Layers layers(scheduling, batch);
  for (size_t i = 0; i < decoder.layers.size(); ++i) {
    const bool last = i + 1 == decoder.layers.size();
    const MatMulStep& next = last ? *decoder.vocabulary : *decoder.layers[i + 1].qkv;
    const npu::BufferView y = next.sum == nullptr ? batch.memory.Scratch(next.k)
                                                  : batch.Output(next.sum, next.k, next.type);
    layers.Layer(decoder.layers[i], x, y);
    x = y;
  }
  layers.Vocabulary(*decoder.vocabulary, x);
  for (size_t i = decoder.first; i < decoder.end; ++i) {
    batch.tensors.Appended(scheduling.plan.steps[i]);
  }
}

}  // namespace ort_aie::npu_target
