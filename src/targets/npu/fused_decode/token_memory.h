// The device memory of a decoder for tokens in one dispatch: its weights in the order of the
// overlay, norms and rotary values, the copy of the KV cache, a token and its logits.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "targets/npu/engine.h"
#include "targets/npu/fused_decode/decoder_plan.h"
#include "targets/npu/fused_decode/package.h"
#include "targets/npu/row_marks.h"

namespace ort_aie::npu_target {

// Belongs to one plan and one generation of the engine. One token at a time.
class TokenMemory {
 public:
  TokenMemory(Engine& engine, const fused_decode::Package& package)
      : engine_(engine), package_(package) {}

  const fused_decode::Package& package() const { return package_; }

  // Executes a token whose embedding is ready: computes the logits and the presents of all layers.
  // Throws DeviceError before it has written any of them.
  void Token(const fused_decode::DecoderPlan& decoder, const ThreadPool& threads);

 private:
  using Layers = std::vector<DecoderLayer>;

  void Prepare(const fused_decode::DecoderPlan& decoder, const ThreadPool& threads);
  void PackWeights(const fused_decode::DecoderPlan& decoder, const ThreadPool& threads);
  void WriteNorms(const fused_decode::DecoderPlan& decoder, Buffer& rms);
  // Chooses the smallest window that has room for the context.
  void UseWindow(int64_t length);
  void SendToken(const fused_decode::DecoderPlan& decoder);
  // Sends rows of the past that the device does not have.
  void SendCache(const Layers& layers, const ThreadPool& threads);
  void StoreLogits(const fused_decode::DecoderPlan& decoder);
  // Stores the token's rows in the presents.
  void StoreRows(const Layers& layers, const ThreadPool& threads);

  const fused_decode::Geometry& geometry() const { return package_.geometry; }
  static uint16_t* Elements(Buffer& buffer, int64_t offset) {
    return reinterpret_cast<uint16_t*>(buffer.host()) + offset;
  }
  RowMark& MarkOfRow(int64_t layer, bool value, int64_t head, int64_t position);
  int64_t KvOffset(int64_t layer, bool value, int64_t head, int64_t position) const {
    return geometry().kv_offset(positions_, layer, value, head, position);
  }

  Engine& engine_;
  const fused_decode::Package& package_;
  std::mutex mutex_;
  std::vector<std::shared_ptr<Buffer>> weights_;
  std::shared_ptr<Buffer> x_, rms_, y_, cache_;
  std::unique_ptr<OtherStream> stream_;
  const fused_decode::Window* window_ = nullptr;  // the window of the stream and the cache
  int64_t positions_ = 0;                         // in the window
  std::vector<RowMark> marks_;  // for the host's rows: [layer][key, value][head][position]
};

}  // namespace ort_aie::npu_target
