// Mutations of JSON that yield valid JSON: plain byte mutations seldom get past a parser.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <string_view>
#include <vector>

extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t most);

namespace ort_aie::fuzz {

using Json = nlohmann::json;
using Random = std::minstd_rand;

inline size_t Below(Random& random, size_t count) { return random() % count; }

// Every value in a document, with its depth.
inline void Collect(Json& value, int depth, std::vector<std::pair<Json*, int>>& all) {
  all.emplace_back(&value, depth);
  if (!value.is_structured()) return;
  for (auto& [key, member] : value.items()) Collect(member, depth + 1, all);
}

inline Json Number(Random& random) {
  static constexpr int64_t kEdges[] = {0, 1, -1, 2, 3, 4, 8, 16, 31, 32, 64, 255, 256, 1023, 1024};
  static constexpr int kShifts[] = {8, 15, 16, 20, 24, 31, 32, 33, 48, 53, 60, 61, 62};
  switch (Below(random, 8)) {
    case 0:
      return (int64_t{1} << kShifts[Below(random, std::size(kShifts))]) +
             static_cast<int64_t>(Below(random, 3)) - 1;
    case 1:
      return Below(random, 2) == 0 ? INT64_MAX : INT64_MIN;
    case 2:
      return Below(random, 2) == 0 ? 1e308 : 0.5;
    case 3:
      return UINT64_MAX;
    default:
      return kEdges[Below(random, std::size(kEdges))];
  }
}

inline void MutateValue(Json& value, const Json& other, Random& random) {
  switch (Below(random, 7)) {
    case 0:
      value = other;
      return;
    case 1:
      if (value.is_number_integer()) {
        const uint64_t bits = static_cast<uint64_t>(value.get<int64_t>());
        const uint64_t step = uint64_t{1} << Below(random, 12);
        value = static_cast<int64_t>(Below(random, 2) == 0 ? bits + step : bits - step);
      } else {
        value = Number(random);
      }
      return;
    case 2:
      value = Number(random);
      return;
    case 3: {
      static constexpr const char* kOperators[] = {"+",   "-",   "*", "//", "%", "ceil",
                                                   "min", "max", "<", "<=", "=="};
      value = Json::array({kOperators[Below(random, std::size(kOperators))], value, other});
      return;
    }
    case 4:
      if (value.is_structured() && !value.empty()) {
        value.erase(std::next(value.begin(), static_cast<int64_t>(Below(random, value.size()))));
      } else {
        value = nullptr;
      }
      return;
    case 5:
      if (value.is_array()) {
        value.insert(
            std::next(value.begin(), static_cast<int64_t>(Below(random, value.size() + 1))), other);
      } else if (value.is_object() && other.is_string()) {
        value[other.get<std::string>()] = Number(random);
      } else {
        value = other;
      }
      return;
    default:
      if (value.is_array() && value.size() > 1) {
        std::swap(value[Below(random, value.size())], value[Below(random, value.size())]);
      } else if (value.is_string()) {
        value = value.get<std::string>() + "x";
      } else {
        value = other;
      }
  }
}

// A custom mutator of libFuzzer for inputs that start with JSON and continue as bytes from
// `end_mark`.
inline size_t MutateJson(uint8_t* data, size_t size, size_t most, unsigned seed,
                         std::string_view end_mark) {
  constexpr int kDeepest = 400;  // dump is recursive
  Random random(seed);
  const std::string text(reinterpret_cast<const char*>(data), size);
  const size_t end = std::min(text.find(end_mark), size);
  Json document = Json::parse(text.substr(0, end), nullptr, false);
  if (document.is_discarded() || Below(random, 4) == 0) return LLVMFuzzerMutate(data, size, most);
  for (size_t times = 1 + Below(random, 3); times > 0; --times) {
    std::vector<std::pair<Json*, int>> all;
    Collect(document, 0, all);
    const auto [value, depth] = all[Below(random, all.size())];
    if (depth > kDeepest) return LLVMFuzzerMutate(data, size, most);
    const Json other = *all[Below(random, all.size())].first;
    MutateValue(*value, other, random);
  }
  const std::string mutated =
      document.dump(-1, ' ', false, Json::error_handler_t::replace) + text.substr(end);
  if (mutated.size() > most) return LLVMFuzzerMutate(data, size, most);
  std::memcpy(data, mutated.data(), mutated.size());
  return mutated.size();
}

}  // namespace ort_aie::fuzz
