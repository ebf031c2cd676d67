// The CPU kernels of the host target, one table per instruction set, chosen at run time.
//
// A kernel works on one thread, allocates nothing, and knows no shapes beyond its arguments. Its
// callers (projection.cc, attention.cc) split work over threads and own the buffers. The kernel
// files use no STL and no inline function of another header: the linker keeps one copy of an
// inline function, and that copy must not be the one compiled for AVX-512.
#pragma once

#include <stdint.h>

#include "q4nx/file_forms.h"
#include "targets/host/kernels/lookup_kernels.h"

namespace ort_aie::host {

// Keys in an attention chunk, and columns of its scores: a chunk of K and V stays in L1 and L2.
constexpr int64_t kChunk = 256;
// Kernels process so many columns of scores at a time. Columns from the chunk's last key up to a
// multiple of this are -infinity when the softmax starts.
constexpr int64_t kScoreLanes = 32;

// Kernels take the integers of a cache as codes: the scales of keys are multiplied into queries,
// and those of values into outputs. kCacheInt4 has two codes in a byte, as code + 8, the even one
// in the low half.
enum CacheType {
  kCacheFloat32,
  kCacheFloat16,
  kCacheBfloat16,
  kCacheInt8,
  kCacheInt4,
  kCacheTypes
};

// Attention of many query rows on a cache that is not float32, with bfloat16 dot products: queries,
// keys, numerators and values are rounded to bfloat16, sums are float32.
struct Bf16Attention {
  // k (keys, dim) -> panels [ceil(keys / 32)][dim / 2][32][2]: pairs along dim, zeros after the
  // last key. By type of the cache; null for float32, and if the other path should be used.
  void (*pack_keys[kCacheTypes])(const void* k, int64_t keys, int64_t dim, uint16_t* panels);
  // v (keys, dim) -> pairs [ceil(keys / 32) * 16][dim][2]: pairs along keys, likewise.
  void (*pack_values[kCacheTypes])(const void* v, int64_t keys, int64_t dim, uint16_t* pairs);
  // s (rows, kChunk) = scale * q (rows, dim) . k^T.
  void (*scores)(const uint16_t* q, int64_t rows, int64_t dim, const uint16_t* panels, int64_t keys,
                 float scale, float* s);
  // As Kernels::softmax, with rounded numerators f (rows, kChunk). The sums are those of the
  // rounded numerators, so that the weights of a row still add up to one.
  void (*softmax)(const float* s, int64_t rows, int64_t keys, float* max, float* sum,
                  float* correction, uint16_t* f);
  // y (rows, dim) = correction[row] * y + f . v.
  void (*accumulate)(const uint16_t* f, int64_t rows, const uint16_t* pairs, int64_t keys,
                     int64_t dim, const float* correction, float* y);
  // Rows whose scores stay in L1 from one product to the other: a multiple of the rows that the
  // kernels process at a time.
  int64_t row_block;
};

// How a GEMM of many rows is divided (projection.cc).
struct GemmBlocking {
  // Rows of activations that are multiplied by all panels of a task, one panel after the other.
  // Their float results stay in L1, and they are a multiple of the rows that the kernel processes
  // at a time.
  int64_t row_tile;
  // Bytes of activations that are multiplied by all weights before the next rows are, because they
  // must stay in L2; 0: all rows of a chunk.
  int64_t resident_bytes;
};

// FusedDQP of a few rows: a block is multiplied by all of them while it is in the first cache, so
// that weights are read from memory once. Each result is bit for bit that of one row alone.
//
// y (rows, 32) = a (rows, k_blocks * 256) with scales and q_sums (rows, k_blocks * 8) . one row of
// Q4NX blocks.
typedef void RowsInt8(const uint8_t* blocks, int64_t k_blocks, const int8_t* a, const float* scales,
                      const int32_t* q_sums, int64_t rows, const BlockLayout& layout, float* y,
                      int64_t ldy);
// Likewise, with a and sums (rows, k_blocks * 8) as in fused_dqp_bf16.
typedef void RowsBf16(const uint8_t* blocks, int64_t k_blocks, const float* a, const float* sums,
                      int64_t rows, const BlockLayout& layout, float* y, int64_t ldy);

// One row alone: y[32].
typedef void OneRowBf16(const uint8_t* blocks, int64_t k_blocks, const float* a, const float* sums,
                        const BlockLayout& layout, float* y);

// Up to so many rows, FusedDQP is faster than dequantisation + GEMM. A table's limits are for its
// GEMM, and are chosen with it. The tables say where they were measured.
struct MostStreamedRows {
  int64_t int8, bf16;
};

// Kernels for Q8NX, weights of 8 bits. rows_int8 and rows_bf16 also compute a single row.
struct ByteKernels {
  RowsInt8* rows_int8;
  RowsBf16* rows_bf16;
  MostStreamedRows most_rows;
  void (*dequantize_block)(const uint8_t* block, const BlockLayout& layout, uint16_t* panel);
  // As unpack_block of Kernels, with code - 128 in place of code - 8.
  void (*unpack_block)(const uint8_t* block, const BlockLayout& layout, int8_t* codes,
                       float* scales, float* mins, int32_t* offsets);
};

// Kernels for a form of GGUF files (q4nx/file_forms.h). `spans` is k / 32; sums, scales and minima
// of weights are by its group, of 32 or 16 in-features; `a_scales` always by 32.
struct FileKernels {
  // y (rows, 32) = a (rows, spans * 32) with a_scales (rows, spans) and q_sums (rows, k / group) .
  // a row of blocks. Each result is bit for bit that of one row alone.
  void (*rows_int8)(const uint8_t* blocks, int64_t spans, const int8_t* a, const float* a_scales,
                    const int32_t* q_sums, int64_t rows, float* y, int64_t ldy);
  // a holds floats that are bfloat16 values, sums (rows, k / group) their sums.
  void (*rows_bf16)(const uint8_t* blocks, int64_t spans, const float* a, const float* sums,
                    int64_t rows, float* y, int64_t ldy);
  MostStreamedRows most_rows;
  // A row of blocks -> panel [k / 2][32][2] bfloat16.
  void (*dequantize)(const uint8_t* blocks, int64_t spans, uint16_t* panel);
  // A row of blocks -> codes [k / 4][32][4]; scales, mins [k / group][32], weight = scale * code +
  // min; offsets likewise, -128 times the sum of codes over a group. mins is not written by forms
  // without minima. For the kernel that GemmOf says; PreparePowers (dots.inc) has what becomes of
  // scales that are powers of two.
  void (*unpack)(const uint8_t* blocks, int64_t spans, int8_t* codes, float* scales, float* mins,
                 int32_t* offsets);
};

struct FileTable {
  FileKernels kernels[static_cast<int>(FileType::kCount)];
};

struct Kernels {
  const char* name;
  // Dequantisation + GEMM uses bfloat16 even if int8 is requested, because here it is faster, and
  // it is more exact.
  bool prompts_in_bf16;

