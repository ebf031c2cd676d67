#include "reference_device.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <fstream>
#include <iterator>
#include <limits>
#include <stdexcept>

#include "base/error.h"
#include "npu/stream.h"
#include "q4nx/bfloat16.h"
#include "q4nx/pack.h"
#include "targets/npu/engine.h"

namespace ort_aie::npu_target {
namespace {

constexpr uint8_t kPoison = 0xff;  // NaN in bfloat16
std::mutex counting;

[[noreturn]] void Wrong(const std::string& what) { throw std::logic_error(what); }

class ReferenceBuffer final : public Buffer {
 public:
  ReferenceBuffer(std::shared_ptr<Counters> counters, size_t bytes, bool pinned)
      : counters_(std::move(counters)), own_(pinned ? 0 : bytes, kPoison) {
    device.assign(bytes, kPoison);
    const std::lock_guard lock(counting);
    ++counters_->buffers;
    counters_->buffer_bytes += static_cast<int64_t>(bytes);
  }
  ~ReferenceBuffer() override {
    const std::lock_guard lock(counting);
    --counters_->buffers;
    counters_->buffer_bytes -= static_cast<int64_t>(device.size());
  }
  uint8_t* host() override {
    if (own_.empty()) Wrong("the host's side of pinned memory was asked for");
    return own_.data();
  }
  size_t size() const override { return device.size(); }
  void ToDevice(size_t offset, size_t bytes) override {
    Check(offset, bytes);
    std::memcpy(device.data() + offset, host() + offset, bytes);
    const std::lock_guard lock(counting);
    counters_->bytes_to += static_cast<int64_t>(bytes);
  }
  void FromDevice(size_t offset, size_t bytes) override {
    Check(offset, bytes);
    std::memcpy(host() + offset, device.data() + offset, bytes);
    const std::lock_guard lock(counting);
    counters_->bytes_from += static_cast<int64_t>(bytes);
  }
  bool pinned() const { return own_.empty(); }

  std::vector<uint8_t> device;

 private:
  void Check(size_t offset, size_t bytes) const {
    if (offset + bytes > device.size()) Wrong("a transfer beyond a buffer's end");
  }

  std::shared_ptr<Counters> counters_;
  std::vector<uint8_t> own_;
};

// An invocation with its arguments on the device.
class Call {
 public:
  Call(const npu::Manifest& manifest, const npu::Invocation& invocation,
       std::span<Buffer* const> buffers)
      : invocation_(invocation) {
    const auto sequence =
        std::ranges::find(manifest.sequences, invocation.sequence, &npu::Sequence::name);
    for (const npu::Argument& argument : sequence->arguments) {
      const npu::BufferView view = invocation.arguments.at(argument.name);
      const int64_t bytes = ArgumentBytes(manifest, invocation, argument.name);
      if (view.argument < 0 || static_cast<size_t>(view.argument) >= buffers.size()) {
        Wrong("a view of a buffer that the plan does not have");
      }
      auto& buffer = dynamic_cast<ReferenceBuffer&>(*buffers[static_cast<size_t>(view.argument)]);
      if (view.offset + bytes > static_cast<int64_t>(buffer.size())) {
        Wrong(argument.name + " of " + npu::Describe(invocation) + " passes the buffer's end");
      }
      if (bytes > 0 && buffer.pinned() && argument.access != npu::Access::kIn) {
        Wrong("a run would write to pinned memory");
      }
      places_[argument.name] = buffer.device.data() + view.offset;
    }
  }

  const std::map<std::string, uint8_t*>& places() const { return places_; }

  void Execute() const {
    const std::string& name = invocation_.sequence;
    if (name == "matvec") return Matvec(P("K"));
    if (name == "matvec_part") return Matvec(P("row_K"));
    if (name == "rms_norm") return RmsNorm();
    if (name == "glu") return Glu();
    if (name == "rope") return Rope();
    if (name == "append") return Append();
    if (name == "move_heads") return MoveHeads();
    if (name == "dequant") return Dequant();
    if (name == "gemm") return Gemm();
    if (name == "project") return Project();
    if (name == "add_norm") return AddNorm();
    if (name == "gate") return Gate();
    if (name == "attention") return Attention();
    Wrong("no reference of " + name);
  }

 private:
  int64_t P(const char* name) const { return invocation_.parameters.at(name); }
  float F(const char* name) const { return std::bit_cast<float>(static_cast<int32_t>(P(name))); }
  uint16_t* Words(const char* name) const { return reinterpret_cast<uint16_t*>(places_.at(name)); }
  double Get(const char* name, int64_t i) const { return Bfloat16ToFloat(Words(name)[i]); }
  void Set(const char* name, int64_t i, double value) const {
    Words(name)[i] = FloatToBfloat16(static_cast<float>(value));
  }
  static double Activate(int64_t kind, double x) {
    if (kind == 0) return x / (1 + std::exp(-x));
    return 0.5 * x * (1 + std::tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)));
  }

