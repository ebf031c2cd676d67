#include "targets/sim/xrt_standin/run.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <utility>

#include "targets/sim/xrt_standin/faults.h"

namespace ort_aie::sim {
namespace {
// After three checks of the driver's watchdog, the first of which sees that the command was
// submitted (xdna-driver: aie2_tdr.c, aie2_rq_is_all_context_stuck).
constexpr double kWatchdogSeconds = 6.0;
// Longer than anything waits.
constexpr double kUnansweredSeconds = 3600.0;
}  // namespace

// Releases the buffers first, so that a thread that waits for the end finds them released.
void Command::Finish(Outcome outcome) {
  {
    const std::lock_guard lock(mutex_);
    state_ = outcome.state;
    seconds_ = outcome.seconds;
    error_ = std::move(outcome.error);
    operation_ = outcome.operation;
    done_ = true;
    held_.clear();
  }
  changed_.notify_all();
}

bool Command::Begin() {
  const std::lock_guard lock(mutex_);
  if (!cancelled_) state_ = ERT_CMD_STATE_RUNNING;
  return !cancelled_;
}

void Command::Cancel() {
  const std::lock_guard lock(mutex_);
  cancelled_ = true;
}

ert_cmd_state Command::state() const {
  const std::lock_guard lock(mutex_);
  return state_;
}

ert_cmd_state Command::Look() {
  const std::lock_guard lock(mutex_);
  seen_ = seen_ || done_;
  return state_;
}

bool Command::seen() const {
  const std::lock_guard lock(mutex_);
  return seen_;
}

bool Command::active() const {
  const std::lock_guard lock(mutex_);
  return !done_;
}

std::string Command::error() const {
  const std::lock_guard lock(mutex_);
  return error_;
}

uint32_t Command::operation() const {
  const std::lock_guard lock(mutex_);
  return operation_;
}

bool Command::Wait(std::chrono::milliseconds timeout) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return done_; });  // the child's patience bounds it
  if (state_ == ERT_CMD_STATE_NORESPONSE) ThrowIoctl(ENODEV, "WAIT_CMD");
  const double limit = std::chrono::duration<double>(timeout).count();
  if (limit > 0 && seconds_ - passed_ > limit) {
    passed_ += limit;
    return false;
  }
  passed_ = seconds_;
  seen_ = true;
  return true;
}

double Command::seconds() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return done_; });
  return seconds_;
}

namespace {

// On the child's thread: sends the device a request to run, and waits for the end.
Outcome Execute(Conversation& conversation, Npu& npu, xrt::hw_context_impl& context, int resets,
                Json request) {
  if (context.resets() != resets) return {ERT_CMD_STATE_ABORT, 0, "the context was reset"};
  Faults& faults = Faults::Get();
  const bool timeout = faults.Happens("run_timeout");
  const bool error = faults.Happens("run_error");
  const bool unanswered = faults.Happens("run_unanswered");
  if (faults.Happens("device_removed")) conversation.Kill();
  if (timeout || error) request["fault"] = timeout ? "timeout" : "error";
  try {
    const Json reply = conversation.Ask(request);
    Outcome outcome{ERT_CMD_STATE_COMPLETED, reply.value("seconds", 0.0), reply.value("error", ""),
                    reply.value("operation", kNoOperation)};
    if (!reply.value("ok", false)) {
      const bool late = reply.value("kind", "") == "timeout";
      outcome.state = late ? ERT_CMD_STATE_TIMEOUT : ERT_CMD_STATE_ERROR;
      outcome.seconds = late ? kWatchdogSeconds : 0.0;
      if (late) context.CountReset();
    }
    if (unanswered) outcome.seconds = kUnansweredSeconds;
    ++Totals::Get().runs;
    Totals::Get().device_nanoseconds += static_cast<int64_t>(outcome.seconds * 1e9);
    return outcome;
  } catch (const std::exception& lost) {
    npu.Remove();
    return {ERT_CMD_STATE_NORESPONSE, 0, lost.what()};
  }
}

}  // namespace
}  // namespace ort_aie::sim

