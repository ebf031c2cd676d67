// The weights of an EPContext model: one file beside it, mapped when it is loaded.
//
// bytes 0 .. 4095: a header of text (magic, format, library version, id, bytes of the file), padded
// with zeros; then tensors, each on a page of its own. The id also stands in each EPContext node,
// so that a file of another generation is not taken for this one.
#pragma once

#include <cstdio>
#include <memory>
#include <mutex>
#include <string>

#include "ops/recipe.h"

namespace ort_aie::ep {

// A file that is written, for a model that ONNX Runtime is about to write. Until that is done no
// other session puts its own in its place, and it goes again where the model is not made.
class WrittenContext {
 public:
  // `lock` is a descriptor of the file that has its lock; it is closed here.
  WrittenContext(std::string path, int lock) : path_(std::move(path)), lock_(lock) {}
  ~WrittenContext();
  WrittenContext(const WrittenContext&) = delete;
  WrittenContext& operator=(const WrittenContext&) = delete;

  // The model that names it has been made, and is about to be written.
  void Keep();
  // It has been written.
  void Release();

 private:
  const std::string path_;
  std::mutex mutex_;
  int lock_;
  bool kept_ = false;
};

class ContextWriter {
 public:
  // Writes beside `path`, under a name of its own; Finish gives it its name. `model` is what ONNX
  // Runtime writes afterwards. Throws Error naming the file.
  ContextWriter(std::string path, std::string model);
  ~ContextWriter();
  ContextWriter(const ContextWriter&) = delete;
  ContextWriter& operator=(const ContextWriter&) = delete;

  Recipe::Span Add(const void* data, int64_t size);
  // Throws Error where another session has written, or is writing, the same model.
  std::shared_ptr<WrittenContext> Finish();
  const std::string& id() const { return id_; }

 private:
  void Write(const void* data, size_t size);
  bool Publish();  // false: again, because something changed meanwhile

  const std::string path_, model_, id_, part_;
  std::FILE* file_ = nullptr;
  int lock_ = -1;
  int64_t end_;
};

class ContextFile {
 public:
  // Maps the file and checks its header. Throws Error that says what is wrong and what to do.
  ContextFile(const std::string& path, const std::string& id);
  ~ContextFile();
  ContextFile(const ContextFile&) = delete;
  ContextFile& operator=(const ContextFile&) = delete;

  // Throws Error for a span outside of the file.
  const uint8_t* At(const Recipe::Span& span) const;

 private:
  std::string path_;
  const uint8_t* data_ = nullptr;
  int64_t size_ = 0;
};

}  // namespace ort_aie::ep
