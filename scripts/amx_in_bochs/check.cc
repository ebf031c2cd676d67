// The stand-in of AMX beside the instructions, as Bochs executes them: products of tiles of any
// shape and any bits, and the kernels that are made of them.
#include "check.h"

#include "bare.h"

namespace bare {
namespace {

uint64_t Random() {
  static uint64_t state = 88172645463325252u;
  state ^= state << 13;
  state ^= state >> 7;
  state ^= state << 17;
  return state;
}

// Exponents, biased, of bfloat16 factors and of what they are added to.
struct Kind {
  const char* name;
  unsigned first, count, first_sum, count_sum;
};
constexpr Kind kKinds[] = {
    {"ordinary", 120, 12, 120, 12},
    {"of any size", 1, 253, 1, 253},
    {"tiny", 0, 70, 0, 70},
    {"with products about 2^-126", 60, 8, 0, 6},
    {"any bits, infinities and NaN among them", 0, 256, 0, 256},
};

uint16_t Factor(const Kind& kind) {
  const uint64_t bits = Random();
  return static_cast<uint16_t>((bits & 0x807f) | (kind.first + Random() % kind.count) << 7);
}
uint32_t Sum(const Kind& kind) {
  const uint64_t bits = Random();
  return static_cast<uint32_t>((bits & 0x807fffff) | (kind.first_sum + Random() % kind.count_sum)
                                                         << 23);
}

bool IsNan(uint32_t bits) { return (bits & 0x7fffffff) > 0x7f800000; }
bool IsNextToTiny(uint32_t bits) { return (bits & 0x7fffffff) < 0x07000000; }  // 2^-113

constexpr long kResults = 48 * 256;
uint32_t amx[kResults], standin[kResults];
uint16_t left[48 * 288], right[128 * 512];
float correction[48];

struct Count {
  long results = 0, differ = 0, differ_beyond_tiny = 0;
};

// Which NaN comes of several is not specified.
void Compare(Count& count) {
  for (long i = 0; i < kResults; ++i) {
    ++count.results;
    if (amx[i] == standin[i] || (IsNan(amx[i]) && IsNan(standin[i]))) continue;
    ++count.differ;
    if (!IsNextToTiny(amx[i]) || !IsNextToTiny(standin[i])) {
      ++count.differ_beyond_tiny;
      Print("amx ");
      PrintBits(amx[i]);
      Print(" stand-in ");
      PrintBits(standin[i]);
      Print("\n");
    }
  }
}

void Fill(const Kind& kind) {
  for (uint16_t& x : left) x = Factor(kind);
  for (uint16_t& x : right) x = Factor(kind);
  for (long i = 0; i < kResults; ++i) amx[i] = standin[i] = Sum(kind);
}

long Report(const char* what, const Count& count) {
  Print(what);
  Print(": ");
  Print(count.results);
  Print(" numbers, ");
  Print(count.differ);
  Print(" differ, ");
  Print(count.differ_beyond_tiny);
  Print(" of them not next to 2^-126\n");
  return count.differ_beyond_tiny;
}

long Products() {
  long wrong = 0;
  alignas(64) static uint8_t config[64];
  for (const Kind& kind : kKinds) {
    Count count;
    for (int i = 0; i < 40; ++i) {
      const auto rows = static_cast<uint8_t>(1 + Random() % 16);
      const auto pairs = static_cast<uint8_t>(1 + Random() % 16);
      const auto columns = static_cast<uint8_t>(1 + Random() % 16);
      for (uint8_t& byte : config) byte = 0;
      config[0] = 1;
      config[16] = config[20] = static_cast<uint8_t>(4 * columns);
      config[18] = static_cast<uint8_t>(4 * pairs);
      config[48] = config[49] = rows;
      config[50] = pairs;
      Fill(kind);
      const int times = static_cast<int>(1 + Random() % 3);
      kAmx.product(config, left, right, amx, times);
      kStandin.product(config, left, right, standin, times);
      Compare(count);
    }
    wrong += Report(kind.name, count);
  }
  return wrong;
}

float* Floats(uint32_t* bits) { return reinterpret_cast<float*>(bits); }

long Kernels() {
  Count gemm, scores, accumulate;
  for (const int64_t rows : {1, 16, 31, 33, 47}) {
    for (const int64_t k_pairs : {16, 128}) {
      Fill(kKinds[0]);
      kAmx.gemm(left, 2 * k_pairs + 32, rows, right, k_pairs, Floats(amx), 37);
      kStandin.gemm(left, 2 * k_pairs + 32, rows, right, k_pairs, Floats(standin), 37);
      Compare(gemm);
    }
    for (const int64_t dim : {8, 72, 80, 128}) {
      for (const int64_t keys : {1, 33, 256}) {
        Fill(kKinds[0]);
        for (float& x : correction) x = 0.75f;
        kAmx.scores(left, rows, dim, right, keys, 0.125f, Floats(amx));
        kStandin.scores(left, rows, dim, right, keys, 0.125f, Floats(standin));
        Compare(scores);
        kAmx.accumulate(left, rows, right, keys, dim, correction, Floats(amx));
        kStandin.accumulate(left, rows, right, keys, dim, correction, Floats(standin));
        Compare(accumulate);
      }
    }
  }
  return Report("GEMM", gemm) + Report("scores", scores) + Report("accumulate", accumulate);
}

}  // namespace
}  // namespace bare

extern "C" int main() {
  bare::OpenConsole();
  const long wrong = bare::Products() + bare::Kernels();
  bare::Print(wrong == 0 ? "the stand-in is right\n" : "the stand-in is wrong\n");
  bare::Print("ended\n");
  return 0;
}