  void Matvec(int64_t row_k) const {
    const int64_t n = P("N"), k = P("K");
    std::vector<float> w(static_cast<size_t>(32 * k));
    for (int64_t i = 0; i < n; ++i) {
      if (i % 32 == 0) {
        q4nx::Dequantize(places_.at("w") + i / 32 * (row_k / 256) * q4nx::kBlockBytes, 32, k,
                         w.data());
      }
      double y = P("bias") != 0 ? Get("bias", i) : 0;
      for (int64_t j = 0; j < k; ++j) y += Get("x", j) * w[static_cast<size_t>(i % 32 * k + j)];
      Set("y", i, y);
    }
  }

  // Rows of `width` elements, of which n count; check(i, x) sees each element before its use.
  template <typename Check>
  void NormRows(int64_t rows, int64_t width, bool norm, const Check& check) const {
    const int64_t n = P("n");
    for (int64_t r = 0; r < rows; ++r) {
      double squares = 0;
      std::vector<double> x(static_cast<size_t>(width));
      for (int64_t i = 0; i < width; ++i) {
        double value = Get("x", r * width + i);
        if (P("residual") != 0) {
          // The normalised row is the rounded one.
          Set("sum", r * width + i, value + Get("residual", r * width + i));
          value = Get("sum", r * width + i);
        }
        check(i, value);
        x[static_cast<size_t>(i)] = value;
        squares += value * value;
      }
      if (!norm) continue;
      const double factor = 1 / std::sqrt(squares / static_cast<double>(n) + F("eps_bits"));
      for (int64_t i = 0; i < width; ++i) {
        Set("y", r * width + i, x[static_cast<size_t>(i)] * factor * Get("weight", i));
      }
    }
  }

  void RmsNorm() const {
    NormRows(P("rows"), (P("n") + 127) / 128 * 128, true, [](int64_t, double) {});
  }

  void Glu() const {
    const int64_t n = P("n");
    for (int64_t i = 0; i < n * P("rows"); ++i) {
      const int64_t gate = i / n * 2 * n + i % n;
      Set("y", i, Activate(P("kind"), Get("gate_up", gate)) * Get("gate_up", gate + n));
    }
  }

  // A head of x, normalised, rounded, and rotated; y(d) receives it.
  template <typename Take>
  void Rotate(int64_t head, const Take& y) const {
    const int64_t dim = P("head_dim"), rotary = P("rotary_dim"), half = rotary / 2;
    const bool neighbours = P("interleaved") != 0;
    std::vector<double> x(static_cast<size_t>(dim));
    double squares = 0;
    for (int64_t d = 0; d < dim; ++d) {
      x[static_cast<size_t>(d)] = Get("x", head * dim + d);
      squares += x[static_cast<size_t>(d)] * x[static_cast<size_t>(d)];
    }
    if (P("norm") != 0) {
      const double factor = 1 / std::sqrt(squares / static_cast<double>(dim) + F("eps_bits"));
      for (int64_t d = 0; d < dim; ++d) {
        double& value = x[static_cast<size_t>(d)];
        value =
            Bfloat16ToFloat(FloatToBfloat16(static_cast<float>(value * factor * Get("weight", d))));
      }
    }
    for (int64_t i = 0; i < half; ++i) {
      double& a = x[static_cast<size_t>(neighbours ? 2 * i : i)];
      double& b = x[static_cast<size_t>(neighbours ? 2 * i + 1 : i + half)];
      const double cosine = Get("table", i), sine = Get("table", half + i);
      const double rotated = a * cosine - b * sine;
      b = b * cosine + a * sine;
      a = rotated;
    }
    for (int64_t d = 0; d < dim; ++d) y(d, x[static_cast<size_t>(d)]);
  }

  void Rope() const {
    RequireOneToken();
    for (int64_t head = 0; head < P("heads"); ++head) {
      Rotate(head, [&](int64_t d, double y) { Set("y", head * P("head_dim") + d, y); });
    }
  }

  void Append() const {
    RequireOneToken();
    for (int64_t head = 0; head < P("kv_heads"); ++head) {
      Rotate(head,
             [&](int64_t d, double y) { Set("cache", CacheIndex(head, P("position"), d), y); });
    }
  }

  void MoveHeads() const {
    for (int64_t head = 0; head < P("heads"); ++head) {
      std::memcpy(Words("y") + head * P("y_stride"), Words("x") + head * P("x_stride"),
                  static_cast<size_t>(2 * P("dim")));
    }
  }

