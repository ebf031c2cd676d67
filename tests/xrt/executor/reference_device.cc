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
      : invocation_(invocation),
        form_{WeightKind::kQ4NX, manifest.weights.group, manifest.weights.minima} {
    const auto sequence =
        std::ranges::find(manifest.sequences, invocation.sequence, &npu::Sequence::name);
    for (const npu::Argument& argument : sequence->arguments) {
      const npu::BufferView view = invocation.arguments.at(argument.name);
      const int64_t bytes = npu::ArgumentBytes(manifest, invocation, argument.name);
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
    if (name == "rotate") return RotateRows();
    if (name == "append_rows") return AppendRows();
    if (name == "dequant") return Dequant();
    if (name == "gemm") return Gemm();
    if (name == "project") return Project();
    if (name == "add_norm") return AddNorm();
    if (name == "gate") return Gate();
    if (name == "attention") return Attention();
    Wrong("no reference of " + name);
  }

 private:
  // The argument's elements.
  class Elements {
   public:
    explicit Elements(uint8_t* place) : words_(reinterpret_cast<uint16_t*>(place)) {}
    double Get(int64_t i) const { return Bfloat16ToFloat(words_[i]); }
    void Set(int64_t i, double value) const {
      words_[i] = FloatToBfloat16(static_cast<float>(value));
    }

   private:
    uint16_t* words_;
  };

  // These look a name up: not in an inner loop.
  int64_t P(const char* name) const { return invocation_.parameters.at(name); }
  float F(const char* name) const { return std::bit_cast<float>(static_cast<int32_t>(P(name))); }
  Elements E(const char* name) const { return Elements(places_.at(name)); }
  static double Activate(int64_t kind, double x) {
    if (kind == 0) return x / (1 + std::exp(-x));
    return 0.5 * x * (1 + std::tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)));
  }

  void Matvec(int64_t row_k) const {
    const int64_t n = P("N"), k = P("K");
    const bool bias = P("bias") != 0;
    std::vector<float> w(static_cast<size_t>(32 * k));
    std::vector<double> x(static_cast<size_t>(k));
    for (int64_t j = 0; j < k; ++j) x[static_cast<size_t>(j)] = E("x").Get(j);
    for (int64_t first = 0; first < n; first += 8) {
      if (first % 32 == 0) {
        q4nx::Dequantize(places_.at("w") + first / 32 * (row_k / 256) * q4nx::BlockBytes(form_), 32,
                         k, w.data(), form_);
      }
      // Rows together: each sum alone would wait for one addition after the other.
      const float* rows = w.data() + first % 32 * k;
      double y[8] = {};
      if (bias) {
        for (int64_t i = 0; i < std::min<int64_t>(8, n - first); ++i)
          y[i] = E("bias").Get(first + i);
      }
      for (int64_t j = 0; j < k; ++j) {
        for (int64_t i = 0; i < 8; ++i) y[i] += x[static_cast<size_t>(j)] * rows[i * k + j];
      }
      for (int64_t i = 0; i < std::min<int64_t>(8, n - first); ++i) E("y").Set(first + i, y[i]);
    }
  }

  // Rows of `width` elements, of which n count; check(i, x) sees each element before its use.
  template <typename Check>
  void NormRows(int64_t rows, int64_t width, bool norm, const Check& check) const {
    const int64_t n = P("n");
    const bool add = P("residual") != 0;
    const Elements from = E("x"), residual = add ? E("residual") : from,
                   sum = add ? E("sum") : from, weight = norm ? E("weight") : from,
                   y = norm ? E("y") : from;
    for (int64_t r = 0; r < rows; ++r) {
      double squares = 0;
      std::vector<double> x(static_cast<size_t>(width));
      for (int64_t i = 0; i < width; ++i) {
        double value = from.Get(r * width + i);
        if (add) {
          // The normalised row is the rounded one.
          sum.Set(r * width + i, value + residual.Get(r * width + i));
          value = sum.Get(r * width + i);
        }
        check(i, value);
        x[static_cast<size_t>(i)] = value;
        squares += value * value;
      }
      if (!norm) continue;
      const double factor = 1 / std::sqrt(squares / static_cast<double>(n) + F("eps_bits"));
      for (int64_t i = 0; i < width; ++i) {
        y.Set(r * width + i, x[static_cast<size_t>(i)] * factor * weight.Get(i));
      }
    }
  }

  void RmsNorm() const {
    NormRows(1, (P("n") + 127) / 128 * 128, true, [](int64_t, double) {});
  }

  void Glu() const {
    const int64_t n = P("n"), kind = P("kind");
    const Elements x = E("gate_up"), y = E("y");
    for (int64_t i = 0; i < n; ++i) y.Set(i, Activate(kind, x.Get(i)) * x.Get(i + n));
  }

  // A head of x, normalised, rounded, and rotated; y(d) receives it. The head is that many elements
  // from the beginning of x, and its row of the table from that of the table.
  template <typename Take>
  void Rotate(int64_t head, const Take& y) const {
    RotateAt(head * P("head_dim"), 0, y);
  }
  template <typename Take>
  void RotateAt(int64_t first, int64_t row, const Take& y) const {
    const int64_t dim = P("head_dim"), rotary = P("rotary_dim"), half = rotary / 2;
    const bool neighbours = P("interleaved") != 0;
    const Elements from = E("x");
    std::vector<double> x(static_cast<size_t>(dim));
    double squares = 0;
    for (int64_t d = 0; d < dim; ++d) {
      x[static_cast<size_t>(d)] = from.Get(first + d);
      squares += x[static_cast<size_t>(d)] * x[static_cast<size_t>(d)];
    }
    if (P("norm") != 0) {
      const double factor = 1 / std::sqrt(squares / static_cast<double>(dim) + F("eps_bits"));
      const Elements weight = E("weight");
      for (int64_t d = 0; d < dim; ++d) {
        double& value = x[static_cast<size_t>(d)];
        value =
            Bfloat16ToFloat(FloatToBfloat16(static_cast<float>(value * factor * weight.Get(d))));
      }
    }
    const Elements table = half > 0 ? E("table") : from;
    for (int64_t i = 0; i < half; ++i) {
      double& a = x[static_cast<size_t>(neighbours ? 2 * i : i)];
      double& b = x[static_cast<size_t>(neighbours ? 2 * i + 1 : i + half)];
      const double cosine = table.Get(row + i), sine = table.Get(row + half + i);
      const double rotated = a * cosine - b * sine;
      b = b * cosine + a * sine;
      a = rotated;
    }
    for (int64_t d = 0; d < dim; ++d) y(d, x[static_cast<size_t>(d)]);
  }

  void Rope() const {
    const Elements to = E("y");
    const int64_t dim = P("head_dim");
    for (int64_t head = 0; head < P("heads"); ++head) {
      Rotate(head, [&](int64_t d, double y) { to.Set(head * dim + d, y); });
    }
  }

  // Of a prompt: any rows, and rows of a cache in whole groups of eight.
  void RotateRows() const {
    const Elements to = E("y");
    const int64_t rows = std::max<int64_t>(P("M"), 64), heads = P("heads"), dim = P("head_dim");
    for (int64_t i = 0; i < rows * heads; ++i) {
      const int64_t row = i / heads;
      RotateAt(row * P("x_stride") + i % heads * dim, row * P("rotary_dim"),
               [&](int64_t d, double y) { to.Set(i * dim + d, y); });
    }
  }

  void AppendRows() const {
    const Elements cache = E("cache");
    const int64_t heads = P("kv_heads"), dim = P("head_dim");
    for (int64_t i = 0; i < P("M") * heads; ++i) {
      const int64_t row = i / heads, head = i % heads * P("capacity") * dim;
      RotateAt(row * P("x_stride") + i % heads * dim, row * P("rotary_dim"),
               [&](int64_t d, double y) {
                 if (!std::isfinite(y)) Wrong("append_rows reads what nobody wrote");
                 cache.Set(head + InCache(P("position") + row, d, dim), y);
               });
    }
  }

  void Append() const {
    const Elements x = E("x"), cache = E("cache");
    const int64_t dim = P("head_dim"), position = P("position");
    for (int64_t head = 0; head < P("kv_heads"); ++head) {
      const int64_t first = head * P("capacity") * dim;
      for (int64_t d = 0; d < dim; ++d) {
        cache.Set(first + InCache(position, d, dim), x.Get(head * dim + d));
      }
    }
  }

  void MoveHeads() const {
    for (int64_t head = 0; head < P("heads"); ++head) {
      std::memcpy(places_.at("y") + 2 * head * P("y_stride"),
                  places_.at("x") + 2 * head * P("x_stride"), static_cast<size_t>(2 * P("dim")));
    }
  }

  // Element (k, n) of a block of 256 x 32 in the order that GEMM reads.
  static int64_t Packed(int64_t k, int64_t n) {
    return (((k / 64 * 8 + k / 8 % 8) * 4 + n / 8) * 8 + k % 8) * 8 + n % 8;
  }

  void Dequant() const {
    const Elements b = E("b");
    std::vector<float> w(32 * 256);
    for (int64_t block = 0; block < P("blocks"); ++block) {
      q4nx::Dequantize(places_.at("w") + block * q4nx::BlockBytes(form_), 32, 256, w.data(), form_);
      for (int64_t n = 0; n < 32; ++n) {
        for (int64_t k = 0; k < 256; ++k) {
          b.Set(block * 8192 + Packed(k, n), w[static_cast<size_t>(n * 256 + k)]);
        }
      }
    }
  }

  void Project() const {
    const int64_t k = P("K"), n = P("N");
    std::vector<float> rows(static_cast<size_t>(n * k)), w(rows.size());
    q4nx::Dequantize(places_.at("w"), n, k, rows.data(), form_);
    for (int64_t j = 0; j < k; ++j) {
      for (int64_t i = 0; i < n; ++i) {
        w[static_cast<size_t>(j * n + i)] =
            Bfloat16ToFloat(FloatToBfloat16(rows[static_cast<size_t>(i * k + j)]));
      }
    }
    Multiply(w);
  }

  void Gemm() const {
    const int64_t k = P("K"), n = P("N");
    const Elements b = E("b");
    std::vector<float> w(static_cast<size_t>(n * k));
    for (int64_t j = 0; j < k; ++j) {
      for (int64_t i = 0; i < n; ++i) {
        w[static_cast<size_t>(j * n + i)] = static_cast<float>(
            b.Get((i / 32 * (k / 256) + j / 256) * 8192 + Packed(j % 256, i % 32)));
      }
    }
    Multiply(w);
  }

  // c = a w, of weights (K, N): a compiler adds to neighbouring sums at once.
  void Multiply(const std::vector<float>& w) const {
    const int64_t rows = std::max<int64_t>(P("M"), 64), k = P("K"), n = P("N");
    const Elements a = E("a"), c = E("c");
    for (int64_t r = 0; r < rows; ++r) {
      std::vector<float> y(static_cast<size_t>(n));
      for (int64_t j = 0; j < k; ++j) {
        const auto x = static_cast<float>(a.Get(r * k + j));
        if (!std::isfinite(x)) Wrong("gemm reads what nobody wrote");
        const float* row = w.data() + j * n;
        for (int64_t i = 0; i < n; ++i) y[static_cast<size_t>(i)] += x * row[i];
      }
      for (int64_t i = 0; i < n; ++i) c.Set(r * n + i, y[static_cast<size_t>(i)]);
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
    const int64_t rows = std::max<int64_t>(P("M"), 64), n = P("N"), kind = P("kind");
    const Elements gates = E("gate"), ups = E("up"), y = E("y");
    for (int64_t i = 0; i < rows * n; ++i) y.Set(i, Activate(kind, gates.Get(i)) * ups.Get(i));
  }

  // An element of a head's keys or values.
  static int64_t InCache(int64_t key, int64_t d, int64_t dim) {
    return key / 8 * 8 * dim + d / 8 * 64 + key % 8 * 8 + d % 8;
  }

  void Attention() const {
    const bool token = invocation_.parameters.contains("context");
    const int64_t heads = P("heads"), kv_heads = P("kv_heads"), dim = P("head_dim");
    const int64_t prompt = token ? 1 : P("prompt"), past = token ? P("context") - 1 : P("past");
    const int64_t total = past + prompt, chunk = (token ? 4096 : 2048) / dim;
    const int64_t capacity = P("capacity"), window = P("window");
    const int64_t read = std::min((total + chunk - 1) / chunk * chunk, capacity);
    const bool causal = token || P("causal") != 0;
    const float scale = F("scale_bits"), cap = F("softcap_bits");
    const Elements q = E("q"), o = E("o");
    // A head's keys (dim, read) and values (read, dim): sums side by side in an inner loop.
    std::vector<double> keys(static_cast<size_t>(read * dim)), values(keys.size());
    for (int64_t kv = 0; kv < kv_heads; ++kv) {
      const Elements k(places_.at("k") + 2 * kv * capacity * dim),
          v(places_.at("v") + 2 * kv * capacity * dim);
      for (int64_t key = 0; key < read; ++key) {
        for (int64_t d = 0; d < dim; ++d) {
          const double of_key = k.Get(InCache(key, d, dim)), of_value = v.Get(InCache(key, d, dim));
          if (!std::isfinite(of_key) || !std::isfinite(of_value)) {
            Wrong("a key or value that is not finite, perhaps masked, row " + std::to_string(key));
          }
          keys[static_cast<size_t>(d * read + key)] = of_key;
          values[static_cast<size_t>(key * dim + d)] = of_value;
        }
      }
      const int64_t group = heads / kv_heads;
      for (int64_t i = 0; i < prompt * group; ++i) {
        const int64_t t = i / group, row = (t * heads + kv * group + i % group) * dim;
        const int64_t end = causal ? past + t + 1 : total;
        const int64_t first = window > 0 ? std::max<int64_t>(0, past + t - window + 1) : 0;
        const int64_t count = end - first;
        std::vector<double> f(static_cast<size_t>(count)), y(static_cast<size_t>(dim));
        for (int64_t d = 0; d < dim; ++d) {
          const double x = q.Get(row + d);
          const double* of_keys = keys.data() + d * read + first;
          for (int64_t key = 0; key < count; ++key) f[static_cast<size_t>(key)] += x * of_keys[key];
        }
        double max = -std::numeric_limits<double>::infinity(), sum = 0;
        for (double& s : f) {
          s *= scale;
          if (cap != 0) s = cap * std::tanh(s / cap);
          max = std::max(max, s);
        }
        for (double& s : f) sum += s = std::exp(s - max);
        for (int64_t key = 0; key < count; ++key) {
          const double weight = f[static_cast<size_t>(key)];
          const double* value = values.data() + (first + key) * dim;
          for (int64_t d = 0; d < dim; ++d) y[static_cast<size_t>(d)] += weight * value[d];
        }
        for (int64_t d = 0; d < dim; ++d) o.Set(row + d, y[static_cast<size_t>(d)] / sum);
      }
    }
  }

  const npu::Invocation& invocation_;
  const WeightForm form_;
  std::map<std::string, uint8_t*> places_;
};

}  // namespace

