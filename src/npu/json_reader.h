// Strict reading of a manifest's JSON: every error names the key, what was expected and what came.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <string_view>

namespace ort_aie::npu {

using Json = nlohmann::json;

// A value for an error message: its JSON, shortened.
std::string Shown(const Json& value);

[[noreturn]] void FailValue(const std::string& path, std::string_view expected, const Json& got);

// An integer at `path`; booleans and floats are refused.
int64_t ReadInteger(const Json& value, const std::string& path, int64_t low, int64_t high);
std::string ReadString(const Json& value, const std::string& path);
const Json& ReadList(const Json& value, const std::string& path);

// An object whose keys are taken one by one. Finish refuses the keys that remain.
class ObjectReader {
 public:
  ObjectReader(const Json& value, std::string path);

  const std::string& path() const { return path_; }
  std::string PathOf(std::string_view key) const;
  bool Has(std::string_view key) const;
  const Json& Take(std::string_view key);
  int64_t Integer(std::string_view key, int64_t low, int64_t high);
  std::string String(std::string_view key);
  double PositiveNumber(std::string_view key);
  const Json& List(std::string_view key);
  void Finish() const;

 private:
  const Json& value_;
  std::string path_;
  std::set<std::string, std::less<>> taken_;
};

// The members of an object whose keys are free names, such as fifos: calls `member(name, value,
// path)`.
template <typename Function>
void ForEachMember(const Json& value, const std::string& path, Function member) {
  if (!value.is_object()) FailValue(path, "an object", value);
  for (const auto& [name, entry] : value.items()) member(name, entry, path + "." + name);
}

}  // namespace ort_aie::npu
