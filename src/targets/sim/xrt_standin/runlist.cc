// xrt::runlist: runs of one context, in order; the first that fails ends the list.
#include <utility>

#include "targets/sim/xrt_standin/run.h"

namespace xrt {

using ort_aie::sim::Throw;

class runlist_impl {
 public:
  explicit runlist_impl(hw_context context) : context(std::move(context)) {}
  ~runlist_impl() { Clear(); }

  void Clear() {
    for (const run& member : runs) member.get_handle()->listed = false;
    runs.clear();
    started = 0;
  }

  // Whether runs that were started are not known to have ended.
  bool Active() const { return started > 0 && runs[started - 1].get_handle()->Last()->active(); }

  const hw_context context;
  std::vector<run> runs;
  size_t started = 0;
};

class runlist::command_error_impl {
 public:
  run failed;
  ert_cmd_state state;
  std::string message;
  ort_aie::sim::Health health = ort_aie::sim::HealthAt(ort_aie::sim::kNoOperation);
};

runlist::command_error::command_error(const xrt::run& run, ert_cmd_state state,
                                      const std::string& what)
    : detail::pimpl<command_error_impl>(
          std::make_shared<command_error_impl>(command_error_impl{run, state, what})) {}

xrt::run runlist::command_error::get_run() const { return handle->failed; }

ert_cmd_state runlist::command_error::get_command_state() const { return handle->state; }

const char* runlist::command_error::what() const noexcept { return handle->message.c_str(); }

runlist::aie_error::aie_error(const xrt::run& run, ert_cmd_state state, const std::string& what)
    : command_error(run, state, what) {
  get_handle()->health = ort_aie::sim::HealthAt(run.get_handle()->Last()->operation());
}

xrt::detail::span<const uint32_t> runlist::aie_error::data() const {
  const ort_aie::sim::Health& health = get_handle()->health;
  return {health.data(), health.size()};
}

// NPU1's firmware has no command chains that can be relied on.
runlist::runlist(const xrt::hw_context& hwctx)
    : detail::pimpl<runlist_impl>(std::make_shared<runlist_impl>(hwctx)) {
  if (hwctx.get_device().get_handle()->first_generation()) {
    Throw(ENOTSUP, "no runlists on this NPU");
  }
}

runlist::~runlist() = default;

void runlist::add(const xrt::run& run) {
  if (handle->Active()) throw std::runtime_error("Cannot add a run to a runlist that is executing");
  if (run.get_handle()->listed) throw std::runtime_error("The run is in a runlist already");
  if (run.get_handle()->kernel->context.get_handle() != handle->context.get_handle()) {
    throw std::runtime_error("The run is of another context than the runlist");
  }
  run.get_handle()->listed = true;
  handle->runs.push_back(run);
}

void runlist::add(xrt::run&& run) { add(std::as_const(run)); }

void runlist::execute() {
  if (handle->Active()) throw std::runtime_error("The runlist is executing");
  handle->started = 0;
  for (const run& member : handle->runs) {
    member.get_handle()->Start();
    ++handle->started;
  }
}

std::cv_status runlist::wait(const std::chrono::milliseconds& timeout) const {
  for (size_t i = 0; i < handle->started; ++i) {
    const run& member = handle->runs[i];
    const ert_cmd_state state = member.wait(timeout);
    if (state == ERT_CMD_STATE_COMPLETED) continue;
    if (state == ERT_CMD_STATE_TIMEOUT && member.state() != ERT_CMD_STATE_TIMEOUT) {
      return std::cv_status::timeout;
    }
    throw aie_error(member, state, member.get_handle()->Last()->error());
  }
  return std::cv_status::no_timeout;
}

ert_cmd_state runlist::state() const {
  if (handle->started == 0) return ERT_CMD_STATE_NEW;
  for (size_t i = 0; i < handle->started; ++i) {
    const ert_cmd_state state = handle->runs[i].state();
    if (state != ERT_CMD_STATE_COMPLETED) return state;
  }
  return ERT_CMD_STATE_COMPLETED;
}

void runlist::reset() {
  if (handle->Active()) throw std::runtime_error("The runlist is executing");
  handle->Clear();
}

}  // namespace xrt
