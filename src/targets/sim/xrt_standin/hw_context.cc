#include "targets/sim/xrt_standin/hw_context.h"

namespace xrt {
namespace {
constexpr int kCommands = 4;  // active in a context; the driver makes a fifth wait
}

hw_context_impl::hw_context_impl(const xrt::device& device, const xrt::uuid& uuid,
                                 hw_context::access_mode mode)
    : device(device),
      xclbin(device.get_handle()->Registered(uuid)),
      mode(mode),
      id(device.get_handle()->OpenContext(xclbin)),
      slot(static_cast<uint8_t>(id)) {}

hw_context_impl::~hw_context_impl() { device.get_handle()->CloseContext(id); }

int hw_context_impl::BeginCommand() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return commands_ < kCommands; });
  ++commands_;
  return resets_;
}

void hw_context_impl::EndCommand() {
  {
    const std::lock_guard lock(mutex_);
    --commands_;
  }
  changed_.notify_all();
}

// QoS settings choose a clock; the modelled one is always the highest.
hw_context::hw_context(const xrt::device& device, const xrt::uuid& xclbin_id,
                       const cfg_param_type& /*cfg_param*/)
    : hw_context(device, xclbin_id, access_mode::shared) {}

hw_context::hw_context(const xrt::device& device, const xrt::uuid& xclbin_id,
                       const cfg_type& /*cfg*/)
    : hw_context(device, xclbin_id, access_mode::shared) {}

hw_context::hw_context(const xrt::device& device, const xrt::uuid& xclbin_id, access_mode mode)
    : detail::pimpl<hw_context_impl>(std::make_shared<hw_context_impl>(device, xclbin_id, mode)) {}

hw_context::~hw_context() = default;

xrt::device hw_context::get_device() const { return handle->device; }

xrt::uuid hw_context::get_xclbin_uuid() const { return handle->xclbin.get_uuid(); }

xrt::xclbin hw_context::get_xclbin() const { return handle->xclbin; }

hw_context::access_mode hw_context::get_mode() const { return handle->mode; }

}  // namespace xrt
