// Runs the steps on this CPU. Each subject has a file.
#pragma once

#include <algorithm>
#include <array>

#include "targets/host/kernels/kernels.h"
#include "targets/host/scratch.h"
#include "targets/target.h"

namespace ort_aie::host {

// The kernels for a form of GGUF files.
inline const FileKernels& FilesOf(const Kernels& kernels, const WeightForm& form) {
  return kernels.files[static_cast<size_t>(form.type)];
}

// The GEMM with room for the codes of a form, and for its scales.
inline auto GemmOf(const WeightForm& form, const Kernels& kernels) {
  if (form.group == 16) return kernels.gemm_int8_16;
  const bool of_file = form.kind == WeightKind::kFile;
  if (of_file && q4nx::HasPowers(q4nx::FileFormOf(form.type))) return kernels.gemm_int8_of_powers;
  const int bits = of_file ? q4nx::BitsOfValues(q4nx::FileFormOf(form.type))
                   : form.kind == WeightKind::kQ8NX ? 8
                                                    : 4;
  return bits <= 4   ? kernels.gemm_int8
         : bits == 5 ? kernels.gemm_int8_of_5_bits
                     : kernels.gemm_int8_of_8_bits;
}

// Tokens of a prompt that a step processes at a time, unless the step says otherwise. Scratch
// memory does not grow beyond them.
constexpr int64_t kPromptChunk = 2048;

// The tokens of each batch row in one chunk, rounded to a multiple that suits the kernels.
inline int64_t ChunkTokens(int64_t prompt_chunk, int64_t batch, int64_t multiple) {
  const int64_t tokens = (prompt_chunk > 0 ? prompt_chunk : kPromptChunk) / batch;
  return std::max(multiple, tokens / multiple * multiple);
}

// Up to so many rows are multiplied while the weights are read, each row bit for bit as if it were
// alone. More rows are dequantisation + GEMM.
int64_t MostStreamedRows(const Kernels& kernels, const WeightForm& form, Numerics numerics);
// Dequantisation + GEMM, for any number of rows: RunMatMul chooses.
void RunGemm(const MatMulStep& step, const Kernels& kernels, const ThreadPool& threads);
void RunMatMul(const MatMulStep& step, const Kernels& kernels, const ThreadPool& threads);
// A projection of as few rows as are streamed, of at least two rows of blocks: one half of them by
// each of two tables, whose kernels for it give the same bits. Returns the seconds of a row of
// blocks in each half.
std::array<double, 2> RunHalves(const MatMulStep& step,
                                const std::array<const Kernels*, 2>& kernels,
                                const ThreadPool& threads);
void RunGather(const GatherStep& step, const Kernels& kernels, const ThreadPool& threads);
void RunAttention(const AttentionStep& step, const Kernels& kernels, const ThreadPool& threads);
void RunNorm(const NormStep& step, const Kernels& kernels, const ThreadPool& threads);
void RunElementwise(const ElementwiseStep& step, const Kernels& kernels, const ThreadPool& threads);
void RunCast(const CastStep& step, const Kernels& kernels, const ThreadPool& threads);
void RunMoE(const MoEStep& step, const Kernels& kernels, const ThreadPool& threads);
void RunMove(const MoveStep& step, const ThreadPool& threads);
void RunNarrow(const NarrowStep& step, const Kernels& kernels, const ThreadPool& threads);
void RunConv(const ConvStep& step, const Kernels& kernels, const ThreadPool& threads);
void RunRecurrence(const RecurrenceStep& step, const Kernels& kernels, const ThreadPool& threads);
void RunGate(const GateStep& step, const Kernels& kernels);

// n elements of `type` <-> float. For integers, their codes, and only to float.
void ToFloat(const Kernels& kernels, DataType type, const void* x, int64_t n, float* y);
void FromFloat(const Kernels& kernels, DataType type, const float* x, int64_t n, void* y);
// n elements of `type` as float: in place, or in this thread's memory for that purpose.
const float* Floats(const Kernels& kernels, DataType type, const void* x, int64_t n,
                    Purpose purpose);

}  // namespace ort_aie::host
