// Preloaded into a process: counts the allocations of one library between count_start and
// count_stop. Of that library and ONNX Runtime, which call each other, an allocation belongs to the
// one whose code is nearest on the stack: what the C++ library allocates is its caller's.
#include <link.h>
#include <unwind.h>

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>

extern "C" {
void* __libc_malloc(size_t);
void* __libc_calloc(size_t, size_t);
void* __libc_realloc(void*, size_t);
void* __libc_memalign(size_t, size_t);
}

namespace {

struct Code {
  const char* name;
  uintptr_t begin = 0, end = 0;
  bool Has(uintptr_t address) const { return begin <= address && address < end; }
};
Code ours, other;
std::atomic<bool> counting = false;
std::atomic<int64_t> counted = 0;
__attribute__((tls_model("initial-exec"))) thread_local bool inside = false;

void Find(Code& code, const char* name) {
  code = {name};
  dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* data) {
        auto& found = *static_cast<Code*>(data);
        if (std::strstr(info->dlpi_name, found.name) == nullptr) return 0;
        for (int i = 0; i < info->dlpi_phnum; ++i) {
          const auto& header = info->dlpi_phdr[i];
          if (header.p_type != PT_LOAD || (header.p_flags & PF_X) == 0) continue;
          found.begin = info->dlpi_addr + header.p_vaddr;
          found.end = found.begin + header.p_memsz;
        }
        return 1;
      },
      &code);
}

void Count() {
  if (!counting.load(std::memory_order_relaxed) || inside) return;
  inside = true;
  bool is_ours = false;
  _Unwind_Backtrace(
      [](_Unwind_Context* context, void* result) {
        const uintptr_t address = _Unwind_GetIP(context);
        *static_cast<bool*>(result) = ours.Has(address);
        return ours.Has(address) || other.Has(address) ? _URC_END_OF_STACK : _URC_NO_REASON;
      },
      &is_ours);
  if (is_ours) counted.fetch_add(1);
  inside = false;
}

}  // namespace

extern "C" {

// 0: one of the two libraries is not loaded.
int count_start(const char* library, const char* caller) {
  Find(ours, library);
  Find(other, caller);
  counted = 0;
  counting = true;
  return ours.end != 0 && other.end != 0;
}

int64_t count_stop() {
  counting = false;
  return counted;
}

void* malloc(size_t size) {
  Count();
  return __libc_malloc(size);
}
void* calloc(size_t count, size_t size) {
  Count();
  return __libc_calloc(count, size);
}
void* realloc(void* memory, size_t size) {
  Count();
  return __libc_realloc(memory, size);
}
void* memalign(size_t alignment, size_t size) {
  Count();
  return __libc_memalign(alignment, size);
}
void* aligned_alloc(size_t alignment, size_t size) {
  Count();
  return __libc_memalign(alignment, size);
}
int posix_memalign(void** memory, size_t alignment, size_t size) {
  Count();
  *memory = __libc_memalign(alignment, size);
  return *memory != nullptr ? 0 : ENOMEM;
}

}  // extern "C"
