// The constant weights of all ops, in any form (q4nx/layout.h).
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "ops/op.h"
#include "q4nx/layout.h"

namespace ort_aie {

struct Weights {
  const uint8_t* blocks = nullptr;  // read in place
  int64_t k = 0, n = 0;
  WeightForm form = {};
};

// A node's attributes about its weights. With format 1, groups have 32 in-features, and minima are
// stored; with format 2, group and minima say so; with format 3, so does type, if there is one.
struct WeightAttributes {
  int64_t k = 0, n = 0, bits = 4, format = 0, group = 0, minima = 1;
  std::string type = {};  // the name of a form of GGUF files (q4nx/file_forms.h)
  bool bf16 = false;      // the op's name says so; else type or bits choose
};
WeightAttributes ReadWeightAttributes(const NodeInfo& info);
// Throws Error, with all names, for another name.
FileType FileTypeNamed(const std::string& name);
// Writes bits, format, group and minima, those that are not the default, of a form without a type.
void StateForm(const WeightForm& form, std::map<std::string, int64_t>& attributes);
// An op, with the attributes and the formats of weights that have a form.
OpDescription WithForm(OpDescription op);

// The shape of n x k weights: (ceil(n/32), ceil(k/columns), BlockBytes) uint8, or 8192 bfloat16.
Shape BlocksShape(int64_t n, int64_t k, const WeightForm& form);

// `name` is the input's name in errors. With `experts` there are that many weights, one after the
// other, and the tensor has one more dimension for it. Throws Error if the attributes and the
// tensor do not fit together.
Weights CheckWeights(const char* name, const WeightAttributes& attributes, const Tensor& w,
                     std::optional<int64_t> experts = std::nullopt);

}  // namespace ort_aie
