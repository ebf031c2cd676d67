// The weights of an EPContext model: one file beside the model, mapped when the model is loaded.
//
// Bytes 0 .. 4095 are a text header (magic, format, library version, id, bytes of the file), padded
// with zeros. Tensors follow, each on a page of its own. Each EPContext node contains the id too,
// so that a file of another generation is not mistaken for this one. A file that refers to other
// files (referred.h) also says where its text about them is: "referred OFFSET BYTES".
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/platform.h"
#include "ops/recipe.h"
#include "targets/session_options.h"

namespace ort_aie::ep {

// A file that this session has written, for a model that ONNX Runtime is about to write. Until the
// model is written, no other session can replace the file. If the model is not written, the file is
// removed, and the one that it would have replaced stays.
class WrittenContext {
 public:
  // `file` is at `place`: at `path`, or beside it if `replaced` is at `path`. Both hold their
  // locks.
  WrittenContext(std::string path, std::string place, platform::File file, platform::File replaced)
      : path_(std::move(path)),
        place_(std::move(place)),
        file_(std::move(file)),
        replaced_(std::move(replaced)) {}
  ~WrittenContext();
  WrittenContext(const WrittenContext&) = delete;
  WrittenContext& operator=(const WrittenContext&) = delete;

  // Where the file is until Keep.
  const std::string& place() const { return place_; }
  // The model that names the file has been written. Throws Error if the file cannot get its name.
  void Keep();

 private:
  const std::string path_, place_;
  std::mutex mutex_;
  platform::File file_, replaced_;  // open until Keep
};

class ContextWriter {
 public:
  // Writes beside `path`, under a temporary name. Throws Error naming the file.
  explicit ContextWriter(std::string path);
  ~ContextWriter();
  ContextWriter(const ContextWriter&) = delete;
  ContextWriter& operator=(const ContextWriter&) = delete;

  Recipe::FileRange Add(const void* data, int64_t size);
  // `referred` is the text about other files, or empty. Throws Error if another session is writing
  // the same file.
  std::shared_ptr<WrittenContext> Finish(const std::string& referred);
  const std::string& id() const { return id_; }

 private:
  void Write(const void* data, size_t size);
  // Takes `path`, or leaves what is there for Keep to replace. Null: try again, because something
  // changed meanwhile.
  std::shared_ptr<WrittenContext> Publish();

  const std::string path_, id_, part_;
  platform::File file_;
  int64_t end_;
};

class ContextFile {
 public:
  // Maps or copies the file, checks its header, and makes what it refers to, from data files in the
  // first of the folders that has them. The Error says what is wrong and what to do.
  ContextFile(const std::string& path, const std::string& id,
              const std::vector<std::string>& folders, WeightMemory memory = WeightMemory::kMapped);
  ContextFile(const ContextFile&) = delete;
  ContextFile& operator=(const ContextFile&) = delete;

  // Throws Error for a range that the file does not have.
  const uint8_t* At(const Recipe::FileRange& range) const;

 private:
  std::string path_;
  std::shared_ptr<const uint8_t> data_;
  int64_t size_ = 0;
  std::vector<Tensor> referred_;
  std::vector<std::shared_ptr<const void>> memory_;  // owns their data
};

}  // namespace ort_aie::ep
