// Steps of a token that go to the device together: their invocations, their activations in one
// buffer, and what the host does with the results.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "targets/npu/engine.h"

namespace ort_aie::npu_target {

class Batch {
 public:
  Batch(Engine& engine, const char* design) : engine_(engine), design_(design) {}

  // --- memory of the plan ---

  // `elements` bfloat16, zeros but for what fill(uint16_t*) writes.
  template <typename F>
  npu::BufferView Input(int64_t elements, const F& fill) {
    const npu::BufferView view = Carve(kInputs, elements);
    inputs_.resize(static_cast<size_t>(sizes_[kInputs] / 2));
    fill(inputs_.data() + view.offset / 2);
    return view;
  }
  // Of `elements` bfloat16: what the host reads after the run, and what it does not.
  npu::BufferView Result(int64_t elements) { return Carve(kResults, elements); }
  npu::BufferView Scratch(int64_t elements) { return Carve(kScratch, elements); }
  bool IsResult(npu::BufferView view) const { return view.argument == kFirstRegion + kResults; }
  // In a buffer of somebody else's.
  npu::BufferView View(std::shared_ptr<Buffer> buffer, int64_t offset);

  void Invoke(npu::Invocation invocation) { plan_.push_back(std::move(invocation)); }

  // --- the model's tensors ---

  // Elements of a tensor of the model that this batch will write; on the device they are bfloat16,
  // if they are there in one piece.
  void Writes(const void* tensor, int64_t elements, DataType type,
              std::optional<npu::BufferView> view);
  // Where to read a tensor, or a part of one, from.
  struct Source {
    bool later = false;                   // from the host, after this batch
    std::optional<npu::BufferView> view;  // from the device; else from the host, now
    bool on_host() const { return !later && !view; }
  };
  Source Find(const void* tensor, size_t bytes) const;
  bool OnHost(const void* tensor, size_t bytes) const { return Find(tensor, bytes).on_host(); }

  // --- the run ---

  // What to do when the run has completed, in order; `Results` finds the bytes of a Result.
  class Results {
   public:
    explicit Results(const uint8_t* first) : first_(first) {}
    const uint16_t* operator[](npu::BufferView result) const {
      return reinterpret_cast<const uint16_t*>(first_ + result.offset);
    }

   private:
    const uint8_t* first_;
  };
  void Then(std::function<void(const Results&)> action) { actions_.push_back(std::move(action)); }
  void Run();

 private:
  // Regions of the plan's first buffer; until they have a place, views name them by negative
  // numbers.
  enum Region { kInputs, kResults, kScratch, kRegions };
  static constexpr int kFirstRegion = -kRegions;

  npu::BufferView Carve(Region region, int64_t elements);

  struct Written {
    const uint8_t* first;
    size_t bytes, element_bytes;
    std::optional<npu::BufferView> view;
  };

  Engine& engine_;
  const char* design_;
  npu::Plan plan_;
  std::vector<uint16_t> inputs_;
  int64_t sizes_[kRegions] = {};
  std::vector<std::shared_ptr<Buffer>> buffers_;  // of the plan, from the second on
  std::vector<Written> written_;
  std::vector<std::function<void(const Results&)>> actions_;
};

}  // namespace ort_aie::npu_target
