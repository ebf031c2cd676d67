// EPContext nodes: the recipe, its description of the file beside the model, and the program of
// steps that is made from both and run.
//
// An input is a recipe, as in the node's attribute `notes`. After a line "--" come lines "bytes N",
// the size of the file beside the model, "input TENSOR", an input of the node (ReadTensor), and
// "output TYPE".
#include <fcntl.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <sstream>
#include <string>
#include <string_view>

#include "ops/format.h"
#include "runtime.h"
#include "scratch_folder.h"

namespace {

using namespace ort_aie;

constexpr std::string_view kEndOfRecipe = "\n--\n";
constexpr int64_t kMostFileBytes = 1 << 20;
constexpr char kId[] = "fuzz";

// A valid context file of any size. All its tensors hold a pattern.
class File {
 public:
  void Resize(int64_t bytes) {
    if (bytes == bytes_) return;
    bytes_ = bytes;
    std::ostringstream header;
    header << "ort_aie_ep context\nformat " << kFormat << "\nversion 0\nid " << kId << "\nbytes "
           << bytes << '\n';
    std::string content = header.str();
    content.resize(static_cast<size_t>(bytes));
    for (size_t i = 4096; i < content.size(); ++i) content[i] = static_cast<char>(i * 37 % 251);
    const int file = ::open(path().c_str(), O_CREAT | O_TRUNC | O_WRONLY, 0600);
    if (file < 0 || ::write(file, content.data(), content.size()) != bytes) std::abort();
    ::close(file);
  }

  std::string path() const { return folder_.File(kName); }
  std::string model() const { return folder_.File("model.onnx"); }
  static constexpr char kName[] = "model.aie";

 private:
  const fuzz::ScratchFolder folder_;
  int64_t bytes_ = -1;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static File file;
  const std::string text(reinterpret_cast<const char*>(data), size);
  const size_t end = text.find(kEndOfRecipe);
  OrtNode node;
  node.name = "context";
  node.domain = "com.microsoft";
  node.op_type = "EPContext";
  node.attributes["source"] = {std::string(ep::kName)};
  node.attributes["ep_cache_context"] = {std::string(File::kName)};
  node.attributes["partition_name"] = {std::string(kId)};
  node.attributes["notes"] = {end == std::string::npos ? text : text.substr(0, end + 1)};
  std::map<std::string, std::shared_ptr<OrtValue>> feeds;
  int64_t file_bytes = 4096;
  if (end != std::string::npos) {
    std::istringstream lines(text.substr(end + kEndOfRecipe.size()));
    for (std::string line; std::getline(lines, line) && node.inputs.size() < 32;) {
      std::istringstream words(line);
      std::string key;
      words >> key;
      if (key == "bytes") {
        words >> file_bytes;
      } else if (key == "input") {
        const std::string name = "i" + std::to_string(node.inputs.size());
        const auto tensor = fuzz::ReadTensor(words);
        if (tensor == nullptr) return -1;
        node.inputs.push_back({name, {tensor->info}, nullptr});
        feeds[name] = tensor;
      } else if (key == "output") {
        int type = 0;
        if (!(words >> type) || type < 0 || type > ONNX_TENSOR_ELEMENT_DATA_TYPE_BFLOAT16)
          return -1;
        const std::string name = "o" + std::to_string(node.outputs.size());
        node.outputs.push_back(
            {name, {{static_cast<ONNXTensorElementDataType>(type), {}, false}}, nullptr});
      }
    }
  }
  if (file_bytes < 4096 || file_bytes > kMostFileBytes) return -1;
  file.Resize(file_bytes);
  fuzz::RunSession(file.model(), {node}, feeds, {{"target", "host"}});
  return 0;
}
