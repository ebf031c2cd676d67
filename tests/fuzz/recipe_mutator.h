// Mutations of recipes that stay recipes and become long: a step many times over, each time on the
// result before. What takes the square of a recipe's size is found by these.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <sstream>
#include <string>
#include <vector>

extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t most);

namespace ort_aie::fuzz {

// The numbers of a line "reads 0 1" or "writes 2".
inline std::vector<int64_t> NumbersOf(const std::string& line) {
  std::istringstream words(line.substr(line.find(' ') + 1));
  std::vector<int64_t> numbers;
  for (int64_t number = 0; words >> number;) numbers.push_back(number);
  return numbers;
}

// The recipe with a chain of its step `chosen` before its outputs, of at most `most` bytes; the
// same recipe if it has no steps or the step has no results.
inline std::string Chained(const std::string& recipe, size_t chosen, size_t most) {
  const size_t outputs = recipe.rfind("\noutputs");
  std::vector<std::string> step;  // the chosen one, without reads and writes
  std::vector<int64_t> reads, writes;
  int64_t next = 0;  // the first value that nothing writes
  std::istringstream lines(recipe);
  size_t steps = 0;
  for (std::string line; std::getline(lines, line);) {
    steps += line.starts_with("step ") ? 1 : 0;
    const bool its = steps == chosen + 1;
    if (line.starts_with("writes ")) {
      for (const int64_t value : NumbersOf(line)) next = std::max(next, value + 1);
      if (its) writes = NumbersOf(line);
    } else if (its && line.starts_with("reads ")) {
      reads = NumbersOf(line);
    } else if (its && !line.starts_with("outputs")) {
      step.push_back(line);
    }
  }
  if (outputs == std::string::npos || reads.empty() || writes.empty()) return recipe;
  std::string chain;
  while (true) {
    reads.back() = writes.back();
    std::string again;
    for (const std::string& line : step) again += '\n' + line;
    again += "\nreads";
    for (const int64_t value : reads) again += ' ' + std::to_string(value);
    again += "\nwrites";
    for (int64_t& value : writes) again += ' ' + std::to_string(value = next++);
    if (recipe.size() + chain.size() + again.size() > most) break;
    chain += again;
  }
  return recipe.substr(0, outputs) + chain + recipe.substr(outputs);
}

// A custom mutator of libFuzzer for inputs that start with a recipe and continue from `end_mark`.
inline size_t MutateRecipe(uint8_t* data, size_t size, size_t most, unsigned seed,
                           std::string_view end_mark) {
  std::minstd_rand random(seed);
  const std::string text(reinterpret_cast<const char*>(data), size);
  const size_t end = std::min(text.find(end_mark), size);
  if (random() % 64 != 0 || most < size) return LLVMFuzzerMutate(data, size, most);
  const std::string mutated =
      Chained(text.substr(0, end), random() % 4, most - (size - end)) + text.substr(end);
  if (mutated == text) return LLVMFuzzerMutate(data, size, most);
  std::memcpy(data, mutated.data(), mutated.size());
  return mutated.size();
}

}  // namespace ort_aie::fuzz