  // --- conversions, n elements -------------------------------------------------------------
  void (*float16_to_float)(const uint16_t* x, int64_t n, float* y);
  void (*bfloat16_to_float)(const uint16_t* x, int64_t n, float* y);
  void (*float_to_float16)(const float* x, int64_t n, uint16_t* y);
  void (*float_to_bfloat16)(const float* x, int64_t n, uint16_t* y);
  // For a KV cache of integers, n a multiple of 8. To float: the codes.
  void (*int8_to_float)(const int8_t* x, int64_t n, float* y);
  void (*int4_to_float)(const uint8_t* x, int64_t n, float* y);
  // code = x * (1 / scale), rounded to nearest even and clamped; scales (n), or a single one. A
  // scale of 0 counts as 1, and a NaN gives the largest code, as in ONNX Runtime's
  // GroupQueryAttention.
  void (*float_to_int8)(const float* x, const float* scales, bool per_channel, int64_t n,
                        int8_t* y);
  void (*float_to_int4)(const float* x, const float* scales, bool per_channel, int64_t n,
                        uint8_t* y);

  // --- activations ---------------------------------------------------------------------------
  // Per group of 32: scale = max|x| / 127, q = round(x / scale), q_sum = sum of q. A group with a
  // NaN or an infinity gets scale = NaN, so that it propagates. q + offset is stored as a byte.
  void (*quantize_int8)(const float* x, int64_t groups, int32_t offset, uint8_t* q, float* scales,
                        int32_t* q_sums);
  // sums[g] = sum of x over group g of 32.
  void (*group_sums)(const float* x, int64_t groups, float* sums);
  // y = a + b, a * b, or a function of x; y may be an input. gelu is the one with erf, gelu_tanh
  // its tanh form.
  void (*add)(const float* a, const float* b, int64_t n, float* y);
  void (*multiply)(const float* a, const float* b, int64_t n, float* y);
  void (*add_value)(const float* x, float value, int64_t n, float* y);
  void (*multiply_value)(const float* x, float value, int64_t n, float* y);
  void (*sigmoid)(const float* x, int64_t n, float* y);
  void (*silu)(const float* x, int64_t n, float* y);
  void (*gelu)(const float* x, int64_t n, float* y);
  void (*gelu_tanh)(const float* x, int64_t n, float* y);
  // x = x / sqrt(mean of x^2 + epsilon) * weight (RMS norm).
  void (*rms_norm)(const float* weight, int64_t n, float epsilon, float* x);
  // gate = silu(gate) * up, or gelu_tanh(gate) * up: bit for bit as the two kernels in sequence.
  void (*gate_silu)(const float* up, int64_t n, float* gate);
  void (*gate_gelu_tanh)(const float* up, int64_t n, float* gate);

