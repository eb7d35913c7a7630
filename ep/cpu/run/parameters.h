// The small operands of a chain (scale, bias, slope, residual_bias, quantisation scales and zero points) as float32.
// Constant ones are converted when the chain is compiled, others at each call, and only if they are not float32 already.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "chain/execution.h"
#include "cpu/plan/geometry.h"

namespace normfuse::cpu {

// The number that a constant of one element holds.
float OneNumberOf(const TensorRef& constant, float absent);

// Memory for converted parameters: blocks that grow to what calls need and are used again by later calls.
class BufferPool {
 public:
  // Gives its memory back to the pool when it goes.
  class Lease {
   public:
    explicit Lease(BufferPool* pool) : pool_(pool) {}
    Lease(const Lease&) = delete;
    Lease& operator=(const Lease&) = delete;
    ~Lease() { pool_->Return(std::move(memory_)); }
    // Room for `count` doubles.
    void Take(size_t count) { memory_ = pool_->Take(count); }
    double* data() { return memory_.data(); }

   private:
    BufferPool* pool_;
    std::vector<double> memory_;
  };

 private:
  std::vector<double> Take(size_t count);
  void Return(std::vector<double> memory);

  std::mutex mutex_;
  std::vector<std::vector<double>> free_;
};

// A parameter's values for one call.
struct Param {
  const float* data = nullptr;
  const double* wide = nullptr;  // instead of data: zero points of 32-bit types
  Shape shape{nullptr, -1};

  bool present() const { return shape.rank >= 0; }
};

// Where a parameter comes from.
class ParamSource {
 public:
  ParamSource() = default;
  ParamSource(const ParamSource&) = delete;
  ParamSource& operator=(const ParamSource&) = delete;
  // `wide`: keep as double.
  Result Init(const Operand& operand, bool wide);

  bool present() const { return present_; }
  bool constant() const { return is_constant_; }
  // All elements are equal; constants only.
  bool uniform() const { return uniform_; }
  // The value of a constant one; points into this object.
  Param Constant() const;
  // For inputs: reads the view, and says how many doubles the conversion needs.
  Result Prepare(ExecutionContext& context, const std::string& node, TensorView* view, size_t* doubles) const;
  // The values; `memory` has the room that Prepare asked for.
  Result Read(ExecutionContext& context, const std::string& node, const TensorView& view, double* memory,
              Param* param) const;

 private:
  // Whether an input is read where it lies.
  bool IsReady(const TensorView& view) const;

  bool present_ = false;
  bool is_constant_ = false;
  bool uniform_ = false;
  bool wide_ = false;
  Operand operand_;
  std::vector<float> values_;
  float* aligned_ = nullptr;  // into values_
  std::vector<double> wide_values_;
  std::vector<int64_t> dims_;
};

// The view of a tensor that is an input or a constant, with its element type checked (kUndefined: any float type).
Result GetTensor(ExecutionContext& context, const std::string& node, const std::string& what, const TensorRef& ref,
                 DataType type, TensorView* view);

// Every element of a tensor as double, dequantised by its own scale and zero point if `scale` is given.
Result ReadAll(const std::string& node, const std::string& what, const TensorView& tensor,
               const Quantization& quantization, const TensorView* scale, const TensorView* zero, double* out);

}  // namespace normfuse::cpu
