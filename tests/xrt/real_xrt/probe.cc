// XRT's own messages on a machine without an NPU.
#include <xrt/experimental/xrt_system.h>
#include <xrt/xrt_device.h>

#include <exception>
#include <iostream>

int main() {
  std::cout << "devices: " << xrt::system::enumerate_devices() << "\n";
  try {
    const xrt::device device(0);
    std::cout << "opened\n";
  } catch (const std::exception& error) {
    std::cout << "threw: " << error.what() << "\n";
  }
}