  // --- matrices of floats: recurrent states, few columns
  // ------------------------------------------- y (columns) = x (rows) . m, rows of m ld elements
  // apart.
  void (*vector_matrix)(const float* x, int64_t rows, const float* m, int64_t ld, int64_t columns,
                        float* y);
  // present = decay (rows) * past + key (rows) x delta (columns); y (columns) = query (rows) .
  // present. present may be past.
  void (*update_state)(const float* past, int64_t past_ld, const float* decay, const float* key,
                       const float* query, const float* delta, int64_t rows, int64_t columns,
                       float* present, int64_t present_ld, float* y);

  // --- FusedDQP: y[32] = one row of Q4NX blocks . a --------------------------------------------
  // a: (k_blocks * 256) floats that are bfloat16 values; sums: their sums by 32.
  void (*fused_dqp_bf16)(const uint8_t* blocks, int64_t k_blocks, const float* a, const float* sums,
                         const BlockLayout& layout, float* y);
  void (*fused_dqp_int8)(const uint8_t* blocks, int64_t k_blocks, const int8_t* a,
                         const float* scales, const int32_t* q_sums, const BlockLayout& layout,
                         float* y);

  // If null, a row of blocks is multiplied by one row after the other.
  RowsInt8* rows_int8;
  RowsBf16* rows_bf16;

  // --- dequantisation + GEMM ---------------------------------------------------------------------
  // One block -> panel [256/2][32][2] bfloat16: pairs of k, 32 out-features.
  void (*dequantize_block)(const uint8_t* block, const BlockLayout& layout, uint16_t* panel);
  // A block of bfloat16 weights [256/8][32/8][8 k][8 n] -> the same panel; reads no layout.
  void (*interleave_block)(const uint8_t* block, const BlockLayout& layout, uint16_t* panel);
  // y (rows, 32) = a (rows, 2 * k_pairs) bfloat16 . panel [k_pairs][32][2].
  void (*gemm_bf16)(const uint16_t* a, int64_t lda, int64_t rows, const uint16_t* panel,
                    int64_t k_pairs, float* y, int64_t ldy);
  // One block -> code - 8 [256/4][32][4]; scales and mins [8][32], weight = scale * (code - 8) +
  // min; offsets [8][32] = -128 * the sum of (code - 8) over a group. mins null: not wanted.
  void (*unpack_block)(const uint8_t* block, const BlockLayout& layout, int8_t* codes,
                       float* scales, float* mins, int32_t* offsets);
  // y (rows, 32) = a (rows, groups * 32) with scales and q_sums (rows, groups) . panel; mins null
  // means that all are 0. a holds codes + 128, because dot products need one unsigned side. The
  // surplus from this, offsets, is the same for all rows. gemm_int8 is for codes from -8 to 8, the
  // next two for codes from -16 to 16 and for any: where dot products sum pairs in 16 bits, larger
  // codes leave less room. Otherwise they are the same kernel.
  void (*gemm_int8)(const uint8_t* a, const float* a_scales, const int32_t* q_sums, int64_t lda,
                    int64_t rows, const int8_t* codes, const float* scales, const float* mins,
                    const int32_t* offsets, int64_t groups, float* y, int64_t ldy);
  decltype(gemm_int8) gemm_int8_of_5_bits, gemm_int8_of_8_bits;
  // For codes from -16 to 16, with scales that are powers of two, as FileKernels::unpack leaves
  // them.
  decltype(gemm_int8) gemm_int8_of_powers;
  GemmBlocking bf16_blocking, int8_blocking;
  MostStreamedRows most_rows;

