#include <locale.h>
#include <windows.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <utility>
#include <vector>

#include "base/platform.h"

namespace ort_aie::platform {
namespace {

HANDLE HandleOf(intptr_t handle) { return reinterpret_cast<HANDLE>(handle); }

// errno of the last error, for a caller that describes it with strerror.
void SetErrno() {
  switch (GetLastError()) {
    case ERROR_FILE_NOT_FOUND:
    case ERROR_BAD_NETPATH:
    case ERROR_BAD_NET_NAME:
      errno = ENOENT;
      return;
    case ERROR_PATH_NOT_FOUND:  // a folder is missing, or is a file
    case ERROR_INVALID_NAME:
      errno = ENOENT;
      return;
    case ERROR_FILE_EXISTS:
    case ERROR_ALREADY_EXISTS:
      errno = EEXIST;
      return;
    case ERROR_ACCESS_DENIED:
    case ERROR_SHARING_VIOLATION:
    case ERROR_LOCK_VIOLATION:
    case ERROR_USER_MAPPED_FILE:
      errno = EACCES;
      return;
    case ERROR_DISK_FULL:
    case ERROR_HANDLE_DISK_FULL:
      errno = ENOSPC;
      return;
    case ERROR_NOT_ENOUGH_MEMORY:
    case ERROR_OUTOFMEMORY:
    case ERROR_COMMITMENT_LIMIT:
      errno = ENOMEM;
      return;
    default:
      errno = EIO;
  }
}

bool Succeeded(BOOL result) {
  if (result == 0) SetErrno();
  return result != 0;
}

// A handle that lets others read, replace and remove the file, as on other systems.
intptr_t OpenHandle(const std::string& path, DWORD access, DWORD how, DWORD flags) {
  constexpr DWORD kShare = FILE_SHARE_READ | FILE_SHARE_WRITE | FILE_SHARE_DELETE;
  HANDLE file = CreateFileW(PathOf(path).c_str(), access, kShare, nullptr, how, flags, nullptr);
  if (file == INVALID_HANDLE_VALUE) SetErrno();
  return reinterpret_cast<intptr_t>(file);
}

// A part of a file, for ReadFile, WriteFile and LockFileEx.
OVERLAPPED At(int64_t offset) {
  OVERLAPPED at{};
  at.Offset = static_cast<DWORD>(offset);
  at.OffsetHigh = static_cast<DWORD>(offset >> 32);
  return at;
}

constexpr size_t kMostAtOnce = 1 << 30;  // bytes of one ReadFile or WriteFile

}  // namespace

std::filesystem::path PathOf(std::string_view text) {
  const auto size = static_cast<int>(text.size());
  std::wstring wide(
      static_cast<size_t>(MultiByteToWideChar(CP_UTF8, 0, text.data(), size, nullptr, 0)), L'\0');
  MultiByteToWideChar(CP_UTF8, 0, text.data(), size, wide.data(), static_cast<int>(wide.size()));
  return wide;
}

std::string TextOf(const std::filesystem::path& path) {
  const std::wstring& wide = path.native();
  const auto size = static_cast<int>(wide.size());
  std::string text(static_cast<size_t>(WideCharToMultiByte(CP_UTF8, 0, wide.data(), size, nullptr,
                                                           0, nullptr, nullptr)),
                   '\0');
  WideCharToMultiByte(CP_UTF8, 0, wide.data(), size, text.data(), static_cast<int>(text.size()),
                      nullptr, nullptr);
  return text;
}

std::string Environment(const char* name) {
  const std::wstring wide_name = PathOf(name).native();
  std::wstring value(GetEnvironmentVariableW(wide_name.c_str(), nullptr, 0), L'\0');
  if (value.empty()) return "";
  value.resize(
      GetEnvironmentVariableW(wide_name.c_str(), value.data(), static_cast<DWORD>(value.size())));
  return TextOf(value);
}

std::string TrustedEnvironment(const char* name) { return Environment(name); }

std::string CacheFolder() { return Environment("LOCALAPPDATA"); }

File File::Open(const std::string& path) {
  return File(OpenHandle(path, GENERIC_READ, OPEN_EXISTING, FILE_ATTRIBUTE_NORMAL));
}

File File::Create(const std::string& path) {
  return File(OpenHandle(path, GENERIC_READ | GENERIC_WRITE, CREATE_NEW, FILE_ATTRIBUTE_NORMAL));
}

File File::CreateTemporary(const std::string& folder) {
  static std::atomic<unsigned> number = 0;
  const std::string path = folder + "\\.ort_aie-" + std::to_string(ProcessId()) + '-' +
                           std::to_string(number.fetch_add(1));
  return File(OpenHandle(path, GENERIC_READ | GENERIC_WRITE, CREATE_NEW,
                         FILE_ATTRIBUTE_TEMPORARY | FILE_FLAG_DELETE_ON_CLOSE));
}

File::File(File&& other) noexcept : handle_(std::exchange(other.handle_, kNone)) {}

File& File::operator=(File&& other) noexcept {
  std::swap(handle_, other.handle_);
  return *this;
}

void File::Close() {
  if (is_open()) CloseHandle(HandleOf(std::exchange(handle_, kNone)));
}

int64_t File::Bytes() const {
  LARGE_INTEGER bytes{};
  const bool known = GetFileType(HandleOf(handle_)) == FILE_TYPE_DISK &&
                     GetFileSizeEx(HandleOf(handle_), &bytes) != 0;
  return known ? bytes.QuadPart : -1;
}

bool File::Write(int64_t offset, const void* data, size_t bytes) {
  const auto* from = static_cast<const uint8_t*>(data);
  while (bytes > 0) {
    OVERLAPPED at = At(offset);
    DWORD count = 0;
    const auto most = static_cast<DWORD>(bytes < kMostAtOnce ? bytes : kMostAtOnce);
    if (!Succeeded(WriteFile(HandleOf(handle_), from, most, &count, &at))) return false;
    from += count;
    bytes -= count;
    offset += count;
  }
  return true;
}

int64_t File::Read(int64_t offset, void* data, size_t bytes) const {
  auto* to = static_cast<uint8_t*>(data);
  int64_t done = 0;
  while (bytes > 0) {
    OVERLAPPED at = At(offset + done);
    DWORD count = 0;
    const auto most = static_cast<DWORD>(bytes < kMostAtOnce ? bytes : kMostAtOnce);
    if (ReadFile(HandleOf(handle_), to + done, most, &count, &at) == 0) {
      if (GetLastError() == ERROR_HANDLE_EOF) break;
      SetErrno();
      return -1;
    }
    if (count == 0) break;
    done += count;
    bytes -= count;
  }
  return done;
}

bool File::Settle() { return true; }  // WriteFile has told

void File::LeaveCache() { FlushFileBuffers(HandleOf(handle_)); }

std::shared_ptr<const uint8_t> File::Map(int64_t offset, int64_t bytes) const {
  constexpr int64_t kGranularity = 65536;  // SYSTEM_INFO::dwAllocationGranularity, on all of them
  const int64_t within = offset % kGranularity, begin = offset - within;
  HANDLE section = CreateFileMappingW(HandleOf(handle_), nullptr, PAGE_READONLY, 0, 0, nullptr);
  if (section == nullptr) {
    SetErrno();
    return nullptr;
  }
  void* map = MapViewOfFile(section, FILE_MAP_READ, static_cast<DWORD>(begin >> 32),
                            static_cast<DWORD>(begin), static_cast<size_t>(within + bytes));
  if (map == nullptr) SetErrno();
  CloseHandle(section);
  if (map == nullptr) return nullptr;
  const std::shared_ptr<const void> owner(map, [](const void* its) { UnmapViewOfFile(its); });
  return {owner, static_cast<const uint8_t*>(map) + within};
}

bool File::Lock() {
  // A lock keeps others from reading what it covers, so it covers a byte that no file has.
  constexpr int64_t kBeyondFiles = int64_t{1} << 62;
  OVERLAPPED at = At(kBeyondFiles);
  return LockFileEx(HandleOf(handle_), LOCKFILE_EXCLUSIVE_LOCK | LOCKFILE_FAIL_IMMEDIATELY, 0, 1, 0,
                    &at) != 0 ||
         GetLastError() != ERROR_LOCK_VIOLATION;
}

bool File::IsAt(const std::string& path) const {
  const File named(OpenHandle(path, 0, OPEN_EXISTING, FILE_ATTRIBUTE_NORMAL));
  BY_HANDLE_FILE_INFORMATION its{}, other{};
  return named.is_open() && GetFileInformationByHandle(HandleOf(handle_), &its) != 0 &&
         GetFileInformationByHandle(HandleOf(named.handle_), &other) != 0 &&
         its.dwVolumeSerialNumber == other.dwVolumeSerialNumber &&
         its.nFileIndexHigh == other.nFileIndexHigh && its.nFileIndexLow == other.nFileIndexLow;
}

bool Exists(const std::string& path) {
  return GetFileAttributesW(PathOf(path).c_str()) != INVALID_FILE_ATTRIBUTES;
}

void Remove(const std::string& path) { DeleteFileW(PathOf(path).c_str()); }

bool Replace(const std::string& from, const std::string& to) {
  return Succeeded(
      MoveFileExW(PathOf(from).c_str(), PathOf(to).c_str(), MOVEFILE_REPLACE_EXISTING));
}

bool RenameToNew(const std::string& from, const std::string& to) {
  return Succeeded(MoveFileExW(PathOf(from).c_str(), PathOf(to).c_str(), 0));
}

ThreadSlot::ThreadSlot(void (*free)(void*)) {
  // Threads call `free` when they end, even after a host has unloaded the library.
  HMODULE ignored = nullptr;
  GetModuleHandleExW(GET_MODULE_HANDLE_EX_FLAG_FROM_ADDRESS | GET_MODULE_HANDLE_EX_FLAG_PIN,
                     reinterpret_cast<const wchar_t*>(free), &ignored);
  const DWORD index = FlsAlloc(free);
  exists_ = index != FLS_OUT_OF_INDEXES;
  key_ = index;
}

void* ThreadSlot::Get() const { return exists_ ? FlsGetValue(static_cast<DWORD>(key_)) : nullptr; }

bool ThreadSlot::Set(void* pointer) const {
  return exists_ && FlsSetValue(static_cast<DWORD>(key_), pointer) != 0;
}

struct PointInNumbers::Before {
  int scope = _configthreadlocale(_ENABLE_PER_THREAD_LOCALE);
  std::string used = setlocale(LC_NUMERIC, nullptr);
};

PointInNumbers::PointInNumbers() : before_(std::make_unique<Before>()) {
  setlocale(LC_NUMERIC, "C");
}

PointInNumbers::~PointInNumbers() {
  setlocale(LC_NUMERIC, before_->used.c_str());
  _configthreadlocale(before_->scope);
}

int ProcessId() { return static_cast<int>(GetCurrentProcessId()); }

int ThreadId() { return static_cast<int>(GetCurrentThreadId()); }

int64_t LastCacheBytes() {
  DWORD bytes = 0;
  GetLogicalProcessorInformation(nullptr, &bytes);
  std::vector<SYSTEM_LOGICAL_PROCESSOR_INFORMATION> facts(
      bytes / sizeof(SYSTEM_LOGICAL_PROCESSOR_INFORMATION));
  if (facts.empty() || GetLogicalProcessorInformation(facts.data(), &bytes) == 0) return 0;
  int64_t last = 0;
  for (const SYSTEM_LOGICAL_PROCESSOR_INFORMATION& fact : facts) {
    if (fact.Relationship == RelationCache && fact.Cache.Level == 3) last = fact.Cache.Size;
  }
  return last;
}

std::string AskForTiles() { return "this library uses AMX only on Linux"; }

}  // namespace ort_aie::platform
