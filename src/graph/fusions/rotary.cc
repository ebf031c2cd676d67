// Rotation of queries and keys by RotaryEmbedding or MRotaryEmbedding -> inputs of FlowAttention.
//
// Before: q' = RotaryEmbedding(q, position_ids, cos, sin), k' likewise, and
//         FlowAttention(q', k', value, ...) without rotation
// After:  FlowAttention(q, k, value, ..., cos, sin, position_ids), position_axes=1
//
// The model builder writes this for Gemma 4, for Hunyuan, whose heads are normalised after the
// rotation, and with MRotaryEmbedding (position_axes=3) for Qwen-VL.
#include <algorithm>
#include <optional>
#include <utility>

#include "graph/fusions/heads.h"
#include "graph/fusions/match.h"
#include "ops/flow_attention.h"

namespace ort_aie::graph {
namespace {

using Input = FlowAttention::Input;

constexpr char kMicrosoftDomain[] = "com.microsoft";

// What queries and keys must have in common.
struct Rotation {
  int cos, sin, positions;
  int64_t interleaved, axes = 1, height = 0, width = 0, mixed_in_turn = 0;

  friend bool operator==(const Rotation&, const Rotation&) = default;
};

// Whether the node rotates each head of an attention by itself: `width` channels are `heads` heads.
bool RotatesHeads(const Steps& steps, const Node& node, int cos, int64_t width, int64_t heads) {
  const int64_t pairs = steps.graph().FixedDim(cos, 1);
  if (pairs <= 0 || heads <= 0 || width % heads != 0) return false;
  const int64_t dim = width / heads, rotated = node.Int("rotary_embedding_dim", 0);
  const int64_t its_heads = node.Int("num_heads", 0);
  // Without num_heads, the tables say how wide a head is.
  if (its_heads == 0) return (rotated == 0 || rotated == dim) && pairs == dim / 2;
  return its_heads == heads && pairs == (rotated == 0 ? dim : rotated) / 2;
}

// The mrope_ attributes; false if a sum of sections does not fit the table.
bool ReadSections(const Steps& steps, const Node& node, Rotation& rotation) {
  const auto known = node.attributes.find("mrope_section");
  if (known == node.attributes.end()) return false;
  const auto* sections = std::get_if<std::vector<int64_t>>(&known->second);
  if (sections == nullptr || sections->size() != 3) return false;
  if (std::ranges::any_of(*sections, [](int64_t pairs) { return pairs < 0; })) return false;
  const int64_t pairs = steps.graph().FixedDim(rotation.cos, 1),
                layout = node.Int("mrope_layout", 0);
  if ((Size((*sections)[0]) + (*sections)[1] + (*sections)[2]) != Size(pairs)) return false;
  if (layout != 0 && layout != 1) return false;
  rotation.axes = 3;
  rotation.height = (*sections)[1];
  rotation.width = (*sections)[2];
  rotation.mixed_in_turn = layout;
  return true;
}

std::optional<Rotation> Read(const Steps& steps, const Item& item, int64_t heads) {
  const Node& node = *steps.node(&item);
  const bool mixed = node.Is(kMicrosoftDomain, "MRotaryEmbedding");
  const bool standard = node.Is("", "RotaryEmbedding");
  if (!mixed && !standard && !node.Is(kMicrosoftDomain, "RotaryEmbedding")) return std::nullopt;
  if (node.Float("scale", 1.0f) != 1.0f || node.Int("is_packed_batching", 0) != 0) {
    return std::nullopt;
  }
  // ONNX has the positions after the tables.
  Rotation rotation{.cos = node.input(standard ? 1 : 2),
                    .sin = node.input(standard ? 2 : 3),
                    .positions = node.input(standard ? 3 : 1),
                    .interleaved = node.Int("interleaved", 0)};
  const Value &source = steps.value(node.input(0)), &positions = steps.value(rotation.positions);
  const Value &cos = steps.value(rotation.cos), &sin = steps.value(rotation.sin);
  const auto& shape = source.shape ? source.shape : steps.value(node.output(0)).shape;
  if (!shape || shape->size() != 3 || !cos.shape || cos.shape->size() != 2) return std::nullopt;
  if (cos.type != source.type || sin.type != source.type) return std::nullopt;
  // position_ids (1) are one offset for all tokens, which FlowAttention does not have.
  if (positions.type != kOnnxInt64 || !positions.shape) return std::nullopt;
  if (positions.shape->size() != (mixed ? 3U : 2U)) return std::nullopt;
  if (!RotatesHeads(steps, node, rotation.cos, shape->back().value, heads)) return std::nullopt;
  if (mixed && !ReadSections(steps, node, rotation)) return std::nullopt;
  return rotation;
}

}  // namespace

bool FuseRotation(Steps& steps, const Item* attention) {
  const StepInfo given = Attributes(*attention);
  if (given.Int("do_rotary", 0) != 0) return false;
  std::vector<const Item*> nodes;
  std::optional<Rotation> first;
  for (const auto& [input, heads] :
       {std::pair{Input::kQuery, "num_heads"}, {Input::kKey, "kv_num_heads"}}) {
    const int rotated = Steps::Read(*attention, input);
    const Item* item = steps.OnlyReader(rotated) != nullptr ? MadeBy(steps, rotated) : nullptr;
    if (steps.node(item) == nullptr) return false;
    const auto rotation = Read(steps, *item, given.Int(heads, 0));
    if (!rotation || (first && *rotation != *first)) return false;
    first = rotation;
    nodes.push_back(item);
  }
  Recipe::Step step = attention->step;
  step.reads.resize(std::max<size_t>(step.reads.size(), Input::kPositionIds + 1), kAbsent);
  step.reads[Input::kQuery] = Steps::Read(*nodes[0], 0);
  step.reads[Input::kKey] = Steps::Read(*nodes[1], 0);
  step.reads[Input::kCosCache] = first->cos;
  step.reads[Input::kSinCache] = first->sin;
  step.reads[Input::kPositionIds] = first->positions;
  step.ints["do_rotary"] = 1;
  step.ints["position_axes"] = first->axes;
  const auto set = [&](const char* attribute, int64_t value) {
    step.ints.erase(attribute);
    if (value != 0) step.ints[attribute] = value;
  };
  set("rotary_interleaved", first->interleaved);
  set("mrope_height", first->height);
  set("mrope_width", first->width);
  set("mrope_interleaved", first->mixed_in_turn);
  // A norm that the attention has already took place after these nodes.
  const bool has_norm = Steps::Read(*attention, Input::kQNormWeight) != kAbsent ||
                        Steps::Read(*attention, Input::kKNormWeight) != kAbsent;
  set("norm_after_rotary", has_norm ? 1 : 0);
  steps.Fuse(attention, std::move(step), nodes);
  return true;
}

}  // namespace ort_aie::graph
