// Greedy decoding on AieExecutionProvider in a program without Python:
//
//   provider_host <libonnxruntime.so> <libort_aie_ep.so> <model.onnx> <head size> <new> <token>...
//
// It prints the new tokens, and in a second line how many nodes the provider runs. ONNX Runtime is
// opened as it runs: a Python wheel has the library, and nothing to link against.
#define ORT_API_MANUAL_INIT
#include <dlfcn.h>
#include <onnxruntime_cxx_api.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <vector>

namespace {

constexpr uint32_t kApi = 24;  // of ONNX Runtime 1.24, the first with all that the provider needs
constexpr char kRegistration[] = "ort_aie_ep";
constexpr char kProvider[] = "AieExecutionProvider";
constexpr char kPast[] = "past_key_values.", kPresent[] = "present.";

// The runtime stays open: its objects are alive until the program ends.
void OpenRuntime(const char* path) {
  void* library = dlopen(path, RTLD_NOW | RTLD_GLOBAL);
  if (library == nullptr) throw std::runtime_error(dlerror());
  const auto base = reinterpret_cast<const OrtApiBase* (*)()>(dlsym(library, "OrtGetApiBase"));
  const OrtApi* api = base != nullptr ? base()->GetApi(kApi) : nullptr;
  if (api == nullptr) throw std::runtime_error(std::string(path) + " is no ONNX Runtime >= 1.24");
  Ort::InitApi(api);
}

Ort::Session OpenSession(Ort::Env& env, const char* model) {
  std::vector<Ort::ConstEpDevice> devices;
  for (const Ort::ConstEpDevice& device : env.GetEpDevices()) {
    if (std::string(device.EpName()) == kProvider) devices.push_back(device);
  }
  if (devices.empty()) throw std::runtime_error("the library offers no device");
  Ort::SessionOptions options;
  options.AppendExecutionProvider_V2(env, devices, std::unordered_map<std::string, std::string>{});
  options.AddConfigEntry("session.record_ep_graph_assignment_info", "1");
  return Ort::Session(env, model, options);
}

size_t CountProviderNodes(const Ort::Session& session) {
  size_t count = 0;
  for (const auto& part : session.GetEpGraphAssignmentInfo()) {
    if (part.GetEpName() == kProvider) count += part.GetNodes().size();
  }
  return count;
}

// (1, heads, capacity, head size) float; past and present are the same memory, so a step adds its
// rows and copies none.
struct Cache {
  std::string past, present;
  std::array<int64_t, 4> shape;
  std::vector<float> values;
};

std::vector<Cache> AllocateCaches(const Ort::Session& session, int64_t capacity,
                                  int64_t head_size) {
  std::vector<Cache> caches;
  Ort::AllocatorWithDefaultOptions allocator;
  for (size_t i = 0; i < session.GetInputCount(); ++i) {
    const std::string name = session.GetInputNameAllocated(i, allocator).get();
    if (!name.starts_with(kPast)) continue;
    const Ort::TypeInfo type = session.GetInputTypeInfo(i);
    const int64_t heads = type.GetTensorTypeAndShapeInfo().GetShape()[1];
    Cache& cache = caches.emplace_back();
    cache.past = name;
    cache.present = kPresent + name.substr(sizeof(kPast) - 1);
    cache.shape = {1, heads, capacity, head_size};
    cache.values.resize(static_cast<size_t>(heads * capacity * head_size));
  }
  return caches;
}

template <typename T, typename Shape>
Ort::Value Tensor(std::vector<T>& values, const Shape& shape) {
  static const auto memory = Ort::MemoryInfo::CreateCpu(OrtArenaAllocator, OrtMemTypeDefault);
  return Ort::Value::CreateTensor<T>(memory, values.data(), values.size(), shape.data(),
                                     shape.size());
}

// The likeliest token after `tokens`, which come after `length - tokens.size()` others.
int64_t Step(Ort::Session& session, std::vector<Cache>& caches, std::vector<int64_t> tokens,
             size_t length) {
  std::vector<int64_t> mask(length, 1);
  Ort::IoBinding binding(session);
  binding.BindInput("input_ids", Tensor(tokens, std::array{int64_t{1}, std::ssize(tokens)}));
  binding.BindInput("attention_mask", Tensor(mask, std::array{int64_t{1}, std::ssize(mask)}));
  for (Cache& cache : caches) {
    binding.BindInput(cache.past.c_str(), Tensor(cache.values, cache.shape));
    binding.BindOutput(cache.present.c_str(), Tensor(cache.values, cache.shape));
  }
  binding.BindOutput("logits", Ort::MemoryInfo::CreateCpu(OrtArenaAllocator, OrtMemTypeDefault));
  session.Run(Ort::RunOptions{}, binding);
  const std::vector<Ort::Value> outputs = binding.GetOutputValues();
  const Ort::Value& logits = outputs.back();
  const auto info = logits.GetTensorTypeAndShapeInfo();
  const float* end = logits.GetTensorData<float>() + info.GetElementCount();
  const float* last_row = end - info.GetShape()[2];
  return std::max_element(last_row, end) - last_row;
}

void Run(int argc, char** argv) {
  if (argc < 7)
    throw std::runtime_error("usage: provider_host runtime library model size new id...");
  const int64_t head_size = std::atoll(argv[4]), new_tokens = std::atoll(argv[5]);
  std::vector<int64_t> tokens;
  for (int i = 6; i < argc; ++i) tokens.push_back(std::atoll(argv[i]));

  OpenRuntime(argv[1]);
  Ort::Env env(ORT_LOGGING_LEVEL_ERROR, "provider_host");
  env.RegisterExecutionProviderLibrary(kRegistration, argv[2]);
  {
    Ort::Session session = OpenSession(env, argv[3]);
    size_t length = tokens.size();
    auto caches = AllocateCaches(session, std::ssize(tokens) + new_tokens, head_size);
    for (int64_t i = 0; i < new_tokens; ++i, ++length) {
      tokens = {Step(session, caches, tokens, length)};
      std::printf("%lld ", static_cast<long long>(tokens[0]));
    }
    std::printf("\n%zu\n", CountProviderNodes(session));
  }
  env.UnregisterExecutionProviderLibrary(kRegistration);  // its sessions are gone
}

}  // namespace

int main(int argc, char** argv) {
  try {
    Run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "provider_host: %s\n", error.what());
    return 1;
  }
}
