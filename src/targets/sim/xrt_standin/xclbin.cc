// xrt::xclbin: an axlf file. A simulated overlay does not contain what mlir-aie writes about a
// kernel (a DPU kernel with an opcode, instructions, their number and five buffers), so it is fixed
// here. A separate section has the names of kernels (ort_aie_ep/npu/packages/simulated.py).
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

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

// From the section in which simulated overlays name their designs.
std::vector<std::string> KernelNames(const std::vector<char>& data, const axlf& header) {
  const axlf_section_header& section = header.m_sections[0];
  if (header.m_header.m_numSections < 1 || section.m_sectionKind != USER_METADATA ||
      section.m_sectionOffset > data.size() ||
      section.m_sectionSize > data.size() - section.m_sectionOffset) {
    return {};
  }
  const char* const begin = data.data() + section.m_sectionOffset;
  const auto content = nlohmann::json::parse(begin, begin + section.m_sectionSize, nullptr, false);
  std::vector<std::string> names;
  const nlohmann::json::json_pointer kernels("/simulated/kernels");
  if (!content.is_object() || !content.contains(kernels)) return names;
  for (const nlohmann::json& kernel : content.at(kernels)) {
    if (kernel.is_object() && kernel.contains("name") && kernel["name"].is_string()) {
      names.push_back(kernel["name"].get<std::string>());
    }
  }
  return names;
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
    kernels = KernelNames(data, header);
  }

  std::string path;
  std::vector<char> data;
  axlf header;
  std::vector<std::string> kernels;
};

class xclbin::kernel_impl {
 public:
  explicit kernel_impl(std::string its_name) : name(std::move(its_name)) {}

  const std::string name;
};

xclbin::xclbin(const std::string& filename)
    : detail::pimpl<xclbin_impl>(std::make_shared<xclbin_impl>(filename)) {}

std::vector<xclbin::kernel> xclbin::get_kernels() const {
  std::vector<kernel> kernels;
  for (const std::string& name : handle->kernels) {
    kernels.push_back(kernel(std::make_shared<kernel_impl>(name)));
  }
  return kernels;
}

xclbin::kernel xclbin::get_kernel(const std::string& name) const {
  for (const kernel& candidate : get_kernels()) {
    if (candidate.get_name() == name) return candidate;
  }
  return {};
}

uuid xclbin::get_uuid() const { return {handle->header.m_header.uuid}; }

std::string xclbin::kernel::get_name() const { return handle->name; }

}  // namespace xrt

namespace ort_aie::sim {
const std::string& FileOf(const xrt::xclbin& xclbin) { return xclbin.get_handle()->path; }
}  // namespace ort_aie::sim
