// A folder in memory if the machine has one, deleted at the end.
#pragma once

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <string>

namespace ort_aie::fuzz {

class ScratchFolder {
 public:
  ScratchFolder() {
    path_ = ::access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp";
    path_ += "/ort_aie_fuzz_XXXXXX";
    if (::mkdtemp(path_.data()) == nullptr) std::abort();
  }
  ~ScratchFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;

  std::string File(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

}  // namespace ort_aie::fuzz
