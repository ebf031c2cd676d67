#include "targets/npu/xrt/context.h"

#include <xrt/experimental/xrt_xclbin.h>

#include <algorithm>
#include <string>
#include <utility>

#include "base/error.h"
#include "targets/npu/xrt/faults.h"
#include "targets/npu/xrt/runs.h"

namespace ort_aie::npu_target {
namespace {

// Tools may add a suffix to the names of kernels.
std::string KernelName(const xrt::xclbin& xclbin, const npu::Manifest& manifest) {
  std::vector<std::string> longer;
  for (const xrt::xclbin::kernel& kernel : xclbin.get_kernels()) {
    std::string name = kernel.get_name();
    if (name == manifest.kernel) return name;
    if (name.starts_with(manifest.kernel)) longer.push_back(std::move(name));
  }
  if (!longer.empty()) return longer.front();
  throw DeviceError(Fault::kWrongOverlay,
                    Concat("the overlay ", manifest.name, " has no kernel ", manifest.kernel));
}

// The place of an operation in its sequence.
std::string PathText(const npu::Manifest& manifest, const npu::Invocation& invocation, int path) {
  const auto sequence =
      std::ranges::find(manifest.sequences, invocation.sequence, &npu::Sequence::name);
  return sequence->paths[static_cast<size_t>(path)];
}

}  // namespace

Context::Context(xrt::device device, const Package& package, const Context* sibling,
                 std::shared_ptr<npu::StreamMemory> memory)
    : device_(std::move(device)), streams_(package.manifest, std::move(memory)) {
  const std::string name = package.overlay.string();
  const xrt::xclbin xclbin = Ask(Fault::kWrongOverlay, name, [&] { return xrt::xclbin(name); });
  const std::string kernel =
      Ask(Fault::kWrongOverlay, name, [&] { return KernelName(xclbin, package.manifest); });
  if (sibling != nullptr) {
    context_ = sibling->context_;
  } else {
    const xrt::uuid uuid =
        Ask(Fault::kWrongOverlay, name, [&] { return device_.register_xclbin(xclbin); });
    context_ = Ask(Fault::kContextRefused, Concat("a hardware context for ", name),
                   [&] { return xrt::hw_context(device_, uuid); });
  }
  Ask(Fault::kWrongOverlay, name, [&] {
    kernel_ = xrt::kernel(context_, kernel);
    group_ = GroupOfBuffers(kernel_, npu::kRunBuffers);
  });
}

npu::StreamCache::Lookup Context::Get(const npu::Invocations& plan, size_t buffers) {
  npu::StreamCache::Lookup lookup = streams_.Get(plan);
  for (const npu::Run& run : lookup.stream.runs) {
    for (const int buffer : run.buffers) {
      Require(static_cast<size_t>(buffer) < buffers, "a plan uses buffer ", buffer,
              ", but the number of buffers is ", buffers);
    }
  }
  return lookup;
}

Context::Loaded Context::Hold(const npu::Invocations& plan, std::span<Buffer* const> buffers) {
  const int64_t dropped = streams_.memory().dropped();
  const npu::StreamCache::Lookup lookup = Get(plan, buffers.size());
  Kept& kept = Keep(lookup, plan);
  Tally::OfProcess().streams_dropped += streams_.memory().dropped() - dropped;
  for (size_t i = 0; i < kept.dispatches.size(); ++i) {
    const std::vector<int>& arguments = lookup.stream.runs[i].buffers;
    for (size_t a = 0; a < arguments.size(); ++a) {
      kept.dispatches[i].Bind(a, *buffers[static_cast<size_t>(arguments[a])]);
    }
  }
  return {lookup.stream, kept.dispatches, streams_.memory().HoldLast()};
}

Context::Kept& Context::Keep(const npu::StreamCache::Lookup& lookup, const npu::Invocations& plan) {
  Tally& tally = Tally::OfProcess();
  ++(lookup.outcome == npu::StreamCache::Outcome::kEncoded ? tally.streams_built
                                                           : tally.streams_kept);
  if (lookup.companion == nullptr) {
    lookup.companion = Load(lookup.stream, plan);
    return static_cast<Kept&>(*lookup.companion);
  }
  auto& kept = static_cast<Kept&>(*lookup.companion);
  Patch(kept, lookup);
  return kept;
}

std::unique_ptr<Context::Kept> Context::Load(const npu::InstructionStream& stream,
                                             const npu::Invocations& plan) {
  auto kept = std::make_unique<Kept>(npu::StreamBytes(stream));
  for (const npu::Run& run : stream.runs) {
    const std::string what =
        Concat("an instruction buffer of ", run.words.size() * sizeof(uint32_t), " bytes, of ",
               kept->counted.bytes(), " for the stream of ", npu::Describe(plan.front()),
               " on the overlay ", streams_.manifest().name);
    kept->dispatches.push_back(LoadRun(device_, kernel_, run.words, what, streams_.memory()));
  }
  return kept;
}

void Context::Patch(Kept& kept, const npu::StreamCache::Lookup& lookup) {
  // Whole cache lines; adjacent ones are transferred together.
  npu::WordRange pending{0, 0, 0};
  const auto send = [&] {
    if (pending.begin == pending.end) return;
    kept.dispatches[pending.run].instructions.ToDevice(
        pending.begin * sizeof(uint32_t), (pending.end - pending.begin) * sizeof(uint32_t));
  };
  for (const npu::WordRange& range : lookup.changed) {
    const std::vector<uint32_t>& words = lookup.stream.runs[range.run].words;
    std::copy(words.begin() + static_cast<std::ptrdiff_t>(range.begin),
              words.begin() + static_cast<std::ptrdiff_t>(range.end),
              kept.dispatches[range.run].words.begin() + static_cast<std::ptrdiff_t>(range.begin));
    const auto [begin, end] = WholeLines(range.begin, range.end, words.size());
    if (pending.begin != pending.end && pending.run == range.run && begin <= pending.end) {
      pending.end = end;
      continue;
    }
    send();
    pending = {range.run, begin, end};
  }
  send();
}

void Context::ThrowAborted(const Aborted& aborted, const npu::Run& run,
                           const npu::Invocations& plan) const {
  // XRT does not always say where.
  const bool known = aborted.operation < run.sources.size();
  const npu::OpSource& source = known ? run.sources[aborted.operation] : run.sources.front();
  const npu::Invocation& invocation = plan[static_cast<size_t>(source.invocation)];
  std::string text =
      Concat("a run ", known ? "of " : "that begins with ", npu::Describe(invocation),
             " on the overlay ", streams_.manifest().name, " ", aborted.text(),
             "; the prediction was ", run.predicted_seconds * 1e3, " ms");
  if (known) {
    text += Concat("; it stopped at operation ", aborted.operation, ", ",
                   PathText(streams_.manifest(), invocation, source.path));
  }
  throw DeviceError(aborted.fault(), text);
}

}  // namespace ort_aie::npu_target
