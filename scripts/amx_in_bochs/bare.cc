#include "bare.h"

#include <stddef.h>

namespace bare {
namespace {

constexpr uint16_t kCom1 = 0x3f8;

void Out(uint16_t port, uint8_t value) { asm volatile("outb %0, %1" : : "a"(value), "Nd"(port)); }

uint8_t In(uint16_t port) {
  uint8_t value;
  asm volatile("inb %1, %0" : "=a"(value) : "Nd"(port));
  return value;
}

}  // namespace

void OpenConsole() {
  Out(kCom1 + 3, 0x83);  // to the divisor of the clock: 115,200 baud
  Out(kCom1, 1);
  Out(kCom1 + 1, 0);
  Out(kCom1 + 3, 3);
}

void Print(const char* text) {
  for (; *text != '\0'; ++text) {
    while ((In(kCom1 + 5) & 0x20) == 0) {
    }
    Out(kCom1, static_cast<uint8_t>(*text));
  }
}

void Print(long number) {
  char digits[24];
  char* first = digits + sizeof digits - 1;
  *first = '\0';
  do {
    *--first = static_cast<char>('0' + number % 10);
    number /= 10;
  } while (number > 0);
  Print(first);
}

void PrintBits(uint32_t bits) {
  char digits[9] = {};
  for (int i = 7; i >= 0; --i, bits >>= 4) digits[i] = "0123456789abcdef"[bits & 15];
  Print(digits);
}

}  // namespace bare

// What the stand-in and compilers want of a C library. The stand-in reports a misuse through stdio.
extern "C" {
void* stderr;
int fputc(int, void*) { return 0; }
int fprintf(void*, const char* text, ...) {
  bare::Print(text);
  return 0;
}
void abort() {
  bare::Print("\naborted\n");
  for (;;) asm volatile("hlt");
}
void* memcpy(void* to, const void* from, size_t n) {
  for (size_t i = 0; i < n; ++i) static_cast<char*>(to)[i] = static_cast<const char*>(from)[i];
  return to;
}
void* memset(void* to, int value, size_t n) {
  for (size_t i = 0; i < n; ++i) static_cast<char*>(to)[i] = static_cast<char>(value);
  return to;
}
float fmaf(float a, float b, float c) {  // by the instruction
  asm("vfmadd213ss %2, %1, %0" : "+x"(a) : "x"(b), "x"(c));
  return a;
}
}
