// A recipe that can be executed: its ops, and one arena for the values between them.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "ops/recipe.h"

namespace ort_aie {

class Program {
 public:
  // The tensor of a value that is the same in every call; absent if it is not known before a call.
  // The tensor must stay in place as long as the program lives.
  using Constants = std::function<Tensor(int value)>;

  // Throws Error, naming the step, if attributes or constants do not fit together.
  Program(Recipe recipe, const Constants& constants, const Options& options);
  ~Program();

  // The inputs and outputs of a call.
  class Io {
   public:
    virtual ~Io() = default;
    virtual Tensor Input(int input) const = 0;
    // Null if the caller has no such output.
    virtual void* Output(int output, DataType type, const Shape& shape) const = 0;
  };

  // Makes the plan of a call and passes it to execute(Plan&); the plan lives until that returns.
  // Several threads may call at once: each has its own temporaries.
  void Call(const Io& io, const std::function<void(Plan&)>& execute) const;

 private:
  struct Step {
    std::unique_ptr<Op> op;
    const OpDescription* description;
    std::vector<int> dead;  // temporaries that no later step reads
  };
  struct Frame;

  void Describe(Frame& frame) const;
  void PlaceTemporaries(Frame& frame) const;
  void Gather(const Frame& frame, size_t step, std::span<Tensor> inputs) const;
  [[noreturn]] void FailAt(size_t step, const Error& error) const;
  std::unique_ptr<Frame> TakeFrame() const;

  const Recipe recipe_;
  std::vector<Step> steps_;
  std::vector<Tensor> constants_;  // by value
  std::vector<int> output_of_;     // by value: its number among the node's outputs, or kAbsent
  std::shared_ptr<KeptState> kept_ = std::make_shared<KeptState>();
  mutable std::mutex mutex_;
  mutable std::vector<std::unique_ptr<Frame>> frames_;  // those not in use
};

}  // namespace ort_aie
