#include "targets/npu/schedule/decoder.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "targets/host/work.h"

namespace ort_aie::npu_target {
namespace {

bool IsWork(const Step& step) {
  return std::holds_alternative<MatMulStep>(step) || std::holds_alternative<MoEStep>(step) ||
         std::holds_alternative<AttentionStep>(step);
}

// Why a plan is not a decoder; thrown and caught here.
struct NotDecoder {
  std::string reason;
};

// The residual stream after a layer or between its halves: a sum, or its two terms.
struct Residual {
  const void *a = nullptr, *b = nullptr;

  // Whether a row of a step is this sum.
  bool Is(const void* row, const void* skip) const {
    return (row == a && skip == b) || (row == b && skip == a);
  }
};

// Reads the steps of a plan in order.
class DecoderReader {
 public:
  DecoderReader(const Plan& plan, Decoder& decoder) : plan_(plan), decoder_(decoder) {}

  void Read() {
    decoder_ = {};
    next_ = FirstWork(0);
    decoder_.first = next_;
    do {
      ReadLayer();
    } while (AttentionIsNext());
    decoder_.vocabulary = &Next<MatMulStep>("the projection to the vocabulary");
    const MatMulStep& vocabulary = *decoder_.vocabulary;
    Want(vocabulary.norm_weight != nullptr && vocabulary.up_weights == nullptr &&
             vocabulary.activation == Activation::kNone &&
             stream_.Is(vocabulary.a, vocabulary.skip),
         "is not a projection of the norm of all layers' sum");
    decoder_.end = next_;
    if (FirstWork(next_) < plan_.steps.size()) {
      next_ = FirstWork(next_) + 1;
      Refuse("follows the projection to the vocabulary");
    }
  }

 private:
  size_t FirstWork(size_t first) const {
    const auto begin = plan_.steps.begin() + static_cast<std::ptrdiff_t>(first);
    return static_cast<size_t>(std::find_if(begin, plan_.steps.end(), IsWork) -
                               plan_.steps.begin());
  }
  // Whether another layer begins.
  bool AttentionIsNext() const {
    size_t at = next_;
    while (at < plan_.steps.size() && std::holds_alternative<MatMulStep>(plan_.steps[at])) ++at;
    return at < plan_.steps.size() && std::holds_alternative<AttentionStep>(plan_.steps[at]);
  }

  // These are about the last step. Each token's plan is read, and words are made only for a
  // refusal.
  template <typename... Parts>
  [[noreturn]] void Refuse(const Parts&... parts) const {
    const std::string_view name = plan_.NameOf(next_ - 1);
    throw NotDecoder{Concat("step ", next_ - 1, name.empty() ? "" : " ", name, " ", parts...)};
  }
  void Want(bool condition, std::string_view what) const {
    if (!condition) Refuse(what);
  }
  template <typename T>
  const T& Next(std::string_view what) {
    if (next_ == plan_.steps.size()) throw NotDecoder{Concat("the plan ends before ", what)};
    const T* const step = std::get_if<T>(&plan_.steps[next_++]);
    if (step == nullptr) Refuse("is where a decoder has ", what);
    return *step;
  }

  // A projection of the norm of x, which it may sum up.
  void WantNormed(const MatMulStep& step, const Residual& x, bool gated) const {
    Want(step.rows == 1, "has several rows");
    Want(step.norm_weight != nullptr, "has no norm before it");
    Want(gated == (step.up_weights != nullptr), gated ? "is not gated" : "is gated");
    Want(x.Is(step.a, step.skip), "is not of the norm of the sum so far");
  }
  void WantPlain(const MatMulStep& step, const void* a) const {
    Want(step.a == a && step.norm_weight == nullptr && step.skip == nullptr &&
             step.up_weights == nullptr && step.activation == Activation::kNone,
         "is not a projection of the step before it alone");
  }

  void ReadLayer() {
    DecoderLayer layer;
    const Residual x = ReadQueriesKeysValues(layer);
    layer.output = &Next<MatMulStep>("the output of attention");
    WantPlain(*layer.output, layer.attention->output);
    const void* const attended = ReadNorm(layer.attention_norm, layer.output->y);

    layer.gate = &Next<MatMulStep>("gate and up");
    WantNormed(*layer.gate, {x.a, attended}, true);
    Want(layer.gate->sum != nullptr, "does not leave the sum so far");
    layer.down = &Next<MatMulStep>("down");
    WantPlain(*layer.down, layer.gate->y);
    const void* const output = ReadNorm(layer.output_norm, layer.down->y);
    Want((layer.attention_norm == nullptr) == (layer.output_norm == nullptr),
         "ends a layer with one norm of an output");
    stream_ = {layer.gate->sum, output};
    decoder_.layers.push_back(std::move(layer));
  }

  // Returns the stream before the layer, as one row.
  Residual ReadQueriesKeysValues(DecoderLayer& layer) {
    Residual x;
    do {
      const MatMulStep& step = Next<MatMulStep>("queries, keys and values");
      if (decoder_.layers.empty() && layer.qkv.empty()) stream_ = {step.a, step.skip};
      WantNormed(step, stream_, false);
      Want(step.activation == Activation::kNone, "has an activation");
      Want(layer.qkv.empty() || step.norm_weight == layer.qkv.front()->norm_weight,
           "has another norm than the queries");
      if (step.skip == nullptr) x.a = step.a;
      if (step.skip != nullptr && step.sum != nullptr) x.a = step.sum;
      layer.qkv.push_back(&step);
    } while (next_ < plan_.steps.size() && std::holds_alternative<MatMulStep>(plan_.steps[next_]));
    Want(x.a != nullptr, "does not leave the sum so far");
    Want(layer.qkv.size() == 1 || layer.qkv.size() == 3,
         "is not the third projection of queries, keys and values");
    layer.attention = &Next<AttentionStep>("attention");
    const AttentionStep& attention = *layer.attention;
    const MatMulStep& first = *layer.qkv.front();
    const auto in_first = [&](int64_t heads) {
      return Advance(static_cast<const void*>(first.y), first.type, heads * attention.dim);
    };
    const bool one = layer.qkv.size() == 1;
    Want(attention.query == first.y &&
             attention.key == (one ? in_first(attention.heads) : layer.qkv[1]->y) &&
             attention.value ==
                 (one ? in_first(attention.heads + attention.kv_heads) : layer.qkv[2]->y),
         "does not read the projections before it");
    return x;
  }

  // Takes a norm of `row`, if it is next, and returns what is then in the place of the row.
  const void* ReadNorm(const NormStep*& norm, const void* row) {
    norm = next_ < plan_.steps.size() ? std::get_if<NormStep>(&plan_.steps[next_]) : nullptr;
    if (norm == nullptr) return row;
    ++next_;
    Want(norm->rows == 1 && norm->a == row && norm->skip == nullptr && norm->sum == nullptr &&
             norm->gate == nullptr,
         "is not a norm of the projection before it alone");
    return norm->y;
  }

  const Plan& plan_;
  Decoder& decoder_;
  size_t next_ = 0;
  Residual stream_;  // what the layers so far leave
};

}  // namespace

std::string ReadDecoder(const Plan& plan, Decoder& decoder) {
  try {
    DecoderReader(plan, decoder).Read();
  } catch (const NotDecoder& not_decoder) {
    return not_decoder.reason;
  }
  return "";
}

}  // namespace ort_aie::npu_target
