// The kernels of files_avx2_vnni.cc on any CPU with AVX2, as in avx2_vnni_standin.cc.
#include "avx2_vnni_standin.h"
#include "targets/host/kernels/kernels.h"

namespace ort_aie::host {
namespace {
#include "targets/host/kernels/files_avx2.inc"
}  // namespace

extern const FileTable kAvx2VnniStandinFiles;
constinit const FileTable kAvx2VnniStandinFiles = GenericFiles<true>(kMostFileRows);

}  // namespace ort_aie::host
