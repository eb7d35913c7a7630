#include "directml/device/device_memory.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>

#ifdef _WIN32
#define WIN32_LEAN_AND_MEAN
#define NOMINMAX
#include <windows.h>
#else
#include <dlfcn.h>
#include <sys/mman.h>
#endif

namespace normfuse::directml {

Result DeviceContent::OnGpu(const std::shared_ptr<Gpu>& gpu, uint64_t bytes, std::shared_ptr<DeviceContent>* content,
                            GpuWork* work) {
  auto made = std::make_shared<DeviceContent>(std::vector<unsigned char>());
  NORMFUSE_RETURN_IF_ERROR(gpu->tensors().Acquire(bytes, &made->buffer_, work));
  made->gpu_ = gpu;
  made->bytes_ = bytes;
  *content = std::move(made);
  return {};
}

DeviceContent::~DeviceContent() {
  if (gpu_ != nullptr) gpu_->tensors().Return(std::move(buffer_));
}

Result DeviceContent::Upload(const std::shared_ptr<Gpu>& gpu, std::shared_ptr<DeviceContent>* content,
                             GpuWork* work) const {
  NORMFUSE_RETURN_IF_ERROR(OnGpu(gpu, on_cpu_.size(), content, work));
  return gpu->Upload(on_cpu_.data(), on_cpu_.size(), (*content)->buffer_, work);
}

Result DeviceContent::Read(const std::vector<Reading>& readings) {
  std::map<Gpu*, std::vector<Gpu::Reading>> on_gpus;
  for (const Reading& reading : readings) {
    const DeviceContent& content = *reading.content;
    if (content.gpu_ == nullptr) {
      std::memcpy(reading.to, content.on_cpu_.data(), reading.bytes);
    } else {
      on_gpus[content.gpu_.get()].push_back({&content.buffer_, reading.bytes, reading.to});
    }
  }
  for (const auto& [gpu, of_gpu] : on_gpus) {
    GpuWork work;
    NORMFUSE_RETURN_IF_ERROR(gpu->Download(of_gpu, &work));
  }
  return {};
}

namespace device_memory {
namespace {

// The system's, without memory behind them, so that whoever takes one for a pointer to data is stopped.
char* ReserveAddresses(uint64_t bytes) {
#ifdef _WIN32
  return static_cast<char*>(VirtualAlloc(nullptr, bytes, MEM_RESERVE, PAGE_NOACCESS));
#else
  void* address = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return address == MAP_FAILED ? nullptr : static_cast<char*>(address);
#endif
}

void ReleaseAddresses(char* address, uint64_t bytes) {
#ifdef _WIN32
  (void)bytes;
  (void)VirtualFree(address, 0, MEM_RELEASE);
#else
  (void)munmap(address, bytes);
#endif
}

struct Addresses {
  std::mutex mutex;
  std::map<const char*, uint64_t> reserved;
  std::map<const char*, Content> contents;
};

Addresses& All();

// ONNX Runtime may unload a library that is unregistered, and let go of tensors of its memory later.
void StayLoaded() {
#ifdef _WIN32
  HMODULE module = nullptr;
  (void)GetModuleHandleExW(GET_MODULE_HANDLE_EX_FLAG_PIN | GET_MODULE_HANDLE_EX_FLAG_FROM_ADDRESS,
                           reinterpret_cast<LPCWSTR>(&All), &module);
#else
  Dl_info library = {};
  if (dladdr(reinterpret_cast<void*>(&All), &library) != 0) {
    (void)dlopen(library.dli_fname, RTLD_NOW | RTLD_NOLOAD | RTLD_NODELETE);
  }
#endif
}

// Never destroyed: tensors may be released while the process shuts down.
Addresses& All() {
  static auto* all = [] {
    StayLoaded();
    return new Addresses;
  }();
  return *all;
}

// Takes what lies there out of the map; the caller lets go of it when no lock is held.
std::vector<Content> TakeContents(Addresses* all, const char* begin, const char* end) {
  std::vector<Content> taken;
  auto at = all->contents.lower_bound(begin);
  if (at != all->contents.begin() && std::prev(at)->first + std::prev(at)->second->bytes() > begin) --at;
  while (at != all->contents.end() && at->first < end) {
    taken.push_back(std::move(at->second));
    at = all->contents.erase(at);
  }
  return taken;
}

}  // namespace

void* Reserve(uint64_t bytes) {
  const uint64_t reserved = std::max<uint64_t>(bytes, 1);
  char* address = ReserveAddresses(reserved);
  if (address == nullptr) return nullptr;
  Addresses& all = All();
  const std::lock_guard lock(all.mutex);
  all.reserved[address] = reserved;
  return address;
}

void Release(void* address) {
  const char* begin = static_cast<const char*>(address);
  Addresses& all = All();
  std::vector<Content> ended;
  uint64_t bytes = 0;
  {
    const std::lock_guard lock(all.mutex);
    const auto found = all.reserved.find(begin);
    if (found == all.reserved.end()) return;
    bytes = found->second;
    ended = TakeContents(&all, begin, begin + bytes);
    all.reserved.erase(found);
  }
  ReleaseAddresses(static_cast<char*>(address), bytes);
}

bool Contains(const void* address) {
  const char* at = static_cast<const char*>(address);
  Addresses& all = All();
  const std::lock_guard lock(all.mutex);
  const auto behind = all.reserved.upper_bound(at);
  if (behind == all.reserved.begin()) return false;
  const auto found = std::prev(behind);
  return at < found->first + found->second;
}

void Put(void* address, Content content) {
  const char* at = static_cast<const char*>(address);
  const uint64_t bytes = std::max<uint64_t>(content->bytes(), 1);
  Addresses& all = All();
  std::vector<Content> ended;
  const std::lock_guard lock(all.mutex);
  ended = TakeContents(&all, at, at + bytes);
  all.contents[at] = std::move(content);
}

void Replace(const void* address, const Content& content, Content same) {
  Addresses& all = All();
  const std::lock_guard lock(all.mutex);
  const auto found = all.contents.find(static_cast<const char*>(address));
  // What it replaces is held by the caller.
  if (found != all.contents.end() && found->second == content) found->second = std::move(same);
}

Result Get(const void* address, uint64_t bytes, Content* content) {
  Addresses& all = All();
  const std::lock_guard lock(all.mutex);
  const auto found = all.contents.find(static_cast<const char*>(address));
  if (found != all.contents.end() && found->second->bytes() >= bytes) {
    *content = found->second;
    return {};
  }
  return Result::Error(ErrorCode::kInvalidArgument,
                       "DirectML path: a tensor on the GPU is read that nothing was written to, or only a part of it. "
                       "Write the OrtValue before it is given to a run.");
}

}  // namespace device_memory

}  // namespace normfuse::directml
