// Packages of an overlay that mlir-air built: the manifest, and a token's words made from it.
//
// An input is fused_decode.json. Beside it is a file `words` of sixteen words, 0 to 15.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "json_mutator.h"
#include "scratch_folder.h"
#include "targets/npu/fused_decode/package.h"

namespace {

using namespace ort_aie;
using namespace ort_aie::fused_decode;

void Write(const std::string& path, const void* data, size_t size) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file.write(static_cast<const char*>(data), static_cast<std::streamsize>(size));
  if (!file.flush()) std::abort();
}

// The words of a length equal the template's if nothing depends on the length.
void CheckLength(const WordTemplate& from, int64_t length) {
  std::vector<uint32_t> words = from.words;
  SetLength(from, length, words);
  const WordSpan variable = VariableWords(from);
  if (variable.begin > variable.end || variable.end > words.size()) std::abort();
  for (size_t i = 0; i < words.size(); ++i) {
    const bool changes = i >= variable.begin && i < variable.end;
    if (!changes && words[i] != from.words[i]) std::abort();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const fuzz::ScratchFolder folder;
  static const bool prepared = [] {
    std::vector<uint32_t> words(16);
    for (uint32_t i = 0; i < words.size(); ++i) words[i] = i;
    Write(folder.File("words"), words.data(), 4 * words.size());
    return true;
  }();
  if (!prepared) std::abort();
  const std::string manifest = folder.File(kManifest);
  Write(manifest, data, size);
  try {
    const Package package = ReadPackage(std::filesystem::path(manifest).parent_path());
    if (package.windows.empty()) std::abort();
    for (const Window& window : package.windows) {
      CheckLength(window.words, 1);
      CheckLength(window.words, window.words.base_length);
      CheckLength(window.words, window.positions);
    }
  } catch (const Error&) {
  }
  return 0;
}

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t most, unsigned seed) {
  return ort_aie::fuzz::MutateJson(data, size, most, seed, "\n--\n");
}
