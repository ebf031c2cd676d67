// What hybrid models have instead of attention: short convolutions and linear attention, each on a
// state; and the narrow projections to their gates.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "q4nx/layout.h"
#include "targets/host/host_target.h"
#include "targets/host/scratch.h"
#include "targets/host/work.h"

namespace ort_aie::host {
namespace {

using q4nx::CeilDiv;

// Columns of a state that are taken through all tokens of a call, and stay in L1: no column depends
// on another. A prompt's have memory of their own, without gaps.
constexpr int64_t kStateColumns = 64;
// Channels of a convolution that a task takes.
constexpr int64_t kChannels = 128;

// y (tokens) of one channel; `window` has what came before x, and then x.
void ConvolveChannel(const float* window, const float* weight, float bias, int64_t tokens,
                     int64_t taps, float* y) {
  std::fill(y, y + tokens, bias);
  for (int64_t j = 0; j < taps; ++j) {
    for (int64_t t = 0; t < tokens; ++t) y[t] += weight[j] * window[t + j];
  }
}

void ConvolveChannels(const ConvStep& step, const Kernels& kernels, int64_t first, int64_t count) {
  const int64_t state = step.taps - 1, tokens = step.tokens;
  float* window = Scratch<float>(Purpose::kRow, state + tokens);
  float* sums = Scratch<float>(Purpose::kTile, count * tokens);
  for (int64_t i = 0; i < count; ++i) {
    const int64_t row = first + i, channel = row % step.channels;
    if (step.past == nullptr) {
      std::fill(window, window + state, 0.0f);
    } else {
      ToFloat(kernels, step.type, Advance(step.past, step.type, row * state), state, window);
    }
    ToFloat(kernels, step.type, Advance(step.x, step.type, row * tokens), tokens, window + state);
    const float* weight =
        Floats(kernels, step.type, Advance(step.weight, step.type, channel * step.taps), step.taps,
               Purpose::kOperand);
    float bias = 0;
    if (step.bias != nullptr) {
      ToFloat(kernels, step.type, Advance(step.bias, step.type, channel), 1, &bias);
    }
    ConvolveChannel(window, weight, bias, tokens, step.taps, sums + i * tokens);
    if (step.present != nullptr) {
      FromFloat(kernels, step.type, window + tokens, state,
                Advance(step.present, step.type, row * state));
    }
  }
  if (step.silu) kernels.silu(sums, count * tokens, sums);
  FromFloat(kernels, step.type, sums, count * tokens, Advance(step.y, step.type, first * tokens));
}

float Softplus(float x) { return std::max(x, 0.0f) + std::log1p(std::exp(-std::fabs(x))); }

float Sigmoid(float x) { return 1.0f / (1.0f + std::exp(-x)); }

// x (rows, columns) with its axes exchanged.
void Exchange(const float* x, int64_t rows, int64_t columns, float* y) {
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < columns; ++c) y[c * rows + r] = x[r * columns + c];
  }
}

// Columns [first, first + count) of a head's state, through all tokens.
class StateColumns {
 public:
  StateColumns(const RecurrenceStep& step, const Kernels& kernels, int64_t batch, int64_t head,
               int64_t first, int64_t count)
      : step_(step), kernels_(kernels), batch_(batch), head_(head), first_(first), count_(count) {}

  void Run() const {
    const int64_t dim = step_.key_dim, tokens = step_.tokens;
    const bool in_place = step_.state_type == DataType::kFloat32 && !step_.values_first;
    float* tile = Scratch<float>(Purpose::kPanel, dim * count_);
    const float* from = tile;
    int64_t from_ld = count_;
    if (step_.past == nullptr) {
      std::fill(tile, tile + dim * count_, 0.0f);
    } else if (in_place && tokens > 0) {
      from = static_cast<const float*>(Place(step_.past, 0));
      from_ld = step_.value_dim;
    } else if (step_.values_first) {
      Exchange(static_cast<const float*>(step_.past) + Columns(), count_, dim, tile);
    } else {
      for (int64_t i = 0; i < dim; ++i) {
        ToFloat(kernels_, step_.state_type, Place(step_.past, i), count_, tile + i * count_);
      }
    }
    for (int64_t t = 0; t < tokens; ++t) {
      const bool last = in_place && t + 1 == tokens && step_.present != nullptr;
      float* to = last ? static_cast<float*>(Place(step_.present, 0)) : tile;
      const int64_t to_ld = last ? step_.value_dim : count_;
      Token(batch_ * tokens + t, from, from_ld, to, to_ld);
      from = to;
      from_ld = to_ld;
    }
    if (step_.present == nullptr || (in_place && tokens > 0)) return;
    if (step_.values_first) {
      Exchange(tile, dim, count_, static_cast<float*>(step_.present) + Columns());
      return;
    }
    for (int64_t i = 0; i < dim; ++i) {
      FromFloat(kernels_, step_.state_type, tile + i * count_, count_, Place(step_.present, i));
    }
  }

