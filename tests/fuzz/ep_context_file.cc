// The file beside an EPContext model, byte by byte: its header, and spans in the file.
//
// An input is the text of the header; a line "--", then "bytes N", the size of the file, and pairs
// OFFSET SIZE of spans.
#include <fcntl.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <sstream>
#include <string>

#include "base/error.h"
#include "ort/ep/context_file.h"
#include "scratch_folder.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace ort_aie;
  static const fuzz::ScratchFolder folder;
  static const std::string path = folder.File("model.aie");
  constexpr int64_t kMostBytes = 1 << 16;
  const std::string text(reinterpret_cast<const char*>(data), size);
  const std::string mark = "\n--\n";
  const size_t end = std::min(text.find(mark), text.size());
  std::string content = text.substr(0, end == text.size() ? end : end + 1);
  std::istringstream words(end == text.size() ? "" : text.substr(end + mark.size()));
  std::string key;
  int64_t bytes = 4096;
  words >> key >> bytes;
  if (bytes < 0 || bytes > kMostBytes) return -1;
  content.resize(static_cast<size_t>(bytes));
  const int file = ::open(path.c_str(), O_CREAT | O_TRUNC | O_WRONLY, 0600);
  if (file < 0 || ::write(file, content.data(), content.size()) != bytes) std::abort();
  ::close(file);
  try {
    const ep::ContextFile context(path, "fuzz", {folder.File("")});
    int sum = 0;
    for (Recipe::FileRange span; words >> span.offset >> span.size;) {
      const uint8_t* tensor = context.At(span);
      for (int64_t i = 0; i < span.size; ++i) sum += tensor[i];
    }
    if (sum < 0) std::abort();  // the bytes are read
  } catch (const Error&) {
  }
  return 0;
}
