#include "targets/sim/xrt_standin/npu.h"

#include <cstdlib>
#include <exception>
#include <new>
#include <utility>

#include "targets/sim/xrt_standin/faults.h"

namespace ort_aie::sim {
namespace {

constexpr int kContexts1 = 6;   // amdxdna's limits of hardware contexts: NPU1,
constexpr int kContexts2 = 16;  // and NPU2
constexpr int64_t kInstructionHeap = 64 << 20;
// The sizes of instruction buffers are rounded to this (xdna-driver: dev_mem_buf_shift of
// npu1_regs.c and npu4_family.h).
constexpr size_t kInstructionUnit = 32 << 10;

// One per process, and never destroyed, because threads may outlive static destruction.
struct Slot {
  std::mutex mutex;
  std::weak_ptr<Npu> npu;
  bool removed = false;

  static Slot& Get() {
    static auto* const slot = new Slot;
    return *slot;
  }
};

std::string DeviceName() {
  const char* const device = std::getenv("ORT_AIE_SIM_DEVICE");
  return device != nullptr && *device != '\0' ? device : "npu2";
}

}  // namespace

Totals& Totals::Get() {
  static auto* const totals = new Totals;
  return *totals;
}

// --- memory --------------------------------------------------------------------------------------
Allocation::Allocation(std::shared_ptr<Heap> heap, size_t bytes, bool instructions)
    : heap_(std::move(heap)),
      bytes_(bytes),
      instructions_(instructions),
      offset_(heap_->Allocate(bytes)) {
  Totals& totals = Totals::Get();
  ++totals.buffers;
  totals.buffer_bytes += static_cast<int64_t>(bytes_);
  if (instructions_) totals.instruction_bytes += static_cast<int64_t>(bytes_);
}

Allocation::~Allocation() {
  heap_->Free(offset_, bytes_);
  Totals& totals = Totals::Get();
  --totals.buffers;
  totals.buffer_bytes -= static_cast<int64_t>(bytes_);
  if (instructions_) totals.instruction_bytes -= static_cast<int64_t>(bytes_);
}

std::unique_ptr<Allocation> Npu::Allocate(size_t bytes, bool instructions) {
  RequirePresent("CREATE_BO");
  if (bytes == 0) ThrowIoctl(EINVAL, "CREATE_BO");
  if (Faults::Get().Happens("allocation")) ThrowIoctl(ENOMEM, "CREATE_BO");
  if (instructions) {
    bytes = RoundUp(bytes, kInstructionUnit);
    if (Totals::Get().instruction_bytes + static_cast<int64_t>(bytes) > kInstructionHeap) {
      ThrowIoctl(ENOMEM, "CREATE_BO");
    }
  }
  try {
    return std::make_unique<Allocation>(heap_, bytes, instructions);
  } catch (const std::bad_alloc&) {
    ThrowIoctl(ENOMEM, "CREATE_BO");
  }
}

// --- the device ----------------------------------------------------------------------------------
std::shared_ptr<Npu> Npu::Open() {
  Slot& slot = Slot::Get();
  const std::lock_guard lock(slot.mutex);
  if (std::shared_ptr<Npu> npu = slot.npu.lock(); npu && !npu->removed()) return npu;
  if (slot.removed) Throw(EINVAL, "No such device with index '0'");
  std::shared_ptr<Npu> npu = std::make_shared<xrt_core::device>(DeviceName());
  slot.npu = npu;
  return npu;
}

unsigned Npu::Count() {
  Slot& slot = Slot::Get();
  const std::lock_guard lock(slot.mutex);
  return slot.removed ? 0 : 1;
}

int Npu::ChildProcess() {
  Slot& slot = Slot::Get();
  const std::lock_guard lock(slot.mutex);
  const std::shared_ptr<Npu> npu = slot.npu.lock();
  return npu ? npu->child_.process() : 0;
}

void Npu::PlugIn() {
  Slot& slot = Slot::Get();
  const std::lock_guard lock(slot.mutex);
  slot.removed = false;
}

Npu::Npu(const std::string& device)
    : first_generation_(device.starts_with("npu1")),
      heap_(std::make_shared<Heap>()),
      child_(device, heap_->file()) {
  Json reply;
  try {
    reply = child_.Ask({{"op", "hello"}});
  } catch (const ChildLost& error) {
    Throw(ENODEV, std::string(error.what()) +
                      "; it needs a Python with ort_aie_ep[npu]: set ORT_AIE_SIM_PYTHON to one");
  }
  if (!reply.value("ok", false)) Throw(ENODEV, reply.value("error", "the modelled NPU refuses"));
  name_ = reply.at("name");
}

void Npu::RequirePresent(const std::string& name) const {
  if (removed_) ThrowIoctl(ENODEV, name);
}

void Npu::Remove() {
  removed_ = true;
  Slot& slot = Slot::Get();
  const std::lock_guard lock(slot.mutex);
  slot.removed = true;
}

// --- contexts ------------------------------------------------------------------------------------
void Npu::Register(const xrt::xclbin& xclbin) {
  const std::lock_guard lock(mutex_);
  xclbins_.insert_or_assign(xclbin.get_uuid(), xclbin);
}

xrt::xclbin Npu::Registered(const xrt::uuid& uuid) const {
  const std::lock_guard lock(mutex_);
  const auto found = xclbins_.find(uuid);
  if (found == xclbins_.end()) Throw(EINVAL, "No xclbin with uuid '" + uuid.to_string() + "'");
  return found->second;
}

void Npu::TakeContext() {
  const std::lock_guard lock(mutex_);
  if (contexts_ >= (first_generation_ ? kContexts1 : kContexts2)) {
    ThrowIoctl(ENOSPC, "CREATE_HWCTX");
  }
  ++contexts_;
}

int64_t Npu::OpenContext(const xrt::xclbin& xclbin) {
  RequirePresent("CREATE_HWCTX");
  Faults& faults = Faults::Get();
  const bool corrupted = faults.Happens("overlay_corrupted");
  const bool wrong = faults.Happens("overlay_wrong");
  if (faults.Happens("context_refused")) ThrowIoctl(EBUSY, "CREATE_HWCTX");
  TakeContext();
  try {
    // The configuration is loaded with the context, so its errors appear here.
    if (corrupted) ThrowIoctl(EINVAL, "CONFIG_HWCTX");
    Json reply;
    try {
      reply = child_.Ask({{"op", "load"},
                          {"overlay", FileOf(xclbin)},
                          {"uuid", xclbin.get_uuid().to_string()},
                          {"wrong", wrong}});
    } catch (const ChildLost&) {
      Remove();
      ThrowIoctl(ENODEV, "CREATE_HWCTX");
    }
    if (!reply.value("ok", false)) {
      Throw(EINVAL,
            "DRM_IOCTL_AMDXDNA_CONFIG_HWCTX IOCTL failed (err=-22), " + reply.value("error", "?"));
    }
    ++Totals::Get().contexts;
    return reply.at("context");
  } catch (...) {
    const std::lock_guard lock(mutex_);
    --contexts_;
    throw;
  }
}

void Npu::CloseContext(int64_t context) {
  {
    const std::lock_guard lock(mutex_);
    --contexts_;
  }
  --Totals::Get().contexts;
  child_.Post([context](Conversation& conversation) {
    try {
      conversation.Ask({{"op", "release"}, {"context", context}});
    } catch (const ChildLost&) {  // the context is lost with the child
    }
  });
}

}  // namespace ort_aie::sim
