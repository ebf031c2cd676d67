// Compares the stand-in of Intel's tile instructions with their specification: products here, and
// one misuse per process, named by the argument (test_amx.py).
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <random>
#include <string_view>

#include "amx_standin.h"

namespace ort_aie::host {
namespace {

struct alignas(64) Config {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t colsb[16] = {};
  uint8_t rows[16] = {};
};
static_assert(sizeof(Config) == 64);

// Tile 0 (rows, columns) float32, tile 1 (rows, 2 * pairs), tile 2 (pairs, 2 * columns).
Config ForProduct(int rows, int pairs, int columns) {
  Config config;
  const int shapes[3][2] = {{rows, 4 * columns}, {rows, 4 * pairs}, {pairs, 4 * columns}};
  for (int i = 0; i < 3; ++i) {
    config.rows[i] = static_cast<uint8_t>(shapes[i][0]);
    config.colsb[i] = static_cast<uint16_t>(shapes[i][1]);
  }
  return config;
}

int failures = 0;
void Expect(bool fine, const char* what) {
  if (fine) return;
  std::printf("FAILED: %s\n", what);
  ++failures;
}

float FromBits(uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}
uint32_t ToBits(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return bits;
}
float Widen(uint16_t x) { return FromBits(static_cast<uint32_t>(x) << 16); }

// The float32 of a sum that is exact in 113 bits: rounded once to 24 bits whatever the exponent,
// then 0 if it is below the normal numbers.
using Wide = __float128;
float Rounded(Wide x) {
  const bool tiny = (x < 0 ? -x : x) < Wide{0x1p-64f};
  const float scaled = static_cast<float>(tiny ? x * Wide{0x1p64f} : x);
  if (!tiny) return scaled;
  return std::fabs(scaled) < 0x1p-62f ? std::copysign(0.0f, scaled) : scaled * 0x1p-64f;
}
Wide Daz(float x) { return std::fabs(x) < 0x1p-126f ? Wide{0} : Wide{x}; }

// Random bits with exponents from `lowest` on, so that sums of products are exact in 113 bits.
template <typename Bits, int kMantissa>
Bits RandomBits(std::mt19937& random, int lowest, int exponents) {
  const unsigned exponent =
      static_cast<unsigned>(lowest) + random() % static_cast<unsigned>(exponents);
  const unsigned mantissa = random() % (1u << kMantissa), sign = random() % 2;
  return static_cast<Bits>(sign << (kMantissa + 8) | exponent << kMantissa | mantissa);
}

void ProductsAreThoseOfTheSpecification(int rows, int pairs, int columns, int lowest) {
  std::mt19937 random(static_cast<unsigned>(rows * 10000 + pairs * 100 + columns + lowest));
  uint16_t a[16][40], b[16][36];
  float c[16][20], y[16][20], before[16][20];
  for (auto& row : a)
    for (auto& x : row) x = RandomBits<uint16_t, 7>(random, lowest, 9);
  for (auto& row : b)
    for (auto& x : row) x = RandomBits<uint16_t, 7>(random, lowest, 9);
  // Products have exponents around 2 * (lowest - 127) + 127 + 8.
  const int middle = std::max(0, 2 * lowest - 119 - 20);
  for (auto& row : c)
    for (auto& x : row) x = FromBits(RandomBits<uint32_t, 23>(random, middle, 30));
  std::memcpy(y, c, sizeof y);
  std::memcpy(before, c, sizeof before);
  const Config config = ForProduct(rows, pairs, columns);
  _tile_loadconfig(&config);
  _tile_loadd(0, c, sizeof c[0]);
  _tile_loadd(1, a, sizeof a[0]);
  _tile_loadd(2, b, sizeof b[0]);
  _tile_dpbf16ps(0, 1, 2);
  _tile_stored(0, y, sizeof y[0]);
  _tile_release();
  bool same = true, alone = true;
  for (int m = 0; m < 16; ++m) {
    for (int n = 0; n < 20; ++n) {
      if (m >= rows || n >= columns) {
        alone = alone && ToBits(y[m][n]) == ToBits(before[m][n]);
        continue;
      }
      float even = 0, odd = 0;
      for (int k = 0; k < pairs; ++k) {
        even = Rounded(Daz(Widen(a[m][2 * k])) * Daz(Widen(b[k][2 * n])) + Wide{even});
        odd = Rounded(Daz(Widen(a[m][2 * k + 1])) * Daz(Widen(b[k][2 * n + 1])) + Wide{odd});
      }
      const float expected = Rounded(Daz(c[m][n]) + Wide{Rounded(Wide{even} + Wide{odd})});
      same = same && (ToBits(expected) == ToBits(y[m][n]) || (expected == 0 && y[m][n] == 0));
    }
  }
  Expect(same, "a product has other bits than the specification says");
  Expect(alone, "a store writes outside of its tile");
}

// One element: 1 x 1 pairs.
float OneProduct(uint16_t a0, uint16_t b0, uint16_t a1, uint16_t b1, float c) {
  const uint16_t a[2] = {a0, a1}, b[2] = {b0, b1};
  const Config config = ForProduct(1, 1, 1);
  _tile_loadconfig(&config);
  _tile_loadd(0, &c, 64);
  _tile_loadd(1, a, 64);
  _tile_loadd(2, b, 64);
  _tile_dpbf16ps(0, 1, 2);
  _tile_stored(0, &c, 64);
  _tile_release();
  return c;
}

void SpecialValues() {
  const uint16_t one = 0x3f80, tiny = 0x007f, infinity = 0x7f80, nan = 0x7fc0, smallest = 0x0080;
  Expect(OneProduct(tiny, 0x7f00, 0, 0, 1.0f) == 1.0f, "a denormal factor is not zero");
  Expect(OneProduct(0, 0, 0, 0, 0x1p-127f) == 0.0f, "a denormal in the sum is not zero");
  Expect(OneProduct(smallest, 0x3f00, 0, 0, 0.0f) == 0.0f, "a denormal result is not zero");
  Expect(OneProduct(one, infinity, 0, 0, 1.0f) == INFINITY, "infinity is lost");
  Expect(std::isnan(OneProduct(0, infinity, 0, 0, 1.0f)), "0 * infinity is a number");
  Expect(std::isnan(OneProduct(one, infinity, one, 0xff80, 0)), "inf - inf is a number");
  Expect(std::isnan(OneProduct(one, one, nan, one, 1.0f)), "NaN is lost");
  // 2^-126 - 2^-150: it has 24 bits and an exponent below the least, so it is tiny although
  // rounding to denormals would give 2^-126. Here 2^-126 * 1 - 2^-102 * 2^-48.
  const Config config = ForProduct(1, 2, 1);
  _tile_loadconfig(&config);
  const uint16_t a[4] = {0x0080, 0, 0x8c80, 0}, b[2][2] = {{one, 0}, {0x2780, 0}};
  float c = 0;
  _tile_zero(0);
  _tile_loadd(1, a, 64);
  _tile_loadd(2, b, 4);
  _tile_dpbf16ps(0, 1, 2);
  _tile_stored(0, &c, 64);
  Expect(c == 0, "a result that is tiny when rounded to 24 bits is not zero");
  _tile_release();
}

void TilesKeepNothing() {
  float ones[16][16], y[16][16];
  for (auto& row : ones)
    for (auto& x : row) x = 1;
  Config config = ForProduct(16, 16, 16);
  _tile_loadconfig(&config);
  _tile_loadd(0, ones, 64);
  _tile_loadconfig(&config);  // as loading a configuration zeroes them
  _tile_stored(0, y, 64);
  Expect(y[0][0] == 0 && y[15][15] == 0, "a new configuration leaves what tiles held");
  _tile_release();
}

// Each ends the process.
void Misuse(std::string_view name) {
  Config config = ForProduct(16, 16, 16);
  uint8_t bytes[1024] = {};
  const auto load = [&] { _tile_loadconfig(&config); };
  if (name == "no configuration") _tile_zero(0);
  if (name == "released") load(), _tile_release(), _tile_loadd(0, bytes, 64);
  if (name == "palette 0") config.palette = 0, load(), _tile_stored(0, bytes, 64);
  if (name == "tile without rows") load(), _tile_zero(3);
  if (name == "palette") config.palette = 2, load();
  if (name == "start row") config.start_row = 1, load();
  if (name == "reserved") config.reserved[13] = 1, load();
  if (name == "rows") config.rows[0] = 17, load();
  if (name == "columns") config.colsb[0] = 65, load();
  if (name == "rows without columns") config.colsb[1] = 0, load();
  if (name == "ninth tile") config.rows[8] = config.colsb[8] = 4, load();
  if (name == "tile 8") load(), _tile_zero(8);
  if (name == "same tile") load(), _tile_dpbf16ps(0, 1, 1);
  if (name == "half a pair") config.colsb[1] = 62, load(), _tile_dpbf16ps(0, 1, 2);
  if (name == "rows of the first") config.rows[1] = 15, load(), _tile_dpbf16ps(0, 1, 2);
  if (name == "pairs") config.rows[2] = 15, load(), _tile_dpbf16ps(0, 1, 2);
  if (name == "columns of the second") config.colsb[2] = 60, load(), _tile_dpbf16ps(0, 1, 2);
}

}  // namespace
}  // namespace ort_aie::host

int main(int count, char** arguments) {
  using namespace ort_aie::host;
  if (count > 1) {
    Misuse(arguments[1]);
    return 0;
  }
  for (const int rows : {1, 7, 16}) {
    for (const int pairs : {1, 5, 16}) {
      for (const int columns : {1, 8, 16}) {
        // Around 1, and around the smallest normal products: 2 * (60 - 127) = -134.
        for (const int lowest : {120, 60}) {
          ProductsAreThoseOfTheSpecification(rows, pairs, columns, lowest);
        }
      }
    }
  }
  SpecialValues();
  TilesKeepNothing();
  return failures == 0 ? 0 : 1;
}
