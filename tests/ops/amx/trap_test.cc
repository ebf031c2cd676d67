// Runs the compiled kernels of amx.cc on a CPU without AMX: each AMX instruction raises SIGILL, and
// a handler decodes it and does what the stand-in does. The results must equal the stand-in's
// kernels bit for bit. This finds a wrong operand, or memory that the compiler takes to be unread,
// without a CPU with AMX.
#include <signal.h>
#include <ucontext.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <vector>

#include "amx_standin.h"
#include "targets/host/kernels/kernels.h"

namespace ort_aie::host {
namespace {

int64_t trapped = 0;

// The registers in the order of their numbers in an instruction.
constexpr int kRegisters[16] = {REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP,
                                REG_RSI, REG_RDI, REG_R8,  REG_R9,  REG_R10, REG_R11,
                                REG_R12, REG_R13, REG_R14, REG_R15};

[[noreturn]] void Unknown(const uint8_t* at) {
  std::fprintf(stderr, "an instruction that is not of AMX:");
  for (int i = 0; i < 8; ++i) std::fprintf(stderr, " %02x", at[i]);
  std::fputc('\n', stderr);
  std::_Exit(2);
}

// Intel's manual, volume 2, chapter 2.3: C4, then R X B inverted and the map, W vvvv inverted, L
// and the prefix, the opcode, ModRM.
void Execute(int /*signal*/, siginfo_t* /*info*/, void* context) {
  greg_t* registers = static_cast<ucontext_t*>(context)->uc_mcontext.gregs;
  const auto* at = reinterpret_cast<const uint8_t*>(registers[REG_RIP]);
  const auto value = [&](int number) { return registers[kRegisters[number]]; };
  if (at[0] != 0xc4 || (at[1] & 0x1f) != 2 || (at[2] & 0x84) != 0) Unknown(at);
  const int b = at[1] & 0x20 ? 0 : 8, x = at[1] & 0x40 ? 0 : 8;
  const int vvvv = (at[2] >> 3 & 15) ^ 15, prefix = at[2] & 3, opcode = at[3], modrm = at[4];
  const int mod = modrm >> 6, reg = modrm >> 3 & 7, rm = modrm & 7;
  int64_t length = 5, index = 0;
  uint8_t* address = nullptr;
  if (mod != 3) {
    int base = rm + b;
    if (rm == 4) {
      const int sib = at[5];
      base = (sib & 7) + b;
      const int number = (sib >> 3 & 7) + x;
      if (number != 4) index = value(number) * (int64_t{1} << (sib >> 6));
      ++length;
    }
    if (mod == 0 && (base & 7) == 5) Unknown(at);
    int64_t offset = 0;
    if (mod == 1) offset = static_cast<int8_t>(at[length]);
    if (mod == 2) {
      int32_t wide;
      std::memcpy(&wide, at + length, sizeof wide);
      offset = wide;
    }
    length += mod == 1 ? 1 : mod == 2 ? 4 : 0;
    address = reinterpret_cast<uint8_t*>(value(base) + offset);
  }
  // Prefixes: 0 none, 1 is 66, 2 is F3, 3 is F2.
  if (opcode == 0x49 && mod != 3 && prefix == 0) {
    _tile_loadconfig(address);
  } else if (opcode == 0x49 && mod == 3 && prefix == 0 && modrm == 0xc0) {
    _tile_release();
  } else if (opcode == 0x49 && mod == 3 && prefix == 3 && rm == 0) {
    _tile_zero(reg);
  } else if (opcode == 0x4b && mod != 3 && rm == 4 && (prefix == 3 || prefix == 1)) {
    _tile_loadd(reg, address, index);
  } else if (opcode == 0x4b && mod != 3 && rm == 4 && prefix == 2) {
    _tile_stored(reg, address, index);
  } else if (opcode == 0x5c && mod == 3 && prefix == 2) {
    _tile_dpbf16ps(reg, rm, vvvv);
  } else {
    Unknown(at);
  }
  registers[REG_RIP] += length;
  ++trapped;
}

std::mt19937 generator(1);

// Between 2^-4 and 2^4, of either sign.
std::vector<uint16_t> RandomBfloat16(int64_t count) {
  std::vector<uint16_t> x(static_cast<size_t>(count));
  for (uint16_t& bits : x) {
    const unsigned random = generator();
    bits = static_cast<uint16_t>((random & 0x807f) | (123 + (random >> 16) % 8) << 7);
  }
  return x;
}

std::vector<float> RandomFloats(int64_t count) {
  std::vector<float> x(static_cast<size_t>(count));
  for (float& value : x) value = static_cast<float>(static_cast<int32_t>(generator())) * 0x1p-31f;
  return x;
}

int failures = 0;
void Compare(const std::vector<float>& real, const std::vector<float>& standin, const char* kernel,
             int64_t rows, int64_t size) {
  if (std::memcmp(real.data(), standin.data(), real.size() * sizeof(float)) == 0) return;
  std::printf("%s of %d rows, size %d: other bits than the stand-in's\n", kernel,
              static_cast<int>(rows), static_cast<int>(size));
  ++failures;
}

void CompareGemm(int64_t rows, int64_t pairs) {
  const int64_t lda = 2 * pairs + 32;
  const auto a = RandomBfloat16(rows * lda), panel = RandomBfloat16(64 * pairs);
  std::vector<float> real(static_cast<size_t>(rows * 40), 1.0f), standin = real;
  kAmxKernels.gemm_bf16(a.data(), lda, rows, panel.data(), pairs, real.data(), 40);
  kAmxStandinKernels.gemm_bf16(a.data(), lda, rows, panel.data(), pairs, standin.data(), 40);
  Compare(real, standin, "gemm_bf16", rows, 2 * pairs);
}

void CompareAttention(int64_t rows, int64_t dim, int64_t keys) {
  const Bf16Attention &amx = *kAmxKernels.bf16_attention,
                      &plain = *kAmxStandinKernels.bf16_attention;
  const auto q = RandomBfloat16(rows * dim), packed = RandomBfloat16(kChunk * dim);
  std::vector<float> real(static_cast<size_t>(rows * kChunk), 1.0f), standin = real;
  amx.scores(q.data(), rows, dim, packed.data(), keys, 0.3f, real.data());
  plain.scores(q.data(), rows, dim, packed.data(), keys, 0.3f, standin.data());
  Compare(real, standin, "scores", rows, dim);

  const auto f = RandomBfloat16(rows * kChunk);
  const auto correction = RandomFloats(rows);
  real = standin = RandomFloats(rows * dim);
  amx.accumulate(f.data(), rows, packed.data(), keys, dim, correction.data(), real.data());
  plain.accumulate(f.data(), rows, packed.data(), keys, dim, correction.data(), standin.data());
  Compare(real, standin, "accumulate", rows, dim);
}

int Run() {
  struct sigaction action = {};
  action.sa_sigaction = Execute;
  action.sa_flags = SA_SIGINFO;
  sigaction(SIGILL, &action, nullptr);
  for (const int64_t rows : {1, 15, 16, 17, 31, 32, 33, 70}) {
    for (const int64_t pairs : {1, 16, 23, 128}) CompareGemm(rows, pairs);
  }
  for (const int64_t rows : {1, 16, 24, 32, 41}) {
    for (const int64_t dim : {8, 24, 64, 80, 128}) {
      for (const int64_t keys : {1, 33, 256}) CompareAttention(rows, dim, keys);
    }
  }
  std::printf("%d instructions\n", static_cast<int>(trapped));
  return failures == 0 && trapped > 0 ? 0 : 1;
}

}  // namespace
}  // namespace ort_aie::host

int main() { return ort_aie::host::Run(); }
