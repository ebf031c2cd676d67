#include "ort/ep/context_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <random>
#include <sstream>
#include <vector>

#include "ops/error.h"
#include "ops/format.h"
#include "q4nx/layout.h"

namespace ort_aie::ep {
namespace {

constexpr int64_t kPage = 4096;
constexpr char kMagic[] = "ort_aie_ep context";

std::string Header(const std::string& id, int64_t bytes) {
  std::ostringstream text;
  text << kMagic << "\nformat " << kFormat << "\nversion " << ORT_AIE_VERSION << "\nid " << id
       << "\nbytes " << bytes << '\n';
  std::string header = text.str();
  header.resize(kPage, '\0');
  return header;
}

std::string NewId() {
  std::random_device random;
  std::ostringstream text;
  text << std::hex << random() << random();
  return text.str();
}

}  // namespace

ContextWriter::ContextWriter(std::string path)
    : path_(std::move(path)),
      part_(path_ + ".part"),
      id_(NewId()),
      file_(std::fopen(part_.c_str(), "wb")),
      end_(kPage) {
  Require(file_ != nullptr, part_, " cannot be written: ", std::strerror(errno));
  std::fseek(file_, kPage, SEEK_SET);  // the header comes last
}

ContextWriter::~ContextWriter() {
  if (file_ == nullptr) return;
  std::fclose(file_);
  ::unlink(part_.c_str());
}

void ContextWriter::Write(const void* data, size_t size) {
  Require(std::fwrite(data, 1, size, file_) == size, "writing ", part_,
          " failed: ", std::strerror(errno));
  end_ += static_cast<int64_t>(size);
}

Recipe::Span ContextWriter::Add(const void* data, int64_t size) {
  const Recipe::Span span = {end_, size};
  Write(data, static_cast<size_t>(size));
  const std::string padding(static_cast<size_t>(q4nx::CeilDiv(end_, kPage) * kPage - end_), '\0');
  Write(padding.data(), padding.size());
  return span;
}

void ContextWriter::Finish() {
  const std::string header = Header(id_, end_);
  const bool good = std::fseek(file_, 0, SEEK_SET) == 0 &&
                    std::fwrite(header.data(), 1, header.size(), file_) == header.size();
  const bool closed = std::fclose(file_) == 0;
  file_ = nullptr;
  if (!good || !closed || std::rename(part_.c_str(), path_.c_str()) != 0) {
    const int error = errno;
    ::unlink(part_.c_str());
    Fail(ErrorCode::kRuntime, "writing ", path_, " failed: ", std::strerror(error));
  }
}

ContextFile::ContextFile(const std::string& path, const std::string& id) : path_(path) {
  // Without O_NONBLOCK, opening a FIFO waits for somebody who writes to it.
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  Require(file >= 0, path,
          ", the weights of the EPContext model, cannot be opened: ", std::strerror(errno),
          "; it must lie beside the model");
  struct stat status{};
  const bool regular = ::fstat(file, &status) == 0 && S_ISREG(status.st_mode);
  if (!regular) ::close(file);
  Require(regular, path, ", the weights of the EPContext model, is not a regular file");
  size_ = status.st_size;
  void* map = size_ >= kPage
                  ? ::mmap(nullptr, static_cast<size_t>(size_), PROT_READ, MAP_PRIVATE, file, 0)
                  : MAP_FAILED;
  ::close(file);
  Require(map != MAP_FAILED, path, " cannot be mapped: ", size_, " bytes are no context file");
  data_ = static_cast<const uint8_t*>(map);
  std::istringstream header(std::string(reinterpret_cast<const char*>(data_), 512));
  std::string magic, key, version, found;
  int64_t format = 0, bytes = 0;
  std::getline(header, magic);
  header >> key >> format >> key >> version >> key >> found >> key >> bytes;
  std::string problem;
  if (magic != kMagic) {
    problem = "is no context file";
  } else if (format != kFormat) {
    problem = Concat("has format ", format, " of version ", version, ", this library reads format ",
                     kFormat);
  } else if (found != id) {
    problem = "belongs to another generation of the model";
  } else if (bytes != size_) {
    problem = Concat("has ", size_, " bytes, expected ", bytes);
  }
  if (problem.empty()) return;
  ::munmap(map, static_cast<size_t>(size_));
  Fail(ErrorCode::kInvalidArgument, path, " ", problem, "; generate the context model again");
}

ContextFile::~ContextFile() { ::munmap(const_cast<uint8_t*>(data_), static_cast<size_t>(size_)); }

const uint8_t* ContextFile::At(const Recipe::Span& span) const {
  const bool at_page = span.offset >= kPage && span.offset % kPage == 0;
  Require(at_page && span.size > 0 && Size(span.offset) + span.size <= size_, path_,
          " has no tensor of ", span.size, " bytes at ", span.offset,
          "; generate the context model again");
  return data_ + span.offset;
}

}  // namespace ort_aie::ep
