// A machine without a system: text to the serial port, and what compilers call.
#pragma once

#include <stdint.h>

namespace bare {

void OpenConsole();
void Print(const char* text);
void Print(long number);
void PrintBits(uint32_t bits);

}  // namespace bare
