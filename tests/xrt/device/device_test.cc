// Uses the device layer as an executor does, on the stand-in of XRT. The first argument is a folder
// with design packages (packages/DEVICE, others by case) and the buffers of one matvec (x, w, bias,
// result); cases follow, by name.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "targets/npu/xrt/mappings.h"
#include "targets/npu/xrt/overlays.h"
#include "targets/npu/xrt/xrt_device.h"
#include "targets/sim/control.h"
#include "targets/trace.h"
#include "xrt/xrt_device.h"

namespace {

using namespace ort_aie;
using namespace ort_aie::npu_target;

constexpr int64_t kN = 256, kK = 512;

std::string folder;

void Check(bool legal, const std::string& what) {
  if (!legal) throw std::logic_error("not so: " + what);
}
#define CHECK(condition) Check((condition), #condition " in line " + std::to_string(__LINE__))

// Runs `action`, which must end in the fault, with a message that contains all of `texts`.
void Faulty(Fault fault, const std::vector<std::string>& texts,
            const std::function<void()>& action) {
  try {
    action();
  } catch (const DeviceError& error) {
    const std::string said = error.what();
    Check(error.fault() == fault, "fault " + std::to_string(static_cast<int>(fault)) + ", not " +
                                      std::to_string(static_cast<int>(error.fault())) + ": " +
                                      said);
    for (const std::string& text : texts) {
      Check(said.find(text) != std::string::npos, "\"" + text + "\" in: " + said);
    }
    return;
  }
  Check(false, "a fault");
}

std::vector<uint8_t> Read(const std::string& name) {
  std::ifstream file(folder + "/" + name, std::ios::binary);
  Check(file.good(), "there is a file " + name);
  return {std::istreambuf_iterator<char>(file), {}};
}

ort_aie_sim_counts before{};  // the case

ort_aie_sim_counts Counts() {
  ort_aie_sim_counts counts;
  ort_aie_sim_get_counts(&counts);
  counts.runs -= before.runs;
  counts.bytes_synced -= before.bytes_synced;
  counts.device_seconds -= before.device_seconds;
  return counts;
}

Counters counted_before;  // the case

Counters Counted() {
  Counters counters = CountersOfProcess();
  for (int64_t Counters::* const sum :
       {&Counters::runs, &Counters::submissions, &Counters::bytes_to, &Counters::bytes_from,
        &Counters::streams_kept, &Counters::streams_built, &Counters::streams_dropped}) {
    counters.*sum -= counted_before.*sum;
  }
  return counters;
}

std::string Npu() {
  const char* const name = std::getenv("ORT_AIE_SIM_DEVICE");
  return name != nullptr ? name : "npu2";
}

// The overlay with which an executor decodes.
std::string Decoder() { return Npu() == "npu1" ? "fused_dqp" : "decode"; }

std::shared_ptr<Device> Open(const std::string& packages = "packages") {
  return OpenDevice({folder + "/" + packages});
}

std::shared_ptr<Buffer> Send(Device& device, const std::vector<uint8_t>& data) {
  std::shared_ptr<Buffer> buffer = device.Allocate(data.size());
  std::memcpy(buffer->host(), data.data(), data.size());
  buffer->ToDevice(0, data.size());
  return buffer;
}

npu::Invocation Matvec(int64_t y_offset = 0) {
  return {"matvec",
          {{"N", kN}, {"K", kK}, {"bias", 1}},
          {{"x", {0, 0}}, {"w", {1, 0}}, {"bias", {2, 0}}, {"y", {3, y_offset}}}};
}

// The buffers of the matvec, with space for several results.
struct Problem {
  explicit Problem(Device& device, int results = 1)
      : x(Send(device, Read("x"))),
        w(Send(device, Read("w"))),
        bias(Send(device, Read("bias"))),
        y(Send(device, std::vector<uint8_t>(result.size() * static_cast<size_t>(results), 0xff))) {}

  void Run(Device& device, const npu::Invocations& plan = {Matvec()},
           const std::string& design = Decoder()) {
    Buffer* const arguments[] = {x.get(), w.get(), bias.get(), y.get()};
    device.Run(design, plan, arguments);
  }

  void Verify(size_t index = 0) {
    y->FromDevice(index * result.size(), result.size());
    CHECK(std::memcmp(y->host() + index * result.size(), result.data(), result.size()) == 0);
  }

