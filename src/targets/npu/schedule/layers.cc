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

// Whether the sequences do such layers: one sequence of one token, with one projection for queries,
// keys and values, and sizes that fit together.
bool IsStandard(const DecoderLayer& layer) {
  const MatMulStep &qkv = *layer.qkv.front(), &gate = *layer.gate;
  const AttentionStep& attention = *layer.attention;
  const int64_t hidden = qkv.k, width = attention.heads * attention.dim;
  return layer.qkv.size() == 1 && attention.batch == 1 && attention.sequence == 1 &&
         qkv.n == width + 2 * attention.kv_heads * attention.dim && layer.output->k == width &&
         layer.output->n == hidden && gate.k == hidden && layer.down->k == gate.n &&
         layer.down->n == hidden &&
         (gate.activation == Activation::kSilu || gate.activation == Activation::kGeluTanh);
}

LayerReason WhyNotLayer(const DecoderLayer& layer) {
  const AttentionStep& attention = *layer.attention;
  if (layer.output->bias != nullptr || layer.down->bias != nullptr) return LayerReason::kBias;
  if (attention.key_scales || attention.value_scales) return LayerReason::kQuantisedCache;
  const bool q_norm = attention.q_norm != nullptr, k_norm = attention.k_norm != nullptr;
  const bool norms = q_norm || k_norm;
  if (q_norm != k_norm || attention.v_norm != nullptr || (norms && attention.norm_after_rotary)) {
    return LayerReason::kHeadNorms;
  }
  if (attention.mixed_positions) return LayerReason::kPositions;
  const float epsilon = layer.qkv.front()->norm_epsilon;
  const auto same = [&](const NormStep* norm) {
    return norm == nullptr || norm->epsilon == epsilon;
  };
  const bool one = layer.gate->norm_epsilon == epsilon && same(layer.attention_norm) &&
                   same(layer.output_norm) && (!norms || attention.norm_epsilon == epsilon);
  return one ? LayerReason::kNone : LayerReason::kEpsilons;
}

npu::Invocation LayerOf(const DecoderLayer& layer, int64_t context, int64_t capacity) {
  const AttentionStep& attention = *layer.attention;
  return {"layer",
          {{"hidden", layer.qkv.front()->k},
           {"heads", attention.heads},
           {"kv_heads", attention.kv_heads},
           {"head_dim", attention.dim},
           {"rotary_dim", attention.cos != nullptr ? attention.rotary_dim : 0},
           {"interleaved", attention.cos != nullptr && attention.rotary_interleaved ? 1 : 0},
           {"ffn", layer.gate->n},
           {"gelu", layer.gate->activation == Activation::kGeluTanh ? 1 : 0},
           {"head_norm", attention.q_norm != nullptr ? 1 : 0},
           {"post_norm", layer.attention_norm != nullptr ? 1 : 0},
           {"bias", layer.qkv.front()->bias != nullptr ? 1 : 0},
           {"context", context},
           {"capacity", capacity},
           {"window", std::max<int64_t>(attention.window, 0)},
           {"scale_bits", FloatBits(attention.scale)},
           {"softcap_bits", FloatBits(attention.softcap)},
           {"eps_bits", FloatBits(layer.qkv.front()->norm_epsilon)}},
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
    const int64_t hidden = layer.qkv.front()->k;
    Require(RestOnHost(batch_, attention), "attention waits for the host");
    const TokenCache cache = AppendCache(batch_, attention, scheduling_.contents.Cache(attention));
    const CacheRows& rows = cache.rows;
    npu::Invocation invocation =
        LayerOf(layer, attention.total_length[0] - cache.first[0], rows.capacity());
    const WeightPlaces qkv = Weights(*layer.qkv.front()), output = Weights(*layer.output),
                       gate = Weights(*layer.gate), down = Weights(*layer.down);
    // An argument without bytes is anywhere.
    const auto vector = [&](const void* data, DataType type, int64_t elements) {
      return data == nullptr ? x : Vector(data, type, elements);
    };
    const auto norm = [&](const NormStep* step) {
      return step == nullptr ? x : Vector(step->weight, step->type, hidden);
    };
    invocation.arguments = {
        {"x", x},
        {"input_norm", Vector(layer.qkv.front()->norm_weight, layer.qkv.front()->type, hidden)},
        {"bias", vector(layer.qkv.front()->bias, layer.qkv.front()->type, layer.qkv.front()->n)},
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
  const auto refused = [](LayerReason reason) { return FoundDecoder{{}, Words(reason)}; };
  if (plan.kept == nullptr) return refused(LayerReason::kNoPlan);
  if (token->batch != 1) return refused(LayerReason::kSeveralSequences);
  Decoder decoder;
  const std::string other = ReadDecoder(plan, decoder);
  if (!other.empty()) {
    return {std::nullopt, Concat(Words(LayerReason::kNotStandard), ": ", other)};
  }
  if (!std::ranges::all_of(decoder.layers, IsStandard)) return refused(LayerReason::kNotStandard);
  for (size_t i = decoder.first; i < decoder.end; ++i) {
    const Reason reason = why_not(plan.steps[i]);
    if (reason != Reason::kNone) return {std::nullopt, Words(reason)};
  }
  for (const DecoderLayer& layer : decoder.layers) {
    std::string unmet = Words(WhyNotLayer(layer));
    if (unmet.empty()) {
      constexpr int64_t kSomeCapacity = 4096;  // for any head size
      unmet = npu::UnmetRequirement(overlay, LayerOf(layer, 1, kSomeCapacity));
    }
    if (!unmet.empty()) return {std::nullopt, std::move(unmet)};
  }
  if (decoder.vocabulary->bias != nullptr) return refused(LayerReason::kBias);
  std::string unmet = npu::UnmetRequirement(overlay, HeadOf(*decoder.vocabulary));
  if (!unmet.empty()) return {std::nullopt, std::move(unmet)};
  if (ReadsInner(plan, decoder)) return refused(LayerReason::kInnerValue);
  return {std::move(decoder), ""};
}

void AppendDecoder(Scheduling& scheduling, Batch& batch, const Decoder& decoder) {
  const MatMulStep& first = *decoder.layers.front().qkv.front();
  RowInput input(batch, false,
                 {first.a, first.skip, nullptr, first.sum, 1, first.k, first.type, 0});
  Require(input.Ready(), "the first layer waits for its input");
  npu::BufferView x = input.Make();
  Layers layers(scheduling, batch);
  for (size_t i = 0; i < decoder.layers.size(); ++i) {
    const bool last = i + 1 == decoder.layers.size();
    const MatMulStep& next = last ? *decoder.vocabulary : *decoder.layers[i + 1].qkv.front();
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
