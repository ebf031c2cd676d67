#include "fused_device.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <utility>

#include "bench.h"
#include "q4nx/pack.h"

namespace ort_aie::npu_target {
namespace {

using fused_decode::Geometry;
using Vector = std::vector<double>;

// A decoder as floats; matrices are row-major.
struct DenseDecoder {
  struct Layer {
    std::vector<float> qkv, o, up, gate, down;
    std::vector<std::vector<float>> norms;  // of `hidden`
    std::vector<float> q_norm = {}, k_norm = {}, cos, sin;
    std::vector<float> keys, values;  // of the past, (position, kv head, dim)
  };
  std::vector<Layer> layers;
  std::vector<float> last_norm, head;
};

struct TokenResult {
  std::vector<float> logits;
  std::vector<std::vector<float>> keys, values;  // of the token, by layer: (kv head, dim)
};

float FloatOf(uint16_t x) { return std::bit_cast<float>(static_cast<uint32_t>(x) << 16); }

uint16_t BitsOf(float x) {  // to nearest, ties to even; for finite numbers
  const auto bits = std::bit_cast<uint32_t>(x);
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

Vector Product(const std::vector<float>& matrix, const Vector& x) {
  Vector y(matrix.size() / x.size());
  for (size_t n = 0; n < y.size(); ++n) {
    for (size_t k = 0; k < x.size(); ++k) y[n] += matrix[n * x.size() + k] * x[k];
  }
  return y;
}

Vector Norm(const Vector& x, const std::vector<float>& weight) {
  double squares = 0;
  for (const double value : x) squares += value * value;
  const double factor = 1 / std::sqrt(squares / static_cast<double>(x.size()) + 1e-6);
  Vector y(x.size());
  for (size_t i = 0; i < x.size(); ++i) y[i] = x[i] * factor * weight[i];
  return y;
}

void Add(Vector& x, const Vector& y) {
  for (size_t i = 0; i < x.size(); ++i) x[i] += y[i];
}

// Heads of a token: normalised, then pairs (d, d + half) rotated.
void Rotate(Vector& heads, int64_t dim, const std::vector<float>& norm,
            const DenseDecoder::Layer& layer) {
  const size_t width = static_cast<size_t>(dim), half = layer.cos.size();
  for (size_t first = 0; first < heads.size(); first += width) {
    Vector head(heads.begin() + static_cast<std::ptrdiff_t>(first),
                heads.begin() + static_cast<std::ptrdiff_t>(first + width));
    if (!norm.empty()) head = Norm(head, norm);
    for (size_t d = 0; d < half; ++d) {
      const double a = head[d], b = head[d + half];
      head[d] = a * layer.cos[d] - b * layer.sin[d];
      head[d + half] = b * layer.cos[d] + a * layer.sin[d];
    }
    std::ranges::copy(head, heads.begin() + static_cast<std::ptrdiff_t>(first));
  }
}

double Activated(Activation activation, double x) {
  if (activation == Activation::kSilu) return x / (1 + std::exp(-x));
  return x / 2 * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
}

std::vector<float> AllRounded(const Vector& x, size_t first, size_t count) {
  std::vector<float> y;
  for (size_t i = first; i < first + count; ++i)
    y.push_back(FloatOf(BitsOf(static_cast<float>(x[i]))));
  return y;
}

Vector Attend(const Geometry& geometry, const DenseDecoder::Layer& layer, const Vector& queries,
              const std::vector<float>& key, const std::vector<float>& value) {
  const auto dim = static_cast<size_t>(geometry.head_dim);
  const auto row = static_cast<size_t>(geometry.kv_heads * geometry.head_dim);
  std::vector<float> keys = layer.keys, values = layer.values;
  keys.insert(keys.end(), key.begin(), key.end());
  values.insert(values.end(), value.begin(), value.end());
  const size_t length = keys.size() / row;
  Vector output(queries.size());
  for (size_t head = 0; head < queries.size() / dim; ++head) {
    const size_t at =
        head * static_cast<size_t>(geometry.kv_heads) / static_cast<size_t>(geometry.heads) * dim;
    Vector weights(length);
    for (size_t p = 0; p < length; ++p) {
      for (size_t d = 0; d < dim; ++d)
        weights[p] += queries[head * dim + d] * keys[p * row + at + d];
      weights[p] = std::exp(weights[p] / std::sqrt(static_cast<double>(dim)));
    }
    double sum = 0;
    for (const double weight : weights) sum += weight;
    for (size_t p = 0; p < length; ++p) {
      for (size_t d = 0; d < dim; ++d) {
        output[head * dim + d] += weights[p] / sum * values[p * row + at + d];
      }
    }
  }
  return output;
}

// A token that follows a past, in double; logits and rows rounded to bfloat16.
TokenResult Decode(const Geometry& geometry, const DenseDecoder& model, std::vector<float> start) {
  Vector x(start.begin(), start.end());
  const auto queries = static_cast<size_t>(geometry.heads * geometry.head_dim);
  const auto row = static_cast<size_t>(geometry.kv_heads * geometry.head_dim);
  TokenResult result;
  for (const DenseDecoder::Layer& layer : model.layers) {
    size_t norm = 0;
    const auto behind = [&](const Vector& y) {
      return geometry.norms == 4 ? Norm(y, layer.norms[norm++]) : y;
    };
    const Vector qkv = Product(layer.qkv, Norm(x, layer.norms[norm++]));
    Vector q(qkv.begin(), qkv.begin() + static_cast<std::ptrdiff_t>(queries));
    Vector k(qkv.begin() + static_cast<std::ptrdiff_t>(queries),
             qkv.begin() + static_cast<std::ptrdiff_t>(queries + row));
    Rotate(q, geometry.head_dim, layer.q_norm, layer);
    Rotate(k, geometry.head_dim, layer.k_norm, layer);
    result.keys.push_back(AllRounded(k, 0, row));
    result.values.push_back(AllRounded(qkv, queries + row, row));
    const Vector attended = Attend(geometry, layer, q, result.keys.back(), result.values.back());
    Add(x, behind(Product(layer.o, attended)));
    const Vector y = Norm(x, layer.norms[norm++]);
    Vector up = Product(layer.up, y);
    const Vector gate = Product(layer.gate, y);
    for (size_t i = 0; i < up.size(); ++i) up[i] *= Activated(geometry.activation, gate[i]);
    Add(x, behind(Product(layer.down, up)));
  }
  const Vector logits = Product(model.head, Norm(x, model.last_norm));
  result.logits = AllRounded(logits, 0, logits.size());
  return result;
}

// The cores' data as rows of blocks again, from block `at`, which becomes the end.
std::vector<uint8_t> Unpacked(const uint8_t* packed, int64_t& at, int64_t row_blocks,
                              int64_t column_blocks, int64_t channels) {
  std::vector<uint8_t> blocks(static_cast<size_t>(row_blocks * column_blocks * 5120));
  for (int64_t column = 0; column < 4; ++column) {
    for (int64_t channel = 0; channel < channels; ++channel) {
      for (int64_t round = 0; round < row_blocks / 16; ++round) {
        for (int64_t j = 0; j < column_blocks; ++j) {
          for (int64_t i = 0; i < 4 / channels; ++i) {
            const int64_t row = 16 * round + 4 * column + channel * 4 / channels + i;
            std::memcpy(blocks.data() + (row * column_blocks + j) * 5120, packed + at++ * 5120,
                        5120);
          }
        }
      }
    }
  }
  return blocks;
}

std::vector<float> Floats(const uint8_t* blocks, int64_t n, int64_t k) {
  std::vector<float> weights(static_cast<size_t>(n * k));
  q4nx::Dequantize(blocks, n, k, weights.data(), q4nx::kShipping);
  return weights;
}

class TwoSided final : public Buffer {
 public:
  explicit TwoSided(size_t bytes) : host_(bytes, 0xff), device_(bytes, 0xff) {}
  uint8_t* host() override { return host_.data(); }
  size_t size() const override { return host_.size(); }
  void ToDevice(size_t offset, size_t bytes) override { Copy(host_, device_, offset, bytes); }
  void FromDevice(size_t offset, size_t bytes) override { Copy(device_, host_, offset, bytes); }
  uint16_t* device() { return reinterpret_cast<uint16_t*>(device_.data()); }

 private:
  static void Copy(const std::vector<uint8_t>& from, std::vector<uint8_t>& to, size_t offset,
                   size_t bytes) {
    Check(offset + bytes <= from.size(), "a transfer goes beyond its buffer");
    std::memcpy(to.data() + offset, from.data() + offset, bytes);
  }
  std::vector<uint8_t> host_, device_;
};

uint16_t* Device16(Buffer* buffer) { return static_cast<TwoSided*>(buffer)->device(); }

}  // namespace

std::shared_ptr<Buffer> FusedDevice::Allocate(size_t bytes) {
  ++alive->buffers;
  return {new TwoSided(bytes), [all = alive](Buffer* buffer) {
            --all->buffers;
            delete buffer;
          }};
}

class FusedDevice::Stream final : public OtherStream {
 public:
  Stream(FusedDevice& device, std::string overlay, std::span<const uint32_t> words)
      : device_(device),
        overlay_(std::move(overlay)),
        alive_(device.alive),
        words_(words.begin(), words.end()),
        sent_(words_) {
    alive_->most_streams = std::max(alive_->most_streams, ++alive_->streams);
  }
  ~Stream() override { --alive_->streams; }

