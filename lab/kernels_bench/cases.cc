#include "cases.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/platform.h"
#include "q4nx/layout.h"
#include "targets/host/host_target.h"
#include "targets/host/weight_layout.h"

namespace ort_aie::host {
namespace {

using q4nx::kBlockCols;
using q4nx::kBlockRows;
using q4nx::kGroup;

constexpr int64_t kRows = 512;       // activations in a GEMM: a chunk of a prompt
constexpr int64_t kPadding = 32;     // between rows of bfloat16, as in a projection step
constexpr int64_t kQueries = 64;     // in the attention of a prompt
constexpr int64_t kFew = 4;          // for a token: heads that share keys
constexpr int64_t kMaxDim = 128;     // of an attention head
constexpr int64_t kLeastGroup = 16;  // in-features that share a scale
constexpr int64_t kElements = 2048;  // for an elementwise kernel: all in L1

// The blocks that are measured: groups of 32, with minima if they are not symmetric.
constexpr BlockLayout LayoutOfBits(int64_t bits, bool symmetric) {
  return LayoutOf(q4nx::SmallestForm(bits, kGroup, symmetric), symmetric);
}
constexpr BlockLayout kSymmetricBlocks = LayoutOfBits(4, true);

int64_t RowBytes(const BlockLayout& layout, int64_t k) { return layout.bytes * (k / kBlockCols); }
int64_t RowBytes(FileType type, int64_t k) {
  const q4nx::FileForm& form = q4nx::FileFormOf(type);
  return k / form.columns * q4nx::LayoutOfBlock(form).bytes;
}

Work OneRowWork(const BlockLayout& layout, int64_t k) {
  return {1.0 * RowBytes(layout, k), 2.0 * k * kBlockRows};
}

template <bool kBf16, bool kSymmetric>
Work FusedDqp(const Kernels& kernels, Streamed& d, int64_t k) {
  constexpr BlockLayout kLayout = LayoutOfBits(4, kSymmetric);
  const uint8_t* blocks = d.NextRow(RowBytes(kLayout, k));
  if (kBf16) {
    kernels.fused_dqp_bf16(blocks, k / kBlockCols, d.x, d.sums, kLayout, d.y);
  } else {
    kernels.fused_dqp_int8(blocks, k / kBlockCols, d.codes, d.scales, d.q_sums, kLayout, d.y);
  }
  return OneRowWork(kLayout, k);
}

// A few rows by each block as it is read; the weights are symmetric. The bytes are counted for one
// row, so that comparing with the rate of one row shows what the extra rows cost.
template <bool kBf16, int kRowCount>
Work Rows(const Kernels& kernels, Streamed& d, int64_t k) {
  static_assert(kRowCount <= kStreamedRows);
  const BlockLayout& layout = kSymmetricBlocks;
  const int64_t width = k / kBlockCols;
  const uint8_t* blocks = d.NextRow(RowBytes(layout, k));
  if (kBf16 && kernels.rows_bf16 != nullptr) {
    kernels.rows_bf16(blocks, width, d.x, d.sums, kRowCount, layout, d.y, kBlockRows);
  } else if (!kBf16 && kernels.rows_int8 != nullptr) {
    kernels.rows_int8(blocks, width, d.codes, d.scales, d.q_sums, kRowCount, layout, d.y,
                      kBlockRows);
  } else {
    for (int64_t r = 0; r < kRowCount; ++r) {
      const int64_t group = r * k / kGroup;
      float* y = d.y + r * kBlockRows;
      if (kBf16) {
        kernels.fused_dqp_bf16(blocks, width, d.x + r * k, d.sums + group, layout, y);
      } else {
        kernels.fused_dqp_int8(blocks, width, d.codes + r * k, d.scales + group, d.q_sums + group,
                               layout, y);
      }
    }
  }
  const Work one = OneRowWork(layout, k);
  return {one.bytes, kRowCount * one.flops};
}

template <bool kBf16, bool kSymmetric>
Work Lookup(const Kernels& kernels, Streamed& d, int64_t k) {
  const LookupMatvec& matvec = kBf16 ? kernels.lookup->bf16 : kernels.lookup->int8;
  constexpr BlockLayout kLayout = LayoutOfBits(2, kSymmetric);
  matvec.multiply(d.NextRow(RowBytes(kLayout, k)), k / kBlockCols, d.tables, d.scales, d.sums,
                  kLayout, d.y);
  return OneRowWork(kLayout, k);
}

// Weights of 8 bits. As for a few rows above, the bytes are counted for one row.
template <bool kBf16, bool kSymmetric, int kRowCount>
Work Bytes(const Kernels& kernels, Streamed& d, int64_t k) {
  static_assert(kRowCount <= kStreamedRows);
  constexpr BlockLayout kLayout = LayoutOfBits(8, kSymmetric);
  const uint8_t* blocks = d.NextRow(RowBytes(kLayout, k));
  if (kBf16) {
    kernels.bytes.rows_bf16(blocks, k / kBlockCols, d.x, d.sums, kRowCount, kLayout, d.y,
                            kBlockRows);
  } else {
    kernels.bytes.rows_int8(blocks, k / kBlockCols, d.codes, d.scales, d.q_sums, kRowCount, kLayout,
                            d.y, kBlockRows);
  }
  const Work one = OneRowWork(kLayout, k);
  return {one.bytes, kRowCount * one.flops};
}

// Forms of GGUF files. As for a few rows above, the bytes are counted for one row.
template <FileType kType, bool kBf16, int kRowCount>
Work File(const Kernels& kernels, Streamed& d, int64_t k) {
  static_assert(kRowCount <= kStreamedRows);
  const FileKernels& files = kernels.files[static_cast<size_t>(kType)];
  const int64_t bytes = RowBytes(kType, k);
  const uint8_t* blocks = d.NextRow(bytes);
  if (kBf16) {
    files.rows_bf16(blocks, k / kGroup, d.x, d.sums, kRowCount, d.y, kBlockRows);
  } else {
    files.rows_int8(blocks, k / kGroup, d.codes, d.scales, d.q_sums, kRowCount, d.y, kBlockRows);
  }
  return {1.0 * bytes, 2.0 * kRowCount * k * kBlockRows};
}

// The cost of a row of blocks that is in the caches: computing alone.
template <bool kBf16>
Work FusedDqpCached(const Kernels& kernels, Cached& d, int64_t k) {
  if (kBf16) {
    kernels.fused_dqp_bf16(d.weights.data(), k / kBlockCols, d.x, d.sums, kSymmetricBlocks, d.y);
  } else {
    kernels.fused_dqp_int8(d.weights.data(), k / kBlockCols, d.codes, d.scales, d.q_sums,
                           kSymmetricBlocks, d.y);
  }
  return {.flops = 2.0 * k * kBlockRows};
}

template <FileType kType, int kRowCount>
Work FileCached(const Kernels& kernels, Cached& d, int64_t k) {
  kernels.files[static_cast<size_t>(kType)].rows_int8(
      d.weights.data(), k / kGroup, d.codes, d.scales, d.q_sums, kRowCount, d.y, kBlockRows);
  return {.flops = 2.0 * kRowCount * k * kBlockRows};
}

template <bool kBf16>
Work LookupCached(const Kernels& kernels, Cached& d, int64_t k) {
  const LookupMatvec& matvec = kBf16 ? kernels.lookup->bf16 : kernels.lookup->int8;
  matvec.multiply(d.weights.data(), k / kBlockCols, d.tables, d.scales, d.sums,
                  LayoutOfBits(2, true), d.y);
  return {.flops = 2.0 * k * kBlockRows};
}

template <bool kBf16>
Work MakeTables(const Kernels& kernels, Cached& d, int64_t k) {
  const LookupMatvec& matvec = kBf16 ? kernels.lookup->bf16 : kernels.lookup->int8;
  matvec.make_tables(d.x, k / kGroup, d.tables, d.scales, d.sums);
  return {.flops = 3.0 * 16 * k / q4nx::kQuad};
}

// The GEMMs as the projection step runs them: it unpacks a row of blocks into a panel, and
// multiplies the panel with all rows, or with as many as the table keeps in L2.
Work GemmBf16(const Kernels& kernels, Cached& d, int64_t k) {
  const uint8_t* row = d.NextRow(RowBytes(kSymmetricBlocks, k));
  for (int64_t b = 0; b < k / kBlockCols; ++b) {
    kernels.dequantize_block(row + b * kSymmetricBlocks.bytes, kSymmetricBlocks,
                             d.panel + b * kBlockCols * kBlockRows);
  }
  const int64_t lda = k + kPadding, resident = kernels.bf16_blocking.resident_bytes / (2 * lda);
  const int64_t rows = resident == 0 ? kRows : std::clamp<int64_t>(resident / 32 * 32, 32, kRows);
  kernels.gemm_bf16(d.a, lda, rows, d.panel, k / 2, d.y, kBlockRows);
  return {.flops = 2.0 * static_cast<double>(rows * k * kBlockRows)};
}

template <bool kSymmetric>
Work GemmInt8(const Kernels& kernels, Cached& d, int64_t k) {
  constexpr BlockLayout kLayout = LayoutOfBits(4, kSymmetric);
  const uint8_t* row = d.NextRow(RowBytes(kLayout, k));
  for (int64_t b = 0; b < k / kBlockCols; ++b) {
    kernels.unpack_block(
        row + b * kLayout.bytes, kLayout, d.panel_codes + b * kBlockCols * kBlockRows,
        d.panel_scales + b * kBlockCols, kSymmetric ? nullptr : d.panel_mins + b * kBlockCols,
        d.panel_offsets + b * kBlockCols);
  }
  kernels.gemm_int8(d.a_codes, d.a_scales, d.a_sums, k, kRows, d.panel_codes, d.panel_scales,
                    kSymmetric ? nullptr : d.panel_mins, d.panel_offsets, k / kGroup, d.y,
                    kBlockRows);
  return {.flops = 2.0 * kRows * k * kBlockRows};
}

template <FileType kType>
Work FileGemmInt8(const Kernels& kernels, Cached& d, int64_t k) {
  const q4nx::FileForm& form = q4nx::FileFormOf(kType);
  const FileKernels& files = kernels.files[static_cast<size_t>(kType)];
  files.unpack(d.NextRow(RowBytes(kType, k)), k / kGroup, d.panel_codes, d.panel_scales,
               d.panel_mins, d.panel_offsets);
  GemmOf(q4nx::FormOf(kType), kernels)(d.a_codes, d.a_scales, d.a_sums, k, kRows, d.panel_codes,
                                       d.panel_scales, form.minima ? d.panel_mins : nullptr,
                                       d.panel_offsets, k / kGroup, d.y, kBlockRows);
  return {.flops = 2.0 * kRows * k * kBlockRows};
}

template <FileType kType>
Work FileGemmBf16(const Kernels& kernels, Cached& d, int64_t k) {
  const uint8_t* row = d.NextRow(RowBytes(kType, k));
  kernels.files[static_cast<size_t>(kType)].dequantize(row, k / kGroup, d.panel);
  kernels.gemm_bf16(d.a, k + kPadding, kRows, d.panel, k / 2, d.y, kBlockRows);
  return {.flops = 2.0 * kRows * k * kBlockRows};
}

// Unpacking of blocks that are in L1, by the bits of their codes.
template <int kBits>
Work DequantizeBlock(const Kernels& kernels, Cached& d, int64_t blocks) {
  constexpr BlockLayout kLayout = LayoutOfBits(kBits, false);
  const auto dequantize = kBits == 2   ? kernels.lookup->dequantize_block
                          : kBits == 4 ? kernels.dequantize_block
                                       : kernels.bytes.dequantize_block;
  for (int64_t b = 0; b < blocks; ++b) dequantize(d.weights.data(), kLayout, d.panel);
  return {.bytes = 1.0 * blocks * (kLayout.bytes + 2 * kBlockCols * kBlockRows)};
}

template <int kBits>
Work UnpackBlock(const Kernels& kernels, Cached& d, int64_t blocks) {
  constexpr BlockLayout kLayout = LayoutOfBits(kBits, false);
  const auto unpack = kBits == 2 ? kernels.lookup->unpack_block : kernels.unpack_block;
  for (int64_t b = 0; b < blocks; ++b) {
    unpack(d.weights.data(), kLayout, d.panel_codes, d.panel_scales, d.panel_mins, d.panel_offsets);
  }
  return {.bytes = 1.0 * blocks * (kLayout.bytes + kBlockCols * kBlockRows + 12 * kBlockCols)};
}

Work InterleaveBlock(const Kernels& kernels, Cached& d, int64_t blocks) {
  for (int64_t b = 0; b < blocks; ++b) {
    kernels.interleave_block(d.weights.data(), {}, d.panel);
  }
  return {.bytes = 4.0 * blocks * kBlockCols * kBlockRows};
}

// Elementwise kernels count the bytes that they read and write.
Work QuantizeInt8(const Kernels& k, Cached& d, int64_t n) {
  k.quantize_int8(d.x, n / kGroup, 0, d.a_codes, d.a_scales, d.a_sums);
  return Work{5.25 * n};
}

Work GroupSums(const Kernels& k, Cached& d, int64_t n) {
  k.group_sums(d.x, n / kGroup, d.y);
  return Work{4.125 * n};
}

// y = f(x), of numbers of 2 or 4 bytes.
template <auto kKernel>
Work FromHalves(const Kernels& k, Cached& d, int64_t n) {
  (k.*kKernel)(d.halves, n, d.y);
  return Work{6.0 * n};
}
template <auto kKernel>
Work ToHalves(const Kernels& k, Cached& d, int64_t n) {
  (k.*kKernel)(d.x, n, d.panel);
  return Work{6.0 * n};
}
template <auto kKernel>
Work Unary(const Kernels& k, Cached& d, int64_t n) {
  (k.*kKernel)(d.x, n, d.y);
  return Work{8.0 * n};
}

// y = f(x, y).
template <auto kKernel>
Work Gate(const Kernels& k, Cached& d, int64_t n) {
  (k.*kKernel)(d.x, n, d.y);
  return Work{12.0 * n};
}

Work Add(const Kernels& k, Cached& d, int64_t n) {
  k.add(d.y, d.scratch, n, d.y);
  return Work{12.0 * n};
}

Work Multiply(const Kernels& k, Cached& d, int64_t n) {
  k.multiply(d.x, d.scratch, n, d.y);
  return Work{12.0 * n};
}

Work RmsNorm(const Kernels& k, Cached& d, int64_t n) {
  k.rms_norm(d.x, n, 1e-5f, d.y);
  return Work{12.0 * n};
}

Work AttentionWork(int64_t rows, int64_t dim) { return {.flops = 2.0 * rows * kChunk * dim}; }

// For a token: heads that share keys; the cache is read as it is.
template <CacheType kCache>
Work Scores(const Kernels& k, Cached& d, int64_t dim) {
  k.scores[kCache](d.queries, kFew, dim, d.halves, kChunk, 0.1f, nullptr, d.scores);
  return AttentionWork(kFew, dim);
}

template <CacheType kCache>
Work Accumulate(const Kernels& k, Cached& d, int64_t dim) {
  // The correction is x, which is 0.5 everywhere, so that the sums stay finite.
  k.accumulate[kCache](d.scores, kFew, d.halves, kChunk, dim, d.x, nullptr, d.output);
  return AttentionWork(kFew, dim);
}

// For a token, from memory: keys and values of one KV head, which are two streams.
template <CacheType kCache, int64_t kBytes>
Work TokenAttention(const Kernels& k, Streamed& d, int64_t dim) {
  const int64_t chunk = kChunk * dim * kBytes;
  const int64_t half = static_cast<int64_t>(d.weights.size()) / 2 / chunk * chunk;
  const uint8_t* keys = d.weights.data() + static_cast<int64_t>(d.next) % half;
  d.next = static_cast<size_t>(keys + chunk - d.weights.data());
  float *scores = d.y, *max = scores + kFew * kChunk, *sum = max + kFew, *correction = sum + kFew;
  const uint8_t *values = keys + half, *next = keys + chunk;
  k.scores[kCache](d.x, kFew, dim, keys, kChunk, 0.1f, values, scores);
  k.softmax(scores, kFew, kChunk, max, sum, correction);
  k.accumulate[kCache](scores, kFew, values, kChunk, dim, correction, next, d.sums);
  const Work one = AttentionWork(kFew, dim);
  return {2.0 * chunk, 2 * one.flops};
}

// For a prompt, in float32 and in bfloat16.
Work ScoresMany(const Kernels& k, Cached& d, int64_t dim) {
  k.scores_transposed(d.queries, kQueries, dim, d.keys, kChunk, 0.1f, d.scores);
  return AttentionWork(kQueries, dim);
}

Work AccumulateMany(const Kernels& k, Cached& d, int64_t dim) {
  k.accumulate[kCacheFloat32](d.scores, kQueries, d.keys, kChunk, dim, d.x, nullptr, d.output);
  return AttentionWork(kQueries, dim);
}

Work ScoresBf16(const Kernels& k, Cached& d, int64_t dim) {
  if (k.bf16_attention == nullptr) return {};
  k.bf16_attention->scores(d.a, kQueries, dim, d.panel, kChunk, 0.1f, d.scores);
  return AttentionWork(kQueries, dim);
}

Work AccumulateBf16(const Kernels& k, Cached& d, int64_t dim) {
  if (k.bf16_attention == nullptr) return {};
  k.bf16_attention->accumulate(d.a, kQueries, d.panel, kChunk, dim, d.x, d.output);
  return AttentionWork(kQueries, dim);
}

Work Softcap(const Kernels& k, Cached& d, int64_t n) {
  k.softcap(d.scores, n, 30);
  return Work{8.0 * n};
}

Work Softmax(const Kernels& k, Cached& d, int64_t rows) {
  k.softmax(d.scores, rows, kChunk, d.x, d.y, d.y + rows);
  return Work{8.0 * rows * kChunk};
}

Work SoftmaxBf16(const Kernels& k, Cached& d, int64_t rows) {
  if (k.bf16_attention == nullptr) return {};
  k.bf16_attention->softmax(d.scores, rows, kChunk, d.x, d.y, d.y + rows, d.panel);
  return Work{6.0 * rows * kChunk};
}

const Bench<Streamed> kStreamedBenches[] = {
    {"fused_dqp_bf16", Limit::kMemory, "K", {2048, 8192}, FusedDqp<true, false>},
    {"fused_dqp_bf16 symmetric", Limit::kMemory, "K", {2048, 8192}, FusedDqp<true, true>},
    {"fused_dqp_int8", Limit::kMemory, "K", {2048, 8192}, FusedDqp<false, false>},
    {"fused_dqp_int8 symmetric", Limit::kMemory, "K", {2048, 8192}, FusedDqp<false, true>},
    {"rows_bf16, 4", Limit::kMemory, "K", {2048, 8192}, Rows<true, 4>},
    {"rows_bf16, 8", Limit::kMemory, "K", {2048, 8192}, Rows<true, 8>},
    {"rows_bf16, 17", Limit::kMemory, "K", {2048, 8192}, Rows<true, 17>},
    {"rows_int8, 4", Limit::kMemory, "K", {2048, 8192}, Rows<false, 4>},
    {"rows_int8, 8", Limit::kMemory, "K", {2048, 8192}, Rows<false, 8>},
    {"rows_int8, 17", Limit::kMemory, "K", {2048, 8192}, Rows<false, 17>},
    {"lookup_bf16", Limit::kMemory, "K", {2048, 8192}, Lookup<true, false>},
    {"lookup_bf16 symmetric", Limit::kMemory, "K", {2048, 8192}, Lookup<true, true>},
    {"lookup_int8", Limit::kMemory, "K", {2048, 8192}, Lookup<false, false>},
    {"lookup_int8 symmetric", Limit::kMemory, "K", {2048, 8192}, Lookup<false, true>},
    {"bytes_bf16", Limit::kMemory, "K", {2048, 8192}, Bytes<true, false, 1>},
    {"bytes_bf16 symmetric", Limit::kMemory, "K", {2048, 8192}, Bytes<true, true, 1>},
    {"bytes_bf16, 4", Limit::kMemory, "K", {2048, 8192}, Bytes<true, true, 4>},
    {"bytes_int8", Limit::kMemory, "K", {2048, 8192}, Bytes<false, false, 1>},
    {"bytes_int8 symmetric", Limit::kMemory, "K", {2048, 8192}, Bytes<false, true, 1>},
    {"bytes_int8, 4", Limit::kMemory, "K", {2048, 8192}, Bytes<false, true, 4>},
    {"bytes_int8, 17", Limit::kMemory, "K", {2048, 8192}, Bytes<false, true, 17>},
    {"q4_0 int8", Limit::kMemory, "K", {2048, 8192}, File<FileType::kQ4_0, false, 1>},
    {"q8_0 int8", Limit::kMemory, "K", {2048, 8192}, File<FileType::kQ8_0, false, 1>},
    {"q4_k int8", Limit::kMemory, "K", {2048, 8192}, File<FileType::kQ4_K, false, 1>},
    {"q5_k int8", Limit::kMemory, "K", {2048, 8192}, File<FileType::kQ5_K, false, 1>},
    {"q6_k int8", Limit::kMemory, "K", {2048, 8192}, File<FileType::kQ6_K, false, 1>},
    {"iq4_xs int8", Limit::kMemory, "K", {2048, 8192}, File<FileType::kIQ4_XS, false, 1>},
    {"mxfp4 int8", Limit::kMemory, "K", {2048, 8192}, File<FileType::kMXFP4, false, 1>},
    {"q4_k int8, 4", Limit::kMemory, "K", {2048, 8192}, File<FileType::kQ4_K, false, 4>},
    {"q4_k int8, 17", Limit::kMemory, "K", {2048, 8192}, File<FileType::kQ4_K, false, 17>},
    {"q6_k int8, 4", Limit::kMemory, "K", {2048, 8192}, File<FileType::kQ6_K, false, 4>},
    {"q6_k int8, 17", Limit::kMemory, "K", {2048, 8192}, File<FileType::kQ6_K, false, 17>},
    {"q4_k bf16", Limit::kMemory, "K", {2048, 8192}, File<FileType::kQ4_K, true, 1>},
    {"q4_k bf16, 4", Limit::kMemory, "K", {2048, 8192}, File<FileType::kQ4_K, true, 4>},
    {"attention float32", Limit::kMemory, "4 rows, dim", {64}, TokenAttention<kCacheFloat32, 4>},
    {"attention float16", Limit::kMemory, "4 rows, dim", {64}, TokenAttention<kCacheFloat16, 2>},
    {"attention int8", Limit::kMemory, "4 rows, dim", {64}, TokenAttention<kCacheInt8, 1>},
};

const Bench<Cached> kCachedBenches[] = {
    {"fused_dqp_bf16 in cache", Limit::kFp32, "K", {2048, 8192}, FusedDqpCached<true>},
    {"fused_dqp_int8 in cache", Limit::kInt8, "K", {2048, 8192}, FusedDqpCached<false>},
    {"q4_0 int8 in cache", Limit::kInt8, "K", {2048, 8192}, FileCached<FileType::kQ4_0, 1>},
    {"q4_0 int8 in cache, 4", Limit::kInt8, "K", {2048, 8192}, FileCached<FileType::kQ4_0, 4>},
    {"q4_k int8 in cache", Limit::kInt8, "K", {2048, 8192}, FileCached<FileType::kQ4_K, 1>},
    {"q4_k int8 in cache, 4", Limit::kInt8, "K", {2048, 8192}, FileCached<FileType::kQ4_K, 4>},
    {"lookup_bf16 in cache", Limit::kFp32, "K", {2048, 8192}, LookupCached<true>},
    {"lookup_int8 in cache", Limit::kInt8, "K", {2048, 8192}, LookupCached<false>},
    {"lookup tables bf16", Limit::kFp32, "K", {2048, 8192}, MakeTables<true>},
    {"lookup tables int8", Limit::kFp32, "K", {2048, 8192}, MakeTables<false>},
    {"gemm_bf16", Limit::kBf16, "a prompt, K", {2048, 8192}, GemmBf16},
    {"gemm_int8", Limit::kInt8, "512 rows, K", {2048, 8192}, GemmInt8<false>},
    {"gemm_int8 symmetric", Limit::kInt8, "512 rows, K", {2048, 8192}, GemmInt8<true>},
    {"q4_k gemm_int8", Limit::kInt8, "512 rows, K", {2048, 8192}, FileGemmInt8<FileType::kQ4_K>},
    {"q5_k gemm_int8", Limit::kInt8, "512 rows, K", {2048, 8192}, FileGemmInt8<FileType::kQ5_K>},
    {"q8_0 gemm_int8", Limit::kInt8, "512 rows, K", {2048, 8192}, FileGemmInt8<FileType::kQ8_0>},
    {"q6_k gemm_int8", Limit::kInt8, "512 rows, K", {2048, 8192}, FileGemmInt8<FileType::kQ6_K>},
    {"q4_k gemm_bf16", Limit::kBf16, "512 rows, K", {2048, 8192}, FileGemmBf16<FileType::kQ4_K>},
    {"dequantize_block", Limit::kL1, "blocks", {1}, DequantizeBlock<4>},
    {"interleave_block", Limit::kL1, "blocks", {1}, InterleaveBlock},
    {"unpack_block", Limit::kL1, "blocks", {1}, UnpackBlock<4>},
    {"dequantize_block 2 bits", Limit::kL1, "blocks", {1}, DequantizeBlock<2>},
    {"unpack_block 2 bits", Limit::kL1, "blocks", {1}, UnpackBlock<2>},
    {"dequantize_block 8 bits", Limit::kL1, "blocks", {1}, DequantizeBlock<8>},
    {"quantize_int8", Limit::kL1, "n", {kElements}, QuantizeInt8},
    {"group_sums", Limit::kL1, "n", {kElements}, GroupSums},
    {"float16_to_float", Limit::kL1, "n", {kElements}, FromHalves<&Kernels::float16_to_float>},
    {"bfloat16_to_float", Limit::kL1, "n", {kElements}, FromHalves<&Kernels::bfloat16_to_float>},
    {"float_to_float16", Limit::kL1, "n", {kElements}, ToHalves<&Kernels::float_to_float16>},
    {"float_to_bfloat16", Limit::kL1, "n", {kElements}, ToHalves<&Kernels::float_to_bfloat16>},
    {"add", Limit::kL1, "n", {kElements}, Add},
    {"multiply", Limit::kL1, "n", {kElements}, Multiply},
    {"sigmoid", Limit::kL1, "n", {kElements}, Unary<&Kernels::sigmoid>},
    {"silu", Limit::kL1, "n", {kElements}, Unary<&Kernels::silu>},
    {"gelu", Limit::kL1, "n", {kElements}, Unary<&Kernels::gelu>},
    {"gelu_tanh", Limit::kL1, "n", {kElements}, Unary<&Kernels::gelu_tanh>},
    {"rms_norm", Limit::kL1, "n", {kElements}, RmsNorm},
    {"gate_silu", Limit::kL1, "n", {kElements}, Gate<&Kernels::gate_silu>},
    {"gate_gelu_tanh", Limit::kL1, "n", {kElements}, Gate<&Kernels::gate_gelu_tanh>},
    {"scores float16", Limit::kFp32, "4 rows, dim", {64, 128}, Scores<kCacheFloat16>},
    {"accumulate float16", Limit::kFp32, "4 rows, dim", {64, 128}, Accumulate<kCacheFloat16>},
    {"scores int8", Limit::kFp32, "4 rows, dim", {64, 128}, Scores<kCacheInt8>},
    {"accumulate int8", Limit::kFp32, "4 rows, dim", {64, 128}, Accumulate<kCacheInt8>},
    {"scores_transposed", Limit::kFp32, "64 rows, dim", {64, 128}, ScoresMany},
    {"accumulate float32", Limit::kFp32, "64 rows, dim", {64, 128}, AccumulateMany},
    {"bf16 scores", Limit::kBf16, "64 rows, dim", {64, 128}, ScoresBf16},
    {"bf16 accumulate", Limit::kBf16, "64 rows, dim", {64, 128}, AccumulateBf16},
    {"softcap", Limit::kL1, "n", {kChunk}, Softcap},
    {"softmax", Limit::kL1, "rows", {kFew, kQueries}, Softmax},
    {"bf16 softmax", Limit::kL1, "rows", {kQueries}, SoftmaxBf16},
};

}  // namespace

Weights::Weights() {
  const int64_t last_cache = platform::LastCacheBytes();
  const int64_t row_bytes = q4nx::BytesOfBlocks(kBlockRows, kMaxK, WeightForm{WeightKind::kQ8NX});
  const int64_t bytes =
      std::clamp<int64_t>(4 * last_cache, 256 << 20, 1 << 30) / row_bytes * row_bytes;
  // Any two bytes are an ordinary bfloat16, and any four an ordinary float: blocks of all forms may
  // start anywhere.
  auto* blocks = arena_.New<uint8_t>(bytes, 0x3f);
  blocks_ = {blocks, static_cast<size_t>(bytes)};
}

Streamed::Streamed(std::span<const uint8_t> weights)
    : weights(weights),
      x(arena.New(kStreamedRows * kMaxK, 0.5f)),
      sums(arena.New(kStreamedRows * kMaxK / kLeastGroup, 16.0f)),
      scales(arena.New(kStreamedRows * kMaxK / kGroup, 0.5f)),
      y(arena.New(kRows * kBlockRows, 0.0f)),
      codes(arena.New<int8_t>(kStreamedRows * kMaxK, 3)),
      q_sums(arena.New<int32_t>(kStreamedRows * kMaxK / kLeastGroup, 3 * kGroup)),
      // As 32-bit integers these are small enough to be added up; as floats they are not denormal.
      tables(arena.New<uint8_t>(kMaxK / q4nx::kQuad * kMaxTableBytes, 0x02)) {}

const uint8_t* Streamed::NextRow(int64_t bytes) {
  const auto size = static_cast<size_t>(bytes);
  if (next + size > weights.size()) next = 0;
  const uint8_t* row = weights.data() + next;
  next += size;
  return row;
}

Cached::Cached(std::span<const uint8_t> weights)
    : Streamed(weights),
      halves(arena.New<uint16_t>(kChunk * kMaxDim, 0x3800)),
      a(arena.New<uint16_t>(kRows * (kMaxK + kPadding), 0x3f00)),
      panel(arena.New<uint16_t>(kMaxK * kBlockRows, 0)),
      a_codes(arena.New<uint8_t>(kRows * kMaxK, 131)),
      a_scales(arena.New(kRows * kMaxK / kGroup, 0.5f)),
      panel_scales(arena.New(kMaxK / kLeastGroup * kBlockRows, 0.0f)),
      panel_mins(arena.New(kMaxK / kLeastGroup * kBlockRows, 0.0f)),
      a_sums(arena.New<int32_t>(kRows * kMaxK / kLeastGroup, 3 * kGroup)),
      panel_offsets(arena.New<int32_t>(kMaxK / kLeastGroup * kBlockRows, 0)),
      panel_codes(arena.New<int8_t>(kMaxK * kBlockRows, 0)),
      queries(arena.New(kQueries * kMaxDim, 0.5f)),
      keys(arena.New(kChunk * kMaxDim, 0.5f)),
      scores(arena.New(kQueries * kChunk, 0.5f)),
      output(arena.New(kQueries * kMaxDim, 0.5f)),
      scratch(arena.New(kChunk * kMaxDim, 0.0f)) {}

std::span<const Bench<Streamed>> StreamedBenches() { return kStreamedBenches; }
std::span<const Bench<Cached>> CachedBenches() { return kCachedBenches; }

}  // namespace ort_aie::host
