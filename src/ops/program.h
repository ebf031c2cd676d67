// A recipe that can be executed: its ops, and one arena for what they leave for each other.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "ops/recipe.h"

namespace ort_aie {

class Program {
 public:
  // The tensor that a value is in every call, absent where it is not known before one. It stays
  // where it is for as long as the program lives.
  using Constants = std::function<Tensor(int value)>;

  // Throws Error, naming the step, for attributes or constants that do not fit together.
  Program(Recipe recipe, const Constants& constants, const Options& options);
  ~Program();

  // Where inputs and outputs of a call lie.
  class Io {
   public:
    virtual ~Io() = default;
    virtual Tensor Input(int input) const = 0;
    // Null where the caller has no such output.
    virtual void* Output(int output, DataType type, const Shape& shape) const = 0;
  };

  // Makes the plan of a call and gives it to execute(Plan&), in which time it lives. Several
  // threads may call at once: each has temporaries of its own.
  void Call(const Io& io, const std::function<void(Plan&)>& execute) const;

 private:
  struct Step {
    std::unique_ptr<Op> op;
    const OpDescription* description;
    std::vector<int> dead;  // temporaries that nobody reads after it
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
  std::vector<int> output_of_;     // by value: the node's output, or kAbsent
  std::shared_ptr<KeptState> kept_ = std::make_shared<KeptState>();
  mutable std::mutex mutex_;
  mutable std::vector<std::unique_ptr<Frame>> frames_;  // nobody uses them now
};

}  // namespace ort_aie
