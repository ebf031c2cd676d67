// Errors of ops and targets. They cross the C ABI as an OrtStatus (src/ort) and reach Python as
// an ONNX Runtime exception whose text names the node.
#pragma once

#include <locale>
#include <sstream>
#include <stdexcept>
#include <string>

namespace ort_aie {

enum class ErrorCode { kInvalidArgument, kInvalidGraph, kNotImplemented, kRuntime };

class Error : public std::runtime_error {
 public:
  Error(ErrorCode code, const std::string& message) : std::runtime_error(message), code_(code) {}
  ErrorCode code() const { return code_; }

 private:
  ErrorCode code_;
};

// Numbers are written as in the source code, whatever the locale of the process.
template <typename... Parts>
std::string Concat(const Parts&... parts) {
  std::ostringstream text;
  text.imbue(std::locale::classic());
  (text << ... << parts);
  return text.str();
}

template <typename... Parts>
[[noreturn]] void Fail(ErrorCode code, const Parts&... parts) {
  throw Error(code, Concat(parts...));
}

template <typename... Parts>
void Require(bool condition, const Parts&... parts) {
  if (!condition) Fail(ErrorCode::kInvalidArgument, parts...);
}

}  // namespace ort_aie
