#include "targets/npu/xrt/buffers.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <tuple>

#include "base/error.h"
#include "targets/npu/xrt/faults.h"
#include "targets/trace.h"

namespace ort_aie::npu_target {
namespace {

// Idle memory beyond this is released: activations of a prompt's chunk and the scratch of
// dequantisation fit.
constexpr size_t kMaxIdleBytes = size_t{256} << 20;

// Eight sizes between powers of two, so that a buffer is at most an eighth too large.
size_t SizeClass(size_t bytes) {
  const size_t step = std::max(kPageBytes, std::bit_floor(std::max<size_t>(bytes, 1)) / 8);
  return std::max(kPageBytes, (bytes + step - 1) / step * step);
}

// Small gaps between two ranges are pinned with them, in one buffer: small tensors of the same
// file, or what malloc puts between two allocations.
constexpr uint64_t kMaxFileGap = 1 << 20, kMaxMemoryGap = 4 * kPageBytes;

// Extends [first, first + bytes) to the end of a range that begins in it, or up to `gap` after it,
// if the result is still short enough for a buffer.
bool Extend(uint64_t first, size_t& bytes, uint64_t next, size_t next_bytes, uint64_t gap) {
  const uint64_t end = std::max(first + bytes, next + next_bytes);
  if (next > first + bytes + gap || end - first > kMaxBufferBytes) return false;
  bytes = static_cast<size_t>(end - first);
  return true;
}

Trace::Facts Bytes(size_t bytes) { return {{{"bytes", static_cast<int64_t>(bytes)}}}; }

}  // namespace

Tally& Tally::OfProcess() {
  static Tally tally;
  return tally;
}

Counters Tally::Read() const {
  Counters counters;
  counters.runs = runs;
  counters.submissions = submissions;
  counters.bytes_to = bytes_to;
  counters.bytes_from = bytes_from;
  counters.streams_kept = streams_kept;
  counters.streams_built = streams_built;
  counters.streams_dropped = streams_dropped;
  counters.stream_bytes = stream_bytes;
  counters.buffers = buffers;
  counters.buffer_bytes = buffer_bytes;
  return counters;
}

CountedBo::CountedBo(xrt::bo bo, const char* what)
    : bo_(std::move(bo)), bytes_(Ask(Fault::kAllocation, what, [&] { return bo_.size(); })) {
  ++Tally::OfProcess().buffers;
  Tally::OfProcess().buffer_bytes += static_cast<int64_t>(bytes_);
}

CountedBo::~CountedBo() {
  if (!bo_) return;
  --Tally::OfProcess().buffers;
  Tally::OfProcess().buffer_bytes -= static_cast<int64_t>(bytes_);
}

void CountedBo::ToDevice(size_t offset, size_t bytes) {
  const TraceSpan traced("sync", "to device", {}, Bytes(bytes));
  Ask(Fault::kRunError, "sending a buffer",
      [&] { bo_.sync(XCL_BO_SYNC_BO_TO_DEVICE, bytes, offset); });
  Tally::OfProcess().bytes_to += static_cast<int64_t>(bytes);
}

void CountedBo::FromDevice(size_t offset, size_t bytes) {
  const TraceSpan traced("sync", "from device", {}, Bytes(bytes));
  Ask(Fault::kRunError, "fetching a buffer",
      [&] { bo_.sync(XCL_BO_SYNC_BO_FROM_DEVICE, bytes, offset); });
  Tally::OfProcess().bytes_from += static_cast<int64_t>(bytes);
}

class BufferPool::Pooled final : public XrtBuffer {
 public:
  Pooled(std::shared_ptr<BufferPool> pool, Piece piece, size_t bytes)
      : pool_(std::move(pool)), piece_(std::move(piece)), bytes_(bytes) {}
  ~Pooled() override { pool_->TakeBack(std::move(piece_)); }

  uint8_t* host() override { return piece_.host; }
  size_t size() const override { return bytes_; }
  const xrt::bo& bo() const override { return piece_.bo.bo(); }

  void ToDevice(size_t offset, size_t bytes) override {
    RequireRange(offset, bytes);
    piece_.bo.ToDevice(offset, bytes);
  }
  void FromDevice(size_t offset, size_t bytes) override {
    RequireRange(offset, bytes);
    piece_.bo.FromDevice(offset, bytes);
  }

 private:
  void RequireRange(size_t offset, size_t bytes) const {
    Require(offset <= bytes_ && bytes <= bytes_ - offset, "a transfer of ", bytes, " bytes at ",
            offset, " is outside of a buffer of ", bytes_);
  }

