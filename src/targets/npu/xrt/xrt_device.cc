#include "targets/npu/xrt/xrt_device.h"

#include <xrt/experimental/xrt_system.h>
#include <xrt/xrt_device.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <list>
#include <map>
#include <mutex>
#include <optional>
#include <ranges>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include "base/error.h"
#include "targets/npu/schedule/designs.h"
#include "targets/npu/xrt/buffers.h"
#include "targets/npu/xrt/context.h"
#include "targets/npu/xrt/faults.h"
#include "targets/npu/xrt/other_overlay.h"
#include "targets/npu/xrt/overlays.h"
#include "targets/npu/xrt/run_list.h"
#include "targets/npu/xrt/runs.h"

namespace ort_aie::npu_target {
namespace {

// XRT uses the names of the chips, such as "NPU Strix Halo"; older stacks use "RyzenAI-npu4".
struct Chip {
  const char* in_name;
  const char* device;
};
constexpr std::array kChips = {
    Chip{"Phoenix", "npu1"}, Chip{"Hawk Point", "npu1"}, Chip{"npu1", "npu1"},
    Chip{"Strix", "npu2"},   Chip{"Krackan", "npu2"},    Chip{"Gorgon", "npu2"},
    Chip{"npu4", "npu2"},    Chip{"npu5", "npu2"},       Chip{"npu6", "npu2"},
};

// The device's name in manifests, or null if the name is not of an NPU that this library knows.
const char* KindOf(const std::string& name) {
  for (const Chip& chip : kChips) {
    if (name.find(chip.in_name) != std::string::npos) return chip.device;
  }
  return nullptr;
}

class XrtDevice final : public Device {
 public:
  XrtDevice(xrt::device device, std::string name, const char* kind,
            const std::vector<std::filesystem::path>& folders, size_t instruction_bytes)
      : device_(std::move(device)),
        name_(std::move(name)),
        overlays_(kind, folders),
        streams_(std::make_shared<npu::StreamMemory>(instruction_bytes)) {}

  const std::string& name() const override { return name_; }

  bool ShareContext(std::string_view one, std::string_view other) override {
    const std::lock_guard lock(mutex_);
    const Package *const first = overlays_.Find(one), *const second = overlays_.Find(other);
    return first != nullptr && second != nullptr && first->uuid == second->uuid;
  }

  const npu::Manifest* Overlay(std::string_view design) override {
    const std::lock_guard lock(mutex_);
    const Package* package = overlays_.Find(design);
    return package == nullptr ? nullptr : &package->manifest;
  }

  std::shared_ptr<Buffer> Allocate(size_t bytes) override {
    return Watch([&] { return Pool().Allocate(bytes); });
  }

  std::vector<DeviceMemory> Pin(std::span<const HostMemory> ranges) override {
    return Watch([&] { return Pool().Pin(ranges); });
  }

  void Submit(std::span<const Part> parts, std::span<Buffer* const> buffers) override {
    const std::lock_guard lock(mutex_);
    Watch([&] {
      std::vector<Context*> contexts;
      for (const Part& part : parts) contexts.push_back(&ContextOf(overlays_.Get(part.package)));
      try {
        RunList list;
        for (size_t i = 0; i < parts.size(); ++i) {
          list.Add(*contexts[i], parts[i].invocations, buffers);
        }
        list.Execute();
      } catch (const DeviceError&) {
        // Only the end of the context guarantees that the run no longer writes to the buffers.
        Drop(contexts_.front().package->uuid);
        throw;
      }
    });
  }

  std::unique_ptr<OtherStream> Load(const OtherOverlay& overlay,
                                    std::span<const uint32_t> words) override {
    const std::lock_guard lock(mutex_);
    if (overlay.device != overlays_.device()) {
      throw DeviceError(Fault::kWrongOverlay, Concat(overlay.path, " is for ", overlay.device,
                                                     ", and the device is ", overlays_.device()));
    }
    return Watch([&] {
      const auto load = [&] {
        return std::make_unique<XrtOtherStream>(device_, overlay, words, *streams_);
      };
      std::unique_ptr<XrtOtherStream> stream;
      try {
        stream = load();
      } catch (const DeviceError& error) {
        if (error.fault() != Fault::kContextRefused || contexts_.empty()) throw;
        contexts_.clear();
        stream = load();
      }
      if (pool_ == nullptr) pool_ = std::make_shared<BufferPool>(device_, stream->group());
      const uint16_t bank = BankOf(stream->group()), ours = BankOf(pool_->group());
      if (bank != ours) {
        throw DeviceError(Fault::kWrongOverlay,
                          Concat(overlay.path, ": the buffers of its kernel are in memory bank ",
                                 bank, ", but those of this device are in ", ours));
      }
      return std::unique_ptr<OtherStream>(std::move(stream));
    });
  }

  void Reset() override {
    const std::lock_guard lock(mutex_);
    contexts_.clear();
    if (pool_ != nullptr) pool_->DropIdle();
  }

  Counters counters() const override { return CountersOfProcess(); }

