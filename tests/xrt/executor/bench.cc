#include "bench.h"

#include "q4nx/bfloat16.h"

namespace ort_aie::npu_target {
namespace {

std::mt19937& Random() {
  static std::mt19937 generator(7);
  return generator;
}

}  // namespace

std::map<std::string, void (*)()>& Cases::All() {
  static std::map<std::string, void (*)()> cases;
  return cases;
}

std::filesystem::path& Manifests() {
  static std::filesystem::path folder;
  return folder;
}

std::vector<float> Exact(int64_t count, float step, int most) {
  std::uniform_int_distribution<int> pick(-most, most);
  std::vector<float> x(static_cast<size_t>(count));
  for (float& value : x) value = step * static_cast<float>(pick(Random()));
  return x;
}

std::vector<uint8_t> Weights(int64_t n, int64_t k, const WeightForm& form) {
  if (form.kind == WeightKind::kFile) {  // scales in float16 are 5e-4
    return std::vector<uint8_t>(static_cast<size_t>(q4nx::BytesOfBlocks(n, k, form)), 0x11);
  }
  const int largest = form.kind == WeightKind::kQ2NX   ? 3
                      : form.kind == WeightKind::kQ8NX ? 255
                                                       : 15;
  std::uniform_int_distribution<int> code(0, largest);
  std::uniform_real_distribution<float> scale(0.005f, 0.02f);
  const int64_t groups = q4nx::CeilDiv(k, form.group);
  std::vector<uint8_t> codes(static_cast<size_t>(n * k));
  for (uint8_t& c : codes) c = static_cast<uint8_t>(code(Random()));
  std::vector<uint8_t> blocks(static_cast<size_t>(q4nx::BytesOfBlocks(n, k, form)));
  if (form.kind == WeightKind::kQ8NX) {
    std::vector<float> scales(static_cast<size_t>(n * groups));
    for (float& s : scales) s = scale(Random()) / 16;
    const std::vector<uint8_t> zero_points(scales.size(), 120);
    q4nx::PackBytes(codes.data(), scales.data(), zero_points.data(), n, k, blocks.data(), form);
    return blocks;
  }
  std::vector<uint16_t> scales(static_cast<size_t>(n * groups)), mins(scales.size());
  for (size_t i = 0; i < scales.size(); ++i) {
    scales[i] = FloatToBfloat16(scale(Random()));
    mins[i] = FloatToBfloat16(-0.5f * static_cast<float>(largest) * Bfloat16ToFloat(scales[i]));
  }
  q4nx::Pack(codes.data(), scales.data(), mins.data(), n, k, blocks.data(), form);
  return blocks;
}

void Near(const char* what, const Values& got, const Values& want, int64_t width, double bound) {
  const std::vector<float> x = got.floats(), y = want.floats();
  const auto columns = static_cast<size_t>(width);
  const size_t pieces = std::max<size_t>(1, columns / 64);
  for (size_t piece = 0; piece < y.size() / columns * pieces; ++piece) {
    const size_t row = piece / pieces * columns, at = piece % pieces;
    const size_t begin = row + columns * at / pieces, end = row + columns * (at + 1) / pieces;
    double error = 0, size = 0;
    for (size_t i = begin; i < end; ++i) {
      error += std::pow(double{x[i]} - y[i], 2);
      size += std::pow(double{y[i]}, 2);
    }
    Check(error <= bound * bound * size, what, "[", begin, "] to [", end, "] are off by ",
          std::sqrt(error / size), " of their size, expected ", bound);
  }
}

Bench::Bench(const Designs& designs, ExecutorOptions options, const char* device_name)
    : device(std::make_shared<ReferenceDevice>(Manifests() / device_name, designs)) {
  options.report = [this](const std::string& line) { lines.push_back(line); };
  target = MakeXrtTarget(device, options);
  at_first.swap(lines);
}

void Bench::OnlyDevice() const {
  for (const auto& [reason, count] : target->counters().host_steps) {
    throw std::logic_error(Concat(count, " steps on the host: ", reason));
  }
  Check(lines.empty(), "reported: ", lines.empty() ? "" : lines[0]);
}

}  // namespace ort_aie::npu_target
