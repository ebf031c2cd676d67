// xrt::runlist: runs of one context, in order; the first that fails ends the list.
//
// Adding a run binds its current buffers to the list, and the driver pins these and no others. XRT
// does not notice arguments that are set later, and the device may write to memory that no longer
// exists. Here this is an error.
#include <algorithm>
#include <span>
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
    bound.clear();
  }

  const hw_context context;
  std::vector<run> runs;
  std::vector<run_impl::Memories> bound;  // for each run, when it was added
  bool running = false;                   // until a wait or a check of the state has seen the end
  size_t started = 0;                     // fewer than the runs if a submission failed
  double passed = 0;                      // seconds of the device's time that waits have seen
};

namespace {

bool Same(const run_impl::Memories& a, const run_impl::Memories& b) {
  return std::ranges::equal(
      a, b, [](const auto& x, const auto& y) { return !x.owner_before(y) && !y.owner_before(x); });
}

}  // namespace

class runlist::command_error_impl {
 public:
  run failed;
  ert_cmd_state state;
  std::string message;
};

runlist::command_error::command_error(const xrt::run& run, ert_cmd_state state,
                                      const std::string& what)
    : detail::pimpl<command_error_impl>(
          std::make_shared<command_error_impl>(command_error_impl{run, state, what})) {}

xrt::run runlist::command_error::get_run() const { return handle->failed; }

ert_cmd_state runlist::command_error::get_command_state() const { return handle->state; }

const char* runlist::command_error::what() const noexcept { return handle->message.c_str(); }

runlist::aie_error::aie_error(const xrt::run& run, ert_cmd_state state, const std::string& what)
    : command_error(run, state, what) {}

// NPU1's firmware has no reliable command chains.
runlist::runlist(const xrt::hw_context& hwctx)
    : detail::pimpl<runlist_impl>(std::make_shared<runlist_impl>(hwctx)) {
  if (hwctx.get_device().get_handle()->first_generation()) {
    Throw(ENOTSUP, "no runlists on this NPU");
  }
}

runlist::~runlist() = default;

void runlist::add(const xrt::run& run) {
  if (handle->running)
    throw std::runtime_error("The runlist is executing: wait before adding runs");
  if (run.get_handle()->listed) throw std::runtime_error("The run is in a runlist already");
  if (run.get_handle()->kernel->context.get_handle() != handle->context.get_handle()) {
    throw std::runtime_error("The run belongs to another context than the runlist");
  }
  if (const std::string unset = run.get_handle()->Unset(); !unset.empty()) {
    throw std::runtime_error("The run has no argument " + unset +
                             "; adding a run to a runlist binds its arguments: set them first");
  }
  run.get_handle()->listed = true;
  handle->runs.push_back(run);
  handle->bound.push_back(run.get_handle()->Bound());
}

void runlist::add(xrt::run&& run) { add(std::as_const(run)); }

void runlist::execute() {
  if (handle->running)
    throw std::runtime_error("The runlist is executing: wait before executing it again");
  for (size_t i = 0; i < handle->runs.size(); ++i) {
    if (Same(handle->runs[i].get_handle()->Bound(), handle->bound[i])) continue;
    throw std::runtime_error("Run " + std::to_string(i) +
                             " of the runlist has other buffers than when it was added: reset the "
                             "list and add its runs again");
  }
  const auto failed = std::make_shared<std::atomic<bool>>(false);
  handle->started = 0;
  handle->passed = 0;
  handle->running = !handle->runs.empty();  // for XRT also if the submission throws
  for (const run& member : handle->runs) {
    member.get_handle()->Start(failed);
    ++handle->started;
  }
}

std::cv_status runlist::wait(const std::chrono::milliseconds& timeout) const {
  if (!handle->running) return std::cv_status::no_timeout;
  const double limit = std::chrono::duration<double>(timeout).count();
  const std::span started(handle->runs.data(), handle->started);
  double seconds = 0;
  for (const run& member : started) seconds += member.get_handle()->Last()->seconds();
  if (limit > 0 && seconds - handle->passed > limit) {
    handle->passed += limit;
    return std::cv_status::timeout;
  }
  handle->running = false;
  for (const run& member : started) {
    const ert_cmd_state state = member.wait(std::chrono::milliseconds(0));
    if (state == ERT_CMD_STATE_COMPLETED) continue;
    throw aie_error(member, state, member.get_handle()->Last()->error());
  }
  return std::cv_status::no_timeout;
}

ert_cmd_state runlist::state() const {
  if (!handle->running) return ERT_CMD_STATE_COMPLETED;
  if (handle->started > 0) {
    const ert_cmd_state last = handle->runs[handle->started - 1].state();
    if (last < ERT_CMD_STATE_COMPLETED) return last;
  }
  try {
    wait(std::chrono::milliseconds(0));
    return ERT_CMD_STATE_COMPLETED;
  } catch (const command_error& error) {
    return error.get_command_state();
  }
}

void runlist::reset() {
  if (handle->running)
    throw std::runtime_error("The runlist is executing: wait before resetting it");
  handle->Clear();
}

}  // namespace xrt