  std::vector<std::string> NoticesFrom(size_t first) const override {
    const std::lock_guard lock(mutex_);
    std::vector<std::string> notices;
    if (pool_ != nullptr) notices = pool_->notices();
    notices.erase(notices.begin(),
                  notices.begin() + static_cast<std::ptrdiff_t>(std::min(first, notices.size())));
    return notices;
  }

  const std::string& kind() const { return overlays_.device(); }

  void RequireOverlays() {
    const std::lock_guard lock(mutex_);
    AnyPackage();
  }

  // Whether it is lost, so that new users need another object.
  bool lost() const { return lost_; }

 private:
  // Calls call(), and notes if the device is gone.
  template <typename Call>
  std::invoke_result_t<const Call&> Watch(const Call& call) {
    try {
      return call();
    } catch (const DeviceError& error) {
      if (error.fault() == Fault::kDeviceLost) lost_ = true;
      throw;
    }
  }

  // A package of a design that decodes, if possible, because its context will be needed.
  const Package& AnyPackage() {
    for (const Design design : kDesigns) {
      if (const Package* package = overlays_.Find(design)) return *package;
    }
    return overlays_.Get(overlays_.device() == "npu1" ? kFusedDqp : kDecode);
  }

  // The bank of buffers depends on kernels, so the first buffer needs a context.
  BufferPool& Pool() {
    const std::lock_guard lock(mutex_);
    if (pool_ == nullptr) {
      pool_ = std::make_shared<BufferPool>(device_, ContextOf(AnyPackage()).group());
    }
    return *pool_;
  }

  // The context of a package, which is moved to the front. If the device does not have room for
  // another one, the contexts that were used longest ago are dropped, but not its siblings.
  Context& ContextOf(const Package& package) {
    const auto known = std::ranges::find(contexts_, &package, &Open::package);
    if (known != contexts_.end()) {
      contexts_.splice(contexts_.begin(), contexts_, known);
      return *contexts_.front().context;
    }
    const auto same = [&](const Open& open) { return open.package->uuid == package.uuid; };
    while (true) {
      const auto sibling = std::ranges::find_if(contexts_, same);
      try {
        const Context* const shared = sibling == contexts_.end() ? nullptr : sibling->context.get();
        contexts_.push_front(
            {&package, std::make_unique<Context>(device_, package, shared, streams_)});
        return *contexts_.front().context;
      } catch (const DeviceError& error) {
        const auto other = std::ranges::find_if_not(contexts_ | std::views::reverse, same);
        if (error.fault() != Fault::kContextRefused || other == contexts_.rend()) throw;
        Drop(other->package->uuid);
      }
    }
  }

  // A hardware context ends with the last of the contexts that share it.
  void Drop(const std::string& uuid) {
    std::erase_if(contexts_, [&](const Open& open) { return open.package->uuid == uuid; });
  }

  struct Open {
    const Package* package;
    std::unique_ptr<Context> context;
  };

  xrt::device device_;
  const std::string name_;
  mutable std::mutex mutex_;
  Overlays overlays_;
  const std::shared_ptr<npu::StreamMemory> streams_;  // shared by all contexts
  std::list<Open> contexts_;                          // most recently used first
  std::shared_ptr<BufferPool> pool_;
  std::atomic<bool> lost_ = false;
};

std::shared_ptr<XrtDevice> Discover(const std::vector<std::filesystem::path>& folders,
                                    size_t instruction_bytes) {
  const unsigned count = Ask(Fault::kNoDevice, "XRT cannot look for devices",
                             [] { return xrt::system::enumerate_devices(); });
  std::string others;
  for (unsigned i = 0; i < count; ++i) {
    auto [device, name] = Ask(Fault::kNoDevice, Concat("device ", i, " of XRT"), [&] {
      xrt::device opened(i);
      std::string its_name = opened.get_info<xrt::info::device::name>();
      return std::pair(std::move(opened), std::move(its_name));
    });
    if (const char* kind = KindOf(name)) {
      return std::make_shared<XrtDevice>(std::move(device), std::move(name), kind, folders,
                                         instruction_bytes);
    }
    others += Concat(others.empty() ? ": " : ", ", name);
  }
  throw DeviceError(Fault::kNoDevice,
                    Concat("XRT has no NPU that this library knows (", count, " devices", others,
                           "); ort-aie doctor says what is missing"));
}

}  // namespace

std::shared_ptr<Device> OpenDevice(const std::vector<std::filesystem::path>& folders,
                                   size_t instruction_bytes) {
  static std::mutex mutex;
  static auto& devices =
      *new std::map<std::vector<std::filesystem::path>, std::weak_ptr<XrtDevice>>();
  const std::lock_guard lock(mutex);
  std::shared_ptr<XrtDevice> device = devices[folders].lock();
  if (device == nullptr || device->lost()) {
    device = Discover(folders, instruction_bytes);
    devices[folders] = device;
  }
  return device;
}

void RequireOverlays(Device& device) { static_cast<XrtDevice&>(device).RequireOverlays(); }

const std::string& DeviceKind(const Device& device) {
  return static_cast<const XrtDevice&>(device).kind();
}

Counters CountersOfProcess() { return Tally::OfProcess().Read(); }

}  // namespace ort_aie::npu_target
