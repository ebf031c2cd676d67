// Uses the stand-in for XRT as a program would use XRT. The first argument is a folder with the
// design packages of the modelled NPU (packages) and the buffers of one matvec (words, x, w,
// bias; result and `deadlock`, a stream that waits for ever); cases follow, by name.
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "targets/sim/control.h"
#include "xrt/experimental/xrt_kernel.h"
#include "xrt/experimental/xrt_system.h"
#include "xrt/experimental/xrt_xclbin.h"
#include "xrt/xrt_bo.h"
#include "xrt/xrt_device.h"
#include "xrt/xrt_hw_context.h"
#include "xrt/xrt_kernel.h"

namespace {

constexpr uint64_t kTransaction = 3;
constexpr unsigned kWait = 8000;  // ms, longer than the watchdog allows

std::string folder;

void Check(bool legal, const std::string& what) {
  if (!legal) throw std::logic_error("not so: " + what);
}
#define CHECK(condition) Check((condition), #condition " in line " + std::to_string(__LINE__))

// Runs `action`, which must fail with error `code` (0: without one) and a message that contains
// `text`.
void Refused(int code, const std::string& text, const std::function<void()>& action) {
  std::string said;
  try {
    action();
  } catch (const std::logic_error&) {
    throw;
  } catch (const std::system_error& error) {
    said = error.what();
    Check(error.code().value() == code, "error " + std::to_string(code) + " in: " + said);
  } catch (const std::runtime_error& error) {
    said = error.what();
    Check(code == 0, "an error with a code: " + said);
  }
  Check(!said.empty(), "refused: " + text);
  Check(said.find(text) != std::string::npos, "\"" + text + "\" in: " + said);
}

std::vector<char> Read(const std::string& name) {
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

std::string Overlay(const std::string& design) {
  return folder + "/packages/" + design + "/overlay.xclbin";
}

xrt::hw_context Context(const xrt::device& device, const std::string& overlay) {
  xrt::device copy = device;
  return {device, copy.register_xclbin(xrt::xclbin(overlay))};
}

// A device with fused_dqp, and the buffers of one matvec.
struct Matvec {
  Matvec()
      : device(0u), context(Context(device, Overlay("fused_dqp"))), kernel(context, "MLIR_AIE") {
    words = Instructions("words");
    for (const char* name : {"x", "w", "bias"}) buffers.push_back(Data(Read(name)));
    buffers.emplace_back(device, Read("result").size(), xrt::bo::flags::host_only,
                         kernel.group_id(6));
  }

  xrt::bo Instructions(const std::string& name) {
    const std::vector<char> data = Read(name);
    xrt::bo buffer(device, data.size(), xrt::bo::flags::cacheable, kernel.group_id(1));
    std::memcpy(buffer.map<char*>(), data.data(), data.size());
    buffer.sync(XCL_BO_SYNC_BO_TO_DEVICE);
    return buffer;
  }

  xrt::bo Data(const std::vector<char>& data) {
    xrt::bo buffer(device, data.size(), xrt::bo::flags::host_only, kernel.group_id(3));
    buffer.write(data.data());
    buffer.sync(XCL_BO_SYNC_BO_TO_DEVICE);
    return buffer;
  }

  xrt::run Prepare(const xrt::bo& instructions) {
    xrt::run run(kernel);
    run.set_arg(0, kTransaction);
    run.set_arg(1, instructions);
    run.set_arg(2, static_cast<uint32_t>(instructions.size() / sizeof(uint32_t)));
    for (int i = 0; i < 4; ++i) run.set_arg(3 + i, buffers[static_cast<size_t>(i)]);
    return run;
  }

  xrt::run Start(const xrt::bo& instructions) {
    xrt::run run = Prepare(instructions);
    run.start();
    return run;
  }

  ert_cmd_state Run() { return Start(words).wait(kWait); }

  std::vector<char> Result() {
    xrt::bo& y = buffers[3];
    y.sync(XCL_BO_SYNC_BO_FROM_DEVICE);
    const char* const bytes = std::as_const(y).map<const char*>();
    return {bytes, bytes + y.size()};
  }

  bool Right() { return Result() == Read("result"); }

  bool Poison() {
    for (const char byte : Result()) {
      if (byte != '\xFF') return false;
    }
    return true;
  }

  xrt::device device;
  xrt::hw_context context;
  xrt::kernel kernel;
  xrt::bo words;
  std::vector<xrt::bo> buffers;
};

// --- what works ----------------------------------------------------------------------------------

void BytesMoveBySyncAlone() {
  Matvec matvec;
  CHECK(matvec.Poison());  // nothing has run
  CHECK(matvec.Run() == ERT_CMD_STATE_COMPLETED);
  const char* const host = std::as_const(matvec.buffers[3]).map<const char*>();
  CHECK(host[0] == '\xFF');  // the bytes of the previous sync
  CHECK(matvec.Right());

  // The device works on its own copy until a sync brings what the host has written.
  std::memset(matvec.buffers[0].map<char*>(), 0, matvec.buffers[0].size());
  CHECK(matvec.Run() == ERT_CMD_STATE_COMPLETED);
  CHECK(matvec.Right());
  matvec.buffers[0].sync(XCL_BO_SYNC_BO_TO_DEVICE);
  CHECK(matvec.Run() == ERT_CMD_STATE_COMPLETED);
  CHECK(!matvec.Right());

  // Syncs a part and nothing beside it.
  xrt::bo& y = matvec.buffers[3];
  std::memset(y.map<char*>(), 7, y.size());
  y.sync(XCL_BO_SYNC_BO_TO_DEVICE);
  std::memset(y.map<char*>(), 0, y.size());
  y.sync(XCL_BO_SYNC_BO_FROM_DEVICE, 4, 8);
  CHECK(y.map<char*>()[7] == 0 && y.map<char*>()[8] == 7 && y.map<char*>()[12] == 0);
}

void Runlist() {
  Matvec matvec;
  xrt::runlist list(matvec.context);
  CHECK(list.state() == ERT_CMD_STATE_COMPLETED);  // XRT's answer for an empty list
  list.execute();
  CHECK(list.wait(std::chrono::milliseconds(kWait)) == std::cv_status::no_timeout);
  for (int i = 0; i < 6; ++i) list.add(matvec.Prepare(matvec.words));  // more than can be under way
  list.execute();
  // Whether or not the runs are over: XRT does not know before a wait.
  const xrt::run late = matvec.Prepare(matvec.words);
  Refused(0, "is executing", [&] { list.add(late); });
  Refused(0, "is executing", [&] { list.execute(); });
  Refused(0, "is executing", [&] { list.reset(); });
  CHECK(list.wait(std::chrono::milliseconds(kWait)) == std::cv_status::no_timeout);
  CHECK(list.state() == ERT_CMD_STATE_COMPLETED);
  CHECK(Counts().runs == 6);
  CHECK(matvec.Right());

  list.reset();
  xrt::run good = matvec.Prepare(matvec.words);
  list.add(good);
  Refused(0, "in a runlist already", [&] { list.add(good); });
  Refused(0, "started by the list", [&] { good.start(); });
  xrt::run bad = matvec.Prepare(matvec.words);
  bad.set_arg(2, uint32_t{3});
  list.add(bad);
  xrt::run after = matvec.Prepare(matvec.words);
  list.add(after);
  list.execute();
  bool failed = false;
  try {
    list.wait(std::chrono::milliseconds(kWait));
  } catch (const xrt::runlist::command_error& error) {
    failed = true;
    CHECK(error.get_command_state() == ERT_CMD_STATE_ERROR);
    CHECK(error.get_run().get_handle() == bad.get_handle());
  }
  CHECK(failed);
  CHECK(good.state() == ERT_CMD_STATE_COMPLETED);
  CHECK(after.state() == ERT_CMD_STATE_ABORT);
  list.reset();  // throwing the error ends the execution
}

void RunlistsBindTheBuffersThatARunHas() {
  Matvec matvec;
  xrt::runlist list(matvec.context);
  const auto run_list = [&] {
    list.execute();
    CHECK(list.wait(std::chrono::milliseconds(kWait)) == std::cv_status::no_timeout);
  };
  xrt::run run(matvec.kernel);
  Refused(0, "no argument opcode, instr, ninstr, bo0;", [&] { list.add(run); });
  run.set_arg(0, kTransaction);
  run.set_arg(1, matvec.words);
  run.set_arg(2, static_cast<uint32_t>(matvec.words.size() / sizeof(uint32_t)));
  Refused(0, "no argument bo0;", [&] { list.add(run); });
  for (int i : {0, 3}) run.set_arg(3 + i, matvec.buffers[static_cast<size_t>(i)]);
  Refused(0, "no argument bo1, bo2;", [&] { list.add(run); });
  for (int i : {1, 2}) run.set_arg(3 + i, matvec.buffers[static_cast<size_t>(i)]);
  list.add(run);
  run_list();
  CHECK(matvec.Right());

  // The same buffer again, or another part of it, is one that the driver has pinned.
  run.set_arg(4, matvec.buffers[1]);
  run_list();
  const xrt::bo other = matvec.Data(Read("w"));
  run.set_arg(4, other);
  Refused(0, "Run 0 of the runlist has other buffers", [&] { list.execute(); });
  CHECK(Counts().runs == 2);
  list.reset();
  list.add(run);
  run_list();
  CHECK(matvec.Right());

  const xrt::bo words = matvec.Instructions("words");
  run.set_arg(1, words);
  Refused(0, "Run 0 of the runlist has other buffers", [&] { list.execute(); });
}

void RunsDoNotKeepTheirBuffers() {
  Matvec matvec;
  xrt::run run = matvec.Prepare(matvec.words);
  const int64_t buffers = Counts().buffers;
  matvec.buffers[1] = xrt::bo();
  CHECK(Counts().buffers == buffers - 1);
  Refused(ENOENT, "EXEC_CMD", [&] { run.start(); });
  matvec.buffers[1] = matvec.Data(Read("w"));
  run.set_arg(4, matvec.buffers[1]);
  run.start();
  CHECK(run.wait(kWait) == ERT_CMD_STATE_COMPLETED);
  CHECK(matvec.Right());
}

// For XRT a run goes on until a wait or a state query has seen the end.
void RunsEndWhenTheirEndIsSeen() {
  Matvec matvec;
  xrt::run run = matvec.Start(matvec.words);
  while (Counts().runs == 0) usleep(1000);
  usleep(10000);  // over, although no one knows
  Refused(0, "can't launch", [&] { run.start(); });
  CHECK(run.wait(kWait) == ERT_CMD_STATE_COMPLETED);
  run.start();
  while (run.state() < ERT_CMD_STATE_COMPLETED) usleep(1000);
  CHECK(matvec.Right());
}

void RunDestroyedUnseen() {  // ends the process
  Matvec matvec;
  matvec.Start(matvec.words);
}

// --- what goes wrong -----------------------------------------------------------------------------
void WatchdogResetsTheContext() {
  Matvec matvec;
  Matvec other;
  const xrt::bo deadlock = matvec.Instructions("deadlock");
  kill(ort_aie_sim_child(), SIGSTOP);  // until all are submitted
  xrt::run run = matvec.Start(deadlock);
  xrt::run behind = matvec.Start(matvec.words);  // of the same context
  xrt::run beside = other.Start(other.words);
  kill(ort_aie_sim_child(), SIGCONT);
  CHECK(run.wait2(std::chrono::milliseconds(500)) ==
        std::cv_status::timeout);  // in the device's time
  CHECK(run.wait(kWait) == ERT_CMD_STATE_TIMEOUT);
  CHECK(run.state() == ERT_CMD_STATE_TIMEOUT);
  bool failed = false;
  try {
    run.wait2();
  } catch (const xrt::run::command_error& error) {
    failed = true;
    CHECK(error.get_command_state() == ERT_CMD_STATE_TIMEOUT);
    CHECK(std::string(error.what()).find("deadlock") != std::string::npos);
  }
  CHECK(failed);
  CHECK(behind.wait(kWait) == ERT_CMD_STATE_ABORT);
  CHECK(beside.wait(kWait) == ERT_CMD_STATE_COMPLETED);
  CHECK(other.Right());
  CHECK(matvec.Run() == ERT_CMD_STATE_COMPLETED);
  CHECK(matvec.Right());
  CHECK(Counts().device_seconds > 2);
}

void ChildKilledInARun() {
  Matvec matvec;
  std::vector<xrt::run> runs;
  kill(ort_aie_sim_child(), SIGSTOP);
  for (int i = 0; i < 3; ++i) runs.push_back(matvec.Start(matvec.words));
  kill(ort_aie_sim_child(), SIGKILL);
  Refused(ENODEV, "IOCTL failed", [&] { runs[2].wait(kWait); });
  for (const xrt::run& run : runs) CHECK(run.state() == ERT_CMD_STATE_NORESPONSE);
  CHECK(xrt::system::enumerate_devices() == 0);
  CHECK(ort_aie_sim_child() == 0);
  Refused(EINVAL, "No such device with index '0'", [] { xrt::device device(0u); });
  Refused(ENODEV, "EXEC_CMD", [&] { matvec.Run(); });
  Refused(ENODEV, "CREATE_BO", [&] { matvec.Data(Read("x")); });
  Refused(ENODEV, "CREATE_HWCTX",
          [&] { xrt::hw_context context(matvec.device, matvec.context.get_xclbin_uuid()); });
  Refused(ENODEV, "GET_INFO", [&] { matvec.device.get_info<xrt::info::device::name>(); });
  matvec.Result();  // caches are still the host's
  ort_aie_sim_plug_in();
  Matvec again;
  CHECK(again.Run() == ERT_CMD_STATE_COMPLETED);
  CHECK(again.Right());
  CHECK(again.device != matvec.device);
  Refused(ENODEV, "EXEC_CMD", [&] { matvec.Run(); });
}

// For the test that kills this process.
void PrintChildAndStay() {
  Matvec matvec;
  std::printf("%d\n", ort_aie_sim_child());
  std::fflush(stdout);
  pause();
}

const std::map<std::string, void (*)()> kCases = {
#define CASE(name) {#name, name}
    CASE(BytesMoveBySyncAlone),
    CASE(Runlist),
    CASE(RunlistsBindTheBuffersThatARunHas),
    CASE(RunsDoNotKeepTheirBuffers),
    CASE(RunsEndWhenTheirEndIsSeen),
    CASE(RunDestroyedUnseen),
    CASE(WatchdogResetsTheContext),
    CASE(ChildKilledInARun),
    CASE(PrintChildAndStay),
};

}  // namespace

int main(int count, char** arguments) {
  if (count < 3) {
    std::fprintf(stderr, "usage: standin_test FOLDER CASE...\n");
    return 2;
  }
  folder = arguments[1];
  // Several share the process of the modelled NPU: it takes as long to start as most cases take.
  std::optional<xrt::device> kept;
  for (int i = 2; i < count; ++i) {
    if (count > 3) kept = xrt::device(0u);
    ort_aie_sim_get_counts(&before);
    try {
      kCases.at(arguments[i])();
      CHECK(Counts().buffers == 0);
      CHECK(Counts().buffer_bytes == 0);
      CHECK(Counts().instruction_bytes == 0);
      CHECK(Counts().contexts == 0);
      CHECK(kept || ort_aie_sim_child() == 0);
    } catch (const std::exception& error) {
      std::fprintf(stderr, "%s: %s\n", arguments[i], error.what());
      return 1;
    }
    ort_aie_sim_inject("");
  }
  return 0;
}
