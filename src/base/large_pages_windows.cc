// Windows has large pages for memory, not for mapped files, and only for a process with a privilege
// (SeLockMemoryPrivilege), which says so when it allocates.
#include "base/platform.h"

namespace ort_aie::platform {

void PreferLargePages(void*, size_t) {}

std::optional<File::Cached> File::CachedBytes() const { return std::nullopt; }

void File::CacheInLargePages() const {}

File::Identity File::Id() const { return {}; }

std::vector<MappedFile> MappedFiles() { return {}; }

bool MayHaveChanged(const void*, size_t) { return true; }

}  // namespace ort_aie::platform
