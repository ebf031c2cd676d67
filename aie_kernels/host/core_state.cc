// For the loader: a core as it is after power-up.

#include <aie_api/aie.hpp>

extern "C" void aie_host_power_up() { aie::detail::core = {}; }
