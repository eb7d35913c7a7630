// Runs a Chain over plain arrays and computes the same in double, one element at a time, straight from the formula in
// chain.h: no code is shared with the library but the chain itself.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "chain/chain.h"
#include "chain/execution.h"
#include "parts.h"

namespace normfuse::test {

// A tensor with its bytes and, for the reference, its values.
struct Tensor {
  DataType type = DataType::kFloat32;
  std::vector<int64_t> dims;
  std::vector<unsigned char> bytes;
  size_t misalignment = 0;  // elements of at least a byte: data() starts this many elements into `bytes`

  int64_t Count() const {
    int64_t count = 1;
    for (int64_t dim : dims) count *= dim;
    return count;
  }
  unsigned char* data() { return bytes.data() + misalignment * static_cast<size_t>(BitsOf(type)) / 8; }
  const unsigned char* data() const { return const_cast<Tensor*>(this)->data(); }
  double At(int64_t index) const;
  // Rounds to the type; only used to make inputs.
  void Set(int64_t index, double value);
};

Tensor MakeTensor(DataType type, std::vector<int64_t> dims, size_t misalignment = 0);
Tensor MakeFloats(std::vector<int64_t> dims, const std::vector<double>& values);
// Of few values, floats around 1: making them must not take longer than what is tested or measured.
Tensor FewValues(DataType type, std::vector<int64_t> dims, uint32_t seed);

double DecodeElement(DataType type, uint32_t bits);

// Inputs and outputs as arrays; ParallelFor on real threads, or all by the caller.
class ArrayContext : public ExecutionContext {
 public:
  explicit ArrayContext(int threads = 1) : threads_(threads) {}

  int AddInput(const Tensor* tensor) {
    inputs_.push_back(tensor);
    return static_cast<int>(inputs_.size()) - 1;
  }
  // Output i is allocated with this type; memory is kept from call to call.
  void SetOutputTypes(std::vector<DataType> types);
  const Tensor& output(int i) const { return outputs_[static_cast<size_t>(i)]; }
  // Outputs begin so many bytes behind a multiple of 64; at most 64.
  void ShiftOutputs(size_t bytes) { shift_ = bytes; }
  void LeaveToCaller(bool leave) { caller_only_ = leave; }
  int parallel_calls() const { return parallel_calls_; }

  Result Input(int index, TensorView* view) override;
  Result Output(int index, DataType type, const int64_t* dims, size_t rank, void** data) override;
  Result ParallelFor(void (*task)(void* user, size_t index), size_t count, void* user) override;
  int ThreadCount() const override { return threads_; }

 private:
  int threads_;
  bool caller_only_ = false;
  size_t shift_ = 0;
  int parallel_calls_ = 0;
  std::vector<const Tensor*> inputs_;
  std::vector<Tensor> outputs_;
  std::vector<std::vector<int64_t>> output_dims_;
};

// A chain together with the tensors it refers to.
struct Case {
  Parts parts;
  std::optional<Chain> steps;  // instead of parts
  std::vector<std::unique_ptr<Tensor>> tensors;
  std::vector<DataType> output_types;

  Chain chain() const { return steps ? *steps : parts.Make(); }
  TensorRef Add(Tensor tensor, bool constant);
  const Tensor& Of(const TensorRef& ref) const;
  void FillContext(ArrayContext* context) const;

  std::vector<std::unique_ptr<Tensor>> constant_tensors;
  std::vector<std::pair<const ConstantTensor*, const Tensor*>> constants_by_value;
};

struct NamedTensor {
  std::string name;
  Tensor tensor;
  bool constant = false;
};

// The chain of a node's program and tensors, X among them; those that its steps do not name are left out.
Case FromSteps(const std::string& steps, const std::vector<NamedTensor>& tensors);
// The same with some tensors as text, "X=float32[2,768] g=[768] s=0.05 z=int8(3)": of few values, or of one number; float32
// where no type stands. Names that begin with a capital letter are those of inputs, others of constants.
Case FromSteps(const std::string& steps, const std::string& tensors, std::vector<NamedTensor> more = {});

inline constexpr double kEps = 0x1p-24;  // half a unit in the last place of float32 at 1

// What an implementation may do with the formula.
struct Accuracy {
  double rounding = kEps;        // of each operation, of its result
  double floor = 0x1p-24;        // and of smaller results as of this one
  double float16_units = 0.505;  // in the last place, where float32 becomes float16
};

// What a step writes on the way.
struct Emitted {
  int output = kNoOutput;
  std::vector<double> values;
  std::vector<double> tolerance;
};

// Every value that the formula goes through, per element of d, in double; `tolerance` bounds what float32 arithmetic may
// change before Y is rounded to its type.
struct Expected {
  Accuracy accuracy;
  std::vector<int64_t> shape;
  std::vector<int64_t> stat_shape;
  std::vector<double> d;
  double error_of_d = 0;   // the largest
  bool overflows = false;  // some step does in float32, or nearly
  std::vector<double> a;
  std::vector<double> y_scale;
  std::vector<double> y_zero;
  std::vector<double> tolerance;
  std::vector<double> mean;
  std::vector<double> inv_std_dev;
  std::vector<Emitted> emitted;
};

// All operands of d broadcast with each other, see chain.h.
std::vector<int64_t> ShapeOfD(const Case& c, const Chain& chain);

Expected Compute(const Case& c, const Accuracy& accuracy = {});

// Whether the results are for the tests of the edges.
bool Overflows(const Case& c);

// The names in NORMFUSE_ISA's list that this machine has.
std::vector<std::string> AvailableIsas();
void ForceIsa(const std::string& name);
void OnEveryIsa(const std::function<void(const std::string& isa)>& test);
// NORMFUSE_PATH's words.
void ForcePath(const char* words);

// Every output in `context` with what the chain means.
void CompareOutputs(const Case& c, const ArrayContext& context, const std::string& what, const Accuracy& accuracy = {});

// Compiles and runs `c` and compares every output; reports failures with `what`.
void RunAndCompare(const Case& c, int threads, const std::string& what);

}  // namespace normfuse::test
