// ONNX Runtime's C API as the doors use it. Each object keeps the OrtApi it was created with: two
// runtimes can live in one process and share this library, so nothing here is global.
#pragma once

#include <onnxruntime_c_api.h>

#include <cstddef>
#include <map>
#include <memory_resource>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "ops/op.h"
#include "targets/target.h"

namespace ort_aie {

class WeightFiles;

// The API of the runtime behind `base`, the version both sides know, and the runtime's own: n of
// ONNX Runtime 1.n. Throws Error when the runtime is older than the oldest that is supported.
struct RuntimeApi {
  const OrtApi* api;
  uint32_t version, runtime;
};
RuntimeApi NegotiateApi(const OrtApiBase* base);

// Throws Error for a status that is not null, and releases it.
void Check(const OrtApi* api, OrtStatus* status);

// A session's config entries.
using Entries = std::map<std::string, std::string>;
Entries EntriesOf(const OrtApi* api, const OrtSessionOptions* options);
// Those whose names start with the prefix, by the rest of the name.
Entries StartingWith(std::string_view prefix, const Entries& entries);
// Options, where a provider's own options cannot be set.
inline constexpr std::string_view kOptionPrefix = "ort_aie.";

// The status for std::bad_alloc.
OrtStatus* OutOfMemory(const OrtApi* api) noexcept;

// Runs `body` and turns an exception into a status. No exception may leave a callback.
template <typename Body>
OrtStatus* Guard(const OrtApi* api, const Body& body) noexcept {
  try {
    body();
    return nullptr;
  } catch (const Error& error) {
    OrtErrorCode code = ORT_RUNTIME_EXCEPTION;
    if (error.code() == ErrorCode::kInvalidArgument) code = ORT_INVALID_ARGUMENT;
    if (error.code() == ErrorCode::kInvalidGraph) code = ORT_INVALID_GRAPH;
    if (error.code() == ErrorCode::kNotImplemented) code = ORT_NOT_IMPLEMENTED;
    return api->CreateStatus(code, error.what());
  } catch (const std::bad_alloc&) {
    return OutOfMemory(api);
  } catch (const std::exception& error) {
    return api->CreateStatus(ORT_RUNTIME_EXCEPTION, error.what());
  } catch (...) {
    return api->CreateStatus(ORT_RUNTIME_EXCEPTION, "ort_aie_ep: an exception of unknown type");
  }
}

// Where an op finds its inputs and outputs when it is called. Constants keep the value that they
// had when the kernel was made. In a fused node, which ONNX Runtime makes, the other inputs and
// outputs have an order of their own, and empty ones are left out.
struct IoMap {
  static constexpr int kAbsent = -1;
  struct Input {
    int index = kAbsent;
    Tensor constant;  // if index is kAbsent
  };
  std::vector<Input> inputs;
  std::vector<int> outputs;
};

// For a custom op's node.
class KernelInfo final : public NodeInfo {
 public:
  KernelInfo(const OrtApi* api, uint32_t version, const OrtKernelInfo* info)
      : api_(api), version_(version), info_(info) {}

  int64_t Int(const char* attribute, int64_t fallback) const override;
  float Float(const char* attribute, float fallback) const override;
  std::string String(const char* attribute) const override;
  Tensor ConstantInput(size_t index) const override;
  // The session's config entries; none before ONNX Runtime 1.24.
  Entries ConfigEntries() const;
  // Distinguishes sessions while they live.
  const void* Session() const;
  // From now on, constants are where `weights` places them.
  void Place(WeightFiles* weights) { weights_ = weights; }
  std::string NodeName() const;
  IoMap Map() const;

 private:
  // A constant, or the stand-in for one that is left out.
  Tensor Initializer(size_t index) const;

  const OrtApi* api_;
  uint32_t version_;
  const OrtKernelInfo* info_;
  WeightFiles* weights_ = nullptr;
};

// Inputs, outputs, threads and memory of one call.
class KernelContext {
 public:
  KernelContext(const RuntimeApi& runtime, OrtKernelContext* context, const IoMap& map)
      : runtime_(runtime), context_(context), map_(map) {}

  // Not present: beyond the last input, left empty, or left out by a stand-in.
  Tensor Input(size_t index) const;
  // Allocates the output, or returns the buffer that the caller bound to it. Throws Error if the
  // model declares a type of another size, because the buffer has the size for the declared type.
  void* Output(size_t index, DataType type, const Shape& shape) const;
  // For data that is needed only during the call. The plan of a token fits into the memory in
  // place; the positions of a prompt do not, and are allocated.
  std::pmr::memory_resource* memory() const { return &memory_; }
  const OrtApi* api() const { return runtime_.api; }
  OrtKernelContext* context() const { return context_; }

 private:
  const RuntimeApi& runtime_;
  OrtKernelContext* context_;
  const IoMap& map_;
  std::byte bytes_[4096];
  mutable std::pmr::monotonic_buffer_resource memory_{bytes_, sizeof(bytes_)};
};

// Runs work on ONNX Runtime's intra-op threads.
class OrtThreadPool final : public ThreadPool {
 public:
  explicit OrtThreadPool(const KernelContext& context) : context_(context) {}

 protected:
  void Run(int64_t count, Call call, void* job) const override;

 private:
  const KernelContext& context_;
};

// An optional input before others can be left out by a float tensor of shape (0) as well as by an
// empty name. ONNX Runtime 1.23 crashes when it infers shapes of a custom op with an empty name.
inline bool IsStandIn(DataType type, const Shape& shape) {
  return type == DataType::kFloat32 && shape == Shape{0};
}

// Without `bytes`, which would cost an extra query for each input in every call.
Tensor DescribeValue(const RuntimeApi& runtime, const OrtValue* value);
// With `bytes`: when a kernel is made, it checks them against the model's type and shape.
Tensor DescribeConstant(const OrtApi* api, const OrtValue* value);

}  // namespace ort_aie