namespace xrt {

using ort_aie::sim::Command;
using ort_aie::sim::Json;
using ort_aie::sim::kBuffers;
using ort_aie::sim::kFirstBuffer;
using ort_aie::sim::kInstructionCount;
using ort_aie::sim::kInstructions;
using ort_aie::sim::kOpcode;
using ort_aie::sim::Outcome;
using ort_aie::sim::Throw;
using ort_aie::sim::ThrowIoctl;

// --- xrt::kernel ---------------------------------------------------------------------------------
kernel_impl::kernel_impl(hw_context ctx, std::string kernel_name)
    : context(std::move(ctx)), name(std::move(kernel_name)) {
  if (!context.get_handle()->xclbin.get_kernel(name)) {
    Throw(EINVAL, "No kernel '" + name + "' in the xclbin");
  }
}

kernel::kernel(const xrt::hw_context& ctx, const std::string& name)
    : handle(std::make_shared<kernel_impl>(ctx, name)) {}

kernel::~kernel() = default;

int kernel::group_id(int argno) const {
  const uint8_t slot = handle->context.get_handle()->slot;
  if (argno == kInstructions) return static_cast<int>(MemoryGroup(slot, kInstructionBank));
  if (argno >= kFirstBuffer && argno < kFirstBuffer + kBuffers) {
    return static_cast<int>(MemoryGroup(slot, kHostBank));
  }
  Throw(EINVAL, "No memory group for kernel argument " + std::to_string(argno));
}

std::string kernel::get_name() const { return handle->name; }

xrt::xclbin kernel::get_xclbin() const { return handle->context.get_xclbin(); }

// --- one run -------------------------------------------------------------------------------------
// XRT ends the process rather than free memory that the device may still use.
run_impl::~run_impl() {
  if (!own_ || command_->seen() || std::uncaught_exceptions() > 0) return;
  std::fputs("xrt::run destructed while command is still in progress\n", stderr);
  std::abort();
}

// Sets as many bytes of the value as the argument has.
void run_impl::SetValue(int index, const void* value, size_t bytes) {
  const std::lock_guard lock(mutex_);
  switch (index) {
    case kOpcode:
      opcode_ = 0;
      std::memcpy(&*opcode_, value, std::min(bytes, sizeof(*opcode_)));
      break;
    case kInstructionCount:
      count_ = 0;
      std::memcpy(&*count_, value, std::min(bytes, sizeof(*count_)));
      break;
    default:
      Throw(EINVAL, "kernel argument " + std::to_string(index) +
                        " is a buffer or does not exist; got a value for it");
  }
}

void run_impl::SetBuffer(int index, const bo& buffer) {
  const std::shared_ptr<bo_impl>& memory = buffer.get_handle();
  const std::string argument = "kernel argument " + std::to_string(index);
  if (!memory) Throw(EINVAL, argument + ": an empty buffer");
  const bool data = index >= kFirstBuffer && index < kFirstBuffer + kBuffers;
  if (index != kInstructions && !data) {
    Throw(EINVAL, argument +
                      " is not a buffer; the kernel takes instructions as 1 and data as 3 to " +
                      std::to_string(kFirstBuffer + kBuffers - 1));
  }
  if (memory->instructions() == data) {
    Throw(EINVAL, argument + (data ? " needs a host_only buffer" : " needs a cacheable buffer"));
  }
  if (memory->device != kernel->context.get_handle()->device.get_handle()) {
    Throw(EINVAL, argument + ": the buffer belongs to another device");
  }
  const std::lock_guard lock(mutex_);
  (data ? buffers_[static_cast<size_t>(index - kFirstBuffer)] : instructions_) = {
      memory->memory(), memory->device_offset(), memory->size};
}

std::string run_impl::Unset() const {
  const std::lock_guard lock(mutex_);
  std::string names;
  const auto add = [&names](const std::string& name) {
    names += (names.empty() ? "" : ", ") + name;
  };
  if (!opcode_) add("opcode");
  if (instructions_.size == 0) add("instr");
  if (!count_) add("ninstr");
  size_t end = buffers_.size();
  while (end > 1 && buffers_[end - 1].size == 0) --end;
  for (size_t i = 0; i < end; ++i) {
    if (buffers_[i].size == 0) add("bo" + std::to_string(i));
  }
  return names;
}

run_impl::Memories run_impl::Bound() const {
  const std::lock_guard lock(mutex_);
  Memories memories{instructions_.memory};
  for (size_t i = 0; i < buffers_.size(); ++i) memories[1 + i] = buffers_[i].memory;
  return memories;
}

Json run_impl::Request() const {
  // As in the firmware: invalid values end in an error of the device, not here.
  Json words = Json::array({0, uint64_t{1} << 62});
  if (opcode_ == ort_aie::sim::kTransaction && instructions_.size > 0 &&
      count_.value_or(0) <= instructions_.size / sizeof(uint32_t)) {
    words = Json::array({instructions_.offset, count_.value_or(0)});
  }
  Json arguments = Json::array();
  for (const Span& buffer : buffers_) {
    arguments.push_back(Json::array({buffer.offset, buffer.size}));
  }
  return {{"op", "run"},
          {"context", kernel->context.get_handle()->id},
          {"kernel", kernel->name},
          {"words", std::move(words)},
          {"arguments", std::move(arguments)}};
}

void run_impl::Start(std::shared_ptr<std::atomic<bool>> failed) {
  std::shared_ptr<hw_context_impl> context = kernel->context.get_handle();
  std::shared_ptr<xrt_core::device> device = context->device.get_handle();
  device->RequirePresent("EXEC_CMD");
  std::shared_ptr<Command> command;
  Json request;
  {
    const std::lock_guard lock(mutex_);
    if (command_ && (own_ ? !command_->seen() : command_->active())) {
      throw std::runtime_error("bad command state, can't launch");
    }
    std::vector<std::shared_ptr<ort_aie::sim::Allocation>> held;
    const auto hold = [&held](const Span& span) {
      if (span.size == 0) return;
      held.push_back(span.memory.lock());
      if (!held.back()) ThrowIoctl(ENOENT, "EXEC_CMD");  // the handle of a freed buffer
    };
    hold(instructions_);
    for (const Span& buffer : buffers_) hold(buffer);
    command = command_ = std::make_shared<Command>(std::move(held));
    own_ = !failed;
    request = Request();
  }
  const int resets = context->BeginCommand();
  // Its references are released before the end is reported, because a thread that waits for the end
  // may then count the live objects.
  device->child().Post([device, context, resets, command, failed = std::move(failed),
                        request =
                            std::move(request)](ort_aie::sim::Conversation& conversation) mutable {
    Outcome outcome{ERT_CMD_STATE_ABORT, 0, "aborted"};
    if (!(failed && *failed) && command->Begin()) {
      outcome = ort_aie::sim::Execute(conversation, *device, *context, resets, std::move(request));
    }
    if (failed && outcome.state != ERT_CMD_STATE_COMPLETED) *failed = true;
    context->EndCommand();
    context.reset();
    device.reset();
    command->Finish(std::move(outcome));
  });
}

std::shared_ptr<Command> run_impl::Last() const {
  const std::lock_guard lock(mutex_);
  if (!command_) throw std::runtime_error("the run was never started");
  return command_;
}

ert_cmd_state run_impl::State() const {
  const std::lock_guard lock(mutex_);
  return command_ ? command_->Look() : ERT_CMD_STATE_NEW;
}

ert_packet* run_impl::Packet() {
  const std::shared_ptr<Command> command = Last();
  auto* const packet = reinterpret_cast<ert_packet*>(packet_.data());
  packet->opcode = ERT_START_CU;
  packet->state = static_cast<uint32_t>(command->state());
  if (command->state() == ERT_CMD_STATE_TIMEOUT) {
    const ert_ctx_health_data health = {
        ERT_CTX_HEALTH_DATA_V0, command->operation(), 0, 0, 0, 0, 0};
    static_assert(sizeof(health) == sizeof(packet_) - sizeof(packet->header));
    std::memcpy(&packet_[1], &health, sizeof(health));
  }
  return packet;
}

// --- xrt::run ------------------------------------------------------------------------------------
class run::command_error_impl {
 public:
  ert_cmd_state state;
  std::string message;
};

run::command_error::command_error(ert_cmd_state state, const std::string& what)
    : detail::pimpl<command_error_impl>(
          std::make_shared<command_error_impl>(command_error_impl{state, what})) {}

run::command_error::command_error(const xrt::run& run, const std::string& what)
    : command_error(run.state(), what) {}

ert_cmd_state run::command_error::get_command_state() const { return handle->state; }

const char* run::command_error::what() const noexcept { return handle->message.c_str(); }

run::aie_error::aie_error(const xrt::run& run, const std::string& what)
    : command_error(run, what) {}

run::run(const kernel& krnl) : handle(std::make_shared<run_impl>(krnl.get_handle())) {}

run::~run() = default;

void run::start() {
  if (handle->listed) throw std::runtime_error("a run in a runlist is started by the list");
  handle->Start();
}

// What the device has begun, the device or the watchdog ends. The runs waiting behind it never
// begin.
ert_cmd_state run::abort() {
  const std::shared_ptr<Command> command = handle->Last();
  command->Cancel();
  command->Wait(std::chrono::milliseconds(0));
  return command->state();
}

ert_cmd_state run::wait(const std::chrono::milliseconds& timeout) const {
  const std::shared_ptr<Command> command = handle->Last();
  return command->Wait(timeout) ? command->state() : ERT_CMD_STATE_TIMEOUT;
}

std::cv_status run::wait2(const std::chrono::milliseconds& timeout) const {
  const std::shared_ptr<Command> command = handle->Last();
  if (!command->Wait(timeout)) return std::cv_status::timeout;
  if (command->state() != ERT_CMD_STATE_COMPLETED) throw aie_error(*this, command->error());
  return std::cv_status::no_timeout;
}

ert_packet* run::get_ert_packet() const { return handle->Packet(); }

ert_cmd_state run::state() const { return handle->State(); }

void run::set_arg_at_index(int index, const void* value, size_t bytes) {
  handle->SetValue(index, value, bytes);
}

void run::set_arg_at_index(int index, const xrt::bo& buffer) { handle->SetBuffer(index, buffer); }

}  // namespace xrt
