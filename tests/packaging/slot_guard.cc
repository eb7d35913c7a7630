// A library that stands between ONNX Runtime and the library under test: it hands on function tables in which every
// declared slot counts its calls and every other slot ends the process with its number. SlotCounts() gives the figures.
// Compiled by test_abi.py; the library under test is named by the environment variable NORMFUSE_GUARDED_LIBRARY.
#include <dlfcn.h>

#include <array>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <utility>

#include "abi/ort_abi.h"

// Inside it the slot lists find their types.
namespace normfuse::ort {
namespace {

constexpr size_t kLargestTable = 512;

struct Table {
  const char* name;
  void* const* host = nullptr;
  std::array<void*, kLargestTable> guarded{};
  std::array<std::atomic<long>, kLargestTable> calls{};
};

Table main_table{"OrtApi"};
Table ep_table{"OrtEpApi"};
const ApiBase* host_base = nullptr;

template <Table* table, size_t slot>
void Refuse() {
  std::fprintf(stderr, "slot_guard: slot %zu of %s is called but not declared in ep/abi/ort_abi.h\n", slot,
               table->name);
  std::abort();
}

template <Table* table, size_t... slots>
void RefuseAll(std::index_sequence<slots...>) {
  ((table->guarded[slots] = reinterpret_cast<void*>(&Refuse<table, slots>)), ...);
}

template <typename Function>
struct Counted;
template <typename R, typename... A>
struct Counted<R(A...)> {
  template <Table* table, size_t slot>
  static R Call(A... arguments) {
    ++table->calls[slot];
    return reinterpret_cast<R (*)(A...)>(table->host[slot])(arguments...);
  }
};

const void* GuardedEpApi() {
  ++main_table.calls[317];
  return ep_table.guarded.data();
}

uint32_t HostVersion() { return static_cast<uint32_t>(std::atoi(host_base->GetVersionString() + 2)); }

const void* GuardedApi(uint32_t version) {
  const void* table = host_base->GetApi(version);
  if (!table) return nullptr;
  main_table.host = static_cast<void* const*>(table);
  ep_table.host = static_cast<void* const*>(reinterpret_cast<const void* (*)()>(main_table.host[317])());
  RefuseAll<&main_table>(std::make_index_sequence<kLargestTable>());
  RefuseAll<&ep_table>(std::make_index_sequence<kLargestTable>());
  const uint32_t host = HostVersion();
#define GUARD(slot, since, name, result, arguments) \
  if (host >= since)                                \
    main_table.guarded[slot] = reinterpret_cast<void*>(&Counted<result arguments>::Call<&main_table, slot>);
  NORMFUSE_ORT_API_SLOTS(GUARD)
#undef GUARD
#define GUARD(slot, since, name, result, arguments) \
  if (host >= since)                                \
    ep_table.guarded[slot] = reinterpret_cast<void*>(&Counted<result arguments>::Call<&ep_table, slot>);
  NORMFUSE_ORT_EP_API_SLOTS(GUARD)
#undef GUARD
  main_table.guarded[317] = reinterpret_cast<void*>(&GuardedEpApi);
  return main_table.guarded.data();
}

const ApiBase* Guard(const ApiBase* base) {
  static ApiBase guarded;
  host_base = base;
  guarded = {GuardedApi, base->GetVersionString};
  return &guarded;
}

template <typename Function>
Function* Real(const char* name) {
  static void* library = dlopen(std::getenv("NORMFUSE_GUARDED_LIBRARY"), RTLD_NOW | RTLD_LOCAL);
  void* function = library ? dlsym(library, name) : nullptr;
  if (!function) {
    std::fprintf(stderr, "slot_guard: %s\n", dlerror());
    std::abort();
  }
  return reinterpret_cast<Function*>(function);
}

}  // namespace

extern "C" Status* CreateEpFactories(const char* name, const ApiBase* base, const Logger* logger, EpFactory** factories,
                                     size_t max, size_t* count) {
  return Real<decltype(CreateEpFactories)>("CreateEpFactories")(name, Guard(base), logger, factories, max, count);
}

extern "C" Status* ReleaseEpFactory(EpFactory* factory) {
  return Real<decltype(ReleaseEpFactory)>("ReleaseEpFactory")(factory);
}

extern "C" Status* RegisterCustomOps(SessionOptions* options, const ApiBase* base) {
  return Real<decltype(RegisterCustomOps)>("RegisterCustomOps")(options, Guard(base));
}

// One line for each declared slot: table, name, calls.
extern "C" const char* SlotCounts() {
  static std::string text;
  text.clear();
#define LINE(slot, since, name, result, arguments) \
  text += "OrtApi " #name " " + std::to_string(main_table.calls[slot]) + "\n";
  NORMFUSE_ORT_API_SLOTS(LINE)
#undef LINE
#define LINE(slot, since, name, result, arguments) \
  text += "OrtEpApi " #name " " + std::to_string(ep_table.calls[slot]) + "\n";
  NORMFUSE_ORT_EP_API_SLOTS(LINE)
#undef LINE
  return text.c_str();
}

}  // namespace normfuse::ort