  const std::shared_ptr<BufferPool> pool_;
  Piece piece_;
  const size_t bytes_;
};

class BufferPool::Pinned final : public XrtBuffer {
 public:
  // `pages` is what `bo` pins, or nothing if the memory belongs to someone else.
  Pinned(std::optional<FilePages> pages, xrt::bo bo, uint8_t* host, size_t bytes)
      : pages_(std::move(pages)), bo_(std::move(bo), "pinned memory"), host_(host), bytes_(bytes) {}

  uint8_t* host() override { return host_; }
  size_t size() const override { return bytes_; }
  const xrt::bo& bo() const override { return bo_.bo(); }
  void ToDevice(size_t offset, size_t bytes) override { bo_.ToDevice(offset, bytes); }
  void FromDevice(size_t, size_t) override {
    Fail(ErrorCode::kRuntime, "pinned memory is read-only: nothing comes back from the device");
  }

 private:
  const std::optional<FilePages> pages_;  // unmapped after the buffer object is destroyed
  CountedBo bo_;
  uint8_t* const host_;
  const size_t bytes_;
};

BufferPool::Piece BufferPool::NewPiece(size_t bytes) {
  const auto make = [&] {
    return Ask(Fault::kAllocation, Concat("a buffer of ", bytes, " bytes"), [&] {
      xrt::bo bo(device_, bytes, xrt::bo::flags::host_only, group_);
      auto* host = bo.map<uint8_t*>();
      return Piece{CountedBo(std::move(bo), "a buffer"), host};
    });
  };
  try {
    return make();
  } catch (const DeviceError& error) {
    if (error.fault() != Fault::kAllocation) throw;
  }
  DropIdle();
  return make();
}

void BufferPool::DropIdle() {
  const std::lock_guard lock(mutex_);
  idle_.clear();
  idle_bytes_ = 0;
}

std::shared_ptr<Buffer> BufferPool::Allocate(size_t bytes) {
  const size_t size = SizeClass(bytes);
  {
    std::unique_lock lock(mutex_);
    const auto idle = idle_.find(size);
    if (idle != idle_.end()) {
      Piece piece = std::move(idle->second);
      idle_.erase(idle);
      idle_bytes_ -= size;
      lock.unlock();
      return std::make_shared<Pooled>(shared_from_this(), std::move(piece), bytes);
    }
  }
  return std::make_shared<Pooled>(shared_from_this(), NewPiece(size), bytes);
}

void BufferPool::TakeBack(Piece piece) {
  const size_t size = piece.bo.size();
  if (size == 0) return;  // moved from
  const std::lock_guard lock(mutex_);
  if (idle_bytes_ + size > kMaxIdleBytes) return;
  idle_bytes_ += size;
  idle_.emplace(size, std::move(piece));
}

std::vector<DeviceMemory> BufferPool::Pin(std::span<const HostMemory> ranges) {
  std::vector<DeviceMemory> places(ranges.size());
  std::vector<Wish> wishes;
  const auto key = [](const HostMemory& memory) { return std::pair(memory.data, memory.bytes); };
  {
    const std::lock_guard lock(mutex_);
    std::erase_if(pinned_, [](const auto& entry) { return entry.second.buffer.expired(); });
    for (size_t i = 0; i < ranges.size(); ++i) {
      const auto known = pinned_.find(key(ranges[i]));
      if (known != pinned_.end()) places[i] = {known->second.buffer.lock(), known->second.offset};
      if (places[i].buffer == nullptr) wishes.push_back({ranges[i], &places[i]});
    }
  }
  if (wishes.empty()) return places;
  std::vector<Wish> left = wishes;
  PinFiles(left);
  PinMemory(left);
  Copy(left);
  const std::lock_guard lock(mutex_);
  for (const Wish& wish : wishes) {
    pinned_[key(wish.memory)] = {wish.place->buffer, wish.place->offset};
  }
  return places;
}

// Null if a limit, a file system or a driver refuses to pin such pages.
std::shared_ptr<Buffer> BufferPool::InPlace(std::optional<FilePages> pages, uint8_t* data,
                                            size_t bytes) {
  const TraceSpan traced("sync", "pin", {}, Bytes(bytes));
  std::optional<xrt::bo> bo;
  try {
    bo = xrt::bo(device_, data, bytes, xrt::bo::flags::host_only, group_);
  } catch (const std::exception& error) {
    NoteRefusal(bytes, error.what());
    return nullptr;
  }
  auto buffer = std::make_shared<Pinned>(std::move(pages), std::move(*bo), data, bytes);
  buffer->ToDevice(0, bytes);
  return buffer;
}

void BufferPool::NoteRefusal(size_t bytes, const std::string& why) {
  const std::lock_guard lock(mutex_);
  if (!notices_.empty()) return;
  notices_.push_back(Concat(bytes, " bytes of weights cannot be read in place, so they are ",
                            "copied, and take twice the memory: ", why, MemoryLimit()));
}

std::vector<std::string> BufferPool::notices() const {
  const std::lock_guard lock(mutex_);
  return notices_;
}

void BufferPool::PinFiles(std::vector<Wish>& wishes) {
  struct OfFile {
    FileRange range;
    Wish wish;
  };
  std::vector<OfFile> found;
  std::vector<Wish> left;
  for (const Wish& wish : wishes) {
    if (std::optional<FileRange> range = FileRangeAt(wish.memory.data, wish.memory.bytes)) {
      found.push_back({std::move(*range), wish});
    } else {
      left.push_back(wish);
    }
  }
  std::ranges::sort(found, {}, [](const OfFile& f) {
    return std::tie(f.range.device, f.range.inode, f.range.path, f.range.offset);
  });
  for (size_t begin = 0; begin < found.size();) {
    FileRange piece = found[begin].range;
    size_t end = begin + 1;
    for (; end < found.size() && found[end].range.OfSameFile(piece); ++end) {
      const FileRange& next = found[end].range;
      if (!Extend(piece.offset, piece.bytes, next.offset, next.bytes, kMaxFileGap)) break;
    }
    std::shared_ptr<Buffer> buffer;
    if (std::optional<FilePages> pages = FilePages::Of(piece)) {
      uint8_t* const data = pages->data();
      const size_t bytes = pages->size();
      buffer = InPlace(std::move(pages), data, bytes);
    }
    for (; begin < end; ++begin) {
      const auto& [range, wish] = found[begin];
      if (buffer == nullptr) {
        left.push_back(wish);
      } else {
        *wish.place = {buffer, static_cast<int64_t>(range.offset - piece.offset)};
      }
    }
  }
  wishes = std::move(left);
}

// Pins memory that does not belong to a file, such as weights that the execution provider packed.
void BufferPool::PinMemory(std::vector<Wish>& wishes) {
  struct InMapping {
    uintptr_t mapping, first;
    Wish wish;
  };
  std::vector<InMapping> found;
  std::vector<Wish> left;
  for (const Wish& wish : wishes) {
    const auto first = reinterpret_cast<uintptr_t>(wish.memory.data);
    std::optional<Mapping> mapping;
    if (first % kPageBytes == 0) {
      mapping = FindMapping(wish.memory.data, WholePages(wish.memory.bytes));
    }
    if (mapping && mapping->inode == 0) {
      found.push_back({mapping->begin, first, wish});
    } else {
      left.push_back(wish);
    }
  }
  std::ranges::sort(found, {}, &InMapping::first);
  for (size_t begin = 0; begin < found.size();) {
    uint64_t first = found[begin].first;
    size_t bytes = found[begin].wish.memory.bytes, end = begin + 1;
    for (; end < found.size() && found[end].mapping == found[begin].mapping; ++end) {
      const InMapping& next = found[end];
      if (!Extend(first, bytes, next.first, next.wish.memory.bytes, kMaxMemoryGap)) break;
    }
    const std::shared_ptr<Buffer> buffer =
        InPlace(std::nullopt, reinterpret_cast<uint8_t*>(first), WholePages(bytes));
    for (; begin < end; ++begin) {
      const auto& [mapping, address, wish] = found[begin];
      if (buffer == nullptr) {
        left.push_back(wish);
      } else {
        *wish.place = {buffer, static_cast<int64_t>(address - first)};
      }
    }
  }
  wishes = std::move(left);
}

void BufferPool::Copy(std::span<const Wish> wishes) {
  for (size_t begin = 0; begin < wishes.size();) {
    size_t end = begin, bytes = 0;
    for (; end < wishes.size(); ++end) {
      const size_t more = WholePages(wishes[end].memory.bytes);
      if (end > begin && bytes + more > kMaxBufferBytes) break;
      bytes += more;
    }
    const auto copy = std::make_shared<Pooled>(shared_from_this(), NewPiece(bytes), bytes);
    for (size_t offset = 0; begin < end; ++begin) {
      const auto& [memory, place] = wishes[begin];
      std::memcpy(copy->host() + offset, memory.data, memory.bytes);
      DropFilePages(memory.data, memory.bytes);
      *place = {copy, static_cast<int64_t>(offset)};
      offset += WholePages(memory.bytes);
    }
    copy->ToDevice(0, bytes);
  }
}

}  // namespace ort_aie::npu_target
