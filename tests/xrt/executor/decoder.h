// A whole decoder as a program plans it: from tokens' embeddings to the last one's logits, with
// temporaries in an arena that each layer reuses.
#pragma once

#include <array>
#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "generator.h"
#include "targets/host/attention_inputs.h"
#include "targets/npu/engine.h"

namespace ort_aie::npu_target {

struct Family {
  const char* name;
  bool packed = false;        // one projection to queries, keys and values
  bool qk_norm = false;       // of heads
  bool norms_behind = false;  // norms of attention's and the MLP's results; a scaled embedding
  bool gelu = false;
  int64_t rotary_dim = 0;  // 0: all
  int64_t window = 0;
  int64_t every = 0;  // so many-th layers have no window; 0: none
  int64_t kv_heads = 2;
  bool windowed = false;  // caches hold little more than the window
  int64_t hidden = 256, intermediate = 512, vocabulary = 320, heads = 4;
  int64_t capacity = 640;  // of caches that hold all rows
  DataType cache_type = DataType::kBfloat16;
  bool in_place = true;  // past and present are one buffer
  bool scaled = true;    // the embedding, where there are norms behind
  float epsilon = 1e-5f;
};

// The state of one user of a model: caches and the token's tensors.
class WholeDecoder {
 public:
  static constexpr int64_t kHidden = 256, kIntermediate = 512, kVocabulary = 320, kHeads = 4,
                           kDim = 64;
  static constexpr DataType kType = DataType::kFloat32;

  // The state that two users of one model share.
  struct Model {
    Model(const Family& family, int64_t layers, const WeightForm& form = {},
          const WeightForm& of_vocabulary = {});
    Model(const Model&) = delete;

    struct Matrix {
      std::vector<uint8_t> blocks;
      int64_t n, k;
      WeightForm form;
      std::shared_ptr<KeptState> kept = std::make_shared<KeptState>();
    };
    struct Layer {
      std::vector<Matrix> qkv;
      Matrix o, gate, up, down;
      Values norm, mlp_norm;
      Values attention_norm_behind = {}, mlp_norm_behind = {};
      npu_target::Layer attention;
    };
    const Family family;
    Matrix vocabulary;
    std::deque<Layer> layers;
    std::deque<Generator> caches;  // empty ones
    Values norm, scale;
    std::shared_ptr<KeptState> kept = std::make_shared<KeptState>();
  };

  // `as_program`: the plans have temporaries, and keep state for the plan as a whole.
  WholeDecoder(const Model& model, bool as_program);

  // The plan for tokens that follow the cache's contents.
  Plan Tokens(const std::vector<int64_t>& ids);
  Plan Token(int64_t id) { return Tokens({id}); }
  // Call this after the plan: the cache then holds the tokens' rows.
  void Advance();

  // What the last call gave.
  const Values& Present(size_t layer, bool values) const;

  Values logits;
  std::deque<Generator> caches;

 private:
  void* Temporary(int64_t elements);

  std::deque<std::pair<Values, Values>> presents_;  // unless in place
  const Model& model_;
  const bool as_program_;
  std::vector<uint8_t> arena_;
  size_t used_ = 0;
  std::vector<int64_t> ids_;
  int64_t last_ = 0;
  std::vector<AttentionStep> attentions_;
};

// The most that the device's logits may differ, relative to the spread of the host's.
double Bound(int64_t layers);
// `by_host`: the bits may be the host's.
void Close(const Values& got, const Values& want, double bound, bool by_host = false);

}  // namespace ort_aie::npu_target