 private:
  // The columns in a row of a state.
  template <typename State>
  State* Place(State* states, int64_t row) const {
    const int64_t rows = (batch_ * step_.heads + head_) * step_.key_dim + row;
    return Advance(states, step_.state_type, rows * step_.value_dim + first_);
  }
  // Where the columns begin, of states that have values first.
  int64_t Columns() const {
    return ((batch_ * step_.heads + head_) * step_.value_dim + first_) * step_.key_dim;
  }
  // n elements of a token, from `at` on, of a tensor that has `width` for each.
  const float* Read(const void* tensor, int64_t token, int64_t width, int64_t at, int64_t n,
                    Purpose purpose) const {
    const DataType type = purpose == Purpose::kGate ? step_.gate_type : step_.type;
    return Floats(kernels_, type, Advance(tensor, type, token * width + at), n, purpose);
  }
  // A vector of key_dim elements of a token: a query or a key.
  const float* Vector(const void* tensor, int64_t token, int64_t heads, int64_t head,
                      Purpose purpose) const {
    const int64_t dim = step_.key_dim;
    const float* x = Read(tensor, token, heads * dim, head * dim, dim, purpose);
    if (!step_.unit) return x;
    // As ONNX Runtime's kernel has it: a vector of zeros stays one.
    constexpr float kLeast = 1e-12f;
    float squares = 0;
    for (int64_t i = 0; i < dim; ++i) squares += x[i] * x[i];
    float* unit = Scratch<float>(purpose, dim);
    kernels_.multiply_value(x, 1 / std::sqrt(squares + kLeast), dim, unit);
    return unit;
  }

  void Token(int64_t token, const float* past, int64_t past_ld, float* present,
             int64_t present_ld) const {
    const int64_t dim = step_.key_dim, key_head = head_ * step_.key_heads / step_.heads;
    const float* key = Vector(step_.key, token, step_.key_heads, key_head, Purpose::kKeys);
    const float* decay = Decay(token);
    float* delta = Scratch<float>(Purpose::kSkip, count_);
    const int64_t width = step_.heads * step_.value_dim;
    ToFloat(kernels_, step_.type,
            Advance(step_.value, step_.type, token * width + head_ * step_.value_dim + first_),
            count_, delta);
    if (step_.beta != nullptr) {
      const float given =
          *Read(step_.beta, token, step_.betas, step_.betas == 1 ? 0 : head_, 1, Purpose::kGate);
      const float beta = step_.sigmoid_beta ? Sigmoid(given) : given;
      float* kept_key = Scratch<float>(Purpose::kRow, dim);
      kernels_.multiply(decay, key, dim, kept_key);
      float* known = Scratch<float>(Purpose::kValues, count_);
      kernels_.vector_matrix(kept_key, dim, past, past_ld, count_, known);
      for (int64_t j = 0; j < count_; ++j) delta[j] = beta * (delta[j] - known[j]);
    }
    // The heads of queries that read this state: one, or as many as share it.
    const int64_t group = std::max<int64_t>(step_.query_heads / step_.heads, 1);
    for (int64_t i = 0; i < group; ++i) {
      const int64_t query_head = head_ * step_.query_heads / step_.heads + i;
      const float* query =
          Vector(step_.query, token, step_.query_heads, query_head, Purpose::kQueries);
      float* y = Scratch<float>(Purpose::kValues, count_);
      if (i == 0) {
        kernels_.update_state(past, past_ld, decay, key, query, delta, dim, count_, present,
                              present_ld, y);
      } else {
        kernels_.vector_matrix(query, dim, present, present_ld, count_, y);
      }
      kernels_.multiply_value(y, step_.scale, count_, y);
      const int64_t heads = std::max(step_.query_heads, step_.heads);
      const int64_t out_head = step_.query_heads > step_.heads ? query_head : head_;
      FromFloat(
          kernels_, step_.type, y, count_,
          Advance(step_.y, step_.type, (token * heads + out_head) * step_.value_dim + first_));
    }
  }