  void RequireOneToken() const {
    if (P("tokens") != 1) Wrong("the references rotate one token");
  }

  // Element (k, n) of a block of 256 x 32 in the order that GEMM reads.
  static int64_t Packed(int64_t k, int64_t n) {
    return (((k / 64 * 8 + k / 8 % 8) * 4 + n / 8) * 8 + k % 8) * 8 + n % 8;
  }

  void Dequant() const {
    std::vector<float> w(32 * 256);
    for (int64_t block = 0; block < P("blocks"); ++block) {
      q4nx::Dequantize(places_.at("w") + block * q4nx::kBlockBytes, 32, 256, w.data());
      for (int64_t n = 0; n < 32; ++n) {
        for (int64_t k = 0; k < 256; ++k) {
          Set("b", block * 8192 + Packed(k, n), w[static_cast<size_t>(n * 256 + k)]);
        }
      }
    }
  }

  void Project() const {
    std::vector<float> w(static_cast<size_t>(P("N") * P("K")));
    q4nx::Dequantize(places_.at("w"), P("N"), P("K"), w.data());
    for (float& value : w) value = Bfloat16ToFloat(FloatToBfloat16(value));
    Multiply(w);
  }

  void Gemm() const {
    const int64_t k = P("K"), n = P("N");
    std::vector<float> w(static_cast<size_t>(n * k));
    for (int64_t i = 0; i < n; ++i) {
      for (int64_t j = 0; j < k; ++j) {
        w[static_cast<size_t>(i * k + j)] = static_cast<float>(
            Get("b", (i / 32 * (k / 256) + j / 256) * 8192 + Packed(j % 256, i % 32)));
      }
    }
    Multiply(w);
  }

  // c = a w, of weights (N, K).
  void Multiply(const std::vector<float>& w) const {
    const int64_t rows = std::max<int64_t>(P("M"), 64), k = P("K"), n = P("N");
    std::vector<float> a(static_cast<size_t>(k));
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t j = 0; j < k; ++j) {
        a[static_cast<size_t>(j)] = static_cast<float>(Get("a", r * k + j));
        if (!std::isfinite(a[static_cast<size_t>(j)])) Wrong("gemm reads what nobody wrote");
      }
      for (int64_t i = 0; i < n; ++i) {
        float y = 0;
        const float* row = w.data() + i * k;
        for (int64_t j = 0; j < k; ++j) y += a[static_cast<size_t>(j)] * row[j];
        Set("c", r * n + i, y);
      }
    }
  }

  // Part of GEMM's overlay. The stride between rows is a whole number of blocks' columns.
  void AddNorm() const {
    const int64_t n = P("n");
    NormRows(std::max<int64_t>(P("M"), 64), P("K"), P("norm") != 0, [&](int64_t i, double value) {
      if (!std::isfinite(value)) Wrong("add_norm reads what nobody wrote");
      if (i >= n && value != 0) Wrong("a row is not zero behind its elements");
    });
  }

  void Gate() const {
    const int64_t rows = std::max<int64_t>(P("M"), 64), n = P("N");
    for (int64_t i = 0; i < rows * n; ++i) {
      const int64_t gate = i / n * P("gate_stride") + i % n, up = i / n * P("up_stride") + i % n;
      Set("y", i, Activate(P("kind"), Get("gate", gate)) * Get("up", up));
    }
  }

  int64_t CacheIndex(int64_t head, int64_t key, int64_t d) const {
    return (head * P("capacity") + key / 8 * 8) * P("head_dim") + d / 8 * 64 + key % 8 * 8 + d % 8;
  }
  double Cached(const char* name, int64_t head, int64_t key, int64_t d) const {
    return Get(name, CacheIndex(head, key, d));
  }

  void Attention() const {
    const bool token = invocation_.parameters.contains("context");
    const int64_t heads = P("heads"), kv_heads = P("kv_heads"), dim = P("head_dim");
    const int64_t prompt = token ? 1 : P("prompt"), past = token ? P("context") - 1 : P("past");
    const int64_t total = past + prompt, chunk = (token ? 4096 : 2048) / dim;
    const bool causal = token || P("causal") != 0;
    for (int64_t head = 0; head < kv_heads; ++head) {
      for (int64_t key = 0; key < std::min((total + chunk - 1) / chunk * chunk, P("capacity"));
           ++key) {
        for (int64_t d = 0; d < dim; ++d) {
          if (!std::isfinite(Cached("k", head, key, d)) ||
              !std::isfinite(Cached("v", head, key, d))) {
            Wrong("a key or value that is not finite, perhaps masked, row " + std::to_string(key));
          }
        }
      }
    }
    for (int64_t t = 0; t < prompt; ++t) {
      const int64_t end = causal ? past + t + 1 : total;
      const int64_t first = P("window") > 0 ? std::max<int64_t>(0, past + t - P("window") + 1) : 0;
      for (int64_t h = 0; h < heads; ++h) {
        const int64_t row = (t * heads + h) * dim, kv = h / (heads / kv_heads);
        std::vector<double> f(static_cast<size_t>(end - first));
        double max = -std::numeric_limits<double>::infinity(), sum = 0;
        for (int64_t key = first; key < end; ++key) {
          double s = 0;
          for (int64_t d = 0; d < dim; ++d) s += Get("q", row + d) * Cached("k", kv, key, d);
          s *= F("scale_bits");
          if (const float cap = F("softcap_bits"); cap != 0) s = cap * std::tanh(s / cap);
          f[static_cast<size_t>(key - first)] = s;
          max = std::max(max, s);
        }
        for (double& s : f) sum += s = std::exp(s - max);
        for (int64_t d = 0; d < dim; ++d) {
          double o = 0;
          for (int64_t key = first; key < end; ++key) {
            o += f[static_cast<size_t>(key - first)] * Cached("v", kv, key, d);
          }
          Set("o", row + d, o / sum);
        }
      }
    }
  }

  const npu::Invocation& invocation_;
  std::map<std::string, uint8_t*> places_;
};

}  // namespace

