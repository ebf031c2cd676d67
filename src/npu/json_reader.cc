#include "npu/json_reader.h"

#include <utility>

#include "base/error.h"

namespace ort_aie::npu {

std::string Shown(const Json& value) {
  constexpr size_t kLongest = 80;
  std::string text = value.dump(-1, ' ', false, Json::error_handler_t::replace);
  if (text.size() > kLongest) text = text.substr(0, kLongest) + "...";
  return text;
}

void FailValue(const std::string& path, std::string_view expected, const Json& got) {
  Fail(ErrorCode::kInvalidArgument, path, " must be ", expected, ", got ", Shown(got));
}

int64_t ReadInteger(const Json& value, const std::string& path, int64_t low, int64_t high) {
  const bool fits = value.is_number_integer() &&
                    (!value.is_number_unsigned() || value.get<uint64_t>() <= INT64_MAX);
  if (!fits || value.get<int64_t>() < low || value.get<int64_t>() > high) {
    FailValue(path, Concat("an integer from ", low, " to ", high), value);
  }
  return value.get<int64_t>();
}

std::string ReadString(const Json& value, const std::string& path) {
  if (!value.is_string()) FailValue(path, "a string", value);
  const std::string text = value.get<std::string>();
  // Names of folders and kernels end there.
  if (text.find('\0') != std::string::npos) FailValue(path, "a string without zeros", value);
  return text;
}

const Json& ReadList(const Json& value, const std::string& path) {
  if (!value.is_array()) FailValue(path, "a list", value);
  return value;
}

ObjectReader::ObjectReader(const Json& value, std::string path)
    : value_(value), path_(std::move(path)) {
  if (!value.is_object()) FailValue(path_, "an object", value);
}

std::string ObjectReader::PathOf(std::string_view key) const { return Concat(path_, ".", key); }

bool ObjectReader::Has(std::string_view key) const { return value_.contains(key); }

const Json& ObjectReader::Take(std::string_view key) {
  const auto found = value_.find(key);
  Require(found != value_.end(), path_, " has no \"", key, "\"");
  taken_.emplace(key);
  return *found;
}

int64_t ObjectReader::Integer(std::string_view key, int64_t low, int64_t high) {
  return ReadInteger(Take(key), PathOf(key), low, high);
}

std::string ObjectReader::String(std::string_view key) {
  return ReadString(Take(key), PathOf(key));
}

double ObjectReader::PositiveNumber(std::string_view key) {
  const Json& value = Take(key);
  if (!value.is_number() || !(value.get<double>() > 0)) {
    FailValue(PathOf(key), "a positive number", value);
  }
  return value.get<double>();
}

const Json& ObjectReader::List(std::string_view key) { return ReadList(Take(key), PathOf(key)); }

void ObjectReader::Finish() const {
  for (const auto& [key, value] : value_.items()) {
    Require(taken_.contains(key), path_, " has an unknown key \"", key, "\"");
  }
}

}  // namespace ort_aie::npu