  // What is kept of each row of the state.
  const float* Decay(int64_t token) const {
    const int64_t dim = step_.key_dim;
    float* decay = Scratch<float>(Purpose::kScores, dim);
    if (step_.decay == nullptr) {
      std::fill(decay, decay + dim, 1.0f);
    } else if (step_.decays == step_.heads) {
      const float given = *Read(step_.decay, token, step_.decays, head_, 1, Purpose::kGate);
      std::fill(decay, decay + dim, std::exp(Gated(given, 0)));
    } else {
      const float* by_row =
          Read(step_.decay, token, step_.decays, head_ * dim, dim, Purpose::kGate);
      for (int64_t i = 0; i < dim; ++i) decay[i] = std::exp(Gated(by_row[i], i));
    }
    return decay;
  }

  // The logarithm of what is kept, of a decay for the row or for all rows.
  float Gated(float decay, int64_t row) const {
    if (step_.gate == RecurrenceStep::Gate::kNone) return decay;
    const bool by_head = step_.biases == step_.heads;
    const float x = decay + step_.bias[by_head ? head_ : head_ * step_.key_dim + row];
    const float rate = std::exp(step_.rate[head_]);
    return step_.gate == RecurrenceStep::Gate::kSoftplus ? -rate * Softplus(x)
                                                         : step_.lower_bound * Sigmoid(rate * x);
  }

  const RecurrenceStep& step_;
  const Kernels& kernels_;
  const int64_t batch_, head_, first_, count_;
};

}  // namespace

void RunConv(const ConvStep& step, const Kernels& kernels, const ThreadPool& threads) {
  const int64_t rows = step.batch * step.channels;
  const int64_t item_ns = PassNs(kChannels * (step.tokens + 1) * step.taps);
  threads.ParallelFor(CeilDiv(rows, kChannels), item_ns, [&](int64_t i) {
    const int64_t first = i * kChannels;
    ConvolveChannels(step, kernels, first, std::min(kChannels, rows - first));
  });
}

void RunRecurrence(const RecurrenceStep& step, const Kernels& kernels, const ThreadPool& threads) {
  const int64_t parts = CeilDiv(step.value_dim, kStateColumns);
  const int64_t products = step.key_dim * kStateColumns * 3;
  threads.ParallelFor(step.batch * step.heads * parts, ProductsNs(step.tokens * products),
                      [&](int64_t i) {
                        const int64_t state = i / parts, first = i % parts * kStateColumns;
                        StateColumns(step, kernels, state / step.heads, state % step.heads, first,
                                     std::min(kStateColumns, step.value_dim - first))
                            .Run();
                      });
}

void RunGate(const GateStep& step, const Kernels& kernels) {
  for (int64_t row = 0; row < step.rows; ++row) {
    const int64_t at = row * step.heads;
    const float* a =
        Floats(kernels, step.type, Advance(step.a, step.type, at), step.heads, Purpose::kRow);
    float* gate = Scratch<float>(Purpose::kTile, step.heads);
    for (int64_t h = 0; h < step.heads; ++h) {
      gate[h] = step.factor[h] * Softplus(a[h] + step.bias[h]);
    }
    FromFloat(kernels, step.type, gate, step.heads, Advance(step.decay, step.type, at));
    if (step.beta == nullptr) continue;
    const float* b =
        Floats(kernels, step.type, Advance(step.b, step.type, at), step.heads, Purpose::kRow);
    kernels.sigmoid(b, step.heads, gate);
    FromFloat(kernels, step.type, gate, step.heads, Advance(step.beta, step.type, at));
  }
}

void RunNarrow(const NarrowStep& step, const Kernels& kernels, const ThreadPool& threads) {
  const float* weights =
      Floats(kernels, step.type, step.weights, step.k * step.n, Purpose::kOperand);
  threads.ParallelFor(step.rows, ProductsNs(step.k * step.n), [&](int64_t row) {
    const float* x =
        Floats(kernels, step.type, Advance(step.x, step.type, row * step.k), step.k, Purpose::kRow);
    float* y = Scratch<float>(Purpose::kTile, step.n);
    kernels.vector_matrix(x, step.k, weights, step.n, step.n, y);
    FromFloat(kernels, step.type, y, step.n, Advance(step.y, step.type, row * step.n));
  });
}

}  // namespace ort_aie::host