ReferenceDevice::ReferenceDevice(const std::filesystem::path& folder,
                                 const std::set<std::string>& designs) {
  for (const std::string& design : designs) {
    std::ifstream file(folder / (design + ".json"));
    manifests_.emplace(design, npu::ParseManifest(std::string(std::istreambuf_iterator(file), {})));
  }
}

const npu::Manifest* ReferenceDevice::Overlay(std::string_view design) {
  const auto found = manifests_.find(design);
  return found == manifests_.end() ? nullptr : &found->second;
}

std::shared_ptr<Buffer> ReferenceDevice::Allocate(size_t bytes) {
  const std::lock_guard lock(mutex_);
  if (before_allocation) before_allocation(bytes);
  return std::make_shared<ReferenceBuffer>(counters_, bytes, false);
}

std::vector<DeviceMemory> ReferenceDevice::Pin(std::span<const HostMemory> ranges) {
  const std::lock_guard lock(mutex_);
  std::vector<DeviceMemory> places;
  for (size_t begin = 0; begin < ranges.size();) {
    size_t end = begin, bytes = 0;
    for (; end < ranges.size(); ++end) {
      const size_t pages = RoundUp(static_cast<int64_t>(ranges[end].bytes), 4096);
      if (end > begin && bytes + pages > most_pinned) break;
      bytes += pages;
    }
    const auto buffer = std::make_shared<ReferenceBuffer>(counters_, bytes, true);
    for (size_t offset = 0; begin < end; ++begin) {
      const auto& [data, size] = ranges[begin];
      std::memcpy(buffer->device.data() + offset, data, size);
      places.push_back({buffer, static_cast<int64_t>(offset)});
      offset += static_cast<size_t>(RoundUp(static_cast<int64_t>(size), 4096));
    }
  }
  return places;
}

void ReferenceDevice::Run(std::string_view design, const npu::Plan& plan,
                          std::span<Buffer* const> buffers) {
  const std::lock_guard lock(mutex_);
  if (std::set(buffers.begin(), buffers.end()).size() != buffers.size()) {
    Wrong("one buffer is in a plan twice");
  }
  const npu::Manifest* manifest = Overlay(design);
  if (manifest == nullptr) Wrong("a run on an overlay that there is not");
  if (before_plan) before_plan(plan);
  npu::Interpreter interpreter(*manifest);
  const npu::Stream stream = npu::BuildStream(interpreter, plan);  // throws for refused shapes
  ++counters_->submissions;
  int next = 0;  // invocation
  try {
    for (const npu::Run& run : stream.runs) {
      if (run.buffers.size() > 5) Wrong("a run has five buffers at most");
      const int64_t number = counters_->runs++;
      if (before_run) before_run(number);
      for (; next <= run.sources.back().invocation; ++next) {
        const npu::Invocation& invocation = plan[static_cast<size_t>(next)];
        sequences.push_back(invocation.sequence);
        const Call call(*manifest, invocation, buffers);
        call.Execute();
        if (after_call) after_call(invocation, call.places());
      }
    }
  } catch (const DeviceError&) {
    for (Buffer* buffer : buffers) {
      std::ranges::fill(dynamic_cast<ReferenceBuffer&>(*buffer).device, kPoison);
    }
    throw;
  }
}

}  // namespace ort_aie::npu_target
