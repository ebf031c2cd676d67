#include "targets/npu/xrt/context.h"

#include <xrt/experimental/xrt_xclbin.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <string>
#include <utility>

#include "base/error.h"
#include "targets/npu/xrt/faults.h"
#include "targets/npu/xrt/runs.h"
#include "targets/trace.h"

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

void Context::Run(const npu::Invocations& plan, std::span<Buffer* const> buffers) {
  const int64_t dropped = streams_.memory().dropped();
  const npu::StreamCache::Lookup lookup = Get(plan, buffers.size());
  Kept& kept = Keep(lookup, plan);
  Tally::OfProcess().streams_dropped += streams_.memory().dropped() - dropped;
  Divide(kept, lookup.stream);
  Bind(kept, lookup.stream, buffers);
  if (kept.chains.empty()) {
    for (size_t i = 0; i < kept.dispatches.size(); ++i) {
      Execute(kept.dispatches[i], lookup.stream.runs[i], plan);
    }
  }
  for (Chain& chain : kept.chains) Execute(chain, kept, lookup.stream, plan);
}

Context::Loaded Context::Hold(const npu::Invocations& plan, std::span<Buffer* const> buffers) {
  const int64_t dropped = streams_.memory().dropped();
  const npu::StreamCache::Lookup lookup = Get(plan, buffers.size());
  Kept& kept = Keep(lookup, plan);
  Tally::OfProcess().streams_dropped += streams_.memory().dropped() - dropped;
  Ask(Fault::kRunError, "a list of runs", [&] { kept.chains.clear(); });
  Bind(kept, lookup.stream, buffers);
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

void Context::Divide(Kept& kept, const npu::InstructionStream& stream) {
  const size_t count = kept.dispatches.size();
  if (count < 2 || !has_lists()) return;
  std::vector<size_t> ends;
  npu::ListRoom room;
  for (size_t i = 0; i < count; ++i) {
    const double seconds = stream.runs[i].predicted_seconds;
    if (!room.Fits(seconds)) {
      ends.push_back(i);
      room = {};
    }
    room.Add(seconds);
  }
  ends.push_back(count);
  if (std::ranges::equal(kept.chains, ends, {}, &Chain::end)) return;
  Ask(Fault::kRunError, "a list of runs", [&] {
    kept.chains.clear();
    for (size_t begin = 0; const size_t end : ends) {
      kept.chains.push_back({begin, end, xrt::runlist(context_)});
      begin = end;
    }
  });
}

void Context::Bind(Kept& kept, const npu::InstructionStream& stream,
                   std::span<Buffer* const> buffers) {
  std::vector<bool> changed(kept.dispatches.size());
  for (size_t i = 0; i < kept.dispatches.size(); ++i) {
    const std::vector<int>& arguments = stream.runs[i].buffers;
    for (size_t a = 0; a < arguments.size(); ++a) {
      const Buffer& buffer = *buffers[static_cast<size_t>(arguments[a])];
      if (kept.dispatches[i].Bind(a, buffer)) changed[i] = true;
    }
  }
  for (Chain& chain : kept.chains) {
    bool stale = !chain.filled;
    for (size_t i = chain.begin; i < chain.end; ++i) stale = stale || changed[i];
    if (!stale) continue;
    Ask(Fault::kRunError, "a list of runs", [&] {
      chain.list.reset();
      for (size_t i = chain.begin; i < chain.end; ++i) chain.list.add(kept.dispatches[i].run);
    });
    chain.filled = true;
  }
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

void Context::Execute(LoadedRun& dispatch, const npu::Run& run, const npu::Invocations& plan) {
  const std::optional<Aborted> aborted = npu_target::Execute(dispatch.run, plan.front().sequence);
  if (aborted) ThrowAborted(*aborted, run, plan);
}

void Context::Execute(Chain& chain, const Kept& kept, const npu::InstructionStream& stream,
                      const npu::Invocations& plan) {
  const auto failed =
      npu_target::Execute(chain.list, chain.end - chain.begin, plan.front().sequence);
  if (!failed) return;
  size_t i = chain.begin;
  if (failed->run) {
    while (i + 1 < chain.end && kept.dispatches[i].run.get_handle() != failed->run.get_handle()) {
      ++i;
    }
  }
  ThrowAborted(failed->aborted, stream.runs[i], plan);
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
