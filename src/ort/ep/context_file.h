// The weights of an EPContext model: one file beside the model, mapped when the model is loaded.
//
// Bytes 0 .. 4095 are a text header (magic, format, library version, id, bytes of the file), padded
// with zeros. Tensors follow, each on a page of its own. Each EPContext node contains the id too,
// so that a file of another generation is not mistaken for this one.
#pragma once

#include <memory>
#include <mutex>
#include <string>

#include "base/platform.h"
#include "ops/recipe.h"

namespace ort_aie::ep {

// A file that this session has written, for a model that ONNX Runtime is about to write. Until the
// model is written, no other session can replace the file. If the model is not made, the file is
// removed.
class WrittenContext {
 public:
  // `file` holds the lock of the file.
  WrittenContext(std::string path, platform::File file)
      : path_(std::move(path)), file_(std::move(file)) {}
  ~WrittenContext();
  WrittenContext(const WrittenContext&) = delete;
  WrittenContext& operator=(const WrittenContext&) = delete;

  // The model that names the file has been made, and is about to be written.
  void Keep();
  // The model has been written.
  void Release();

 private:
  const std::string path_;
  std::mutex mutex_;
  platform::File file_;
  bool kept_ = false;
};

class ContextWriter {
 public:
  // Writes beside `path`, under a temporary name; Finish renames it. `model` is the file that ONNX
  // Runtime writes afterwards. Throws Error naming the file.
  ContextWriter(std::string path, std::string model);
  ~ContextWriter();
  ContextWriter(const ContextWriter&) = delete;
  ContextWriter& operator=(const ContextWriter&) = delete;

  Recipe::Span Add(const void* data, int64_t size);
  // Throws Error if another session has written, or is writing, the same model.
  std::shared_ptr<WrittenContext> Finish();
  const std::string& id() const { return id_; }

 private:
  void Write(const void* data, size_t size);
  bool Publish();  // false: try again, because something changed meanwhile

  const std::string path_, model_, id_, part_;
  platform::File file_;
  int64_t end_;
};

class ContextFile {
 public:
  // Maps the file and checks its header. The Error says what is wrong and what to do.
  ContextFile(const std::string& path, const std::string& id);
  ContextFile(const ContextFile&) = delete;
  ContextFile& operator=(const ContextFile&) = delete;

  // Throws Error for a span outside of the file.
  const uint8_t* At(const Recipe::Span& span) const;

 private:
  std::string path_;
  std::shared_ptr<const uint8_t> data_;
  int64_t size_ = 0;
};

}  // namespace ort_aie::ep