ReferenceDevice::ReferenceDevice(const std::filesystem::path& folder,
                                 const std::set<std::string>& designs) {
  // Reading them takes longer than most cases, which make devices many times.
  static std::map<std::filesystem::path, npu::Manifest> read;
  for (const std::string& design : designs) {
    const std::filesystem::path path = folder / (design + ".json");
    if (!read.contains(path)) {
      std::ifstream file(path);
      read.emplace(path, npu::ParseManifest(std::string(std::istreambuf_iterator(file), {})));
    }
    manifests_.emplace(design, &read.at(path));
  }
}

const npu::Manifest* ReferenceDevice::Overlay(std::string_view design) {
  const auto found = manifests_.find(design);
  return found == manifests_.end() ? nullptr : found->second;
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

void ReferenceDevice::Submit(std::span<const Part> parts, std::span<Buffer* const> buffers) {
  const std::lock_guard lock(mutex_);
  if (std::set(buffers.begin(), buffers.end()).size() != buffers.size()) {
    Wrong("one buffer is in a plan twice");
  }
  std::vector<npu::InstructionStream> streams;  // before anything runs: shapes may be refused
  for (const auto& [package, invocations] : parts) {
    const npu::Manifest* manifest = Overlay(package);
    if (manifest == nullptr) Wrong("a run on an overlay that there is not");
    if (before_plan) before_plan(invocations);
    npu::Interpreter interpreter(*manifest);
    streams.push_back(npu::BuildStream(interpreter, invocations));
  }
  ++counters_->submissions;
  try {
    for (size_t i = 0; i < parts.size(); ++i) RunPart(parts[i], streams[i], buffers);
  } catch (const DeviceError&) {
    for (Buffer* buffer : buffers) {
      std::ranges::fill(dynamic_cast<ReferenceBuffer&>(*buffer).device, kPoison);
    }
    throw;
  }
}

void ReferenceDevice::RunPart(const Part& part, const npu::InstructionStream& stream,
                              std::span<Buffer* const> buffers) {
  int next = 0;  // invocation
  for (const npu::Run& run : stream.runs) {
    if (run.buffers.size() > 5) Wrong("a run has five buffers at most");
    const int64_t number = counters_->runs++;
    if (before_run) before_run(number);
    for (; next <= run.sources.back().invocation; ++next) {
      const npu::Invocation& invocation = part.invocations[static_cast<size_t>(next)];
      sequences.push_back(invocation.sequence);
      const Call call(*Overlay(part.package), invocation, buffers);
      call.Execute();
      if (after_call) after_call(invocation, call.places());
    }
  }
}

}  // namespace ort_aie::npu_target
