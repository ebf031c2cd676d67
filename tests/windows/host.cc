// A host of ONNX Runtime for Windows, without its import library: loads onnxruntime.dll and
// ort_aie_ep.dll, runs one model, writes the raw floats of its first output.
//
//   host ONNXRUNTIME LIBRARY custom-ops|provider MODEL INPUTS OUTPUT [NAME=VALUE ...]
//
// INPUTS has, for each input: its name, element type, rank and dimensions as one line of text, then
// its bytes. NAME=VALUE are entries of the session's configuration. Errors go to stdout, as UTF-8.
#include <onnxruntime_c_api.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <windows.h>
// After windows.h, whose types it uses.
#include <shellapi.h>

namespace {

const OrtApi* api;

[[noreturn]] void Fail(const char* what) {
  printf("%s\n", what);
  fflush(stdout);
  ExitProcess(1);
}

void Check(OrtStatus* status) {
  if (status != nullptr) Fail(api->GetErrorMessage(status));
}

char* Utf8(const wchar_t* wide) {
  const int size = WideCharToMultiByte(CP_UTF8, 0, wide, -1, nullptr, 0, nullptr, nullptr);
  char* text = static_cast<char*>(malloc(static_cast<size_t>(size)));
  WideCharToMultiByte(CP_UTF8, 0, wide, -1, text, size, nullptr, nullptr);
  return text;
}

constexpr size_t kMostInputs = 64;
constexpr int kMostRank = 8;
char names[kMostInputs][256];
const char* name_of[kMostInputs];
const OrtValue* values[kMostInputs];

size_t ReadInputs(const wchar_t* path) {
  FILE* file = _wfopen(path, L"rb");
  if (file == nullptr) Fail("the inputs cannot be opened");
  OrtMemoryInfo* memory = nullptr;
  Check(api->CreateCpuMemoryInfo(OrtDeviceAllocator, OrtMemTypeDefault, &memory));
  size_t count = 0;
  for (int type = 0, rank = 0; fscanf(file, "%255s %d %d", names[count], &type, &rank) == 3;
       ++count) {
    if (count + 1 == kMostInputs || rank > kMostRank) Fail("the inputs are too many");
    int64_t shape[kMostRank];
    size_t bytes = type == ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64 ? 8 : 4;
    for (int d = 0; d < rank; ++d) {
      long long size = 0;
      if (fscanf(file, "%lld", &size) != 1) Fail("a dimension is missing");
      shape[d] = size;
      bytes *= static_cast<size_t>(size);
    }
    fgetc(file);  // the end of the line
    void* data = malloc(bytes + 1);
    if (fread(data, 1, bytes, file) != bytes) Fail("an input is too short");
    OrtValue* value = nullptr;
    Check(api->CreateTensorWithDataAsOrtValue(memory, data, bytes, shape, static_cast<size_t>(rank),
                                              static_cast<ONNXTensorElementDataType>(type),
                                              &value));
    name_of[count] = names[count];
    values[count] = value;
  }
  fclose(file);
  return count;
}

void UseProvider(OrtEnv* env, OrtSessionOptions* options, const wchar_t* library) {
  Check(api->RegisterExecutionProviderLibrary(env, "AieExecutionProvider", library));
  const OrtEpDevice* const* devices = nullptr;
  size_t count = 0;
  Check(api->GetEpDevices(env, &devices, &count));
  for (size_t i = 0; i < count; ++i) {
    if (strcmp(api->EpDevice_EpName(devices[i]), "AieExecutionProvider") != 0) continue;
    Check(api->SessionOptionsAppendExecutionProvider_V2(options, env, &devices[i], 1, nullptr,
                                                        nullptr, 0));
    return;
  }
  Fail("the library offers no device");
}

}  // namespace

int main() {
  int count = 0;
  wchar_t** words = CommandLineToArgvW(GetCommandLineW(), &count);
  if (count < 7)
    Fail("ONNXRUNTIME LIBRARY custom-ops|provider MODEL INPUTS OUTPUT [NAME=VALUE ...]");
  HMODULE runtime = LoadLibraryExW(words[1], nullptr, LOAD_WITH_ALTERED_SEARCH_PATH);
  if (runtime == nullptr) Fail("onnxruntime.dll cannot be loaded");
  using GetBase = const OrtApiBase*(ORT_API_CALL*)();
  const auto get_base =
      reinterpret_cast<GetBase>(reinterpret_cast<void*>(GetProcAddress(runtime, "OrtGetApiBase")));
  api = get_base()->GetApi(23);
  if (api == nullptr) Fail("this ONNX Runtime is older than 1.23");

  OrtEnv* env = nullptr;
  OrtSessionOptions* options = nullptr;
  Check(api->CreateEnv(ORT_LOGGING_LEVEL_WARNING, "host", &env));
  Check(api->CreateSessionOptions(&options));
  Check(api->SetIntraOpNumThreads(options, 2));
  for (int i = 7; i < count; ++i) {
    char* entry = Utf8(words[i]);
    char* value = strchr(entry, '=');
    if (value == nullptr) Fail("an entry is not NAME=VALUE");
    *value = '\0';
    Check(api->AddSessionConfigEntry(options, entry, value + 1));
  }
  if (wcscmp(words[3], L"provider") == 0) {
    UseProvider(env, options, words[2]);
  } else {
    Check(api->RegisterCustomOpsLibrary_V2(options, words[2]));
  }
  OrtSession* session = nullptr;
  Check(api->CreateSession(env, words[4], options, &session));

  const size_t inputs = ReadInputs(words[5]);
  OrtAllocator* allocator = nullptr;
  char* output = nullptr;
  Check(api->GetAllocatorWithDefaultOptions(&allocator));
  Check(api->SessionGetOutputName(session, 0, allocator, &output));
  const char* const outputs[] = {output};
  OrtValue* result = nullptr;
  Check(api->Run(session, nullptr, name_of, values, inputs, outputs, 1, &result));
  OrtTensorTypeAndShapeInfo* info = nullptr;
  size_t elements = 0;
  void* data = nullptr;
  Check(api->GetTensorTypeAndShape(result, &info));
  Check(api->GetTensorShapeElementCount(info, &elements));
  Check(api->GetTensorMutableData(result, &data));
  FILE* file = _wfopen(words[6], L"wb");
  if (file == nullptr || fwrite(data, sizeof(float), elements, file) != elements) {
    Fail("the output cannot be written");
  }
  fclose(file);
  api->ReleaseValue(result);
  api->ReleaseSession(session);
  api->ReleaseSessionOptions(options);
  api->ReleaseEnv(env);
  printf("ok\n");
  return 0;
}
