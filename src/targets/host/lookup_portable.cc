// The baseline of the compiler's target: lookups one by one.
#include <stdint.h>

#include "targets/host/kernels.h"

namespace ort_aie::host {
namespace {
#include "targets/host/lookup_generic.inc"
}  // namespace

extern const LookupKernels kPortableLookup;
constinit const LookupKernels kPortableLookup = GenericLookup();

}  // namespace ort_aie::host
