#include "ort/ep/context_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <random>
#include <sstream>
#include <vector>

#include "base/error.h"
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

class Descriptor {
 public:
  explicit Descriptor(int number) : number_(number) {}
  ~Descriptor() {
    if (number_ >= 0) ::close(number_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return number_; }

 private:
  const int number_;
};

// Whether a path still names the open file.
bool IsAt(int file, const std::string& path) {
  struct stat open{}, named{};
  return ::fstat(file, &open) == 0 && ::stat(path.c_str(), &named) == 0 &&
         open.st_dev == named.st_dev && open.st_ino == named.st_ino;
}

std::string NewId() {
  std::random_device random;
  std::ostringstream text;
  text << std::hex << random() << random();
  return text.str();
}

}  // namespace

WrittenContext::~WrittenContext() {
  // The lock is still held, so no other session has replaced the file.
  if (!kept_ && IsAt(lock_, path_)) ::unlink(path_.c_str());
  Release();
}

void WrittenContext::Keep() {
  const std::lock_guard guard(mutex_);
  kept_ = true;
}

void WrittenContext::Release() {
  const std::lock_guard guard(mutex_);
  if (lock_ >= 0) ::close(lock_);
  lock_ = -1;
}

ContextWriter::ContextWriter(std::string path, std::string model)
    : path_(std::move(path)),
      model_(std::move(model)),
      id_(NewId()),
      part_(Concat(path_, ".", id_, ".part")),
      end_(kPage) {
  const int part = ::open(part_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  Require(part >= 0, part_, " cannot be written: ", std::strerror(errno));
  file_ = ::fdopen(part, "wb");
  lock_ = ::fcntl(part, F_DUPFD_CLOEXEC, 0);
  if (file_ == nullptr || lock_ < 0) {
    const int error = errno;
    file_ != nullptr ? std::fclose(file_) : ::close(part);
    file_ = nullptr;
    ::unlink(part_.c_str());
    Fail(ErrorCode::kRuntime, part_, " cannot be written: ", std::strerror(error));
  }
  // Not every file system has locks.
  ::flock(lock_, LOCK_EX | LOCK_NB);
  std::fseek(file_, kPage, SEEK_SET);  // the header is written last
}

ContextWriter::~ContextWriter() {
  if (file_ != nullptr) std::fclose(file_);
  if (lock_ < 0) return;
  ::unlink(part_.c_str());
  ::close(lock_);
}

void ContextWriter::Write(const void* data, size_t size) {
  if (size == 0) return;  // data may be null then
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

std::shared_ptr<WrittenContext> ContextWriter::Finish() {
  const std::string header = Header(id_, end_);
  const bool good = std::fseek(file_, 0, SEEK_SET) == 0 &&
                    std::fwrite(header.data(), 1, header.size(), file_) == header.size();
  const bool closed = std::fclose(file_) == 0;
  file_ = nullptr;
  if (!good || !closed) {
    Fail(ErrorCode::kRuntime, "writing ", path_, " failed: ", std::strerror(errno));
  }
  while (!Publish()) {
  }
  auto written = std::make_shared<WrittenContext>(path_, lock_);
  lock_ = -1;
  return written;
}

bool ContextWriter::Publish() {
  const auto check_model = [&] {
    Require(::access(model_.c_str(), F_OK) != 0, model_,
            " exists already: another session has written it; open it, or remove it and ", path_);
  };
  if (::access(path_.c_str(), F_OK) != 0) {
    check_model();
    // Unlike renaming, linking fails if another session was faster.
    if (::link(part_.c_str(), path_.c_str()) == 0) {
      ::unlink(part_.c_str());
      return true;
    }
    if (errno == EEXIST) return false;
  }
  // The session that wrote the file holds its lock until the model that names it is written as
  // well.
  const Descriptor other(::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (other.get() >= 0) {
    Require(::flock(other.get(), LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK, path_,
            " is being written by another session; open what it writes, or choose another "
            "ep.context_file_path");
    if (!IsAt(other.get(), path_)) return false;
  }
  check_model();
  if (std::rename(part_.c_str(), path_.c_str()) != 0) {
    Fail(ErrorCode::kRuntime, "writing ", path_, " failed: ", std::strerror(errno));
  }
  return true;
}

ContextFile::ContextFile(const std::string& path, const std::string& id) : path_(path) {
  // Without O_NONBLOCK, opening a FIFO waits for a writer.
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  Require(file.get() >= 0, path,
          ", the weights of the EPContext model, cannot be opened: ", std::strerror(errno),
          "; it must be beside the model; for a model in memory, give the path of the model in "
          "ep.context_file_path");
  struct stat status{};
  Require(::fstat(file.get(), &status) == 0 && S_ISREG(status.st_mode), path,
          ", the weights of the EPContext model, is not a regular file");
  size_ = status.st_size;
  void* map = size_ >= kPage ? ::mmap(nullptr, static_cast<size_t>(size_), PROT_READ, MAP_PRIVATE,
                                      file.get(), 0)
                             : MAP_FAILED;
  Require(map != MAP_FAILED, path, " cannot be mapped: ", size_, " bytes are not a context file");
  data_ = static_cast<const uint8_t*>(map);
  std::istringstream header(std::string(reinterpret_cast<const char*>(data_), 512));
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
  if (problem.empty()) return;
  ::munmap(map, static_cast<size_t>(size_));
  Fail(ErrorCode::kInvalidArgument, path, " ", problem, "; generate the context model again");
}

ContextFile::~ContextFile() { ::munmap(const_cast<uint8_t*>(data_), static_cast<size_t>(size_)); }

const uint8_t* ContextFile::At(const Recipe::Span& span) const {
  const bool at_page = span.offset >= kPage && span.offset % kPage == 0;
  Require(at_page && span.size >= 0 && Size(span.offset) + span.size <= size_, path_,
          " has no tensor of ", span.size, " bytes at ", span.offset,
          "; generate the context model again");
  return data_ + span.offset;
}

}  // namespace ort_aie::ep
