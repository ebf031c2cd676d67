// The module _npu, apart from _native because most of it is compiled for an NPU alone.
#include "python/npu_module.h"

#include "python/errors.h"

PYBIND11_MODULE(_npu, m) {
  using namespace ort_aie;
  m.doc() = "C++ side of ort_aie_ep for NPUs: reasons, schedules, instruction streams.";
  RaiseErrorsAsValueError();
  npu::DefineStreams(m);
  npu_target::DefineSchedule(m);
  fused_decode::DefineFusedDecode(m);
}