  const std::vector<uint8_t> result = Read("result");
  std::shared_ptr<Buffer> x, w, bias, y;
};

// --- runs
// -------------------------------------------------------------------------------------------
void RunsMatvec() {
  const auto device = Open();
  Problem problem(*device);
  problem.Run(*device);
  problem.Verify();
  if (Npu() == "npu2") {
    Problem other(*device);
    other.Run(*device, {Matvec()}, "fused_dqp");
    other.Verify();
    CHECK(device->name() == "NPU Strix (simulated)");
    CHECK(device->Overlay("decode")->name == "decode");
  }
  CHECK(device->Overlay("nothing") == nullptr);
}

void KeptStreamsAreNotSentAgain() {
  const auto device = Open();
  Problem problem(*device);
  problem.Run(*device);
  const Counters first = Counted();
  problem.Run(*device);
  const Counters second = Counted();
  CHECK(second.bytes_to == first.bytes_to);
  CHECK(first.streams_built == 1 && second.streams_built == 1 && second.streams_kept == 1);
  CHECK(second.runs == 2);
  CHECK(second.buffers == first.buffers);
  problem.Verify();
}

void ChangedLinesAreSent() {
  const auto device = Open();
  Problem problem(*device, 2);
  const int64_t before = Counted().bytes_to;
  problem.Run(*device);
  const int64_t whole = Counted().bytes_to - before;
  problem.Run(*device, {Matvec(2 * kN)});
  const int64_t changed = Counted().bytes_to - before - whole;
  CHECK(Counted().streams_kept == 1);
  CHECK(changed > 0 && changed < whole / 2 && changed % 4 == 0);
  problem.Verify(0);
  problem.Verify(1);
}

// An overlay that is foreign to the device layer, and the words of the matvec on it.
OtherOverlay OverlayOfOthers() {
  const std::string path = folder + "/packages/npu2/fused_dqp/overlay.xclbin";
  return {.path = path, .uuid = UuidOf(path), .kernel = "MLIR_AIE", .device = "npu2", .buffers = 5};
}

std::vector<uint32_t> WordsOfOthers() {
  const std::vector<uint8_t> bytes = Read("words");
  std::vector<uint32_t> words(bytes.size() / 4);
  std::memcpy(words.data(), bytes.data(), bytes.size());
  return words;
}

void RunsWordsOfOthers() {
  const auto device = Open();
  const OtherOverlay overlay = OverlayOfOthers();
  std::vector<uint32_t> words = WordsOfOthers();
  const auto load = [&](OtherOverlay changed) { device->Load(changed, words); };
  OtherOverlay other = overlay;
  other.device = "npu1";
  Faulty(Fault::kWrongOverlay, {"is for npu1, and the device is npu2"}, [&] { load(other); });
  other = overlay;
  other.uuid = "00000000-0000-4000-8000-000000000000";
  Faulty(Fault::kWrongOverlay, {overlay.uuid, other.uuid + " was packaged"}, [&] { load(other); });
  other = overlay;
  other.kernel = "OTHER";
  Faulty(Fault::kWrongOverlay, {"OTHER"}, [&] { load(other); });
  other = overlay;
  other.buffers = 6;
  Faulty(Fault::kWrongOverlay, {other.path, "argument 8"}, [&] { load(other); });

  // Without its last words, a wait, the run would not end. Run sends them.
  const uint32_t last = words.back();
  words.back() = 0xffffffff;
  std::unique_ptr<OtherStream> stream = device->Load(overlay, words);
  Problem problem(*device);
  Buffer* const buffers[] = {problem.x.get(), problem.w.get(), problem.bias.get(), problem.y.get()};
  stream->words().back() = last;
  stream->Run(words.size() - 1, words.size(), buffers);
  problem.Verify();
  const Counters counters = Counted();
  CHECK(counters.runs == 1 && counters.submissions == 1);
  // With another buffer in place of one.
  Problem again(*device);
  Buffer* const others[] = {problem.x.get(), problem.w.get(), problem.bias.get(), again.y.get()};
  stream->Run(0, 0, others);
  again.Verify();
  // Alongside a context of a design, and with a fault that ends the overlay's context. The words
  // are in the instruction memory, where the design's oldest stream makes room for them.
  problem.Run(*device);
  problem.Run(*device, {Matvec(), Matvec()});
  CHECK(Counted().stream_bytes == Counts().instruction_bytes);
  stream = nullptr;
  ort_aie_sim_inject("allocation@1");
  stream = device->Load(overlay, words);
  stream->words().back() = last;
  stream->Run(words.size() - 1, words.size(), buffers);
  CHECK(Counted().streams_dropped == 1);
  CHECK(Counted().stream_bytes == Counts().instruction_bytes);
  ort_aie_sim_inject("run_timeout");
  const auto faulty = [&](Fault fault, const std::vector<std::string>& texts) {
    Faulty(fault, texts, [&] { stream->Run(0, 0, buffers); });
    Faulty(Fault::kRunError, {overlay.path, "has failed"}, [&] { stream->Run(0, 0, buffers); });
  };
  const auto renew = [&] {
    stream = device->Load(overlay, words);
    stream->words().back() = last;
    stream->Run(words.size() - 1, words.size(), buffers);
    problem.Verify();
  };
  faulty(Fault::kTimeout, {overlay.path, "TIMEOUT", "it stopped at operation"});
  renew();
  // In these runs, no one sees the end.
  ort_aie_sim_inject("run_unanswered");
  faulty(Fault::kTimeout, {overlay.path, "TIMEOUT (no answer)"});
  renew();
  ort_aie_sim_inject("device_removed@1");
  faulty(Fault::kDeviceLost, {"the device is gone"});
}

// Without a package of a design, buffers belong to the foreign overlay.
void OthersNeedNoPackages() {
  const auto device = Open("nowhere");
  const OtherOverlay overlay = OverlayOfOthers();
  const std::vector<uint32_t> words = WordsOfOthers();
  const std::unique_ptr<OtherStream> stream = device->Load(overlay, words);
  Problem problem(*device);
  Buffer* const buffers[] = {problem.x.get(), problem.w.get(), problem.bias.get(), problem.y.get()};
  stream->Run(0, 0, buffers);
  problem.Verify();
}

// The matvecs of several problems with the first one's x, in one plan.
void RunTogether(Device& device, std::vector<Problem>& problems, const std::vector<size_t>& order) {
  npu::Invocations plan;
  std::vector<Buffer*> buffers = {problems[0].x.get()};
  for (const size_t i : order) {
    const auto first = static_cast<int>(buffers.size());
    plan.push_back(Matvec());
    plan.back().arguments["w"].argument = first;
    plan.back().arguments["bias"].argument = first + 1;
    plan.back().arguments["y"].argument = first + 2;
    for (const auto& buffer : {problems[i].w, problems[i].bias, problems[i].y}) {
      buffers.push_back(buffer.get());
    }
  }
  device.Run(Decoder(), plan, buffers);
  for (Problem& problem : problems) {
    problem.Verify();
    std::memset(problem.y->host(), 0xff, problem.y->size());
    problem.y->ToDevice(0, problem.y->size());
  }
}

// x, three matrices, biases and results: a run cannot hold two of these.
void PlansOfManyBuffersAreOneList() {
  const auto device = Open();
  std::vector<Problem> problems;
  for (int i = 0; i < 3; ++i) problems.emplace_back(*device);
  RunTogether(*device, problems, {0, 1, 2});
  RunTogether(*device, problems, {2, 0, 1});
  RunTogether(*device, problems, {2, 0, 1});  // including what the runs already have
  const Counters counters = Counted();
  CHECK(counters.runs == 9 && counters.submissions == (Npu() == "npu1" ? 9 : 3));
  CHECK(counters.streams_built == 1 && counters.streams_kept == 2);
  ort_aie_sim_inject("run_error@2");
  Faulty(Fault::kRunError, {"matvec", "ERROR"}, [&] { RunTogether(*device, problems, {0, 1, 2}); });
  RunTogether(*device, problems, {0, 1, 2});
}

// XRT would divide such a list into two chains: 24 runs, and the rest.
void ListsHave24RunsAtMost() {
  const auto device = Open();
  std::vector<Problem> problems;
  std::vector<size_t> order;
  for (size_t i = 0; i < 25; ++i) {
    problems.emplace_back(*device);
    order.push_back(i);
  }
  RunTogether(*device, problems, order);
  const Counters counters = Counted();
  CHECK(counters.runs == 25 && counters.submissions == (Npu() == "npu1" ? 25 : 2));
}

// The manifest of packages `slow` declares slow memory, so that a plan is more than one run.
void LongPlansAreSeveralRuns() {
  const auto device = Open("slow");
  constexpr size_t kSteps = 6;
  Problem problem(*device, kSteps);
  npu::Invocations plan;
  for (size_t i = 0; i < kSteps; ++i) plan.push_back(Matvec(2 * kN * static_cast<int64_t>(i)));
  problem.Run(*device, plan);
  // Two of them do not form a list either: the driver's watchdog treats a list as one run.
  CHECK(Counted().runs == kSteps && Counted().submissions == kSteps);
  for (size_t i = 0; i < kSteps; ++i) problem.Verify(i);
  problem.Run(*device, plan);  // lists are reused
  CHECK(Counted().runs == 2 * kSteps);
  ort_aie_sim_inject("run_error@5");
  Faulty(Fault::kRunError, {"matvec", "ERROR"}, [&] { problem.Run(*device, plan); });
  problem.Run(*device, plan);
  problem.Verify(kSteps - 1);
}

void PlansThatDoNotFitAreErrors() {
  const auto device = Open();
  Problem problem(*device);
  npu::Invocation wrong = Matvec();
  wrong.parameters["N"] = 33;
  try {
    problem.Run(*device, {wrong});
    CHECK(false);
  } catch (const Error& error) {
    CHECK(std::string(error.what()).find("multiple of 32") != std::string::npos);
  }
  problem.Run(*device);
  problem.Verify();
  CHECK(Counts().contexts == 1);
}

// Streams of two contexts in a memory that holds only two of them.
void StreamsShareTheInstructionMemory() {
  constexpr int64_t kUnit = npu::kStreamUnit;
  const auto device = OpenDevice({folder + "/packages"}, 2 * kUnit);
  Problem problem(*device, 3);
  problem.Run(*device);
  problem.Run(*device, {Matvec()}, "fused_dqp");
  CHECK(Counted().stream_bytes == 2 * kUnit && Counts().instruction_bytes == 2 * kUnit);
  CHECK(Counted().streams_dropped == 0);
  problem.Run(*device, {Matvec(2 * kN), Matvec(4 * kN)}, "fused_dqp");
  CHECK(Counted().stream_bytes == 2 * kUnit && Counts().instruction_bytes == 2 * kUnit);
  CHECK(Counted().streams_dropped == 1);
  const int64_t built = Counted().streams_built;
  problem.Run(*device, {Matvec()}, "fused_dqp");
  CHECK(Counted().streams_built == built);
  problem.Run(*device);  // the dropped stream
  CHECK(Counted().streams_built == built + 1);
  for (size_t i = 0; i < 3; ++i) problem.Verify(i);
  std::vector<Problem> problems;
  for (int i = 0; i < 3; ++i) problems.emplace_back(*device);
  try {
    RunTogether(*device, problems, {0, 1, 2});
    CHECK(false);
  } catch (const Error& error) {
    const std::string said = error.what();
    CHECK(said.find("sequence \"matvec\" (K=512, N=256") != std::string::npos);
    CHECK(said.find("takes 98304 bytes in 3 runs, but the device keeps at most 65536") !=
          std::string::npos);
  }
  CHECK(Counts().contexts == 2);  // the device still works
  problem.Run(*device);
  problem.Verify();
}

// As if another user of the process held a part of the heap.
void AnOlderStreamMakesRoomForOneThatIsRefused() {
  const auto device = Open();
  Problem problem(*device, 2);
  problem.Run(*device);
  ort_aie_sim_inject("allocation@1");
  problem.Run(*device, {Matvec(), Matvec(2 * kN)});
  CHECK(Counted().streams_dropped == 1);
  CHECK(Counts().instruction_bytes == static_cast<int64_t>(npu::kStreamUnit));
  for (size_t i = 0; i < 2; ++i) problem.Verify(i);
  ort_aie_sim_inject("allocation@1..2");
  Faulty(Fault::kAllocation,
         {"an instruction buffer of", "of 32768 for the stream of sequence \"matvec\"", Decoder(),
          "err=-12"},
         [&] { problem.Run(*device, {Matvec(), Matvec(), Matvec()}); });
}

void SessionsShareContexts() {
  const auto device = Open();
  CHECK(Open() == device);
  CHECK(!device->ShareContext("decode", "fused_dqp"));
  std::vector<std::thread> threads;
  std::vector<std::string> errors(3);
  for (size_t t = 0; t < errors.size(); ++t) {
    threads.emplace_back([&, t] {
      try {
        const auto mine = Open();
        Problem problem(*mine, 2);
        for (int i = 0; i < 4; ++i) {
          problem.Run(*mine, {Matvec(i % 2 * 2 * kN)});
          problem.Verify(static_cast<size_t>(i % 2));
        }
      } catch (const std::exception& error) {
        errors[t] = error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::string& error : errors) Check(error.empty(), error);
  CHECK(Counts().contexts == 1);
}

// --- memory
// -----------------------------------------------------------------------------------------
void BuffersAreUsedAgain() {
  {
    const auto device = Open();
    const auto first = device->Allocate(100'000);
    CHECK(first->size() == 100'000);
    const uint8_t* const host = first->host();
    const int64_t buffers = Counted().buffers;
    device->Allocate(5000).reset();
    CHECK(device->Allocate(5100)->size() == 5100);  // the same size in pages
    CHECK(Counted().buffers == buffers + 1);
    CHECK(device->Allocate(100'000)->host() != host);
    device->Reset();  // idle memory is freed
    CHECK(Counted().buffers == 1);
  }
  CHECK(Counts().buffers == 0 && Counts().contexts == 0);
  CHECK(CountersOfProcess().buffers == 0 && CountersOfProcess().buffer_bytes == 0);
}

// The weights, mapped privately and writable as in ONNX Runtime.
struct Weights {
  explicit Weights(const std::string& name = "w") {
    const std::string path = folder + "/" + name;
    bytes = std::filesystem::file_size(path);
    const int file = open(path.c_str(), O_RDONLY);
    data =
        static_cast<uint8_t*>(mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE, file, 0));
    close(file);
    CHECK(data != MAP_FAILED);
  }
  ~Weights() { munmap(data, bytes); }

  bool resident() const {  // in this mapping, as opposed to the page cache
    const int pages = open("/proc/self/pagemap", O_RDONLY);
    uint64_t entry = 0;
    const auto at = static_cast<off_t>(reinterpret_cast<uintptr_t>(data) / kPageBytes * 8);
    const ssize_t got = pread(pages, &entry, sizeof(entry), at);
    close(pages);
    CHECK(got == sizeof(entry));
    return entry >> 63 != 0;
  }

  uint8_t* data;
  size_t bytes;
};

std::shared_ptr<Buffer> Pin(Device& device, const void* data, size_t bytes) {
  const HostMemory range[] = {{data, bytes}};
  const DeviceMemory place = device.Pin(range).front();
  CHECK(place.offset == 0);
  return place.buffer;
}

void RunWith(Device& device, std::shared_ptr<Buffer> weights) {
  Problem problem(device);
  problem.w = std::move(weights);
  problem.Run(device);
  problem.Verify();
}

void WeightsArePinnedInPlace() {
  const auto device = Open();
  const Weights weights;
  const auto pinned = Pin(*device, weights.data, weights.bytes);
  CHECK(pinned->host() != weights.data);
  const auto mapping = FindMapping(pinned->host(), weights.bytes);
  CHECK(mapping && !mapping->writable && mapping->shared);
  CHECK(mapping->inode == FindMapping(weights.data, weights.bytes)->inode);
  CHECK(Pin(*device, weights.data, weights.bytes) == pinned);
  RunWith(*device, pinned);
}

// A list knows the buffers of its runs, and not the contents of their addresses.
void ListsFollowWeightsThatComeAndGo() {
  const auto device = Open();
  std::vector<Problem> problems;
  for (int i = 0; i < 2; ++i) problems.emplace_back(*device);
  for (int i = 0; i < 4; ++i) {
    const Weights weights;
    problems[1].w = Pin(*device, weights.data, weights.bytes);
    RunTogether(*device, problems, {0, 1});
    RunTogether(*device, problems, {0, 1});
    problems[1].w.reset();
  }
  CHECK(Counted().streams_built == 1);
}

// In a file: weights, a page, weights, a hole, weights; each mapped separately, and a copy of each
// in separate memory.
void WeightsThatLieTogetherShareABuffer() {
  const auto device = Open();
  const std::vector<uint8_t> w = Read("w");
  const size_t pages = (w.size() + kPageBytes - 1) / kPageBytes * kPageBytes;
  const size_t offsets[] = {0, pages + kPageBytes, 2 * pages + (2 << 20)};
  {
    std::ofstream file(folder + "/three", std::ios::binary);
    for (const size_t offset : offsets) {
      file.seekp(static_cast<std::streamoff>(offset));
      file.write(reinterpret_cast<const char*>(w.data()), static_cast<std::streamsize>(w.size()));
    }
  }
  const int file = open((folder + "/three").c_str(), O_RDONLY);
  std::vector<HostMemory> mapped, shifted;
  std::vector<std::vector<uint8_t>> own(3, std::vector<uint8_t>(w.size() + 64));
  for (size_t i : {2, 0, 1}) {
    void* const data = mmap(nullptr, w.size(), PROT_READ | PROT_WRITE, MAP_PRIVATE, file,
                            static_cast<off_t>(offsets[i]));
    CHECK(data != MAP_FAILED);
    mapped.push_back({data, w.size()});
    // Not at the start of a page, so that they are copied.
    uint8_t* const place = own[i].data() + 32;
    std::memcpy(place, w.data(), w.size());
    shifted.push_back({place, w.size()});
  }
  close(file);
  const int64_t before = Counted().buffers;
  const std::vector<DeviceMemory> places = device->Pin(mapped), copies = device->Pin(shifted);
  CHECK(places[1].buffer == places[2].buffer && places[1].offset == 0);
  CHECK(places[2].offset == static_cast<int64_t>(offsets[1]));
  CHECK(places[0].buffer != places[1].buffer && places[0].offset == 0);
  CHECK(copies[0].buffer == copies[1].buffer && copies[0].buffer == copies[2].buffer);
  // A part of it is found again, for as long as someone holds it.
  const std::vector<DeviceMemory> again = device->Pin(std::span(mapped).subspan(2));
  CHECK(again[0].buffer == places[2].buffer && again[0].offset == places[2].offset);
  CHECK(Counted().buffers <= before + 4);  // and one for the bank's context
  for (const DeviceMemory& place : {places[0], places[2], copies[1], copies[2]}) {
    Problem problem(*device);
    problem.w = place.buffer;
    npu::Invocations plan = {Matvec()};
    plan[0].arguments["w"].offset = place.offset;
    problem.Run(*device, plan);
    problem.Verify();
  }
  for (const HostMemory& memory : mapped) munmap(const_cast<void*>(memory.data), memory.bytes);
}

void RefusedWeightsAreCopiedAndLetGo() {
  const auto device = Open();
  device->Allocate(1);  // a context and its group
  const Weights weights;
  ort_aie_sim_inject("allocation@1");
  const auto copy = Pin(*device, weights.data, weights.bytes);
  CHECK(!weights.resident());
  CHECK(FindMapping(copy->host(), weights.bytes)->inode == 0);
  RunWith(*device, copy);
  CHECK(std::memcmp(weights.data, copy->host(), weights.bytes) == 0);  // read again
}

void RefusedWeightsAreSpokenOfOnce() {
  const auto device = Open();
  device->Allocate(1);  // a context and its group
  CHECK(device->NoticesFrom(0).empty());
  const rlimit limit = {8 << 20, 8 << 20};
  CHECK(setrlimit(RLIMIT_MEMLOCK, &limit) == 0);
  const Weights weights, more;
  ort_aie_sim_inject("allocation@1,allocation@3");
  const auto copy = Pin(*device, weights.data, weights.bytes);
  const auto other = Pin(*device, more.data, more.bytes);
  CHECK(other->host() != more.data);
  const std::vector<std::string> notices = device->NoticesFrom(0);
  CHECK(notices.size() == 1);
  const size_t pages = (weights.bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
  for (const std::string& text :
       {std::to_string(pages) + " bytes of weights cannot be read in place", std::string("err=-12"),
        std::string("may lock 8388608 bytes of memory, RLIMIT_MEMLOCK"),
        std::string("memlock unlimited"), std::string("docs/ryzen-ai.md, section 3")}) {
    Check(notices[0].find(text) != std::string::npos, "\"" + text + "\" in: " + notices[0]);
  }
  CHECK(device->NoticesFrom(1).empty());
}

void WrittenPagesAreCopiedAndKept() {
  const auto device = Open();
  const Weights weights;
  const auto byte = static_cast<uint8_t>(weights.data[7] ^ 1);
  weights.data[7] = byte;
  const auto copy = Pin(*device, weights.data, weights.bytes);
  CHECK(copy->host()[7] == byte);
  CHECK(weights.resident());
  CHECK(weights.data[7] == byte);
}

void AnotherFileUnderTheNameIsNotTaken() {
  const auto device = Open();
  std::filesystem::copy_file(folder + "/w", folder + "/w2",
                             std::filesystem::copy_options::overwrite_existing);
  const Weights weights("w2");
  std::filesystem::remove(folder + "/w2");
  std::ofstream(folder + "/w2") << std::string(weights.bytes, 'x');
  RunWith(*device, Pin(*device, weights.data, weights.bytes));
}

// --- faults
// ----------------------------------------------------------------------------------------- A run
// that fails, then one in a fresh context; nothing is left over.
void Recovers(const char* inject, Fault fault, const std::vector<std::string>& texts) {
  const auto device = Open();
  Problem problem(*device);
  problem.Run(*device);
  const int64_t buffers = Counted().buffers;
  ort_aie_sim_inject(inject);
  Faulty(fault, texts, [&] { problem.Run(*device); });
  device->Reset();
  CHECK(Counts().contexts == 0);
  problem.Run(*device);
  problem.Verify();
  CHECK(Counted().buffers == buffers && Counts().contexts == 1);
}

void Timeout() {
  Recovers("run_timeout@1", Fault::kTimeout,
           {"TIMEOUT", "(K=512, N=256", Decoder(), "it stopped at operation", "body["});
}
void AFaultNamesTheInvocationThatStopped() {
  const auto device = Open();
  Problem problem(*device);
  npu::Invocation half = Matvec();
  half.parameters["N"] = kN / 2;
  ort_aie_sim_inject("run_timeout@1");  // it stops at its end
  Faulty(Fault::kTimeout, {"a run of sequence \"matvec\" (K=512, N=128", "it stopped at"},
         [&] { problem.Run(*device, {Matvec(), half}); });
  ort_aie_sim_inject("run_unanswered");
  Faulty(Fault::kTimeout, {"a run that begins with sequence \"matvec\" (K=512, N=256"},
         [&] { problem.Run(*device, {Matvec(), half}); });
}
void RunError() { Recovers("run_error@1", Fault::kRunError, {"ERROR", "matvec", Decoder()}); }

// XRT ends the process when a run whose end no one has seen is destroyed.
void NoAnswer() {
  const auto device = Open();
  Problem problem(*device);
  ort_aie_sim_inject("run_unanswered");
  Faulty(Fault::kTimeout, {"TIMEOUT (no answer)", Decoder()}, [&] { problem.Run(*device); });
  problem.Run(*device);
  problem.Verify();
}

void RefusedContext() {
  const auto device = Open();
  ort_aie_sim_inject("context_refused@1");
  Faulty(Fault::kContextRefused, {"a hardware context for", "err=-16"},
         [&] { device->Allocate(1); });
  Problem problem(*device);
  problem.Run(*device);
  problem.Verify();
}

void AnOlderContextMakesRoom() {
  const auto device = Open();
  Problem problem(*device);
  problem.Run(*device);
  ort_aie_sim_inject("context_refused@1");
  problem.Run(*device, {Matvec()}, "fused_dqp");
  problem.Verify();
  CHECK(Counts().contexts == 1);
}

// Packages `together` have one xclbin with a kernel for each design.
void DesignsOfOneOverlayShareAContext() {
  const auto device = Open("together");
  CHECK(device->ShareContext("decode", "fused_dqp"));
  CHECK(!device->ShareContext("decode", "nothing"));
  Problem problem(*device), other(*device);
  for (int i = 0; i < 2; ++i) {
    problem.Run(*device);
    other.Run(*device, {Matvec()}, "fused_dqp");
  }
  problem.Verify();
  other.Verify();
  CHECK(Counts().contexts == 1);
  CHECK(Counted().streams_built == 2 && Counted().streams_kept == 2);
  // It ends for all of them, and they share one again.
  ort_aie_sim_inject("run_error@1");
  Faulty(Fault::kRunError, {"ERROR", "matvec", "fused_dqp"},
         [&] { other.Run(*device, {Matvec()}, "fused_dqp"); });
  CHECK(Counts().contexts == 0);
  problem.Run(*device);
  other.Run(*device, {Matvec()}, "fused_dqp");
  problem.Verify();
  other.Verify();
  CHECK(Counts().contexts == 1);
}

void Allocation() {
  const auto device = Open();
  device->Allocate(10'000).reset();
  ort_aie_sim_inject("allocation@1");
  device->Allocate(100'000);  // idle memory is freed, and then there is room
  ort_aie_sim_inject("allocation@1..2");
  Faulty(Fault::kAllocation, {"a buffer of", "err=-12"}, [&] { device->Allocate(1'000'000); });
  Problem problem(*device);
  problem.Run(*device);
  problem.Verify();
}

void RemovedDevice() {
  const auto device = Open();
  Problem problem(*device);
  ort_aie_sim_inject("device_removed@1");
  Faulty(Fault::kDeviceLost, {}, [&] { problem.Run(*device); });
  device->Reset();
  Faulty(Fault::kDeviceLost, {"the device is gone"}, [&] { problem.Run(*device); });
  Faulty(Fault::kNoDevice, {"no NPU", "ort-aie doctor"}, [] { Open(); });
  ort_aie_sim_plug_in();
  const auto next = Open();
  CHECK(next != device);
  Problem again(*next);
  again.Run(*next);
  again.Verify();
}

// --- overlays
// ---------------------------------------------------------------------------------------
void Overlays() {
  const std::string command = "ort-aie kernels build all --device npu2 --out DIR";
  const auto none = Open("nowhere");
  Faulty(Fault::kNoOverlay, {"no overlay decode for npu2", "nowhere", command},
         [&] { RequireOverlays(*none); });
  Faulty(Fault::kNoOverlay, {command}, [&] { none->Allocate(1); });
  const std::map<std::string, std::string> refused = {
      {"of_npu1", "it was built for npu1, and the device is npu2"},
      {"of_format_9", "format"},
      {"of_another_xclbin", "its manifest belongs to the xclbin"},
      {"unbuilt", "the package was never built"},
      {"no_xclbin", "is not an xclbin"},
      {"pipe", "overlay.xclbin is not a regular file"},
      {"endless", "manifest.json has 8589934592 bytes, expected at most 1048576"},
      {"renamed", "its manifest is for the design fused_dqp"},
  };
  for (const auto& [name, reason] : refused) {
    const auto device = Open(name);
    CHECK(device->Overlay("decode") == nullptr);
    Faulty(Fault::kWrongOverlay, {"no overlay decode fits npu2", name, reason, command},
           [&] { RequireOverlays(*device); });
  }
  // The first that fits.
  const auto device = OpenDevice({folder + "/of_npu1", folder + "/packages"});
  CHECK(device->Overlay("decode") != nullptr);
  // Any one of them is enough.
  for (const std::string design : {"fused_dqp", "flow_kv", "flow_qkv", "dequant", "gemm"}) {
    const std::string only = folder + "/only_" + design;
    std::filesystem::create_directory(only);
    std::filesystem::create_directory_symlink(folder + "/packages/npu2/" + design,
                                              only + "/" + design);
    const auto alone = OpenDevice({only});
    RequireOverlays(*alone);
    alone->Allocate(1);
  }
}

// --- the timeline
// -----------------------------------------------------------------------------------
void WritesATrace() {
  const auto trace = Trace::OfProcess().Join();
  {
    const auto device = Open();
    Problem problem(*device);
    problem.Run(*device);
    problem.Verify();
  }
}

const std::map<std::string, void (*)()> kCases = {
    {"RunsMatvec", RunsMatvec},
    {"KeptStreamsAreNotSentAgain", KeptStreamsAreNotSentAgain},
    {"ChangedLinesAreSent", ChangedLinesAreSent},
    {"PlansOfManyBuffersAreOneList", PlansOfManyBuffersAreOneList},
    {"ListsHave24RunsAtMost", ListsHave24RunsAtMost},
    {"LongPlansAreSeveralRuns", LongPlansAreSeveralRuns},
    {"RunsWordsOfOthers", RunsWordsOfOthers},
    {"OthersNeedNoPackages", OthersNeedNoPackages},
    {"PlansThatDoNotFitAreErrors", PlansThatDoNotFitAreErrors},
    {"StreamsShareTheInstructionMemory", StreamsShareTheInstructionMemory},
    {"AnOlderStreamMakesRoomForOneThatIsRefused", AnOlderStreamMakesRoomForOneThatIsRefused},
    {"SessionsShareContexts", SessionsShareContexts},
    {"BuffersAreUsedAgain", BuffersAreUsedAgain},
    {"WeightsArePinnedInPlace", WeightsArePinnedInPlace},
    {"ListsFollowWeightsThatComeAndGo", ListsFollowWeightsThatComeAndGo},
    {"WeightsThatLieTogetherShareABuffer", WeightsThatLieTogetherShareABuffer},
    {"RefusedWeightsAreCopiedAndLetGo", RefusedWeightsAreCopiedAndLetGo},
    {"RefusedWeightsAreSpokenOfOnce", RefusedWeightsAreSpokenOfOnce},
    {"WrittenPagesAreCopiedAndKept", WrittenPagesAreCopiedAndKept},
    {"AnotherFileUnderTheNameIsNotTaken", AnotherFileUnderTheNameIsNotTaken},
    {"Timeout", Timeout},
    {"AFaultNamesTheInvocationThatStopped", AFaultNamesTheInvocationThatStopped},
    {"RunError", RunError},
    {"NoAnswer", NoAnswer},
    {"RefusedContext", RefusedContext},
    {"AnOlderContextMakesRoom", AnOlderContextMakesRoom},
    {"DesignsOfOneOverlayShareAContext", DesignsOfOneOverlayShareAContext},
    {"Allocation", Allocation},
    {"RemovedDevice", RemovedDevice},
    {"Overlays", Overlays},
    {"WritesATrace", WritesATrace},
};

}  // namespace

int main(int count, char** arguments) {
  if (count < 3) {
    std::fprintf(stderr, "usage: device_test FOLDER CASE...\n");
    return 2;
  }
  folder = arguments[1];
  // Several share the process of the modelled NPU: it takes as long to start as most cases take.
  std::optional<xrt::device> kept;
  for (int i = 2; i < count; ++i) {
    if (count > 3) kept = xrt::device(0u);
    ort_aie_sim_get_counts(&before);
    counted_before = CountersOfProcess();
    try {
      kCases.at(arguments[i])();
      CHECK(!kept || (Counts().contexts == 0 && Counts().buffers == 0));
    } catch (const std::exception& error) {
      std::fprintf(stderr, "%s: %s\n", arguments[i], error.what());
      return 1;
    }
    ort_aie_sim_inject("");
    ort_aie_sim_plug_in();
  }
  return 0;
}
