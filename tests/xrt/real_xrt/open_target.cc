// Opens the xrt target as the core library does, and says what came of it.
#include <cstdlib>
#include <iostream>

namespace ort_aie {
class Target;
}

extern "C" const ort_aie::Target* ort_aie_open_target(const char* options_json, char** error);

int main(int argc, char** argv) {
  char* error = nullptr;
  const ort_aie::Target* target = ort_aie_open_target(argc > 1 ? argv[1] : "{}", &error);
  std::cout << (target != nullptr ? "opened" : "refused") << "\n";
  if (error != nullptr) std::cout << "error: " << error << "\n";
  std::free(error);
}
