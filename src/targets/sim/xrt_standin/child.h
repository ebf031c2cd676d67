// The process that is the modelled NPU, and the thread that talks to it.
#pragma once

#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <thread>

namespace ort_aie::sim {

using Json = nlohmann::json;

// The child has gone, or does not answer. For the device's driver, the device was removed.
class ChildLost : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Handles one request at a time. Only the thread of `Child` uses it.
class Conversation {
 public:
  virtual ~Conversation() = default;
  // Sends a line and returns the reply. Throws ChildLost, and after the first time always.
  virtual Json Ask(const Json& request) = 0;
  virtual void Kill() = 0;
};

class Child {
 public:
  // `memory` is the file descriptor of the device's memory. The process starts on the first
  // request.
  Child(std::string device, int memory);
  ~Child();
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  // Runs `job` on the thread, in order; it must not throw.
  void Post(std::function<void(Conversation&)> job);

  // Sends a request, in order with the jobs, and returns the reply. Throws ChildLost.
  Json Ask(Json request);

  // 0 before the child starts and after it has gone.
  int process() const;

 private:
  struct State;
  std::shared_ptr<State> state_;
  std::thread thread_;
};

}  // namespace ort_aie::sim
