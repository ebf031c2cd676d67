// Memory of the device: reusable buffers, and pinned memory of others.
#pragma once

#include <xrt/xrt_bo.h>
#include <xrt/xrt_device.h>

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "targets/npu/device.h"
#include "targets/npu/xrt/mappings.h"

namespace ort_aie::npu_target {

// Counters that several threads update.
struct Tally {
  std::atomic<int64_t> runs = 0, submissions = 0, bytes_to = 0, bytes_from = 0, streams_kept = 0,
                       streams_built = 0, streams_dropped = 0, stream_bytes = 0, buffers = 0,
                       buffer_bytes = 0;

  // For all devices that this process has had.
  static Tally& OfProcess();
  Counters Read() const;
};

// An XRT buffer object, counted while it lives.
class CountedBo {
 public:
  CountedBo(xrt::bo bo, const char* what);
  CountedBo(CountedBo&& other) noexcept
      : bo_(std::exchange(other.bo_, {})), bytes_(std::exchange(other.bytes_, 0)) {}
  CountedBo& operator=(CountedBo&&) = delete;
  ~CountedBo();

  const xrt::bo& bo() const { return bo_; }
  size_t size() const { return bytes_; }
  void ToDevice(size_t offset, size_t bytes);
  void FromDevice(size_t offset, size_t bytes);

 private:
  xrt::bo bo_;
  size_t bytes_;
};

// The base of every Buffer of an XRT device.
class XrtBuffer : public Buffer {
 public:
  virtual const xrt::bo& bo() const = 0;
};

// Buffers of one device. All of them are in the same bank.
class BufferPool : public std::enable_shared_from_this<BufferPool> {
 public:
  BufferPool(xrt::device device, xrt::memory_group group)
      : device_(std::move(device)), group_(group) {}

  xrt::memory_group group() const { return group_; }

  // An unused buffer, or a new one.
  std::shared_ptr<Buffer> Allocate(size_t bytes);

  void DropIdle();

  // See Device::Pin. The same memory is pinned once.
  std::vector<DeviceMemory> Pin(std::span<const HostMemory> ranges);

  // A notice, given once, if memory was copied that could have been pinned.
  std::vector<std::string> notices() const;

 private:
  class Pooled;
  class Pinned;
  struct Piece {
    CountedBo bo;
    uint8_t* host;
  };

  Piece NewPiece(size_t bytes);
  // A range to pin, and its place when it is pinned.
  struct Wish {
    HostMemory memory;
    DeviceMemory* place;
  };
  // PinFiles pins the wishes whose memory is a mapping of a file, PinMemory those in other memory.
  // Both leave the wishes that they cannot fulfil.
  void PinFiles(std::vector<Wish>& wishes);
  void PinMemory(std::vector<Wish>& wishes);
  void Copy(std::span<const Wish> wishes);
  std::shared_ptr<Buffer> InPlace(std::optional<FilePages> pages, uint8_t* data, size_t bytes);
  void NoteRefusal(size_t bytes, const std::string& why);
  void TakeBack(Piece piece);

  xrt::device device_;
  const xrt::memory_group group_;
  mutable std::mutex mutex_;
  std::vector<std::string> notices_;
  std::multimap<size_t, Piece> idle_;  // by size
  size_t idle_bytes_ = 0;
  struct Known {
    std::weak_ptr<Buffer> buffer;
    int64_t offset;
  };
  std::map<std::pair<const void*, size_t>, Known> pinned_;
};

}  // namespace ort_aie::npu_target
