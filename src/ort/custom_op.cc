#include "ort/custom_op.h"

#include <array>
#include <atomic>

namespace ort_aie {
namespace {

struct MadeKernel {
  Kernel kernel;
  RuntimeApi runtime;
  IoMap map;
};

const CustomOp& Self(const OrtCustomOp* op) { return *static_cast<const CustomOp*>(op); }

class InferContext final : public ShapeContext {
 public:
  InferContext(const OrtApi* api, OrtShapeInferContext* context) : api_(api), context_(context) {}
  std::optional<Value> Input(size_t index) const override;
  int64_t Int(const char* attribute, int64_t fallback) const override;
  void SetOutput(size_t index, const Value& value) const override;

 private:
  const OrtApi* api_;
  OrtShapeInferContext* context_;
};

std::optional<ShapeContext::Value> InferContext::Input(size_t index) const {
  size_t count = 0;
  Check(api_, api_->ShapeInferContext_GetInputCount(context_, &count));
  if (index >= count) return std::nullopt;
  OrtTensorTypeAndShapeInfo* info = nullptr;  // owned by the context
  if (OrtStatus* status = api_->ShapeInferContext_GetInputTypeShape(context_, index, &info)) {
    api_->ReleaseStatus(status);
    return std::nullopt;
  }
  ONNXTensorElementDataType type = ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED;
  Check(api_, api_->GetTensorElementType(info, &type));
  if (type == ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED) return std::nullopt;
  Value value{type};
  size_t rank = 0;
  Check(api_, api_->GetDimensionsCount(info, &rank));
  std::vector<int64_t> dims(rank);
  std::vector<const char*> names(rank);
  Check(api_, api_->GetDimensions(info, dims.data(), rank));
  Check(api_, api_->GetSymbolicDimensions(info, names.data(), rank));
  for (size_t i = 0; i < rank; ++i) {
    value.dims.push_back({dims[i], names[i] != nullptr ? names[i] : ""});
  }
  if (IsStandIn(TypeOfNumber(value.type), Shape(dims.begin(), dims.end()))) return std::nullopt;
  return value;
}

int64_t InferContext::Int(const char* attribute, int64_t fallback) const {
  const OrtOpAttr* attr = nullptr;
  if (OrtStatus* status = api_->ShapeInferContext_GetAttribute(context_, attribute, &attr)) {
    api_->ReleaseStatus(status);
    return fallback;
  }
  int64_t value = fallback;
  size_t size = 0;
  if (OrtStatus* status = api_->ReadOpAttr(attr, ORT_OP_ATTR_INT, &value, sizeof(value), &size)) {
    api_->ReleaseStatus(status);
    return fallback;
  }
  return value;
}

void InferContext::SetOutput(size_t index, const Value& value) const {
  OrtTensorTypeAndShapeInfo* raw = nullptr;
  Check(api_, api_->CreateTensorTypeAndShapeInfo(&raw));
  const std::unique_ptr<OrtTensorTypeAndShapeInfo, decltype(api_->ReleaseTensorTypeAndShapeInfo)>
      info(raw, api_->ReleaseTensorTypeAndShapeInfo);
  // A dimension of -1 without a name would be taken for the number -1; a name used twice would mean
  // that both dimensions are equal.
  static std::atomic<uint64_t> unknown_dims{0};
  std::vector<int64_t> dims;
  std::vector<std::string> names;
  for (const Dim& dim : value.dims) {
    dims.push_back(dim.value);
    names.push_back(dim.value < 0 && dim.name.empty()
                        ? "aie_unknown_" + std::to_string(unknown_dims.fetch_add(1))
                        : dim.name);
  }
  std::vector<const char*> name_pointers;
  for (const std::string& name : names) name_pointers.push_back(name.c_str());
  Check(api_, api_->SetTensorElementType(raw, static_cast<ONNXTensorElementDataType>(value.type)));
  Check(api_, api_->SetDimensions(raw, dims.data(), dims.size()));
  Check(api_, api_->SetSymbolicDimensions(raw, name_pointers.data(), names.size()));
  Check(api_, api_->ShapeInferContext_SetOutputTypeShape(context_, index, raw));
}

}  // namespace

SessionOptions ReadOptions(const KernelInfo& info) {
  return ReadOptions([&](const char* name) { return info.ConfigEntry(name); }, info.Session());
}

void Kernel::Compute(const KernelContext& context) const {
  std::array<Tensor, kMostInputs> inputs;
  std::array<Op::Output, kMostOutputs> outputs;
  std::array<void*, kMostOutputs> buffers{};
  for (size_t i = 0; i < description_.inputs; ++i) inputs[i] = context.Input(i);
  op_->Describe(inputs, outputs);
  for (size_t i = 0; i < description_.outputs; ++i) {
    if (outputs[i].type == DataType::kOther) continue;
    buffers[i] = context.Output(i, outputs[i].type, outputs[i].shape);
  }
  Plan plan(context.memory());
  op_->Append(inputs, outputs, buffers, plan);
  options_.target->Execute(plan, OrtThreadPool(context));
}

CustomOp::CustomOp(const OpDescription& description, const RuntimeApi& runtime)
    : OrtCustomOp{}, description_(description), runtime_(runtime) {
  version = runtime.version;

  GetName = [](const OrtCustomOp* op) { return Self(op).description_.name; };
  GetExecutionProviderType = [](const OrtCustomOp*) -> const char* { return nullptr; };

  // Types are left open and checked by the ops: activations and KV cache vary independently.
  GetInputTypeCount = [](const OrtCustomOp* op) { return Self(op).description_.inputs; };
  GetInputType = [](const OrtCustomOp*, size_t) { return ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED; };
  GetInputCharacteristic = [](const OrtCustomOp* op, size_t index) {
    return index < Self(op).description_.required_inputs ? INPUT_OUTPUT_REQUIRED
                                                         : INPUT_OUTPUT_OPTIONAL;
  };
  GetInputMemoryType = [](const OrtCustomOp*, size_t) { return OrtMemTypeDefault; };
  GetOutputTypeCount = [](const OrtCustomOp* op) { return Self(op).description_.outputs; };
  GetOutputType = [](const OrtCustomOp*, size_t) {
    return ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED;
  };
  GetOutputCharacteristic = [](const OrtCustomOp* op, size_t index) {
    return index < Self(op).description_.required_outputs ? INPUT_OUTPUT_REQUIRED
                                                          : INPUT_OUTPUT_OPTIONAL;
  };
  GetVariadicInputMinArity = [](const OrtCustomOp*) { return 0; };
  GetVariadicInputHomogeneity = [](const OrtCustomOp*) { return 0; };
  GetVariadicOutputMinArity = [](const OrtCustomOp*) { return 0; };
  GetVariadicOutputHomogeneity = [](const OrtCustomOp*) { return 0; };
  GetStartVersion = [](const OrtCustomOp*) { return 1; };
  GetEndVersion = [](const OrtCustomOp*) { return 1; };

  InferOutputShapeFn = [](const OrtCustomOp* op, OrtShapeInferContext* context) -> OrtStatusPtr {
    const CustomOp& self = Self(op);
    const OrtApi* api = self.runtime_.api;
    return Guard(api, [&] { self.description_.infer(InferContext(api, context)); });
  };
  CreateKernelV2 = [](const OrtCustomOp* op, const OrtApi* api, const OrtKernelInfo* raw,
                      void** kernel) -> OrtStatusPtr {
    const CustomOp& self = Self(op);
    return Guard(api, [&] {
      const RuntimeApi runtime = {api, self.runtime_.version};
      const KernelInfo info(api, runtime.version, raw);
      try {
        *kernel =
            new MadeKernel{Kernel(self.description_, info, ReadOptions(info)), runtime, info.Map()};
      } catch (const Error& error) {
        // ONNX Runtime names the node in errors of Compute, not of creation.
        throw Error(error.code(), Concat("aie.", self.description_.name, " node '", info.NodeName(),
                                         "': ", error.what()));
      }
    });
  };
  KernelComputeV2 = [](void* kernel, OrtKernelContext* context) -> OrtStatusPtr {
    const auto& made = *static_cast<const MadeKernel*>(kernel);
    return Guard(made.runtime.api,
                 [&] { made.kernel.Compute(KernelContext(made.runtime, context, made.map)); });
  };
  KernelDestroy = [](void* kernel) { delete static_cast<MadeKernel*>(kernel); };
}

}  // namespace ort_aie
