// Work that becomes part of another step because it costs nothing there. Each fusion has a file in
// fusions/. Both doors use them. The result of a fusion is an aie op with inputs for the absorbed
// work, such as a bias or the weight of a norm.
#pragma once

#include "graph/steps.h"

namespace ort_aie::graph {

// Add(P(A, W), bias) -> P(A, W, bias), the bias a constant (N).
void FuseBias(Steps& steps);
// Gate, up, activation and multiplication -> Q4NXGatedMLP or GatedGEMM.
void FuseGatedMLP(Steps& steps);
// Norms of heads, rotation and the Split of a packed tensor -> inputs of FlowAttention.
void FuseHeads(Steps& steps);
// RMS norms, with the residual before them -> inputs of the projection that follows.
void FuseNorms(Steps& steps);
// A router that chooses by sigmoids and a bias, spelled out around Q4NXMoE -> its attributes.
void FuseSigmoidRouter(Steps& steps);
// The Reshape between a router and its experts, which only joins batch and sequence, goes.
void FuseRouter(Steps& steps);
// The projection that computes the logits gets an attribute that says so.
void MarkLogits(Steps& steps);

// All of them, in their order.
void FuseAll(Steps& steps);

// After that: what is left of Reshape, Split and Transpose becomes steps.
void TakeMoves(Steps& steps);

}  // namespace ort_aie::graph