  // --- attention; equations are those of *Efficient LLM Decoding on Ryzen AI NPUs*, III-B --------
  // Scores s are (rows, kChunk).
  // s = scale * q (rows, dim) . k (keys, dim)^T for few rows, k by type of the cache; dim a
  // multiple of 8. Meanwhile the first keys or values that are read next are fetched from memory;
  // null: none.
  void (*scores[kCacheTypes])(const float* q, int64_t rows, int64_t dim, const void* k,
                              int64_t keys, float scale, const void* next, float* s);
  // For many rows: kt [dim][kChunk] = k^T, zeros up to a multiple of 64 keys, and the product with
  // it.
  void (*transpose_keys)(const float* k, int64_t keys, int64_t dim, float* kt);
  void (*scores_transposed)(const float* q, int64_t rows, int64_t dim, const float* kt,
                            int64_t keys, float scale, float* s);
  // s = cap * tanh(s / cap), n contiguous scores.
  void (*softcap)(float* s, int64_t n, float cap);
  // Equations 6 to 9 for a chunk: scores become numerators exp(s - max), max and sum (rows) are
  // updated, and correction[row] is the factor for what was accumulated before. A row whose scores
  // have all been -infinity keeps that maximum, and its numerators are zeros.
  void (*softmax)(float* s, int64_t rows, int64_t keys, float* max, float* sum, float* correction);
  // y (rows, dim) = correction[row] * y + s . v (keys, dim), v by type of the cache; `next` as for
  // scores.
  void (*accumulate[kCacheTypes])(const float* s, int64_t rows, const void* v, int64_t keys,
                                  int64_t dim, const float* correction, const void* next, float* y);
  const Bf16Attention* bf16_attention;  // null without bfloat16 dot products

  const LookupKernels* lookup;  // for weights of two bits
  ByteKernels bytes;            // for weights of 8 bits
  const FileKernels* files;     // by FileType

