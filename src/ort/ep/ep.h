// The execution provider of one session: claims nodes of an unmodified model and compiles them to
// the ops of the custom-op door.
#pragma once

#include <onnxruntime_c_api.h>

#include <map>
#include <memory>
#include <string>

#include "ort/api.h"

namespace ort_aie::ep {

inline constexpr char kName[] = "AieExecutionProvider";

// Provider options by name, as the user gave them.
using Settings = std::map<std::string, std::string>;

class Ep : public OrtEp {
 public:
  // Throws Error for a setting that is unknown or has an unknown value.
  Ep(const RuntimeApi& runtime, const OrtLogger* logger, Settings settings);

 private:
  void ClaimAll(const OrtGraph* graph, OrtEpGraphSupportInfo* info) const;
  void CompileAll(const OrtGraph* const* graphs, const OrtNode* const* fused, size_t count,
                  OrtNodeComputeInfo** infos) const;
  void Log(OrtLoggingLevel level, const std::string& message) const;

  const RuntimeApi runtime_;
  const OrtLogger* logger_;
  const Settings settings_;
};

}  // namespace ort_aie::ep
