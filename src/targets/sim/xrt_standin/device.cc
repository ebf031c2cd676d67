// xrt::device and xrt::system. The compiler checks the signatures here, and in the files beside
// this one, against XRT's own headers. Functions that the library does not use are missing, and do
// not link.
#include "targets/sim/xrt_standin/npu.h"
#include "xrt/experimental/xrt_system.h"
#include "xrt/xrt_device.h"

namespace {

constexpr char kBdf[] = "0000:c5:00.1";

std::shared_ptr<xrt_core::device> Open(bool known, const std::string& name) {
  if (!known) ort_aie::sim::Throw(EINVAL, "No such device with index '" + name + "'");
  return std::static_pointer_cast<xrt_core::device>(ort_aie::sim::Npu::Open());
}

}  // namespace

namespace xrt {

namespace system {
unsigned int enumerate_devices() { return ort_aie::sim::Npu::Count(); }
}  // namespace system

device::device(unsigned int index) : handle(Open(index == 0, std::to_string(index))) {}

device::device(const std::string& bdf) : handle(Open(bdf == kBdf || bdf == "0", bdf)) {}

device::~device() = default;

uuid device::register_xclbin(const xrt::xclbin& xclbin) {
  handle->RequirePresent("GET_INFO");
  handle->Register(xclbin);
  return xclbin.get_uuid();
}

std::any device::get_info_std(info::device param, const xrt::detail::abi&) const {
  handle->RequirePresent("GET_INFO");
  switch (param) {
    case info::device::bdf:
      return std::string(kBdf);
    case info::device::name:
      return handle->name();
    case info::device::max_clock_frequency_mhz:
      return static_cast<unsigned long>(handle->first_generation() ? 1600 : 1800);
    case info::device::interface_uuid:
      return xrt::uuid();
    case info::device::kdma:
      return std::uint32_t{0};
    case info::device::m2m:
    case info::device::nodma:
    case info::device::offline:
      return false;
    default:
      ort_aie::sim::Throw(ENOTSUP, "The modelled NPU does not answer this query");
  }
}

bool operator==(const device& d1, const device& d2) { return d1.get_handle() == d2.get_handle(); }

}  // namespace xrt