  // As quantize_int8 and group_sums, with sums by 16; a_scales stay by 32.
  void (*quantize_int8_16)(const float* x, int64_t groups, int32_t offset, uint8_t* q,
                           float* scales, int32_t* q_sums);
  void (*group_sums_16)(const float* x, int64_t groups, float* sums);
  // As gemm_int8, with q_sums, scales, mins and offsets by 16; `groups` counts those of 32. For
  // codes from -32 to 32.
  decltype(gemm_int8) gemm_int8_16;
};

extern const Kernels kPortableKernels;
extern const FileTable kPortableFiles;

// What dot products of bfloat16 compute: those of AVX512_BF16, or of its stand-in
// (avx512_bf16.inc).
struct DotProducts {
  OneRowBf16* one_row;
  RowsBf16* rows;
  decltype(Kernels::dequantize_block) dequantize_block;
  decltype(Kernels::gemm_bf16) gemm;
  const Bf16Attention* attention;
};
consteval Kernels WithDotProducts(Kernels base, const char* name, const DotProducts& products) {
  base.name = name;
  base.fused_dqp_bf16 = products.one_row;
  base.rows_bf16 = products.rows;
  base.most_rows.bf16 = 40;        // on an AMD EPYC (Zen 5)
  base.bytes.most_rows.bf16 = 32;  // not measured where dot products of bfloat16 are fast
  base.dequantize_block = products.dequantize_block;
  base.gemm_bf16 = products.gemm;
  base.bf16_attention = products.attention;
  return base;
}

// `base` with products of many rows in tiles: AMX, or its stand-in (amx.inc).
consteval Kernels WithTiles(Kernels base, const char* name, decltype(Kernels::gemm_bf16) gemm,
                            const Bf16Attention& attention) {
  base.name = name;
  base.gemm_bf16 = gemm;
  base.bf16_attention = &attention;
  base.prompts_in_bf16 = true;
  base.bf16_blocking = {.row_tile = 128, .resident_bytes = 1 << 20};
  return base;
}
constexpr int64_t kTileRowBlock = 32;  // two tiles, one above the other

// Of builds for tests alone: those of AMX, AVX-VNNI and AVX512_BF16 without their instructions.
constexpr const char* kAmxStandin = "amx_standin";
constexpr const char* kAvx512Bf16Standin = "avx512_bf16_standin";
extern const Kernels kAmxStandinKernels;
extern const Kernels kAvx2VnniStandinKernels;
extern const FileTable kAvx2VnniStandinFiles;
void GemmBf16AmxStandin(const uint16_t* a, int64_t lda, int64_t rows, const uint16_t* panel,
                        int64_t k_pairs, float* y, int64_t ldy);
extern const Bf16Attention kAmxStandinAttention;
extern const Kernels kAvx512Bf16StandinKernels;
OneRowBf16 OneRowBf16Standin;
RowsBf16 RowsBf16Standin;
void DequantizeBlockBf16Standin(const uint8_t* block, const BlockLayout& layout, uint16_t* panel);
void GemmBf16Standin(const uint16_t* a, int64_t lda, int64_t rows, const uint16_t* panel,
                     int64_t k_pairs, float* y, int64_t ldy);
extern const Bf16Attention kAvx512Bf16StandinAttention;
#if defined(__x86_64__)
extern const FileTable kAvx2Files, kAvx2VnniFiles, kAvx512Files, kAvx512Bf16Files, kAmxFiles;
extern const Kernels kAvx2Kernels;
extern const Kernels kAvx2VnniKernels;    // those of int8 alone
extern const Kernels kAvx512Kernels;      // F, BW, DQ, VL, VNNI, VBMI
extern const Kernels kAvx512Bf16Kernels;  // the kernels that AVX512_BF16 makes faster, too
// The same, with other ways of prefetching: to other levels of cache, or two and four blocks ahead.
extern const Kernels kAvx2T1Kernels, kAvx2T2Kernels, kAvx2NtaKernels;
extern const Kernels kAvx2TwoAheadKernels, kAvx2FourAheadKernels;
extern const Kernels kAvx2VnniT1Kernels, kAvx2VnniT2Kernels, kAvx2VnniNtaKernels;
extern const Kernels kAvx2VnniTwoAheadKernels, kAvx2VnniFourAheadKernels;
extern const Kernels kAvx512NtaKernels, kAvx512T0Kernels, kAvx512T2Kernels;
extern const Kernels kAvx512InOrderKernels, kAvx512TwoAheadKernels, kAvx512FourAheadKernels;
extern const Kernels kAvx512Bf16NtaKernels, kAvx512Bf16T0Kernels, kAvx512Bf16T2Kernels;
extern const Kernels kAvx512Bf16TwoAheadKernels, kAvx512Bf16FourAheadKernels;
void DequantizeBlockAvx512Bf16(const uint8_t* block, const BlockLayout& layout, uint16_t* panel);
void GemmBf16Avx512Bf16(const uint16_t* a, int64_t lda, int64_t rows, const uint16_t* panel,
                        int64_t k_pairs, float* y, int64_t ldy);
extern const Bf16Attention kAvx512Bf16Attention;
// FusedDQP with bfloat16 dot products, which fetches into L2 or past the caches; and of one row
// alone, with all ways of prefetching.
RowsBf16 RowsBf16Avx512Bf16, RowsBf16Avx512Bf16Nta;
OneRowBf16 OneRowBf16Nta, OneRowBf16T0, OneRowBf16T1, OneRowBf16T2, OneRowBf16TwoAhead,
    OneRowBf16FourAhead;
extern const Kernels kAmxKernels;  // on those of AVX512_BF16
void GemmBf16Amx(const uint16_t* a, int64_t lda, int64_t rows, const uint16_t* panel,
                 int64_t k_pairs, float* y, int64_t ldy);
void ScoresAmx(const uint16_t* q, int64_t rows, int64_t dim, const uint16_t* panels, int64_t keys,
               float scale, float* s);
void AccumulateAmx(const uint16_t* f, int64_t rows, const uint16_t* pairs, int64_t keys,
                   int64_t dim, const float* correction, float* y);
extern const Bf16Attention kAmxAttention;
#endif

// Why this process cannot use AMX; null if it can.
const char* WhyNoAmx();

// The tables of whole instruction sets that this CPU can run, the widest last; ends with a null
// pointer.
const Kernels* const* AvailableKernels();

// The kernels that choice.h assembled for this CPU, or the table that ORT_AIE_ISA names (portable,
// avx2, avx2_vnni, avx512, avx512_bf16, amx). An unknown name, or one that this CPU lacks, is
// reported on stderr once and ignored.
const Kernels& SelectedKernels();

}  // namespace ort_aie::host
