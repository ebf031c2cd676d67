// Which nodes of an unmodified model the execution provider runs, and why not the others. The rules
// are those of the graph passes: src/ops/eligibility.
#pragma once

#include <string>
#include <vector>

#include "ort/ep/node.h"

namespace ort_aie::ep {

enum class Kind { kMatMul, kAttention, kGather };

struct Claim {
  const Node* node;
  Kind kind;
  std::string why_not;               // empty: claimed
  const Node* projection = nullptr;  // the MatMulNBits whose weights it reads, itself perhaps
};

// Of all MatMulNBits, GroupQueryAttention and GatherBlockQuantized among `nodes`, in order. The
// nodes must outlive the result.
std::vector<Claim> ClaimNodes(const std::vector<Node>& nodes);

}  // namespace ort_aie::ep
