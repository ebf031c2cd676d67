#include "fused_device.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "decoder.h"
#include "q4nx/bfloat16.h"

namespace ort_aie::npu_target {
namespace {

using fused_decode::Geometry;

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

// A decoder that the geometry describes.
Family FamilyOf(const Geometry& g, int64_t positions) {
  return {.name = "unpacked",
          .packed = true,
          .qk_norm = g.head_norms,
          .norms_behind = g.norms == 4,
          .gelu = g.activation == Activation::kGeluTanh,
          .rotary_dim = g.rotary_dim,
          .kv_heads = g.kv_heads,
          .hidden = g.hidden,
          .intermediate = g.intermediate,
          .vocabulary = g.head_rows * g.head_chunks,
          .heads = g.heads,
          .capacity = positions,
          .scaled = false,
          .epsilon = 1e-6f};
}

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
  int64_t at = 0, buffer = 0, read = 0;  // blocks of a buffer of weights; elements of rms
  const auto unpacked = [&](int64_t n, int64_t k) {
    const auto* packed =
        reinterpret_cast<const uint8_t*>(Device16(weights[static_cast<size_t>(buffer)]));
    return Unpacked(packed, at, n / 32, k / 256, channels_);
  };
  const auto take = [&](int64_t count) {
    std::vector<float> values;
    for (int64_t i = 0; i < count; ++i) values.push_back(Bfloat16ToFloat(rms[read++]));
    return Values(DataType::kFloat32, values);
  };

  WholeDecoder::Model model(FamilyOf(g, positions), g.layers);
  const int64_t queries = g.heads * g.head_dim, row = g.kv_heads * g.head_dim;
  for (int64_t l = 0; l < g.layers; ++l) {
    if (g.group != 0 && l > 0 && l % g.group == 0) ++buffer, at = 0;
    WholeDecoder::Model::Layer& layer = model.layers[static_cast<size_t>(l)];
    layer.qkv[0].blocks = unpacked(queries + 2 * row, g.hidden);
    layer.o.blocks = unpacked(g.hidden, queries);
    const std::vector<uint8_t> both = unpacked(2 * g.intermediate, g.hidden);
    const auto part = static_cast<std::ptrdiff_t>(512 / 32 * g.hidden / 256 * 5120);
    layer.up.blocks.clear();
    layer.gate.blocks.clear();
    for (auto first = both.begin(); first != both.end(); first += 2 * part) {
      layer.up.blocks.insert(layer.up.blocks.end(), first, first + part);
      layer.gate.blocks.insert(layer.gate.blocks.end(), first + part, first + 2 * part);
    }
    layer.down.blocks = unpacked(g.hidden, g.intermediate);
    layer.norm = take(g.hidden);
    if (g.norms == 4) layer.attention_norm_behind = take(g.hidden);
    layer.mlp_norm = take(g.hidden);
    if (g.norms == 4) layer.mlp_norm_behind = take(g.hidden);
  }
  if (g.group != 0) ++buffer, at = 0;
  model.vocabulary.blocks.clear();
  for (int64_t chunk = 0; chunk < g.head_chunks; ++chunk) {
    const std::vector<uint8_t> rows = unpacked(g.head_rows, g.hidden);
    model.vocabulary.blocks.insert(model.vocabulary.blocks.end(), rows.begin(), rows.end());
  }
  Check(at * 5120 == static_cast<int64_t>(weights.back()->size()), "weights are left");
  std::vector<std::array<Values, 4>> tables;  // cosines and sines; norms of heads
  for (int64_t l = 0; l < g.layers; ++l) {
    std::array<Values, 4> own;
    if (l > 0) own = tables.back();
    if (l == 0 || g.head_norms) own[0] = take(g.rotary_dim / 2), own[1] = take(g.rotary_dim / 2);
    if (g.head_norms) own[2] = take(g.head_dim), own[3] = take(g.head_dim);
    tables.push_back(std::move(own));
  }
  model.norm = take(g.hidden);
  Check(2 * read == static_cast<int64_t>(buffers[2]->size()), "norms are left");

  // Regions: keys of the first half of the heads, keys of the second, values of both.
  WholeDecoder user(model, true);
  const auto each_head = [&](int64_t position, const auto& copy) {
    for (int64_t i = 0; i < g.layers * 2 * g.kv_heads; ++i) {
      const int64_t l = i / (2 * g.kv_heads), head = i % g.kv_heads, half = g.kv_heads / 2;
      const bool values = i / g.kv_heads % 2 != 0;
      const int64_t region = 4 * l + (values ? 2 : 0) + head / half;
      Generator& rows = user.caches[static_cast<size_t>(l)];
      auto* const own =
          reinterpret_cast<uint16_t*>((values ? rows.values : rows.keys).bytes.data());
      copy(own + (head * positions + position) * g.head_dim,
           cache + ((region * positions + position) * half + head % half) * g.head_dim);
    }
  };
  for (Generator& rows : user.caches) rows.past = {length - 1};
  for (int64_t p = 0; p < length - 1; ++p) {
    each_head(p, [&](uint16_t* to, const uint16_t* from) { std::copy_n(from, g.head_dim, to); });
  }
  Plan plan = user.Token(0);
  auto* const embedding = static_cast<float*>(std::get<GatherStep>(plan.steps[0]).y);
  std::transform(x, x + g.hidden, embedding, Bfloat16ToFloat);
  std::fill_n(x, g.hidden, uint16_t{0x7fc0});  // overwritten
  plan.steps.erase(plan.steps.begin());
  size_t layer = 0;
  for (Step& step : plan.steps) {
    auto* const attention = std::get_if<AttentionStep>(&step);
    if (attention == nullptr) continue;
    const std::array<Values, 4>& own = tables[layer++];
    attention->cos = own[0].data();
    attention->sin = own[1].data();
    attention->positions = {0};
    if (g.head_norms) attention->q_norm = own[2].data(), attention->k_norm = own[3].data();
  }
  HostTarget().Execute(plan, kThreads);
  const std::vector<float> logits = user.logits.floats();
  std::ranges::transform(logits, y + queries + 2 * row + g.hidden, FloatToBfloat16);
  each_head(length - 1,
            [&](const uint16_t* from, uint16_t* to) { std::copy_n(from, g.head_dim, to); });
}

}  // namespace ort_aie::npu_target
