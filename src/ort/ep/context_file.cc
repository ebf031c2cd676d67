#include "ort/ep/context_file.h"

#include <cerrno>
#include <cstring>
#include <locale>
#include <random>
#include <sstream>
#include <utility>

#include "base/error.h"
#include "ops/format.h"
#include "ort/ep/referred.h"
#include "ort/weight_files.h"
#include "q4nx/layout.h"

namespace ort_aie::ep {
namespace {

constexpr int64_t kFilePage = 4096;
constexpr int kAttempts = 100;
constexpr char kMagic[] = "ort_aie_ep context";

std::string Header(const std::string& id, int64_t bytes, const Recipe::FileRange& referred) {
  std::string header = Concat(kMagic, "\nformat ", kFormat, "\nversion ", ORT_AIE_VERSION, "\nid ",
                              id, "\nbytes ", bytes, '\n');
  if (referred.size > 0) {
    header += Concat("referred ", referred.offset, ' ', referred.size, '\n');
  }
  header.resize(kFilePage, '\0');
  return header;
}

std::string NewId() {
  std::random_device random;
  return Concat(random(), '-', random());
}

}  // namespace

WrittenContext::~WrittenContext() {
  // The lock is still held, so no other session has replaced the file.
  if (file_.is_open() && file_.IsAt(place_)) platform::Remove(place_);
}

void WrittenContext::Keep() {
  const std::lock_guard guard(mutex_);
  if (!file_.is_open()) return;
  if (place_ != path_ && !platform::Replace(place_, path_)) {
    Fail(ErrorCode::kRuntime, path_, " cannot be replaced: ", std::strerror(errno));
  }
  file_.Close();
  replaced_.Close();
}

ContextWriter::ContextWriter(std::string path)
    : path_(std::move(path)),
      id_(NewId()),
      part_(Concat(path_, ".", id_, ".part")),
      file_(platform::File::Create(part_)),
      end_(kFilePage) {  // the header is written last
  Require(file_.is_open(), part_, " cannot be written: ", std::strerror(errno));
  file_.Lock();
}

ContextWriter::~ContextWriter() {
  if (file_.is_open()) platform::Remove(part_);
}

void ContextWriter::Write(const void* data, size_t size) {
  const bool written = file_.Write(end_, data, size);  // before its errno is read
  Require(written, "writing ", part_, " failed: ", std::strerror(errno));
  end_ += static_cast<int64_t>(size);
}

Recipe::FileRange ContextWriter::Add(const void* data, int64_t size) {
  const Recipe::FileRange range = {end_, size};
  Write(data, static_cast<size_t>(size));
  const std::string padding(static_cast<size_t>(q4nx::CeilDiv(end_, kFilePage) * kFilePage - end_),
                            '\0');
  Write(padding.data(), padding.size());
  return range;
}

std::shared_ptr<WrittenContext> ContextWriter::Finish(const std::string& referred) {
  Recipe::FileRange text;
  if (!referred.empty()) text = Add(referred.data(), static_cast<int64_t>(referred.size()));
  const std::string header = Header(id_, end_, text);
  if (!file_.Write(0, header.data(), header.size()) || !file_.Settle()) {
    Fail(ErrorCode::kRuntime, "writing ", path_, " failed: ", std::strerror(errno));
  }
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    if (auto written = Publish()) return written;
  }
  Fail(ErrorCode::kRuntime, path_,
       " cannot be written: it is a link to nothing, or keeps changing");
}

std::shared_ptr<WrittenContext> ContextWriter::Publish() {
  const auto written = [&](const std::string& place, platform::File replaced) {
    return std::make_shared<WrittenContext>(path_, place, std::move(file_), std::move(replaced));
  };
  const auto require = [&](bool done) {
    if (!done) Fail(ErrorCode::kRuntime, "writing ", path_, " failed: ", std::strerror(errno));
  };
  if (!platform::Exists(path_)) {
    if (platform::RenameToNew(part_, path_)) return written(path_, {});
    if (errno == EEXIST) return nullptr;
    require(platform::Replace(part_, path_));  // a file system without links
    return written(path_, {});
  }
  // The session that wrote the file holds its lock until the model that names it is written as
  // well.
  platform::File other = platform::File::Open(path_);
  if (!other.is_open() && errno == ENOENT) return nullptr;
  require(other.is_open());
  Require(other.Bytes() >= 0, path_, " is not a regular file, and cannot be replaced");
  Require(other.Lock(), path_,
          " is being written by another session; open what it writes, or choose another "
          "ep.context_file_path");
  if (!other.IsAt(path_)) return nullptr;
  // The model that is there works until ONNX Runtime writes the new one.
  if (platform::kReplacesOpenFiles) return written(part_, std::move(other));
  other.Close();
  require(platform::Replace(part_, path_));
  return written(path_, {});
}

ContextFile::ContextFile(const std::string& path, const std::string& id,
                         const std::vector<std::string>& folders, WeightMemory memory)
    : path_(path) {
  const platform::File file = platform::File::Open(path);
  Require(file.is_open(), path,
          ", the weights of the EPContext model, cannot be opened: ", std::strerror(errno));
  size_ = file.Bytes();
  Require(size_ >= 0, path, ", the weights of the EPContext model, is not a regular file");
  if (size_ >= kFilePage) data_ = WeightBytes(file, memory);
  Require(data_ != nullptr, path, " cannot be mapped: ", size_, " bytes are not a context file");
  std::istringstream header(std::string(reinterpret_cast<const char*>(data_.get()), 512));
  header.imbue(std::locale::classic());
  std::string magic, key, version, found;
  int64_t format = 0, bytes = 0;
  std::getline(header, magic);
  header >> key >> format >> key >> version >> key >> found >> key >> bytes;
  std::string problem;
  if (magic != kMagic) {
    problem = "is not a context file";
  } else if (format != kFormat) {
    problem = Concat("has format ", format, " of version ", version,
                     ", but this library reads format ", kFormat);
  } else if (found != id) {
    problem = "belongs to another generation of the model";
  } else if (bytes != size_) {
    problem = Concat("has ", size_, " bytes, expected ", bytes);
  }
  Require(problem.empty(), path, " ", problem, "; generate the context model again");
  Recipe::FileRange referred;
  if (!(header >> key >> referred.offset >> referred.size) || key != "referred") return;
  const auto* text = reinterpret_cast<const char*>(At(referred));
  referred_ = MakeReferred({text, static_cast<size_t>(referred.size)}, path,
                           {data_.get(), static_cast<size_t>(size_)}, folders, memory_);
}

const uint8_t* ContextFile::At(const Recipe::FileRange& range) const {
  if (range.offset < 0 && std::cmp_less(-1 - range.offset, referred_.size())) {
    const Tensor& tensor = referred_[static_cast<size_t>(-1 - range.offset)];
    if (tensor.bytes == range.size) return tensor.as<uint8_t>();
  }
  const bool at_page = range.offset >= kFilePage && range.offset % kFilePage == 0;
  Require(at_page && range.size >= 0 && Size(range.offset) + range.size <= size_, path_,
          " has no tensor of ", range.size, " bytes at ", range.offset,
          "; generate the context model again");
  return data_.get() + range.offset;
}

}  // namespace ort_aie::ep
