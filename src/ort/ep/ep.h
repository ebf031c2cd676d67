// The execution provider of one session. It claims regions of an unmodified model and makes each a
// program of steps, or opens the EPContext nodes that an earlier session wrote.
#pragma once

#include <onnxruntime_c_api.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "ort/ep/claimed.h"
#include "ort/ep/constants.h"
#include "ort/ep/context_file.h"
#include "ort/ep/overrides.h"
#include "ort/ep/referred.h"
#include "targets/session_options.h"

namespace ort_aie::ep {

inline constexpr char kName[] = "AieExecutionProvider";

using ort_aie::Settings;

// Session config entries about EPContext models (ONNX Runtime's `ep.context_*`).
struct ContextOptions {
  bool enable = false, embed = false;
  bool compile_only = false;  // by ONNX Runtime's compile API, whose result may stay in memory
  std::string path;           // of the context model; empty: <model>_ctx.onnx
  bool weightless = false;    // it refers to the data files of its source
  std::string data_folder;    // where the session looks for data files, or empty
};

// What ep.enable_weightless_mode can be here, as metadata of a device: 1.
inline constexpr char kWeightlessModes[] = "external_only";

// Which versions of the library a compiled model fits. ONNX Runtime stores it and passes it back
// later.
std::string CompatibilityInfo();

class Ep : public OrtEp {
 public:
  // Throws Error if a setting or its value is unknown.
  Ep(const RuntimeApi& runtime, const OrtLogger* logger, Settings settings, ContextOptions context,
     Overrides overrides);

 private:
  void ClaimAll(const OrtGraph* graph, OrtEpGraphSupportInfo* info);
  void CompileAll(const OrtGraph* const* graphs, const OrtNode* const* fused, size_t count,
                  OrtNodeComputeInfo** infos, OrtNode** context_nodes);
  // The claimed region that consists of these nodes.
  const ClaimedRegion& ClaimOf(std::vector<size_t> nodes, const std::string& name) const;
  // Writes the file beside a context model. Returns its path, the ranges of its contents, and its
  // id.
  std::string WriteContext(const std::string& model, const Constants& constants, Referrer& referrer,
                           std::vector<Recipe::FileRange>& ranges, std::string& id);
  void Log(OrtLoggingLevel level, const std::string& message) const;

  const RuntimeApi runtime_;
  const OrtLogger* logger_;
  const Settings settings_;
  const ContextOptions context_;
  const Overrides overrides_;
  SessionOptions options_;                   // its target stays open until the nodes have it
  Claims claims_;                            // for the graph that ONNX Runtime asked about last
  std::shared_ptr<WrittenContext> written_;  // by this session; null: none
  std::string why_no_context_;               // empty if it can be written
  const std::string compatibility_ = CompatibilityInfo();
};

}  // namespace ort_aie::ep
