#include "targets/trace.h"

#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <locale>
#include <system_error>

#include "base/json.h"
#include "base/platform.h"

namespace ort_aie {
namespace {

// About 130 MB of memory and 250 MB of file; viewers do not take more either.
constexpr size_t kMaxEvents = 1'000'000;

std::atomic<Trace*> used = nullptr;  // in another library

std::string PathOfTrace() {
  const std::string path = platform::Environment("ORT_AIE_TRACE");
  return path.empty() ? "ort_aie_trace.json" : path;
}

// The system's number, because libraries would number the same thread differently.
int ThisThread() {
  thread_local const int number = platform::ThreadId();
  return number;
}

int64_t Nanoseconds(Trace::Clock::duration time) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(time).count();
}

std::string Microseconds(int64_t nanoseconds) {
  char text[32];
  const double microseconds = static_cast<double>(nanoseconds) / 1e3;
  char* const end =
      std::to_chars(text, text + sizeof(text), microseconds, std::chars_format::fixed, 3).ptr;
  return {text, end};
}

}  // namespace

Trace& Trace::OfProcess() {
  Trace* trace = used.load(std::memory_order_acquire);
  return trace != nullptr ? *trace : OfThisLibrary();
}

Trace& Trace::OfThisLibrary() {
  static auto& trace = *new Trace();  // targets may be closed when the process ends
  return trace;
}

void Trace::UseThatOf(Trace& trace) { used.store(&trace, std::memory_order_release); }

Trace::Trace() : path_(PathOfTrace()) {
  std::atexit([] { OfThisLibrary().Write(); });
}

std::shared_ptr<const void> Trace::Join() {
  ++users_;
  return {this, [](Trace* trace) {
            if (--trace->users_ == 0) trace->Write();
          }};
}

const std::string* Trace::Keep(std::string_view text) {
  const auto known = texts_.find(text);
  return known != texts_.end() ? &*known : &*texts_.emplace(text).first;
}

void Trace::Add(const char* category, std::string_view name, std::string_view node,
                const Facts& facts, Time begin, Time end) {
  const int thread = ThisThread();
  const std::lock_guard lock(mutex_);
  written_ = false;
  if (events_.size() == kMaxEvents) {
    ++left_out_;
    return;
  }
  events_.push_back({category, Keep(name), Keep(node), Nanoseconds(begin - start_),
                     Nanoseconds(end - begin), facts, thread});
}

void Trace::Write() noexcept try {
  const std::lock_guard lock(mutex_);
  if (written_) return;
  const std::string partial = path_ + "." + std::to_string(platform::ProcessId());
  {
    std::ofstream file(platform::PathOf(partial), std::ios::binary);
    file.imbue(std::locale::classic());
    file << "{\"displayTimeUnit\":\"ns\",\"otherData\":{\"events_left_out\":" << left_out_
         << "},\"traceEvents\":[\n";
    const char* comma = "";
    for (const Event& event : events_) {
      file << comma << "{\"ph\":\"X\",\"pid\":" << platform::ProcessId()
           << ",\"tid\":" << event.thread << ",\"cat\":" << Quoted(event.category)
           << ",\"name\":" << Quoted(*event.name) << ",\"ts\":" << Microseconds(event.begin)
           << ",\"dur\":" << Microseconds(event.nanoseconds) << ",\"args\":{";
      comma = "";
      if (!event.node->empty()) {
        file << "\"node\":" << Quoted(*event.node);
        comma = ",";
      }
      for (const Fact& fact : event.facts) {
        if (fact.name == nullptr) continue;
        file << comma << Quoted(fact.name) << ':' << fact.value;
        comma = ",";
      }
      file << "}}";
      comma = ",\n";
    }
    file << "\n]}\n";
    file.close();
    if (!file)
      throw std::filesystem::filesystem_error("write", platform::PathOf(partial),
                                              std::error_code());
  }
  std::filesystem::rename(platform::PathOf(partial), platform::PathOf(path_));
  written_ = true;
} catch (const std::exception& error) {
  std::fprintf(stderr, "ort_aie_ep: the trace cannot be written to %s: %s\n", path_.c_str(),
               error.what());
  written_ = true;
}

}  // namespace ort_aie
