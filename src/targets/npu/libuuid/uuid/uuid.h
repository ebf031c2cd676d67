#pragma once

// What XRT's headers use of libuuid, under its names. libuuid's own would be one more library that
// a wheel needs of the system, and its header one more package that a build needs.

#include <cstring>

using uuid_t = unsigned char[16];

static inline void uuid_clear(uuid_t uuid) { std::memset(uuid, 0, sizeof(uuid_t)); }

static inline void uuid_copy(uuid_t to, const uuid_t from) {
  std::memcpy(to, from, sizeof(uuid_t));
}

static inline int uuid_compare(const uuid_t a, const uuid_t b) {
  return std::memcmp(a, b, sizeof(uuid_t));
}

static inline int uuid_is_null(const uuid_t uuid) {
  const uuid_t null = {};
  return uuid_compare(uuid, null) == 0;
}

// 01234567-89ab-cdef-0123-456789abcdef and a terminating zero.
static inline void uuid_unparse_lower(const uuid_t uuid, char* text) {
  for (int i = 0; i < 16; ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) *text++ = '-';
    *text++ = "0123456789abcdef"[uuid[i] >> 4];
    *text++ = "0123456789abcdef"[uuid[i] & 15];
  }
  *text = 0;
}

// 0, or -1 where `text` is not as above, with digits of either case.
static inline int uuid_parse(const char* text, uuid_t uuid) {
  const auto digit = [](char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return -1;
  };
  uuid_t parsed;
  for (int i = 0; i < 16; ++i) {
    if ((i == 4 || i == 6 || i == 8 || i == 10) && *text++ != '-') return -1;
    const int high = digit(*text);
    const int low = high < 0 ? -1 : digit(text[1]);
    if (low < 0) return -1;
    parsed[i] = static_cast<unsigned char>(high << 4 | low);
    text += 2;
  }
  if (*text != 0) return -1;
  uuid_copy(uuid, parsed);
  return 0;
}
