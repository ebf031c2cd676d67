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
  std::string why_not;  // empty: claimed
};

// Of all MatMulNBits, GroupQueryAttention and GatherBlockQuantized among `nodes`, in order. The
// nodes must outlive the result.
std::vector<Claim> ClaimNodes(const std::vector<Node>& nodes);

// Whether a GatherBlockQuantized reads the weights of a MatMulNBits. ONNX Runtime may have folded a
// Reshape between them, so that the codes are a copy: they are compared.
bool IsTied(const Node& gather, const Node& projection);

}  // namespace ort_aie::ep
