#include "ort/custom_op.h"

#include <algorithm>
#include <atomic>
#include <limits>
#include <utility>
#include <vector>

#include "ort/weight_files.h"

namespace ort_aie {
namespace {

struct MadeKernel {
  std::vector<std::shared_ptr<const uint8_t>> weights;  // which the kernel reads
  std::unique_ptr<NodeKernel> kernel;
  RuntimeApi runtime;
  IoMap map;
};

const CustomOp& Self(const OrtCustomOp* op) { return *static_cast<const CustomOp*>(op); }

class InferContext final : public ShapeContext {
 public:
  InferContext(const OrtApi* api, OrtShapeInferContext* context, size_t outputs)
      : api_(api), context_(context), outputs_(outputs) {}
  std::optional<Value> Input(size_t index) const override;
  int64_t Int(const char* attribute, int64_t fallback) const override;
  std::string String(const char* attribute) const override;
  void SetOutput(size_t index, const Value& value) const override;

 private:
  const OrtApi* api_;
  OrtShapeInferContext* context_;
  size_t outputs_;  // that may be set
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

std::string InferContext::String(const char* attribute) const {
  const OrtOpAttr* attr = nullptr;
  if (OrtStatus* status = api_->ShapeInferContext_GetAttribute(context_, attribute, &attr)) {
    api_->ReleaseStatus(status);
    return "";
  }
  size_t size = 0;  // the call sets it to the size needed
  if (OrtStatus* status = api_->ReadOpAttr(attr, ORT_OP_ATTR_STRING, nullptr, 0, &size)) {
    api_->ReleaseStatus(status);
  }
  std::string value(size, '\0');
  Check(api_, api_->ReadOpAttr(attr, ORT_OP_ATTR_STRING, value.data(), size, &size));
  while (!value.empty() && value.back() == '\0') value.pop_back();
  return value;
}

void InferContext::SetOutput(size_t index, const Value& value) const {
  if (index >= outputs_) return;
  OrtTensorTypeAndShapeInfo* raw = nullptr;
  Check(api_, api_->CreateTensorTypeAndShapeInfo(&raw));
  const std::unique_ptr<OrtTensorTypeAndShapeInfo, decltype(api_->ReleaseTensorTypeAndShapeInfo)>
      info(raw, api_->ReleaseTensorTypeAndShapeInfo);
  // ONNX Runtime would take a dimension of -1 without a name for the number -1, and two dimensions
  // with the same name for equal dimensions. So each unknown one gets a new name.
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

SessionOptions OptionsOf(const KernelInfo& info) {
  return ReadOptions(StartingWith(kOptionPrefix, info.ConfigEntries()), info.Session());
}

// The first `required` ones are mandatory.
OrtCustomOpInputOutputCharacteristic CharacteristicOf(bool variadic, size_t index,
                                                      size_t required) {
  if (variadic) return INPUT_OUTPUT_VARIADIC;
  return index < required ? INPUT_OUTPUT_REQUIRED : INPUT_OUTPUT_OPTIONAL;
}

CustomOp::Table ForRuntime(CustomOp::Table table, const RuntimeApi& runtime) {
  if (runtime.runtime < 28) {
    table.required_outputs = std::max(table.required_outputs, table.typed_outputs);
  }
  return table;
}

}  // namespace

CustomOp::CustomOp(Table table, const RuntimeApi& runtime)
    : OrtCustomOp{}, table_(ForRuntime(std::move(table), runtime)), runtime_(runtime) {
  version = runtime.version;

  GetName = [](const OrtCustomOp* op) { return Self(op).table_.name; };
  GetExecutionProviderType = [](const OrtCustomOp*) -> const char* { return nullptr; };

  // Types are left open, and the ops check them: the types of activations and KV cache vary
  // independently.
  GetInputTypeCount = [](const OrtCustomOp* op) { return Self(op).table_.inputs; };
  GetInputType = [](const OrtCustomOp*, size_t) { return ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED; };
  GetInputCharacteristic = [](const OrtCustomOp* op, size_t index) {
    return CharacteristicOf(Self(op).table_.variadic, index, Self(op).table_.required_inputs);
  };
  GetInputMemoryType = [](const OrtCustomOp*, size_t) { return OrtMemTypeDefault; };
  GetOutputTypeCount = [](const OrtCustomOp* op) { return Self(op).table_.outputs; };
  GetOutputType = [](const OrtCustomOp*, size_t) {
    return ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED;
  };
  GetOutputCharacteristic = [](const OrtCustomOp* op, size_t index) {
    return CharacteristicOf(Self(op).table_.variadic, index, Self(op).table_.required_outputs);
  };
  GetVariadicInputMinArity = [](const OrtCustomOp*) { return 0; };
  GetVariadicInputHomogeneity = [](const OrtCustomOp*) { return 0; };
  GetVariadicOutputMinArity = [](const OrtCustomOp* op) {
    return static_cast<int>(Self(op).table_.required_outputs);
  };
  GetVariadicOutputHomogeneity = [](const OrtCustomOp*) { return 0; };
  GetStartVersion = [](const OrtCustomOp*) { return 1; };
  GetEndVersion = [](const OrtCustomOp*) { return 1; };

  InferOutputShapeFn = [](const OrtCustomOp* op, OrtShapeInferContext* context) -> OrtStatusPtr {
    const CustomOp& self = Self(op);
    const OrtApi* api = self.runtime_.api;
    // Before 1.28, ONNX Runtime writes an output that the node does not have beyond its memory, and
    // does not say how many it has. It has those that are required, or is refused before. The types
    // and shapes of the others are in the model.
    const size_t outputs = self.runtime_.runtime >= 28 ? std::numeric_limits<size_t>::max()
                                                       : self.table_.required_outputs;
    return Guard(api, [&] { self.table_.infer(InferContext(api, context, outputs)); });
  };
  CreateKernelV2 = [](const OrtCustomOp* op, const OrtApi* api, const OrtKernelInfo* raw,
                      void** kernel) -> OrtStatusPtr {
    const CustomOp& self = Self(op);
    return Guard(api, [&] {
      const RuntimeApi runtime = {api, self.runtime_.version, self.runtime_.runtime};
      KernelInfo info(api, runtime.version, raw);
      try {
        const SessionOptions options = OptionsOf(info);
        WeightFiles weights(options.weights);
        info.Place(&weights);
        auto made = std::make_unique<MadeKernel>();
        made->kernel = self.table_.make(info, options);
        made->runtime = runtime;
        made->map = info.Map();
        made->weights = weights.TakeBytes();
        *kernel = made.release();
      } catch (const Error& error) {
        // ONNX Runtime names the node in errors of Compute, but not in errors of creation.
        throw Error(error.code(), Concat("aie.", self.table_.name, " node '", info.NodeName(),
                                         "': ", error.what()));
      }
    });
  };
  KernelComputeV2 = [](void* kernel, OrtKernelContext* context) -> OrtStatusPtr {
    const auto& made = *static_cast<const MadeKernel*>(kernel);
    return Guard(made.runtime.api,
                 [&] { made.kernel->Compute(KernelContext(made.runtime, context, made.map)); });
  };
  KernelDestroy = [](void* kernel) { delete static_cast<MadeKernel*>(kernel); };
}

CustomOp::Table TableOf(const OpDescription& op) {
  return {.name = op.name,
          .inputs = op.inputs,
          .required_inputs = op.required_inputs,
          .outputs = op.outputs,
          .required_outputs = op.required_outputs,
          .typed_outputs = op.typed_outputs,
          .make =
              [&op](const KernelInfo& info, const SessionOptions& options) {
                return MakeKernel(op, info, info.NodeName(), options);
              },
          .infer = op.infer};
}

CustomOp::Table PlanTable() {
  const auto make = [](const KernelInfo& info, const SessionOptions& options) {
    Recipe recipe = PlanRecipeFrom(info.String("recipe"));
    const IoMap map = info.Map();
    Require(std::cmp_equal(recipe.inputs, map.inputs.size()), "its recipe has ", recipe.inputs,
            " inputs, but the node has ", map.inputs.size());
    Require(recipe.outputs.size() == map.outputs.size(), "its recipe has ", recipe.outputs.size(),
            " outputs, but the node has ", map.outputs.size());
    for (size_t i = 0; i < map.outputs.size(); ++i) {
      if (map.outputs[i] == IoMap::kAbsent) recipe.outputs[i] = Recipe::kAbsent;
    }
    const auto constants = [&](int value) {
      const auto i = static_cast<size_t>(value);
      return i < map.inputs.size() ? map.inputs[i].constant : Tensor{};
    };
    return MakeKernel(std::move(recipe), constants, info.NodeName(), options);
  };
  const auto infer = [](const ShapeContext& context) {
    const Recipe recipe = PlanRecipeFrom(context.String("recipe"));
    std::vector<std::optional<ShapeContext::Value>> inputs;
    for (int i = 0; i < recipe.inputs; ++i) inputs.push_back(context.Input(static_cast<size_t>(i)));
    const auto values = InferValues(recipe, inputs);
    for (size_t i = 0; i < recipe.outputs.size(); ++i) {
      const ShapeContext::Value& value = values[static_cast<size_t>(recipe.outputs[i])];
      if (value.type != 0) context.SetOutput(i, value);
    }
  };
  return {.name = "Plan", .variadic = true, .make = make, .infer = infer};
}

}  // namespace ort_aie
