// The kernels of amx.cc on any CPU: the same source with stand-ins for the instructions. The other
// half of attention, which AMX leaves to AVX-512, is plain C++ here.
#include "amx_standin.h"

#include "targets/host/kernels/kernels.h"

#define ORT_AIE_VECTOR_BYTES 16

namespace ort_aie::host {
namespace {
#include "targets/host/kernels/amx.inc"
#include "targets/host/kernels/generic/vectors.inc"

inline int64_t WholePanels(int64_t keys) {
  return (keys + kScoreLanes - 1) / kScoreLanes * kScoreLanes;
}

// An element of a cache as bfloat16. Codes are exact in it.
template <CacheType kType>
inline uint16_t Element(const void* cache, int64_t i) {
  uint16_t rounded;
  float wide;
  if constexpr (kType == kCacheBfloat16) {
    return static_cast<const uint16_t*>(cache)[i];
  } else if constexpr (kType == kCacheFloat16) {
    kPortableKernels.float16_to_float(static_cast<const uint16_t*>(cache) + i, 1, &wide);
  } else if constexpr (kType == kCacheInt8) {
    wide = static_cast<const int8_t*>(cache)[i];
  } else {
    const int two = static_cast<const uint8_t*>(cache)[i / 2];
    wide = static_cast<float>((i % 2 == 0 ? two & 15 : two >> 4) - 8);
  }
  kPortableKernels.float_to_bfloat16(&wide, 1, &rounded);
  return rounded;
}

template <CacheType kType>
void PackKeys(const void* k, int64_t keys, int64_t dim, uint16_t* panels) {
  for (int64_t j = 0; j < WholePanels(keys); ++j) {
    uint16_t* panel = panels + j / 32 * 32 * dim + j % 32 * 2;
    for (int64_t d = 0; d < dim; ++d) {
      panel[d / 2 * 64 + d % 2] = j < keys ? Element<kType>(k, j * dim + d) : 0;
    }
  }
}

template <CacheType kType>
void PackValues(const void* v, int64_t keys, int64_t dim, uint16_t* pairs) {
  for (int64_t j = 0; j < WholePanels(keys); ++j) {
    for (int64_t d = 0; d < dim; ++d) {
      pairs[(j / 2 * dim + d) * 2 + j % 2] = j < keys ? Element<kType>(v, j * dim + d) : 0;
    }
  }
}

void RoundedSoftmax(const float* s, int64_t rows, int64_t keys, float* max, float* sum,
                    float* correction, uint16_t* f) {
  const int64_t padded = WholePanels(keys);
  for (int64_t r = 0; r < rows; ++r, s += kChunk, f += kChunk) {
    float largest = max[r];
    for (int64_t j = 0; j < padded; ++j) largest = s[j] > largest ? s[j] : largest;
    // If all are -infinity, any finite shift makes zeros.
    const float shift = largest == -__builtin_inff() ? 0.0f : largest;
    vf total = {};
    for (int64_t j = 0; j < padded; j += kW) {
      float rounded[kW];
      Store(rounded, Exp(Load(s + j) - shift));
      kPortableKernels.float_to_bfloat16(rounded, kW, f + j);
      kPortableKernels.bfloat16_to_float(f + j, kW, rounded);
      total += Load(rounded);
    }
    correction[r] = Exp(Splat(max[r] - shift))[0];
    sum[r] = correction[r] * sum[r] + Sum(total);
    max[r] = largest;
  }
}

}  // namespace

void GemmBf16AmxStandin(const uint16_t* a, int64_t lda, int64_t rows, const uint16_t* panel,
                        int64_t k_pairs, float* y, int64_t ldy) {
  TileGemmBf16(a, lda, rows, panel, k_pairs, y, ldy);
}

extern const Bf16Attention kAmxStandinAttention;
constinit const Bf16Attention kAmxStandinAttention = {
    {nullptr, PackKeys<kCacheFloat16>, PackKeys<kCacheBfloat16>, PackKeys<kCacheInt8>,
     PackKeys<kCacheInt4>},
    {nullptr, PackValues<kCacheFloat16>, PackValues<kCacheBfloat16>, PackValues<kCacheInt8>,
     PackValues<kCacheInt4>},
    TileScores,
    RoundedSoftmax,
    TileAccumulate,
    kTileRowBlock,
};

}  // namespace ort_aie::host
