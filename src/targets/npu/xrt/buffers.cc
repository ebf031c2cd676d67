#include "targets/npu/xrt/buffers.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/error.h"
#include "targets/npu/xrt/faults.h"
#include "targets/npu/xrt/trace.h"

namespace ort_aie::npu_target {
namespace {

// More is given back: activations of a prompt's chunk and the scratch of dequantisation fit.
constexpr size_t kMaxIdleBytes = size_t{256} << 20;

// Eight sizes between powers of two, so that a buffer is at most an eighth too large.
size_t SizeClass(size_t bytes) {
  const size_t step = std::max(kPageBytes, std::bit_floor(std::max<size_t>(bytes, 1)) / 8);
  return std::max(kPageBytes, (bytes + step - 1) / step * step);
}

size_t WholePages(size_t bytes) { return (bytes + kPageBytes - 1) / kPageBytes * kPageBytes; }

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
  const Span span("sync", "to device", static_cast<int64_t>(bytes));
  Ask(Fault::kRunError, "sending a buffer",
      [&] { bo_.sync(XCL_BO_SYNC_BO_TO_DEVICE, bytes, offset); });
  Tally::OfProcess().bytes_to += static_cast<int64_t>(bytes);
}

void CountedBo::FromDevice(size_t offset, size_t bytes) {
  const Span span("sync", "from device", static_cast<int64_t>(bytes));
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
  // `pages` is what `bo` pins, or nothing where that is the memory of others.
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
  const std::optional<FilePages> pages_;  // unmapped after the buffer object is gone
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
  if (size == 0) return;  // moved on
  const std::lock_guard lock(mutex_);
  if (idle_bytes_ + size > kMaxIdleBytes) return;
  idle_bytes_ += size;
  idle_.emplace(size, std::move(piece));
}

std::shared_ptr<Buffer> BufferPool::Pin(const void* data, size_t bytes) {
  const std::pair key(data, bytes);
  {
    const std::lock_guard lock(mutex_);
    const auto known = pinned_.find(key);
    if (known != pinned_.end()) {
      if (std::shared_ptr<Buffer> buffer = known->second.lock()) return buffer;
    }
    std::erase_if(pinned_, [](const auto& entry) { return entry.second.expired(); });
  }
  std::shared_ptr<Buffer> buffer = PinAnew(data, bytes);
  const std::lock_guard lock(mutex_);
  pinned_[key] = buffer;
  return buffer;
}

std::optional<xrt::bo> BufferPool::InPlace(uint8_t* data, size_t bytes) {
  try {
    return xrt::bo(device_, data, bytes, xrt::bo::flags::host_only, group_);
  } catch (const std::exception&) {
    return std::nullopt;  // a limit, a file system or a driver that does not pin such pages
  }
}

std::shared_ptr<Buffer> BufferPool::PinAnew(const void* data, size_t bytes) {
  const Span span("sync", "pin", static_cast<int64_t>(bytes));
  auto* memory = const_cast<uint8_t*>(static_cast<const uint8_t*>(data));
  const auto pinned = [&](std::optional<FilePages> pages, xrt::bo bo, uint8_t* host) {
    auto buffer = std::make_shared<Pinned>(std::move(pages), std::move(bo), host, bytes);
    buffer->ToDevice(0, bytes);
    return buffer;
  };
  if (std::optional<FilePages> pages = FilePages::Behind(data, bytes)) {
    uint8_t* const ours = pages->data();
    if (std::optional<xrt::bo> bo = InPlace(ours, pages->size())) {
      return pinned(std::move(pages), std::move(*bo), ours);
    }
  } else if (const std::optional<Mapping> mapping = FindMapping(data, WholePages(bytes));
             mapping && mapping->inode == 0 &&
             reinterpret_cast<uintptr_t>(data) % kPageBytes == 0) {
    // Memory that belongs to no file, such as weights that the execution provider packed.
    if (std::optional<xrt::bo> bo = InPlace(memory, WholePages(bytes))) {
      return pinned(std::nullopt, std::move(*bo), memory);
    }
  }
  std::shared_ptr<Buffer> copy = Allocate(bytes);
  std::memcpy(copy->host(), data, bytes);
  copy->ToDevice(0, bytes);
  DropFilePages(data, bytes);
  return copy;
}

}  // namespace ort_aie::npu_target
