#include "targets/npu/batch_runner.h"

#include <cstring>
#include <string>
#include <utility>
#include <vector>

namespace ort_aie::npu_target {
namespace {

PlanMemory::Activations Take(Engine& engine, const BatchMemory& memory, const BatchRows& rows) {
  const auto bytes = static_cast<size_t>(memory.end());
  if (bytes > kMaxBufferBytes) {
    throw NoRoom(
        Concat("the rows of a plan take ", bytes, " bytes, expected at most ", kMaxBufferBytes));
  }
  try {
    if (rows.kept != nullptr) {
      return rows.kept->TakeActivations(rows.first, bytes, memory.layout());
    }
    if (rows.passed_on == nullptr) return {engine.device().Allocate(bytes), {}, false};
    std::shared_ptr<Buffer>& buffer = *rows.passed_on;
    if (buffer == nullptr || buffer->size() < bytes) {
      buffer.reset();  // free it before the next is allocated
      buffer = engine.device().Allocate(bytes);
    }
    return {buffer, {}, false};
  } catch (const DeviceError& error) {
    if (error.fault() != Fault::kAllocation) throw;
    throw NoRoom(error.what());
  }
}

// Does the host's work before the run, and sends the inputs, and zeros after them.
void Send(const Batch& batch, PlanMemory::Activations& arena) {
  uint8_t* const host = arena.buffer->host();
  const auto inputs = static_cast<size_t>(batch.memory.inputs_end());
  if (!arena.sent) {
    const auto sent = static_cast<size_t>(batch.memory.sent_end());
    std::memset(host, 0, sent);
    batch.PrepareAll(host);
    arena.buffer->ToDevice(0, sent);
    for (const BatchMemory::ByteRange& zeros : batch.memory.zeros_after()) {
      const auto first = static_cast<size_t>(zeros.first),
                 bytes = static_cast<size_t>(zeros.end - zeros.first);
      std::memset(host + first, 0, bytes);
      arena.buffer->ToDevice(first, bytes);
    }
    arena.sent = true;
    return;
  }
  // Weights of norms and the like usually equal those of the last call. Adjacent lines that differ
  // are sent together.
  std::vector<uint64_t> words(inputs / sizeof(uint64_t));
  auto* const now = reinterpret_cast<uint8_t*>(words.data());
  batch.PrepareAll(now);
  constexpr size_t kLine = BatchMemory::kAlignment;
  size_t begin = 0, end = 0;
  const auto send = [&] {
    if (begin == end) return;
    std::memcpy(host + begin, now + begin, end - begin);
    arena.buffer->ToDevice(begin, end - begin);
  };
  for (size_t line = 0; line < inputs; line += kLine) {
    if (std::memcmp(host + line, now + line, kLine) == 0) continue;
    if (line != end) {
      send();
      begin = line;
    }
    end = line + kLine;
  }
  send();
}

}  // namespace

void RunBatch(Engine& engine, const Batch& batch, const WeightForm& form, const BatchRows& rows) {
  if (batch.submissions().empty()) {  // only work of the host
    batch.PrepareAll(nullptr);
    return batch.Complete(nullptr);
  }
  PlanMemory::Activations arena = Take(engine, batch.memory, rows);
  Send(batch, arena);
  std::vector<Buffer*> buffers = {arena.buffer.get()};
  for (const auto& buffer : batch.memory.others()) buffers.push_back(buffer.get());
  for (const Submission& submission : batch.submissions()) {
    std::vector<std::string> packages;
    std::vector<Part> parts;
    packages.reserve(submission.size());
    for (const DesignPart& part : submission) {
      packages.push_back(PackageOf(part.design, form));
      parts.push_back({packages.back(), part.invocations});
    }
    engine.Submit(parts, buffers);
  }
  for (const BatchMemory::ByteRange& range : batch.memory.fetched()) {
    arena.buffer->FromDevice(static_cast<size_t>(range.first),
                             static_cast<size_t>(range.end - range.first));
  }
  batch.Complete(arena.buffer->host());
  if (rows.kept != nullptr) rows.kept->PutBack(rows.first, std::move(arena));
}

}  // namespace ort_aie::npu_target
