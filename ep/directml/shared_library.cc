#include "directml/shared_library.h"

#if defined(_WIN32)
#define WIN32_LEAN_AND_MEAN
#define NOMINMAX
#include <windows.h>
#else
#include <dlfcn.h>
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

bool IsAbsolute(const std::string& path) {
  return path.size() > 2 && (path[1] == ':' || (path[0] == '\\' && path[1] == '\\'));
}
#endif

}  // namespace

#if defined(_WIN32)

Result SharedLibrary::Load(const std::string& name, SharedLibrary* library) {
  // With a path, the libraries beside it are found too; the current directory is never searched.
  const DWORD flags = IsAbsolute(name) ? LOAD_LIBRARY_SEARCH_DLL_LOAD_DIR | LOAD_LIBRARY_SEARCH_DEFAULT_DIRS
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
