#include "graph/attention.h"

#include <algorithm>
#include <set>
#include <span>

#include "graph/claims.h"
#include "ops/flow_attention.h"

namespace ort_aie::graph {
namespace {

constexpr char kOp[] = "FlowAttention";

// 0 if it is not known.
int64_t TypeOfCache(const Graph& graph, const Item& item) {
  const int past = Steps::Read(item, FlowAttention::kPastKey);
  if (past == kAbsent && item.step.ints.contains("kv_cache_bit_width")) return kOnnxInt8;
  return graph.value(past != kAbsent ? past : Steps::Read(item, FlowAttention::kQuery)).type;
}

bool IsProjection(const Item& item) {
  return IsAnchor(item) && !item.Is(kOp) && !item.Is("Q4NXGather");
}

}  // namespace

void ReadSharedCaches(const Graph& graph, std::vector<Item>& items) {
  for (Item& item : items) {
    if (!item.Is(kOp)) continue;
    const auto key = graph.KnownDims(Steps::Read(item, FlowAttention::kKey));
    if (!key || key->size() != 3 || (*key)[1] != 0) continue;
    std::vector<int>& writes = item.step.writes;
    while (writes.size() > 1 && (writes.back() == kAbsent || !graph.IsRead(writes.back()))) {
      writes.pop_back();
    }
  }
}

void ChooseProducts(const Graph& graph, std::vector<Item>& items) {
  std::set<int> rounded;  // values that depend on a projection
  for (Item& item : items) {
    const bool attention = item.Is(kOp);
    std::span<const int> reads = item.step.reads;
    if (attention) reads = reads.first(std::min<size_t>(reads.size(), FlowAttention::kPastKey));
    const bool depends =
        std::ranges::any_of(reads, [&](int value) { return rounded.contains(value); });
    if (attention && !depends && TypeOfCache(graph, item) != kOnnxFloat) {
      item.step.ints["float32_products"] = 1;
    }
    if (depends || IsProjection(item)) {
      for (const int value : item.step.writes) {
        if (value != kAbsent) rounded.insert(value);
      }
    }
  }
}

}  // namespace ort_aie::graph
