// Constants that a context file does not hold: initializers of theirs are in data files of the
// model that it was made from (ep.enable_weightless_mode=1). The context file lists how to make
// them:
//
//   file model.onnx.data                      file 0, relative to a folder; to the end of the line
//   tensor 0 4096 65536 2 81985529216486895   tensor 0: its file (-1: the context file), offset,
//                                             bytes, type, and SampleOf
//   constant 81920 weights 0 1 - 96 512 ...   constant 0: its bytes, and TextOf with its tensors
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "ort/ep/constants.h"
#include "ort/ep/context_file.h"

namespace ort_aie::ep {

class Referrer {
 public:
  // For a model in `folder`.
  Referrer(const OrtApi* api, std::string folder, const Initializers& initializers)
      : api_(api), folder_(std::move(folder)), initializers_(initializers) {}

  // What stands for the range of a constant that the file need not hold, or nothing. Initializers
  // of it that are in no data file are added to the file.
  std::optional<Recipe::FileRange> Refer(const Constants::Source& source, ContextWriter& file);
  const std::string& text() const { return text_; }

 private:
  bool IsInData(const std::string& name);
  std::string TensorOf(const std::string& name, ContextWriter& file);

  const OrtApi* api_;
  const std::string folder_;
  const Initializers& initializers_;
  std::string text_;
  std::map<std::string, int> files_;
  std::map<std::string, DataRange> data_;       // by initializer
  std::map<std::string, std::string> tensors_;  // likewise
  int64_t constants_ = 0;
};

// Makes the constants of such a text, in order. The context file is `path`, with `own` bytes; the
// first of the folders that has a data file counts. Adds what owns the constants to `memory`. The
// Error says what is wrong and what to do.
std::vector<Tensor> MakeReferred(const std::string& text, const std::string& path,
                                 std::span<const uint8_t> own,
                                 const std::vector<std::string>& folders,
                                 std::vector<std::shared_ptr<const void>>& memory);

}  // namespace ort_aie::ep
