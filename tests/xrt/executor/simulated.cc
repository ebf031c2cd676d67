// A decoder layer on the modelled NPU, through the library that has it as a target: the argument
// MANIFESTS is its path. It needs the library, so it is not one of the everyday cases.
#include <dlfcn.h>

#include <cstdlib>
#include <string>

#include "layer.h"
#include "targets/module.h"
#include "vectors.h"

namespace ort_aie::npu_target {
namespace {

// The bounds of the kernels' own tests (aie_kernels/reference.py): a product of two
// limbs is off by 2^-15; FlowKV rounds the weights of a softmax.
constexpr double kLimbs = 0x1p-15;
constexpr Arithmetic kModelled{.product = 0x1p-16,
                               .norm = 0x1p-20 + 2 * kLimbs,
                               .activation = 0x1p-13 + 50 * kLimbs,
                               .gate = 3 * kLimbs,
                               .rotation = 0x1p-21,
                               .weight = kUnit + kLimbs + 1e-4,
                               .score = kLimbs};

// The value of a counter in JSON.
int64_t Count(const std::string& counters, const std::string& name) {
  const size_t at = counters.find("\"" + name + "\":");
  Check(at != std::string::npos, "no counter ", name, " in ", counters);
  return std::stoll(counters.substr(at + name.size() + 3));
}

void ALayerOnTheModelledNpu() {
  void* const library = dlopen(Manifests().c_str(), RTLD_NOW);
  Check(library != nullptr, "not loaded: ", library == nullptr ? dlerror() : "");
  const auto function = [&]<typename F>(F*, const char* name) {
    return reinterpret_cast<F*>(dlsym(library, name));
  };
  char* error = nullptr;
  const Target* const target =
      function(static_cast<OpenTargetFunction*>(nullptr), "ort_aie_open_target")(
          R"({"on_device_error": "raise", "log": "quiet", "overlays": ""})", nullptr, &error);
  Check(target != nullptr, "not opened: ", target == nullptr ? error : "");
  const auto count = [&](const char* name) {
    char* const text =
        function(static_cast<TargetCountersFunction*>(nullptr), "ort_aie_target_counters")();
    const std::string counters = text;
    std::free(text);
    return Count(counters, name);
  };
  {
    const LayerShape shape{.attention = {.rotary = true, .qk_norm = true}, .bias = true};
    TestedLayer decoder(shape, 64);
    for (int64_t token = 0; token < 3; ++token) {
      const Values x(DataType::kFloat32, Exact(shape.hidden));
      target->Execute(decoder.Steps(x), kThreads);
      Check(count("submissions") == token + 1 && count("runs") == 2 * (token + 1),
            "one submission of two runs a token");
      decoder.Compare(kModelled);
    }
    decoder.generator.past = {1};  // and again from the second token on
    const Values x(DataType::kFloat32, Exact(shape.hidden));
    target->Execute(decoder.Steps(x), kThreads);
    decoder.Compare(kModelled);
  }
  Check(count("cache_rows_sent") == 0 && count("device_steps") == 4 * 5, "all on the device");
  RunVectorOperators(*target, 576, DataType::kFloat32, kModelled);
  Check(count("submissions") == 5 && count("device_steps") == 4 * 5 + 11, "in one submission");
  function(static_cast<CloseTargetFunction*>(nullptr), "ort_aie_close_target")(target);
  Check(count("buffers") == 0, count("buffers"), " buffers are left");
}

const Cases kSimulatedCases({
    {"a_layer_on_the_modelled_npu", ALayerOnTheModelledNpu},
});

}  // namespace
}  // namespace ort_aie::npu_target
