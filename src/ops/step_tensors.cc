#include "ops/step_tensors.h"

#include <algorithm>
#include <utility>

namespace ort_aie {
namespace {

// Passes on tensors given as (first element, number of elements, type), if they are present.
class Taking {
 public:
  explicit Taking(const TakeTensor& take) : take_(take) {}
  void operator()(const void* tensor, int64_t elements, DataType type) const {
    if (tensor != nullptr && elements > 0) {
      take_(tensor, static_cast<size_t>(BytesOf(type, elements)));
    }
  }

 private:
  const TakeTensor& take_;
};

// Elements of a query, key or value, from the first to the last.
int64_t Spread(int64_t tokens, int64_t stride, int64_t width) {
  return tokens <= 0 ? 0 : (tokens - 1) * stride + width;
}

int64_t CacheElements(const AttentionStep& step, int64_t capacity) {
  return step.batch * step.kv_heads * capacity * step.dim;
}

void Reads(const MatMulStep& step, const Taking& take) {
  take(step.a, step.rows * step.k, step.type);
  take(step.skip, step.rows * step.k, step.type);
  take(step.bias, step.n, step.type);
  take(step.up_bias, step.n, step.type);
  take(step.norm_weight, step.k, step.type);
}
void Writes(const MatMulStep& step, const Taking& take) {
  take(step.y, step.rows * step.n, step.type);
  take(step.sum, step.rows * step.k, step.type);
}

void Reads(const GatherStep& step, const Taking& take) {
  take(step.indices, step.count, step.index_type);
  // The table of a selection, which an earlier step may write.
  if (step.is_table) take(step.weights, step.n * step.k, step.type);
}
void Writes(const GatherStep& step, const Taking& take) {
  take(step.y, step.count * step.k, step.type);
}

void Reads(const AttentionStep& step, const Taking& take) {
  take(step.query, Spread(step.batch * step.sequence, step.query_stride, step.heads * step.dim),
       step.type);
  for (const auto& [rows, stride] :
       {std::pair{step.key, step.key_stride}, {step.value, step.value_stride}}) {
    take(rows, Spread(step.batch * step.key_sequence, stride, step.kv_heads * step.dim), step.type);
  }
  for (const void* past : {step.past_key, step.past_value}) {
    take(past, CacheElements(step, step.past_capacity), step.cache_type);
  }
  for (const void* norm : {step.q_norm, step.k_norm, step.v_norm}) take(norm, step.dim, step.type);
  take(step.head_sink, step.heads, step.type);
  if (!step.positions.empty()) {
    const int64_t rows = *std::ranges::max_element(step.positions) + 1;
    for (const void* table : {step.cos, step.sin})
      take(table, rows * step.rotary_dim / 2, step.type);
  }
  if (step.total_length.empty()) return;
  const int64_t keys = *std::ranges::max_element(step.total_length);
  take(step.bias,
       (step.batch - 1) * step.bias_batch_stride + (step.heads - 1) * step.bias_head_stride +
           (step.sequence - 1) * step.bias_row_stride + keys,
       step.type);
  take(step.key_mask, (step.batch - 1) * step.key_mask_stride + keys, DataType::kInt64);
}
void Writes(const AttentionStep& step, const Taking& take) {
  take(step.output, step.batch * step.sequence * step.heads * step.dim, step.type);
  for (const void* present : {step.present_key, step.present_value}) {
    take(present, CacheElements(step, step.present_capacity), step.cache_type);
  }
}

void Reads(const NormStep& step, const Taking& take) {
  take(step.a, step.rows * step.k, step.type);
  take(step.skip, step.rows * step.k, step.type);
  take(step.weight, step.k, step.type);
  take(step.gate, step.rows * step.k, step.type);
}
void Writes(const NormStep& step, const Taking& take) {
  take(step.y, step.rows * step.k, step.type);
  take(step.sum, step.rows * step.k, step.type);
}

void Reads(const ElementwiseStep& step, const Taking& take) {
  using Operand = ElementwiseStep::Operand;
  take(step.a, step.rows * step.k, step.type);
  const int64_t rows = step.b_is == Operand::kTensor ? step.rows : 1;
  take(step.b, step.b_is == Operand::kScalar ? 1 : rows * step.k, step.type);
}
void Writes(const ElementwiseStep& step, const Taking& take) {
  take(step.y, step.rows * step.k, step.type);
}

void Reads(const MoEStep& step, const Taking& take) {
  take(step.x, step.rows * step.hidden, step.type);
  take(step.router, step.rows * step.experts, step.type);
  take(step.router_weights, step.rows * step.experts, step.type);
  take(step.choice_bias, step.experts, DataType::kFloat32);
  take(step.gate_bias, step.experts * step.inter, DataType::kFloat32);
  take(step.up_bias, step.experts * step.inter, DataType::kFloat32);
  take(step.down_bias, step.experts * step.hidden, DataType::kFloat32);
}
void Writes(const MoEStep& step, const Taking& take) {
  take(step.y, step.rows * step.hidden, step.type);
}

void Reads(const CastStep& step, const Taking& take) { take(step.x, step.count, step.from); }
void Writes(const CastStep& step, const Taking& take) { take(step.y, step.count, step.to); }

void Reads(const MoveStep& step, const Taking& take) {
  int64_t last = 0;  // the first byte of the last run
  for (int i = 0; i < 3; ++i) last += (step.counts[i] - 1) * step.strides[i];
  take(step.x, last + step.run, DataType::kUint8);
}
void Writes(const MoveStep& step, const Taking& take) {
  take(step.y, step.bytes(), DataType::kUint8);
}

void Reads(const NarrowStep& step, const Taking& take) {
  take(step.x, step.rows * step.k, step.type);
  take(step.weights, step.k * step.n, step.type);
}
void Writes(const NarrowStep& step, const Taking& take) {
  take(step.y, step.rows * step.n, step.type);
}

void Reads(const ConvStep& step, const Taking& take) {
  take(step.x, step.batch * step.channels * step.tokens, step.type);
  take(step.weight, step.channels * step.taps, step.type);
  take(step.bias, step.channels, step.type);
  take(step.past, step.batch * step.channels * (step.taps - 1), step.type);
}
void Writes(const ConvStep& step, const Taking& take) {
  take(step.y, step.batch * step.channels * step.tokens, step.type);
  take(step.present, step.batch * step.channels * (step.taps - 1), step.type);
}

void Reads(const RecurrenceStep& step, const Taking& take) {
  const int64_t rows = step.batch * step.tokens;
  take(step.query, rows * step.query_heads * step.key_dim, step.type);
  take(step.key, rows * step.key_heads * step.key_dim, step.type);
  take(step.value, rows * step.heads * step.value_dim, step.type);
  take(step.decay, rows * step.decays, step.gate_type);
  take(step.beta, rows * step.betas, step.gate_type);
  take(step.rate, step.heads, DataType::kFloat32);
  take(step.bias, step.biases, DataType::kFloat32);
  take(step.past, step.batch * step.heads * step.key_dim * step.value_dim, step.state_type);
}
void Writes(const RecurrenceStep& step, const Taking& take) {
  take(step.y, step.batch * step.tokens * std::max(step.query_heads, step.heads) * step.value_dim,
       step.type);
  take(step.present, step.batch * step.heads * step.key_dim * step.value_dim, step.state_type);
}

void Reads(const GateStep& step, const Taking& take) {
  take(step.a, step.rows * step.heads, step.type);
  take(step.b, step.rows * step.heads, step.type);
  take(step.bias, step.heads, DataType::kFloat32);
  take(step.factor, step.heads, DataType::kFloat32);
}
void Writes(const GateStep& step, const Taking& take) {
  take(step.decay, step.rows * step.heads, step.type);
  take(step.beta, step.rows * step.heads, step.type);
}

}  // namespace

void ForEachRead(const Step& step, const TakeTensor& take) {
  std::visit([&](const auto& s) { Reads(s, Taking(take)); }, step);
}

void ForEachWrite(const Step& step, const TakeTensor& take) {
  std::visit([&](const auto& s) { Writes(s, Taking(take)); }, step);
}

bool Reads(const Step& step, const void* tensor, size_t bytes) {
  const auto* first = static_cast<const uint8_t*>(tensor);
  bool reads = false;
  ForEachRead(step, [&](const void* read, size_t size) {
    const auto* begin = static_cast<const uint8_t*>(read);
    reads = reads || (begin < first + bytes && first < begin + size);
  });
  return reads;
}

}  // namespace ort_aie