  std::span<uint32_t> words() override { return words_; }
  void Run(size_t begin, size_t end, std::span<Buffer* const> buffers) override {
    std::copy(words_.begin() + static_cast<std::ptrdiff_t>(begin),
              words_.begin() + static_cast<std::ptrdiff_t>(end),
              sent_.begin() + static_cast<std::ptrdiff_t>(begin));
    Check(sent_ == words_, "words changed that were not sent");
    device_.before_run();
    device_.runs.push_back(overlay_);
    const auto length = static_cast<int64_t>(sent_[kLengthWord]);
    const int64_t row = 2 * device_.geometry_.region_width();
    Check(sent_[kRowWord] == 1000 + static_cast<uint32_t>((length - 1) * row),
          "the row's place is not that of the length ", length);
    device_.Token(device_.windows.at(overlay_), length, buffers);
  }

 private:
  FusedDevice& device_;
  const std::string overlay_;
  const std::shared_ptr<Alive> alive_;
  std::vector<uint32_t> words_, sent_;
};

std::unique_ptr<OtherStream> FusedDevice::Load(const OtherOverlay& overlay,
                                               std::span<const uint32_t> words) {
  Check(overlay.device == "npu2" && overlay.kernel == "MLIR_AIE", "another overlay");
  return std::make_unique<Stream>(*this, overlay.path, words);
}

void FusedDevice::Token(int64_t positions, int64_t length, std::span<Buffer* const> buffers) {
  const Geometry& g = geometry_;
  // x, w, rms, y, kvc, and the remaining weights.
  Check(length >= 1 && length <= positions, "a length of ", length);
  Check(buffers.size() == (g.group == 0 ? 5 : 5 + static_cast<size_t>(g.layers / g.group)),
        "there are ", buffers.size(), " buffers");
  uint16_t *const x = Device16(buffers[0]), *const rms = Device16(buffers[2]),
                  *const y = Device16(buffers[3]), *const cache = Device16(buffers[4]);
  std::vector<Buffer*> weights = {buffers[1]};
  weights.insert(weights.end(), buffers.begin() + 5, buffers.end());

  const int64_t queries = g.heads * g.head_dim, row = g.kv_heads * g.head_dim;
  const int64_t half_heads = g.kv_heads / 2 * g.head_dim;  // of a region
  int64_t read = 0;                                        // of rms
  const auto take = [&](int64_t count) {
    std::vector<float> values;
    for (int64_t i = 0; i < count; ++i) values.push_back(FloatOf(rms[read++]));
    return values;
  };
  DenseDecoder model;
  int64_t at = 0, buffer = 0;
  const auto packed = [&] {
    return reinterpret_cast<const uint8_t*>(Device16(weights[static_cast<size_t>(buffer)]));
  };
  for (int64_t l = 0; l < g.layers; ++l) {
    if (g.group != 0 && l > 0 && l % g.group == 0) ++buffer, at = 0;
    DenseDecoder::Layer layer;
    layer.qkv =
        Floats(Unpacked(packed(), at, (queries + 2 * row) / 32, g.hidden / 256, channels_).data(),
               queries + 2 * row, g.hidden);
    layer.o = Floats(Unpacked(packed(), at, g.hidden / 32, queries / 256, channels_).data(),
                     g.hidden, queries);
    const std::vector<float> both =
        Floats(Unpacked(packed(), at, 2 * g.intermediate / 32, g.hidden / 256, channels_).data(),
               2 * g.intermediate, g.hidden);
    for (int64_t first = 0; first < 2 * g.intermediate; first += 512) {
      std::vector<float>& to = first / 512 % 2 == 0 ? layer.up : layer.gate;
      to.insert(to.end(), both.begin() + first * g.hidden, both.begin() + (first + 512) * g.hidden);
    }
    layer.down =
        Floats(Unpacked(packed(), at, g.hidden / 32, g.intermediate / 256, channels_).data(),
               g.hidden, g.intermediate);
    for (int64_t norm = 0; norm < g.norms; ++norm) layer.norms.push_back(take(g.hidden));
    // Regions: keys of the first half of the heads, keys of the second, values of both.
    const uint16_t* const regions = cache + l * 4 * positions * half_heads;
    for (int64_t p = 0; p < length - 1; ++p) {
      for (int64_t region = 0; region < 4; ++region) {
        std::vector<float>& to = region < 2 ? layer.keys : layer.values;
        for (int64_t i = 0; i < half_heads; ++i) {
          to.push_back(FloatOf(regions[(region * positions + p) * half_heads + i]));
        }
      }
    }
    model.layers.push_back(std::move(layer));
  }
  if (g.group != 0) ++buffer, at = 0;
  for (int64_t chunk = 0; chunk < g.head_chunks; ++chunk) {
    const std::vector<float> part =
        Floats(Unpacked(packed(), at, g.head_rows / 32, g.hidden / 256, channels_).data(),
               g.head_rows, g.hidden);
    model.head.insert(model.head.end(), part.begin(), part.end());
  }
  Check(at * 5120 == static_cast<int64_t>(weights.back()->size()), "weights are left");
  std::vector<float> cos, sin;
  for (size_t l = 0; l < model.layers.size(); ++l) {
    DenseDecoder::Layer& layer = model.layers[l];
    if (l == 0 || g.head_norms) cos = take(g.rotary_dim / 2), sin = take(g.rotary_dim / 2);
    layer.cos = cos;
    layer.sin = sin;
    if (g.head_norms) layer.q_norm = take(g.head_dim), layer.k_norm = take(g.head_dim);
  }
  model.last_norm = take(g.hidden);
  Check(2 * read == static_cast<int64_t>(buffers[2]->size()), "norms are left");

  std::vector<float> embedding;
  for (int64_t i = 0; i < g.hidden; ++i) embedding.push_back(FloatOf(x[i]));
  const TokenResult result = Decode(g, model, embedding);
  std::fill_n(x, g.hidden, uint16_t{0x7fc0});  // overwritten below
  const int64_t unused = queries + 2 * row + g.hidden;
  for (size_t i = 0; i < result.logits.size(); ++i) {
    y[unused + static_cast<int64_t>(i)] = BitsOf(result.logits[i]);
  }
  for (int64_t l = 0; l < g.layers; ++l) {
    for (int64_t region = 0; region < 4; ++region) {
      const auto& rows = region < 2 ? result.keys : result.values;
      uint16_t* const to = cache + ((4 * l + region) * positions + length - 1) * half_heads;
      for (int64_t i = 0; i < half_heads; ++i) {
        to[i] =
            BitsOf(rows[static_cast<size_t>(l)][static_cast<size_t>(region % 2 * half_heads + i)]);
      }
    }
  }
}

}  // namespace ort_aie::npu_target
