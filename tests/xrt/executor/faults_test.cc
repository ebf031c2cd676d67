// A device that fails.
#include <functional>

#include "generator.h"
#include "projection.h"

namespace ort_aie::npu_target {
namespace {

// The steps of each kind; `run` executes them and checks the results.
struct Work {
  const char* name;
  std::function<void(const Bench&)> run;
};

std::vector<Work> AllWork() {
  const auto project = [](const ProjectionCase& c) {
    return [c](const Bench& bench) {
      Projection projection(c);
      const auto want = projection.OnHost();
      const Values a = projection.a;
      bench.Run({projection.Step()});
      projection.Compare(want);
      Check(a.bytes == projection.a.bytes, "an input changed");
    };
  };
  const auto attend = [](int64_t tokens) {
    return [tokens](const Bench& bench) {
      const Layer layer;
      Generator generator(layer, 64);
      generator.Append(*bench.target, tokens);
      for (int i = 0; i < 3; ++i) generator.Append(*bench.target, 1);
    };
  };
  return {{"token's projection", project({.norm = true, .skip = true, .gated = true})},
          {"prompt's projection", project({.rows = 3, .norm = true, .skip = true})},
          {"unquantised projection", project({.rows = 3, .bias = true, .form = kBf16})},
          {"attention of a token", attend(1)},
          {"attention of a prompt", attend(9)}};
}

void AFaultIsCuredByAFreshContext() {
  for (const Work& work : AllWork()) {
    for (const int64_t faulty : {0, 1, 2}) {
      Bench bench;
      bench.device->before_run = [&](int64_t run) {
        if (run == faulty) throw DeviceError(Fault::kTimeout, "a run took more than 2.5 s");
      };
      for (int i = 0; i < 3; ++i) work.run(bench);
      const ExecutorCounters counters = bench.target->counters();
      Check(counters.retries == 1 && counters.fallbacks == 0 && counters.host_steps.empty(),
            work.name, ": ", counters.retries, " retries, ", counters.fallbacks, " fallbacks");
      Check(bench.device->resets == 1 && bench.target->device_in_use(), "one fresh context");
      Check(bench.lines.size() == 1 && bench.lines[0].find("2.5 s") != std::string::npos, work.name,
            ": one line that says what happened, got ", bench.lines.size());
      Check(bench.device->counters().buffers <= 2, work.name,
            ": buffers of closed ops: ", bench.device->counters().buffers);
      bench.target.reset();  // with the scratch memory for prompts
      Check(bench.device->counters().buffers == 0, bench.device->counters().buffers, " are left");
    }
  }
}

void ALostDeviceIsGivenUp() {
  for (const Work& work : AllWork()) {
    for (const int64_t faulty : {0, 1, 2}) {
      Bench bench;
      bench.device->before_run = [&](int64_t run) {
        if (run >= faulty) throw DeviceError(Fault::kDeviceLost, "it is gone");
      };
      for (int i = 0; i < 3; ++i) work.run(bench);
      const ExecutorCounters counters = bench.target->counters();
      Check(counters.retries == 1 && counters.fallbacks == 1, work.name, ": ", counters.retries,
            " retries, ", counters.fallbacks, " fallbacks");
      Check(counters.host_steps.size() == 1 && !bench.target->device_in_use(), "the host goes on");
      Check(bench.lines.size() == 1 && bench.lines[0].find("it is gone") != std::string::npos,
            work.name, ": one line, got ", bench.lines.size());
      const int64_t runs = bench.runs();
      work.run(bench);
      Check(bench.runs() == runs, "no more runs");
    }
  }
  // Each op that lives on gives up its state on the device when it next runs.
  const Layer layer;
  Bench kept;
  Projection token({}), prompt({.rows = 3});
  Generator generator(layer, 64);
  const auto all = [&] {
    generator.Append(*kept.target, 9);
    generator.Append(*kept.target, 1);
    kept.Run({token.Step(), prompt.Step()});
  };
  all();
  kept.device->before_run = [](int64_t) { throw DeviceError(Fault::kDeviceLost, "it is gone"); };
  all();
  Check(kept.device->resets == 2, "contexts are given up, too");
  Check(kept.device->counters().buffers == 0, kept.device->counters().buffers, " buffers left");
  // Never int8 in mid-session.
  Bench bench;
  bench.device->before_run = [](int64_t) { throw DeviceError(Fault::kRunError, "stopped"); };
  Projection fails({}), projection({});
  bench.Run({fails.Step()});
  const auto want = projection.OnHost();
  MatMulStep step = projection.Step();
  step.numerics = Numerics::kInt8;
  bench.Run({step});
  Check(projection.y.bytes == want.y.bytes, "bf16 numerics after a fault");
}

void RaisingLeavesOutputsAlone() {
  ExecutorOptions options;
  options.raise_on_error = true;
  for (const int64_t rows : {1, 3}) {
    Bench bench(kAll, options);
    bool fails = true;
    bench.device->before_run = [&](int64_t) {
      if (fails) throw DeviceError(Fault::kRunError, "error state");
    };
    Projection projection({.rows = rows, .norm = true, .skip = true});
    const Values y = projection.y, sum = projection.sum;
    std::string message;
    try {
      bench.Run({projection.Step()});
    } catch (const Error& error) {
      message = error.what();
    }
    Check(message.find("error state") != std::string::npos &&
              message.find("NPU Reference") != std::string::npos,
          "the error says what and where, got: ", message);
    Check(projection.y.bytes == y.bytes && projection.sum.bytes == sum.bytes, "outputs changed");
    Check(bench.lines.empty() && bench.target->device_in_use(), "nothing is given up");
    fails = false;
    const auto want = projection.OnHost();
    bench.Run({projection.Step()});
    projection.Compare(want);
    Check(bench.target->counters().host_steps.empty(), "the device again");
  }
}

void NoMemory() {
  for (const Work& work : AllWork()) {
    Bench bench;
    bench.device->before_allocation = [](size_t bytes) {
      throw DeviceError(Fault::kAllocation, Concat("no memory for ", bytes, " bytes"));
    };
    work.run(bench);
    Check(bench.lines.size() == 1 && bench.lines[0].find("no memory") != std::string::npos,
          work.name, ": one line");
    Check(!bench.target->device_in_use() && bench.runs() == 0, "the host goes on");
    Check(bench.device->counters().buffers == 0, "buffers: ", bench.device->counters().buffers);
  }
}

const Cases kFaultsCases({
    {"a_fault_is_cured_by_a_fresh_context", AFaultIsCuredByAFreshContext},
    {"a_lost_device_is_given_up", ALostDeviceIsGivenUp},
    {"raising_leaves_outputs_alone", RaisingLeavesOutputsAlone},
    {"no_memory", NoMemory},
});

}  // namespace
}  // namespace ort_aie::npu_target
