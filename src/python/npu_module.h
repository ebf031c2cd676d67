// The parts of the module _npu.
#pragma once

#include <pybind11/pybind11.h>

namespace ort_aie::npu {

// Instruction streams: src/npu.
void DefineStreams(pybind11::module_& m);

}  // namespace ort_aie::npu

namespace ort_aie::npu_target {

// What an NPU would do with a plan, and what it leaves to the host: src/targets/npu/schedule.
void DefineSchedule(pybind11::module_& m);

}  // namespace ort_aie::npu_target

namespace ort_aie::fused_decode {

// What mlir-air's fused decode reads: src/targets/npu/fused_decode.
void DefineFusedDecode(pybind11::module_& m);

}  // namespace ort_aie::fused_decode
