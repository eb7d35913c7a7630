// What a kernel does when ONNX Runtime allocates an output of another type or shape than the kernel writes: it says so and
// gets no address. The claim refuses such nodes, so that only a made-up host shows it.
#include <algorithm>
#include <string>
#include <vector>

#include "abi/ort_execution.h"
#include "check.h"

namespace normfuse::test {
namespace {

using ort::Status;

struct Tensor {
  DataType type;
  std::vector<int64_t> dims;
};

Tensor allocated{};        // what the host gives for every output
unsigned char memory = 0;  // where it lies

Status* GetOutput(ort::KernelContext*, size_t, const int64_t*, size_t, ort::Value** out) {
  *out = reinterpret_cast<ort::Value*>(&allocated);
  return nullptr;
}

Status* GetTypeAndShape(const ort::Value* value, int* type, const int64_t** dims, size_t* rank) {
  const auto* tensor = reinterpret_cast<const Tensor*>(value);
  *type = static_cast<int>(tensor->type);
  *dims = tensor->dims.data();
  *rank = tensor->dims.size();
  return nullptr;
}

Status* GetData(ort::Value*, void** out) {
  *out = &memory;
  return nullptr;
}

// A table of ONNX Runtime with these three functions in it.
const void* Table(uint32_t) {
  static void* table[512] = {};
  table[51] = reinterpret_cast<void*>(GetData);
  table[91] = reinterpret_cast<void*>(GetOutput);
  table[317] = reinterpret_cast<void*>(+[]() -> const void* { return table; });
  table[414] = reinterpret_cast<void*>(GetTypeAndShape);
  return table;
}

void* Ask(DataType type, const std::vector<int64_t>& dims, Result* result) {
  ort::KernelExecution execution(nullptr);
  void* data = nullptr;
  *result = execution.Output(1, type, dims.data(), dims.size(), &data);
  return data;
}

void TestTypes() {
  constexpr DataType kTypes[] = {DataType::kFloat32, DataType::kFloat16, DataType::kBfloat16,  DataType::kInt8,
                                 DataType::kUint8,   DataType::kInt16,   DataType::kUint16,    DataType::kInt4,
                                 DataType::kUint2,   DataType::kString,  DataType::kFloat8e5m2};
  for (const DataType there : kTypes) {
    for (const DataType written : kTypes) {
      allocated = {there, {2, 3}};
      Result result;
      const void* data = Ask(written, {2, 3}, &result);
      CHECK(result.ok() == (there == written), "%s into %s", NameOf(written), NameOf(there));
      CHECK((data == &memory) == (there == written), "%s into %s", NameOf(written), NameOf(there));
      if (result.ok()) continue;
      CHECK(result.message().find(NameOf(written)) != std::string::npos, "%s", result.message().c_str());
    }
  }
}

void TestShapes() {
  for (const std::vector<int64_t>& dims : {std::vector<int64_t>{2, 2}, {2}, {6}, {1, 2, 3}, {}}) {
    allocated = {DataType::kFloat32, dims};
    Result result;
    const void* data = Ask(DataType::kFloat32, {2, 3}, &result);
    CHECK(!result.ok() && data == nullptr, "a shape of %zu dimensions", dims.size());
  }
}

}  // namespace
}  // namespace normfuse::test

int main() {
  static const normfuse::ort::ApiBase base = {normfuse::test::Table, [] { return "1.31.0"; }};
  CHECK(normfuse::ort::Negotiate(&base) == nullptr, "the host is not accepted");
  normfuse::test::TestTypes();
  normfuse::test::TestShapes();
  return normfuse::test::ExitCode();
}
