#include "directml/device/shared_library.h"

#if defined(_WIN32)
#define WIN32_LEAN_AND_MEAN
#define NOMINMAX
#include <windows.h>
#else
#include <dlfcn.h>
#include <unistd.h>

#include <climits>
#endif

namespace normfuse::directml {
namespace {

Result CannotLoad(const std::string& name, const std::string& why) {
  return Result::Error(ErrorCode::kEpFail, "cannot load " + name + ": " + why);
}

#if defined(_WIN32)
std::wstring Widen(const std::string& utf8) {
  const int length = MultiByteToWideChar(CP_UTF8, 0, utf8.c_str(), -1, nullptr, 0);
  std::wstring wide(length > 0 ? static_cast<size_t>(length) : 1, L'\0');
  if (length > 0) MultiByteToWideChar(CP_UTF8, 0, utf8.c_str(), -1, wide.data(), length);
  wide.pop_back();
  return wide;
}

std::string Narrow(const std::wstring& wide) {
  const int size = static_cast<int>(wide.size());
  const int length = WideCharToMultiByte(CP_UTF8, 0, wide.data(), size, nullptr, 0, nullptr, nullptr);
  std::string utf8(static_cast<size_t>(length), '\0');
  WideCharToMultiByte(CP_UTF8, 0, wide.data(), size, utf8.data(), length, nullptr, nullptr);
  return utf8;
}

bool IsPath(const std::string& name) { return name.find_first_of("/\\:") != std::string::npos; }
#endif

}  // namespace

#if defined(_WIN32)

std::string LibraryName(const std::string& given) {
  if (!IsPath(given)) return given;
  const std::wstring wide = Widen(given);
  std::wstring full(GetFullPathNameW(wide.c_str(), 0, nullptr, nullptr), L'\0');
  full.resize(GetFullPathNameW(wide.c_str(), static_cast<DWORD>(full.size()), full.data(), nullptr));
  return full.empty() ? given : Narrow(full);
}

Result SharedLibrary::Load(const std::string& name, SharedLibrary* library) {
  // With a path, the libraries beside it are found too; the current directory is never searched.
  const DWORD flags = IsPath(name) ? LOAD_LIBRARY_SEARCH_DLL_LOAD_DIR | LOAD_LIBRARY_SEARCH_DEFAULT_DIRS
                                   : LOAD_LIBRARY_SEARCH_DEFAULT_DIRS;
  library->handle_ = LoadLibraryExW(Widen(name).c_str(), nullptr, flags);
  library->name_ = name;
  if (library->handle_ != nullptr) return {};
  return CannotLoad(name, "Windows error " + std::to_string(GetLastError()));
}

void* SharedLibrary::Find(const char* name) const {
  return reinterpret_cast<void*>(GetProcAddress(static_cast<HMODULE>(handle_), name));
}

#else

std::string LibraryName(const std::string& given) {
  if (given.find('/') == std::string::npos || given.front() == '/') return given;
  char folder[PATH_MAX];
  return getcwd(folder, sizeof(folder)) == nullptr ? given : std::string(folder) + '/' + given;
}

Result SharedLibrary::Load(const std::string& name, SharedLibrary* library) {
  library->handle_ = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
  library->name_ = name;
  if (library->handle_ != nullptr) return {};
  const char* why = dlerror();
  return CannotLoad(name, why != nullptr ? why : "unknown error");
}

void* SharedLibrary::Find(const char* name) const { return dlsym(handle_, name); }

#endif

}  // namespace normfuse::directml
