// Greedy decoding with a model in onnxruntime-genai's layout, in a program without Python:
//
//   generate ops <libort_aie_ep.so> <compiled model.onnx> <head size> <new tokens> <token>...
//   generate provider <libort_aie_ep.so> <model.onnx> <head size> <new tokens> <token>...
//
// "ops" registers the library's operators, which a compiled model contains. "provider" uses its
// execution provider, which runs the unmodified model (ONNX Runtime 1.24). The program prints the
// new tokens. With the provider, a second line gives the number of nodes that the provider runs.
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

constexpr char kProvider[] = "AieExecutionProvider";
constexpr char kPast[] = "past_key_values.", kPresent[] = "present.";

// --- a session, by either door ---

Ort::SessionOptions WithOperators(const char* library) {
  Ort::SessionOptions options;
  options.RegisterCustomOpsLibrary(library);
  return options;
}

Ort::SessionOptions WithProvider(Ort::Env& env, const char* library) {
  env.RegisterExecutionProviderLibrary(kProvider, library);
  std::vector<Ort::ConstEpDevice> devices;
  for (const Ort::ConstEpDevice& device : env.GetEpDevices()) {
    if (std::string(device.EpName()) == kProvider) devices.push_back(device);
  }
  if (devices.empty()) throw std::runtime_error("the library offers no device");
  Ort::SessionOptions options;
  options.AppendExecutionProvider_V2(env, devices, std::unordered_map<std::string, std::string>{});
  options.AddConfigEntry("session.record_ep_graph_assignment_info", "1");
  return options;
}

size_t CountProviderNodes(const Ort::Session& session) {
  size_t count = 0;
  for (const auto& part : session.GetEpGraphAssignmentInfo()) {
    if (part.GetEpName() == kProvider) count += part.GetNodes().size();
  }
  return count;
}

// --- the KV cache ---

// (1, heads, capacity, head size) float. Past and present are the same memory, so a step adds its
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

// --- a step ---

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
    throw std::runtime_error("usage: generate ops|provider library model size new id...");
  const std::string door = argv[1];
  const int64_t head_size = std::atoll(argv[4]), new_tokens = std::atoll(argv[5]);
  std::vector<int64_t> tokens;
  for (int i = 6; i < argc; ++i) tokens.push_back(std::atoll(argv[i]));

  Ort::Env env(ORT_LOGGING_LEVEL_ERROR, "generate");
  {
    const Ort::SessionOptions options =
        door == "ops" ? WithOperators(argv[2]) : WithProvider(env, argv[2]);
    Ort::Session session(env, argv[3], options);
    size_t length = tokens.size();
    auto caches = AllocateCaches(session, std::ssize(tokens) + new_tokens, head_size);
    for (int64_t i = 0; i < new_tokens; ++i, ++length) {
      tokens = {Step(session, caches, tokens, length)};
      std::printf("%lld ", static_cast<long long>(tokens[0]));
    }
    std::printf("\n");
    if (door == "provider") std::printf("%zu\n", CountProviderNodes(session));
  }
  // The library may go only after its sessions.
  if (door == "provider") env.UnregisterExecutionProviderLibrary(kProvider);
}

}  // namespace

int main(int argc, char** argv) {
  try {
    Run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "generate: %s\n", error.what());
    return 1;
  }
}
