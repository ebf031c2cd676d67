// The initializers that a session replaces (AddInitializer, in Python SessionOptions.
// add_initializer). ONNX Runtime puts the new values into the session after the provider has
// compiled its nodes, and it shows the provider neither them nor their names.
#pragma once

#include <onnxruntime_c_api.h>

#include <memory>
#include <set>
#include <string>

namespace ort_aie::ep {

class Overrides {
 public:
  // `options` are those with which a session makes its provider.
  Overrides(const OrtApi* api, const OrtSessionOptions* options);

  // Those of the names whose initializers the session replaces.
  std::set<std::string> Among(const std::set<std::string>& names) const;

 private:
  using Options = std::unique_ptr<OrtSessionOptions, decltype(OrtApi::ReleaseSessionOptions)>;
  static Options Copy(const OrtApi* api, const OrtSessionOptions* options);

  const OrtApi* api_;
  Options options_;  // a copy: those that were given are gone when the graph comes
};

}  // namespace ort_aie::ep
