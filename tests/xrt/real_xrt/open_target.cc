// Opens the xrt target with the options of the command line, in JSON, as the core library does, and
// prints the outcome.
#include <cstdlib>
#include <iostream>

namespace ort_aie {
class Target;
class Trace;
}  // namespace ort_aie

extern "C" const ort_aie::Target* ort_aie_open_target(const char* options_json,
                                                      ort_aie::Trace* trace, char** error);

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  char* error = nullptr;
  const ort_aie::Target* target = ort_aie_open_target(argv[1], nullptr, &error);
  std::cout << (target != nullptr ? "opened" : "refused") << "\n";
  if (error != nullptr) std::cout << "error: " << error << "\n";
  std::free(error);
}
