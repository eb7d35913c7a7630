// Libraries loaded at run time, by name through the loader's search path or by absolute path. Never linked, and never
// unloaded: graphics drivers start threads that may outlive the last object.
#pragma once

#include <string>

#include "chain/result.h"

namespace normfuse::directml {

// What a user names a library by, as loaders take it: a path becomes absolute and has the system's separators; a bare
// name, which is left to the loader's search path, stays.
std::string LibraryName(const std::string& given);

class SharedLibrary {
 public:
  // An error names the library and gives the loader's own words.
  static Result Load(const std::string& name, SharedLibrary* library);

  // Null when the library does not export it.
  template <typename Function>
  Function Symbol(const char* name) const {
    return reinterpret_cast<Function>(Find(name));
  }

  const std::string& name() const { return name_; }

 private:
  void* Find(const char* name) const;

  void* handle_ = nullptr;
  std::string name_;
};

}  // namespace normfuse::directml
