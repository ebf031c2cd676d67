#include "ort/weight_files.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <utility>

namespace ort_aie {
namespace {

// Bytes. Address translations of a smaller file stay in the CPU's caches, and those of a smaller
// tensor are few.
constexpr int64_t kLargeFile = 16 << 20, kLargeTensor = 64 << 10;
constexpr size_t kFilePage = 4096;  // at which tensors start

std::shared_ptr<const uint8_t> Copy(const platform::File& file) {
  const int64_t bytes = file.Bytes();
  const auto size = static_cast<size_t>(bytes);
  const std::shared_ptr<void> copy = platform::AllocateInLargePages(size, kFilePage);
  if (file.Read(0, copy.get(), size) != bytes) return nullptr;
  return {copy, static_cast<const uint8_t*>(copy.get())};
}

std::shared_ptr<const uint8_t> Map(const platform::File& file, bool in_large_pages) {
  if (in_large_pages && file.Bytes() >= kLargeFile) file.CacheInLargePages();
  return file.Map(0, file.Bytes());
}

}  // namespace

std::shared_ptr<const uint8_t> WeightBytes(const platform::File& file, WeightMemory memory) {
  static std::mutex mutex;
  static auto& files = *new std::map<std::pair<platform::File::Identity, WeightMemory>,
                                     std::weak_ptr<const uint8_t>>();
  if (file.Bytes() <= 0) return nullptr;
  const std::lock_guard lock(mutex);
  std::erase_if(files, [](const auto& entry) { return entry.second.expired(); });
  const platform::File::Identity id = file.Id();
  const auto known = files.find({id, memory});
  std::shared_ptr<const uint8_t> bytes = known != files.end() ? known->second.lock() : nullptr;
  if (bytes != nullptr) return bytes;
  bytes = memory == WeightMemory::kCopied ? Copy(file) : Map(file, memory == WeightMemory::kAuto);
  if (id != platform::File::Identity{}) files[{id, memory}] = bytes;
  return bytes;
}

void WeightFiles::Place(Tensor& tensor) {
  if (memory_ == WeightMemory::kMapped || tensor.data == nullptr || tensor.bytes < kLargeTensor) {
    return;
  }
  if (!std::exchange(knows_files_, true)) files_ = platform::MappedFiles();
  const auto address = reinterpret_cast<uintptr_t>(tensor.data);
  const auto mapped = std::ranges::find_if(files_, [&](const platform::MappedFile& file) {
    return file.begin <= address && address + static_cast<size_t>(tensor.bytes) <= file.end;
  });
  if (mapped == files_.end()) return;
  const platform::File file = platform::File::Open(mapped->path);
  const platform::File::Identity id = file.Id();
  const int64_t offset = mapped->offset + static_cast<int64_t>(address - mapped->begin);
  const bool same = id.device == mapped->device && id.inode == mapped->inode;
  if (!same || id.bytes < kLargeFile || offset + tensor.bytes > id.bytes) return;
  // An application may have given ONNX Runtime a mapping of its own, with other weights in it.
  if (platform::MayHaveChanged(tensor.data, static_cast<size_t>(tensor.bytes))) return;
  std::shared_ptr<const uint8_t> bytes = WeightBytes(file, memory_);
  if (bytes == nullptr) return;
  tensor.data = bytes.get() + offset;
  if (std::ranges::find(bytes_, bytes) == bytes_.end()) bytes_.push_back(std::move(bytes));
}

}  // namespace ort_aie
