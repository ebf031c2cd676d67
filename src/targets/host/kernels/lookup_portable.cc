// The baseline of the compiler's target: lookups one by one.
#include <stdint.h>

#include "targets/host/kernels/kernels.h"

namespace ort_aie::host {
namespace {
#include "targets/host/kernels/generic/lookup.inc"
}  // namespace

extern const LookupKernels kPortableLookup;
constinit const LookupKernels kPortableLookup = GenericLookup();

}  // namespace ort_aie::host
