// Where memory of this process comes from, according to /proc/self, and read-only mappings that
// this library makes of the same files.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

namespace ort_aie::npu_target {

inline constexpr size_t kPageBytes = 4096;
constexpr size_t WholePages(size_t bytes) {
  return (bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
}

// A line of /proc/self/maps.
struct Mapping {
  uintptr_t begin, end;
  bool writable, shared;
  uint64_t offset;     // of `begin` in the file
  std::string device;  // as in the line, such as fd:01
  uint64_t inode;      // 0: not a file
  std::string path;
};

// The mapping that contains all of [data, data + bytes), or nothing.
std::optional<Mapping> FindMapping(const void* data, size_t bytes);

// Bytes of a file that are mapped somewhere.
struct FileRange {
  std::string device;  // as in Mapping
  uint64_t inode;
  std::string path;
  uint64_t offset;
  size_t bytes;

  bool OfSameFile(const FileRange& other) const {
    return device == other.device && inode == other.inode && path == other.path;
  }
};

// The part of a file that is mapped at [data, data + bytes). Nothing if `data` is not page-aligned,
// or the memory is not a file's or was written to.
std::optional<FileRange> FileRangeAt(const void* data, size_t bytes);

// Pages of a file, mapped read-only and shared.
class FilePages {
 public:
  // The whole pages of a range. Nothing if the path no longer leads to the file.
  static std::optional<FilePages> Of(const FileRange& range);

  FilePages(FilePages&& other) noexcept;
  FilePages& operator=(FilePages&&) = delete;
  ~FilePages();

  uint8_t* data() const { return data_; }
  size_t size() const { return size_; }

 private:
  FilePages(uint8_t* data, size_t size) : data_(data), size_(size) {}

  uint8_t* data_;
  size_t size_;
};

// Lets the kernel take back the whole pages of [data, data + bytes), which are then read from the
// file again when accessed. This is done only if it loses nothing: in a private mapping of a file
// in which no page was written to. Returns whether it was done.
bool DropFilePages(const void* data, size_t bytes);

}  // namespace ort_aie::npu_target
