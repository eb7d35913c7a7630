#include "guarded_page.h"

#include <cstdlib>
#include <cstring>

#ifdef _WIN32
#include <windows.h>
#else
#include <sys/mman.h>
#include <unistd.h>
#endif

namespace normfuse::test {
namespace {

unsigned char* Allocate() {
#ifdef _WIN32
  SYSTEM_INFO info;
  GetSystemInfo(&info);
  const size_t page = info.dwPageSize;
  auto* memory = static_cast<unsigned char*>(VirtualAlloc(nullptr, 2 * page, MEM_RESERVE | MEM_COMMIT, PAGE_READWRITE));
  DWORD before = 0;
  if (memory == nullptr || !VirtualProtect(memory + page, page, PAGE_NOACCESS, &before)) std::abort();
#else
  const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  void* mapped = mmap(nullptr, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) std::abort();
  auto* memory = static_cast<unsigned char*>(mapped);
  if (mprotect(memory + page, page, PROT_NONE) != 0) std::abort();
#endif
  std::memset(memory, 1, page);
  return memory + page;
}

}  // namespace

unsigned char* EndOfMemory() {
  static unsigned char* const end = Allocate();
  return end;
}

}  // namespace normfuse::test
