// xrt::xclbin: an axlf file. What mlir-aie writes into every one (a DPU kernel MLIR_AIE with an
// opcode, instructions, their number and five buffers) is not in a simulated overlay, and given
// here.
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "targets/sim/xrt_standin/npu.h"
#include "xrt/experimental/xrt_xclbin.h"

namespace xrt {
namespace {

constexpr char kMagic[] = "xclbin2";

std::vector<char> Read(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::runtime_error("Failed to open file '" + path + "' for reading");
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace

class xclbin_impl {
 public:
  explicit xclbin_impl(const std::string& path)
      : path(std::filesystem::absolute(path)), data(Read(path)) {
    if (data.size() < sizeof(axlf) || std::memcmp(data.data(), kMagic, sizeof(kMagic)) != 0) {
      throw std::runtime_error("Invalid xclbin '" + path + "': bad magic");
    }
    std::memcpy(&header, data.data(), sizeof(header));
    if (header.m_header.m_length != data.size()) {
      throw std::runtime_error("Invalid xclbin '" + path + "': bad length");
    }
  }

  std::string path;
  std::vector<char> data;
  axlf header;
};

class xclbin::kernel_impl {
 public:
  std::string name = "MLIR_AIE";  // aiecc's name for the kernel of every xclbin
};

xclbin::xclbin(const std::string& filename)
    : detail::pimpl<xclbin_impl>(std::make_shared<xclbin_impl>(filename)) {}

std::vector<xclbin::kernel> xclbin::get_kernels() const {
  return {kernel(std::make_shared<kernel_impl>())};
}

xclbin::kernel xclbin::get_kernel(const std::string& name) const {
  for (const kernel& candidate : get_kernels()) {
    if (candidate.get_name() == name) return candidate;
  }
  return {};
}

std::string xclbin::get_xsa_name() const {
  return {reinterpret_cast<const char*>(handle->header.m_header.m_platformVBNV)};
}

uuid xclbin::get_uuid() const { return {handle->header.m_header.uuid}; }

const axlf* xclbin::get_axlf() const { return reinterpret_cast<const axlf*>(handle->data.data()); }

std::string xclbin::kernel::get_name() const { return handle->name; }

xclbin::kernel::kernel_type xclbin::kernel::get_type() const { return kernel_type::dpu; }

}  // namespace xrt

namespace ort_aie::sim {
const std::string& FileOf(const xrt::xclbin& xclbin) { return xclbin.get_handle()->path; }
}  // namespace ort_aie::sim
