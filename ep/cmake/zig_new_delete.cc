// For macOS by zig only: operator new and delete of our own. Those of zig's C++ runtime, which is linked statically, are
// exported from every library that has them, and its linker takes no list of what to export. Compiled so that these are
// hidden (see ep/CMakeLists.txt).
#include <cstdlib>
#include <new>

namespace {

void* Allocate(size_t size) {
  if (void* memory = std::malloc(size != 0 ? size : 1)) return memory;
  throw std::bad_alloc();
}

void* Allocate(size_t size, std::align_val_t alignment) {
  const size_t bytes = static_cast<size_t>(alignment);
  void* memory = nullptr;
  if (posix_memalign(&memory, bytes < sizeof(void*) ? sizeof(void*) : bytes, size != 0 ? size : 1) == 0) return memory;
  throw std::bad_alloc();
}

}  // namespace

void* operator new(size_t size) { return Allocate(size); }
void* operator new[](size_t size) { return Allocate(size); }
void* operator new(size_t size, std::align_val_t alignment) { return Allocate(size, alignment); }
void* operator new[](size_t size, std::align_val_t alignment) { return Allocate(size, alignment); }
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, size_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, size_t, std::align_val_t) noexcept { std::free(memory); }
void operator delete[](void* memory, size_t, std::align_val_t) noexcept { std::free(memory); }
