// The weights of an EPContext model: one file beside it, mapped when it is loaded.
//
// bytes 0 .. 4095: a header of text (magic, format, library version, id, bytes of the file), padded
// with zeros; then tensors, each on a page of its own. The id also stands in each EPContext node,
// so that a file of another generation is not taken for this one.
#pragma once

#include <cstdio>
#include <memory>
#include <string>

#include "ort/ep/recipe.h"

namespace ort_aie::ep {

class ContextWriter {
 public:
  // Writes beside `path`; Finish renames. Throws Error naming the file.
  explicit ContextWriter(std::string path);
  ~ContextWriter();
  ContextWriter(const ContextWriter&) = delete;
  ContextWriter& operator=(const ContextWriter&) = delete;

  Recipe::Span Add(const void* data, int64_t size);
  void Finish();
  const std::string& id() const { return id_; }

 private:
  void Write(const void* data, size_t size);

  const std::string path_, part_;
  std::string id_;
  std::FILE* file_;
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
