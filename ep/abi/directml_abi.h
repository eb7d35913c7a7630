// The part of DirectML's C ABI that the DirectML path uses: enumerations, descriptions, interfaces. Numbers behind the
// methods are vtable slots. Everything here is checked against the real libraries by tests/native/directml_validate.cc.
#pragma once

#include "abi/com_abi.h"
#include "abi/d3d12_abi.h"

namespace normfuse::abi {

enum DML_FEATURE_LEVEL : uint32_t {
  DML_FEATURE_LEVEL_1_0 = 0x1000,
  DML_FEATURE_LEVEL_2_0 = 0x2000,
  DML_FEATURE_LEVEL_2_1 = 0x2100,
  DML_FEATURE_LEVEL_3_0 = 0x3000,
  DML_FEATURE_LEVEL_3_1 = 0x3100,
  DML_FEATURE_LEVEL_4_0 = 0x4000,
  DML_FEATURE_LEVEL_4_1 = 0x4100,
  DML_FEATURE_LEVEL_5_0 = 0x5000,
  DML_FEATURE_LEVEL_5_1 = 0x5100,
  DML_FEATURE_LEVEL_5_2 = 0x5200,
  DML_FEATURE_LEVEL_6_0 = 0x6000,
  DML_FEATURE_LEVEL_6_1 = 0x6100,
  DML_FEATURE_LEVEL_6_2 = 0x6200,
  DML_FEATURE_LEVEL_6_3 = 0x6300,
  DML_FEATURE_LEVEL_6_4 = 0x6400,
};

enum DML_TENSOR_DATA_TYPE : uint32_t {
  DML_TENSOR_DATA_TYPE_UNKNOWN = 0,
  DML_TENSOR_DATA_TYPE_FLOAT32 = 1,
  DML_TENSOR_DATA_TYPE_FLOAT16 = 2,
  DML_TENSOR_DATA_TYPE_UINT32 = 3,
  DML_TENSOR_DATA_TYPE_UINT16 = 4,
  DML_TENSOR_DATA_TYPE_UINT8 = 5,
  DML_TENSOR_DATA_TYPE_INT32 = 6,
  DML_TENSOR_DATA_TYPE_INT16 = 7,
  DML_TENSOR_DATA_TYPE_INT8 = 8,
  DML_TENSOR_DATA_TYPE_FLOAT64 = 9,
  DML_TENSOR_DATA_TYPE_UINT64 = 10,
  DML_TENSOR_DATA_TYPE_INT64 = 11,
  DML_TENSOR_DATA_TYPE_UINT4 = 12,
  DML_TENSOR_DATA_TYPE_INT4 = 13,
};

enum DML_TENSOR_TYPE : uint32_t { DML_TENSOR_TYPE_BUFFER = 1 };
enum DML_TENSOR_FLAGS : uint32_t { DML_TENSOR_FLAG_NONE = 0, DML_TENSOR_FLAG_OWNED_BY_DML = 1 };
enum DML_EXECUTION_FLAGS : uint32_t { DML_EXECUTION_FLAG_NONE = 0 };
enum DML_CREATE_DEVICE_FLAGS : uint32_t { DML_CREATE_DEVICE_FLAG_NONE = 0 };
enum DML_FEATURE : uint32_t { DML_FEATURE_TENSOR_DATA_TYPE_SUPPORT = 0, DML_FEATURE_FEATURE_LEVELS = 1 };
enum DML_BINDING_TYPE : uint32_t {
  DML_BINDING_TYPE_NONE = 0,
  DML_BINDING_TYPE_BUFFER = 1,
  DML_BINDING_TYPE_BUFFER_ARRAY = 2
};
enum DML_GRAPH_EDGE_TYPE : uint32_t {
  DML_GRAPH_EDGE_TYPE_INPUT = 1,
  DML_GRAPH_EDGE_TYPE_OUTPUT = 2,
  DML_GRAPH_EDGE_TYPE_INTERMEDIATE = 3,
};
enum DML_GRAPH_NODE_TYPE : uint32_t { DML_GRAPH_NODE_TYPE_OPERATOR = 1 };
enum DML_REDUCE_FUNCTION : uint32_t {
  DML_REDUCE_FUNCTION_AVERAGE = 2,
  DML_REDUCE_FUNCTION_MAX = 7,
  DML_REDUCE_FUNCTION_MIN = 8,
  DML_REDUCE_FUNCTION_SUM = 10,
  DML_REDUCE_FUNCTION_SUM_SQUARE = 11,
};
enum DML_MATRIX_TRANSFORM : uint32_t { DML_MATRIX_TRANSFORM_NONE = 0, DML_MATRIX_TRANSFORM_TRANSPOSE = 1 };
enum DML_CONVOLUTION_MODE : uint32_t { DML_CONVOLUTION_MODE_CROSS_CORRELATION = 1 };
enum DML_CONVOLUTION_DIRECTION : uint32_t {
  DML_CONVOLUTION_DIRECTION_FORWARD = 0,
  DML_CONVOLUTION_DIRECTION_BACKWARD = 1,
};
enum DML_PADDING_MODE : uint32_t {
  DML_PADDING_MODE_CONSTANT = 0,
  DML_PADDING_MODE_EDGE = 1,
  DML_PADDING_MODE_REFLECTION = 2,
};
enum DML_ROUNDING_MODE : uint32_t { DML_ROUNDING_MODE_HALVES_TO_NEAREST_EVEN = 0 };
enum DML_QUANTIZATION_TYPE : uint32_t { DML_QUANTIZATION_TYPE_SCALE = 1, DML_QUANTIZATION_TYPE_SCALE_ZERO_POINT = 2 };

// The operators that a lowering can contain. Activations carry the number that ep/spec/activations.toml gives them.
enum DML_OPERATOR_TYPE : uint32_t {
  DML_OPERATOR_INVALID = 0,
  DML_OPERATOR_ELEMENT_WISE_IDENTITY = 1,
  DML_OPERATOR_ELEMENT_WISE_ABS = 2,
  DML_OPERATOR_ELEMENT_WISE_ADD = 4,
  DML_OPERATOR_ELEMENT_WISE_CLIP = 8,
  DML_OPERATOR_ELEMENT_WISE_COS = 9,
  DML_OPERATOR_ELEMENT_WISE_DIVIDE = 10,
  DML_OPERATOR_ELEMENT_WISE_EXP = 11,
  DML_OPERATOR_ELEMENT_WISE_LOG = 13,
  DML_OPERATOR_ELEMENT_WISE_LOGICAL_AND = 14,
  DML_OPERATOR_ELEMENT_WISE_LOGICAL_EQUALS = 15,
  DML_OPERATOR_ELEMENT_WISE_LOGICAL_GREATER_THAN = 16,
  DML_OPERATOR_ELEMENT_WISE_LOGICAL_LESS_THAN = 17,
  DML_OPERATOR_ELEMENT_WISE_LOGICAL_NOT = 18,
  DML_OPERATOR_ELEMENT_WISE_LOGICAL_OR = 19,
  DML_OPERATOR_ELEMENT_WISE_LOGICAL_XOR = 20,
  DML_OPERATOR_ELEMENT_WISE_MAX = 21,
  DML_OPERATOR_ELEMENT_WISE_MIN = 23,
  DML_OPERATOR_ELEMENT_WISE_MULTIPLY = 24,
  DML_OPERATOR_ELEMENT_WISE_POW = 25,
  DML_OPERATOR_ELEMENT_WISE_CONSTANT_POW = 26,
  DML_OPERATOR_ELEMENT_WISE_RECIP = 27,
  DML_OPERATOR_ELEMENT_WISE_SIN = 28,
  DML_OPERATOR_ELEMENT_WISE_SQRT = 29,
  DML_OPERATOR_ELEMENT_WISE_SUBTRACT = 30,
  DML_OPERATOR_ELEMENT_WISE_QUANTIZE_LINEAR = 33,
  DML_OPERATOR_ELEMENT_WISE_DEQUANTIZE_LINEAR = 34,
  DML_OPERATOR_ACTIVATION_ELU = 35,
  DML_OPERATOR_ACTIVATION_HARD_SIGMOID = 37,
  DML_OPERATOR_ACTIVATION_IDENTITY = 38,
  DML_OPERATOR_ACTIVATION_LEAKY_RELU = 39,
  DML_OPERATOR_ACTIVATION_LINEAR = 40,
  DML_OPERATOR_ACTIVATION_PARAMETERIZED_RELU = 42,
  DML_OPERATOR_ACTIVATION_RELU = 44,
  DML_OPERATOR_ACTIVATION_SIGMOID = 47,
  DML_OPERATOR_ACTIVATION_SOFTPLUS = 49,
  DML_OPERATOR_ACTIVATION_TANH = 51,
  DML_OPERATOR_CONVOLUTION = 53,
  DML_OPERATOR_GEMM = 54,
  DML_OPERATOR_REDUCE = 55,
  DML_OPERATOR_AVERAGE_POOLING = 56,
  DML_OPERATOR_CAST = 61,
  DML_OPERATOR_JOIN = 63,
  DML_OPERATOR_PADDING = 64,
  DML_OPERATOR_GATHER = 67,
  DML_OPERATOR_BATCH_NORMALIZATION = 72,
  DML_OPERATOR_ELEMENT_WISE_IS_NAN = 80,
  DML_OPERATOR_ELEMENT_WISE_ERF = 81,
  DML_OPERATOR_ELEMENT_WISE_IF = 88,
  DML_OPERATOR_ELEMENT_WISE_ROUND = 99,
  DML_OPERATOR_MAX_POOLING2 = 110,
  DML_OPERATOR_SLICE1 = 111,
  DML_OPERATOR_MEAN_VARIANCE_NORMALIZATION1 = 115,
  DML_OPERATOR_MATRIX_MULTIPLY_INTEGER = 117,
  DML_OPERATOR_QUANTIZED_LINEAR_MATRIX_MULTIPLY = 118,
  DML_OPERATOR_CONVOLUTION_INTEGER = 119,
  DML_OPERATOR_QUANTIZED_LINEAR_CONVOLUTION = 120,
  DML_OPERATOR_ELEMENT_WISE_LOGICAL_GREATER_THAN_OR_EQUAL = 126,
  DML_OPERATOR_ELEMENT_WISE_LOGICAL_LESS_THAN_OR_EQUAL = 127,
  DML_OPERATOR_ACTIVATION_SOFTMAX1 = 158,
  DML_OPERATOR_ACTIVATION_LOG_SOFTMAX1 = 159,
  DML_OPERATOR_MEAN_VARIANCE_NORMALIZATION2 = 171,
  DML_OPERATOR_QUANTIZE = 173,
  DML_OPERATOR_DEQUANTIZE = 174,
};

inline constexpr uint32_t kDmlMaxRank = 8;
inline constexpr uint64_t kDmlBufferAlignment = 256;  // of temporary and persistent buffers; a tensor's is 16

struct DML_BUFFER_TENSOR_DESC {
  DML_TENSOR_DATA_TYPE DataType;
  DML_TENSOR_FLAGS Flags;
  UINT DimensionCount;
  const UINT* Sizes;
  const UINT* Strides;  // in elements; null: packed
  UINT64 TotalTensorSizeInBytes;
  UINT GuaranteedBaseOffsetAlignment;
};
static_assert(sizeof(DML_BUFFER_TENSOR_DESC) == 48 && offsetof(DML_BUFFER_TENSOR_DESC, Sizes) == 16 &&
              offsetof(DML_BUFFER_TENSOR_DESC, TotalTensorSizeInBytes) == 32);

struct DML_TENSOR_DESC {
  DML_TENSOR_TYPE Type;
  const void* Desc;
};
static_assert(sizeof(DML_TENSOR_DESC) == 16 && offsetof(DML_TENSOR_DESC, Desc) == 8);

struct DML_OPERATOR_DESC {
  DML_OPERATOR_TYPE Type;
  const void* Desc;
};
static_assert(sizeof(DML_OPERATOR_DESC) == 16);

struct DML_SCALE_BIAS {
  FLOAT Scale;
  FLOAT Bias;
};

// IDENTITY, ABS, SQRT, RECIP, ERF, EXP, LOG, SIN: f(x * scale + bias).
struct DML_ELEMENT_WISE_UNARY_OPERATOR_DESC {
  const DML_TENSOR_DESC* InputTensor;
  const DML_TENSOR_DESC* OutputTensor;
  const DML_SCALE_BIAS* ScaleBias;
};
static_assert(sizeof(DML_ELEMENT_WISE_UNARY_OPERATOR_DESC) == 24);

// ADD, SUBTRACT, MULTIPLY, DIVIDE, MAX, MIN, and the LOGICAL_ operators of two operands, whose output is of UINT8.
struct DML_ELEMENT_WISE_BINARY_OPERATOR_DESC {
  const DML_TENSOR_DESC* ATensor;
  const DML_TENSOR_DESC* BTensor;
  const DML_TENSOR_DESC* OutputTensor;
};
static_assert(sizeof(DML_ELEMENT_WISE_BINARY_OPERATOR_DESC) == 24);

struct DML_ELEMENT_WISE_POW_OPERATOR_DESC {
  const DML_TENSOR_DESC* InputTensor;
  const DML_TENSOR_DESC* ExponentTensor;
  const DML_TENSOR_DESC* OutputTensor;
  const DML_SCALE_BIAS* ScaleBias;
};
static_assert(sizeof(DML_ELEMENT_WISE_POW_OPERATOR_DESC) == 32);

struct DML_ELEMENT_WISE_CONSTANT_POW_OPERATOR_DESC {
  const DML_TENSOR_DESC* InputTensor;
  const DML_TENSOR_DESC* OutputTensor;
  const DML_SCALE_BIAS* ScaleBias;
  FLOAT Exponent;
};
static_assert(sizeof(DML_ELEMENT_WISE_CONSTANT_POW_OPERATOR_DESC) == 32);

// Output = Condition ? A : B; the condition is of UINT8.
struct DML_ELEMENT_WISE_IF_OPERATOR_DESC {
  const DML_TENSOR_DESC* ConditionTensor;
  const DML_TENSOR_DESC* ATensor;
  const DML_TENSOR_DESC* BTensor;
  const DML_TENSOR_DESC* OutputTensor;
};
static_assert(sizeof(DML_ELEMENT_WISE_IF_OPERATOR_DESC) == 32);

// Output = Alpha * A x B + Beta * C over the last two of four dimensions.
struct DML_GEMM_OPERATOR_DESC {
  const DML_TENSOR_DESC* ATensor;
  const DML_TENSOR_DESC* BTensor;
  const DML_TENSOR_DESC* CTensor;
  const DML_TENSOR_DESC* OutputTensor;
  DML_MATRIX_TRANSFORM TransA;
  DML_MATRIX_TRANSFORM TransB;
  FLOAT Alpha;
  FLOAT Beta;
  const DML_OPERATOR_DESC* FusedActivation;
};
static_assert(sizeof(DML_GEMM_OPERATOR_DESC) == 56 && offsetof(DML_GEMM_OPERATOR_DESC, FusedActivation) == 48);

// Output[.., i.., ..] = Input[.., Indices[i..], ..] at `Axis`; all tensors have the same number of dimensions.
struct DML_GATHER_OPERATOR_DESC {
  const DML_TENSOR_DESC* InputTensor;
  const DML_TENSOR_DESC* IndicesTensor;
  const DML_TENSOR_DESC* OutputTensor;
  UINT Axis;
  UINT IndexDimensions;
};
static_assert(sizeof(DML_GATHER_OPERATOR_DESC) == 32);

struct DML_JOIN_OPERATOR_DESC {
  UINT InputCount;
  const DML_TENSOR_DESC* InputTensors;  // an array of descriptions
  const DML_TENSOR_DESC* OutputTensor;
  UINT Axis;
};
static_assert(sizeof(DML_JOIN_OPERATOR_DESC) == 32);

struct DML_SLICE1_OPERATOR_DESC {
  const DML_TENSOR_DESC* InputTensor;
  const DML_TENSOR_DESC* OutputTensor;
  UINT DimensionCount;
  const UINT* InputWindowOffsets;
  const UINT* InputWindowSizes;
  const int32_t* InputWindowStrides;
};
static_assert(sizeof(DML_SLICE1_OPERATOR_DESC) == 48 && offsetof(DML_SLICE1_OPERATOR_DESC, InputWindowStrides) == 40);

// Lists have a number for each spatial dimension. BACKWARD is a transposed convolution.
struct DML_CONVOLUTION_OPERATOR_DESC {
  const DML_TENSOR_DESC* InputTensor;
  const DML_TENSOR_DESC* FilterTensor;
  const DML_TENSOR_DESC* BiasTensor;
  const DML_TENSOR_DESC* OutputTensor;
  DML_CONVOLUTION_MODE Mode;
  DML_CONVOLUTION_DIRECTION Direction;
  UINT DimensionCount;
  const UINT* Strides;
  const UINT* Dilations;
  const UINT* StartPadding;
  const UINT* EndPadding;
  const UINT* OutputPadding;
  UINT GroupCount;
  const DML_OPERATOR_DESC* FusedActivation;
};
static_assert(sizeof(DML_CONVOLUTION_OPERATOR_DESC) == 104 && offsetof(DML_CONVOLUTION_OPERATOR_DESC, Strides) == 48);

struct DML_AVERAGE_POOLING_OPERATOR_DESC {
  const DML_TENSOR_DESC* InputTensor;
  const DML_TENSOR_DESC* OutputTensor;
  UINT DimensionCount;
  const UINT* Strides;
  const UINT* WindowSize;
  const UINT* StartPadding;
  const UINT* EndPadding;
  BOOL IncludePadding;
};
static_assert(sizeof(DML_AVERAGE_POOLING_OPERATOR_DESC) == 64);

struct DML_MAX_POOLING2_OPERATOR_DESC {
  const DML_TENSOR_DESC* InputTensor;
  const DML_TENSOR_DESC* OutputTensor;
  const DML_TENSOR_DESC* OutputIndicesTensor;
  UINT DimensionCount;
  const UINT* Strides;
  const UINT* WindowSize;
  const UINT* StartPadding;
  const UINT* EndPadding;
  const UINT* Dilations;
};
static_assert(sizeof(DML_MAX_POOLING2_OPERATOR_DESC) == 72);

// Lists have a number for each dimension.
struct DML_PADDING_OPERATOR_DESC {
  const DML_TENSOR_DESC* InputTensor;
  const DML_TENSOR_DESC* OutputTensor;
  DML_PADDING_MODE PaddingMode;
  FLOAT PaddingValue;
  UINT DimensionCount;
  const UINT* StartPadding;
  const UINT* EndPadding;
};
static_assert(sizeof(DML_PADDING_OPERATOR_DESC) == 48 && offsetof(DML_PADDING_OPERATOR_DESC, StartPadding) == 32);

struct DML_BATCH_NORMALIZATION_OPERATOR_DESC {
  const DML_TENSOR_DESC* InputTensor;
  const DML_TENSOR_DESC* MeanTensor;
  const DML_TENSOR_DESC* VarianceTensor;
  const DML_TENSOR_DESC* ScaleTensor;
  const DML_TENSOR_DESC* BiasTensor;
  const DML_TENSOR_DESC* OutputTensor;
  BOOL Spatial;
  FLOAT Epsilon;
  const DML_OPERATOR_DESC* FusedActivation;
};
static_assert(sizeof(DML_BATCH_NORMALIZATION_OPERATOR_DESC) == 64);

// SOFTMAX1 and LOG_SOFTMAX1.
struct DML_ACTIVATION_SOFTMAX1_OPERATOR_DESC {
  const DML_TENSOR_DESC* InputTensor;
  const DML_TENSOR_DESC* OutputTensor;
  UINT AxisCount;
  const UINT* Axes;
};
static_assert(sizeof(DML_ACTIVATION_SOFTMAX1_OPERATOR_DESC) == 32);

struct DML_ELEMENT_WISE_CLIP_OPERATOR_DESC {
  const DML_TENSOR_DESC* InputTensor;
  const DML_TENSOR_DESC* OutputTensor;
  const DML_SCALE_BIAS* ScaleBias;
  FLOAT Min;
  FLOAT Max;
};
static_assert(sizeof(DML_ELEMENT_WISE_CLIP_OPERATOR_DESC) == 32);

struct DML_ELEMENT_WISE_ROUND_OPERATOR_DESC {
  const DML_TENSOR_DESC* InputTensor;
  const DML_TENSOR_DESC* OutputTensor;
  DML_ROUNDING_MODE RoundingMode;
};
static_assert(sizeof(DML_ELEMENT_WISE_ROUND_OPERATOR_DESC) == 24);

// CAST, LOGICAL_NOT, IS_NAN.
struct DML_CAST_OPERATOR_DESC {
  const DML_TENSOR_DESC* InputTensor;
  const DML_TENSOR_DESC* OutputTensor;
};
static_assert(sizeof(DML_CAST_OPERATOR_DESC) == 16);

struct DML_REDUCE_OPERATOR_DESC {
  DML_REDUCE_FUNCTION Function;
  const DML_TENSOR_DESC* InputTensor;
  const DML_TENSOR_DESC* OutputTensor;
  UINT AxisCount;
  const UINT* Axes;
};
static_assert(sizeof(DML_REDUCE_OPERATOR_DESC) == 40 && offsetof(DML_REDUCE_OPERATOR_DESC, Axes) == 32);

// Every activation without a further tensor: its floats follow the two tensors, in the order of the activation table.
// Both tensors are null where it is fused into another operator.
struct DML_ACTIVATION_OPERATOR_DESC {
  const DML_TENSOR_DESC* InputTensor;
  const DML_TENSOR_DESC* OutputTensor;
  FLOAT Parameters[2];
};
static_assert(sizeof(DML_ACTIVATION_OPERATOR_DESC) == 24 && offsetof(DML_ACTIVATION_OPERATOR_DESC, Parameters) == 16);

struct DML_ACTIVATION_PARAMETERIZED_RELU_OPERATOR_DESC {
  const DML_TENSOR_DESC* InputTensor;
  const DML_TENSOR_DESC* SlopeTensor;
  const DML_TENSOR_DESC* OutputTensor;
};
static_assert(sizeof(DML_ACTIVATION_PARAMETERIZED_RELU_OPERATOR_DESC) == 24);

// ELEMENT_WISE_QUANTIZE_LINEAR and ELEMENT_WISE_DEQUANTIZE_LINEAR.
struct DML_ELEMENT_WISE_QUANTIZE_LINEAR_OPERATOR_DESC {
  const DML_TENSOR_DESC* InputTensor;
  const DML_TENSOR_DESC* ScaleTensor;
  const DML_TENSOR_DESC* ZeroPointTensor;
  const DML_TENSOR_DESC* OutputTensor;
};
static_assert(sizeof(DML_ELEMENT_WISE_QUANTIZE_LINEAR_OPERATOR_DESC) == 32);

// (A - zero point) * (B - zero point), summed as int32. A zero point has one element, or one a row of A or a column of B.
struct DML_MATRIX_MULTIPLY_INTEGER_OPERATOR_DESC {
  const DML_TENSOR_DESC* ATensor;
  const DML_TENSOR_DESC* AZeroPointTensor;
  const DML_TENSOR_DESC* BTensor;
  const DML_TENSOR_DESC* BZeroPointTensor;
  const DML_TENSOR_DESC* OutputTensor;
};
static_assert(sizeof(DML_MATRIX_MULTIPLY_INTEGER_OPERATOR_DESC) == 40);

struct DML_QUANTIZED_LINEAR_MATRIX_MULTIPLY_OPERATOR_DESC {
  const DML_TENSOR_DESC* ATensor;
  const DML_TENSOR_DESC* AScaleTensor;
  const DML_TENSOR_DESC* AZeroPointTensor;
  const DML_TENSOR_DESC* BTensor;
  const DML_TENSOR_DESC* BScaleTensor;
  const DML_TENSOR_DESC* BZeroPointTensor;
  const DML_TENSOR_DESC* OutputScaleTensor;
  const DML_TENSOR_DESC* OutputZeroPointTensor;
  const DML_TENSOR_DESC* OutputTensor;
};
static_assert(sizeof(DML_QUANTIZED_LINEAR_MATRIX_MULTIPLY_OPERATOR_DESC) == 72);

struct DML_CONVOLUTION_INTEGER_OPERATOR_DESC {
  const DML_TENSOR_DESC* InputTensor;
  const DML_TENSOR_DESC* InputZeroPointTensor;
  const DML_TENSOR_DESC* FilterTensor;
  const DML_TENSOR_DESC* FilterZeroPointTensor;
  const DML_TENSOR_DESC* OutputTensor;
  UINT DimensionCount;
  const UINT* Strides;
  const UINT* Dilations;
  const UINT* StartPadding;
  const UINT* EndPadding;
  UINT GroupCount;
};
static_assert(sizeof(DML_CONVOLUTION_INTEGER_OPERATOR_DESC) == 88);

struct DML_QUANTIZED_LINEAR_CONVOLUTION_OPERATOR_DESC {
  const DML_TENSOR_DESC* InputTensor;
  const DML_TENSOR_DESC* InputScaleTensor;
  const DML_TENSOR_DESC* InputZeroPointTensor;
  const DML_TENSOR_DESC* FilterTensor;
  const DML_TENSOR_DESC* FilterScaleTensor;
  const DML_TENSOR_DESC* FilterZeroPointTensor;
  const DML_TENSOR_DESC* BiasTensor;  // int32
  const DML_TENSOR_DESC* OutputScaleTensor;
  const DML_TENSOR_DESC* OutputZeroPointTensor;
  const DML_TENSOR_DESC* OutputTensor;
  UINT DimensionCount;
  const UINT* Strides;
  const UINT* Dilations;
  const UINT* StartPadding;
  const UINT* EndPadding;
  UINT GroupCount;
};
static_assert(sizeof(DML_QUANTIZED_LINEAR_CONVOLUTION_OPERATOR_DESC) == 128);

// QUANTIZE and DEQUANTIZE. The quantisation tensors are an array of descriptions, not of pointers: scale, zero point.
struct DML_QUANTIZE_OPERATOR_DESC {
  const DML_TENSOR_DESC* InputTensor;
  DML_QUANTIZATION_TYPE QuantizationType;
  UINT QuantizationTensorCount;
  const DML_TENSOR_DESC* QuantizationTensors;
  const DML_TENSOR_DESC* OutputTensor;
};
static_assert(sizeof(DML_QUANTIZE_OPERATOR_DESC) == 32 && offsetof(DML_QUANTIZE_OPERATOR_DESC, OutputTensor) == 24);

struct DML_MEAN_VARIANCE_NORMALIZATION1_OPERATOR_DESC {
  const DML_TENSOR_DESC* InputTensor;
  const DML_TENSOR_DESC* ScaleTensor;
  const DML_TENSOR_DESC* BiasTensor;
  const DML_TENSOR_DESC* OutputTensor;
  UINT AxisCount;
  const UINT* Axes;
  BOOL NormalizeVariance;
  FLOAT Epsilon;
  const DML_OPERATOR_DESC* FusedActivation;
};
static_assert(sizeof(DML_MEAN_VARIANCE_NORMALIZATION1_OPERATOR_DESC) == 64 &&
              offsetof(DML_MEAN_VARIANCE_NORMALIZATION1_OPERATOR_DESC, NormalizeVariance) == 48 &&
              offsetof(DML_MEAN_VARIANCE_NORMALIZATION1_OPERATOR_DESC, Epsilon) == 52 &&
              offsetof(DML_MEAN_VARIANCE_NORMALIZATION1_OPERATOR_DESC, FusedActivation) == 56);

struct DML_MEAN_VARIANCE_NORMALIZATION2_OPERATOR_DESC {
  const DML_TENSOR_DESC* InputTensor;
  const DML_TENSOR_DESC* ScaleTensor;
  const DML_TENSOR_DESC* BiasTensor;
  const DML_TENSOR_DESC* OutputTensor;
  UINT AxisCount;
  const UINT* Axes;
  BOOL UseMean;
  BOOL UseVariance;
  FLOAT Epsilon;
  const DML_OPERATOR_DESC* FusedActivation;
};
static_assert(sizeof(DML_MEAN_VARIANCE_NORMALIZATION2_OPERATOR_DESC) == 72 &&
              offsetof(DML_MEAN_VARIANCE_NORMALIZATION2_OPERATOR_DESC, UseMean) == 48 &&
              offsetof(DML_MEAN_VARIANCE_NORMALIZATION2_OPERATOR_DESC, FusedActivation) == 64);

struct DML_BINDING_PROPERTIES {
  UINT RequiredDescriptorCount;
  UINT64 TemporaryResourceSize;
  UINT64 PersistentResourceSize;
};
static_assert(sizeof(DML_BINDING_PROPERTIES) == 24);

struct DML_BINDING_DESC {
  DML_BINDING_TYPE Type;
  const void* Desc;
};
static_assert(sizeof(DML_BINDING_DESC) == 16);

struct DML_BUFFER_BINDING {
  ID3D12Resource* Buffer;
  UINT64 Offset;
  UINT64 SizeInBytes;
};
static_assert(sizeof(DML_BUFFER_BINDING) == 24);

struct DML_BUFFER_ARRAY_BINDING {
  UINT BindingCount;
  const DML_BUFFER_BINDING* Bindings;
};
static_assert(sizeof(DML_BUFFER_ARRAY_BINDING) == 16);

struct DML_GRAPH_EDGE_DESC {
  DML_GRAPH_EDGE_TYPE Type;
  const void* Desc;
};
struct DML_GRAPH_NODE_DESC {
  DML_GRAPH_NODE_TYPE Type;
  const void* Desc;
};
static_assert(sizeof(DML_GRAPH_EDGE_DESC) == 16 && sizeof(DML_GRAPH_NODE_DESC) == 16);

struct DML_INPUT_GRAPH_EDGE_DESC {
  UINT GraphInputIndex;
  UINT ToNodeIndex;
  UINT ToNodeInputIndex;
  const char* Name;
};
static_assert(sizeof(DML_INPUT_GRAPH_EDGE_DESC) == 24);

struct DML_OUTPUT_GRAPH_EDGE_DESC {
  UINT FromNodeIndex;
  UINT FromNodeOutputIndex;
  UINT GraphOutputIndex;
  const char* Name;
};
static_assert(sizeof(DML_OUTPUT_GRAPH_EDGE_DESC) == 24);

struct DML_INTERMEDIATE_GRAPH_EDGE_DESC {
  UINT FromNodeIndex;
  UINT FromNodeOutputIndex;
  UINT ToNodeIndex;
  UINT ToNodeInputIndex;
  const char* Name;
};
static_assert(sizeof(DML_INTERMEDIATE_GRAPH_EDGE_DESC) == 24);

struct DML_GRAPH_DESC {
  UINT InputCount;
  UINT OutputCount;
  UINT NodeCount;
  const DML_GRAPH_NODE_DESC* Nodes;
  UINT InputEdgeCount;
  const DML_GRAPH_EDGE_DESC* InputEdges;
  UINT OutputEdgeCount;
  const DML_GRAPH_EDGE_DESC* OutputEdges;
  UINT IntermediateEdgeCount;
  const DML_GRAPH_EDGE_DESC* IntermediateEdges;
};
static_assert(sizeof(DML_GRAPH_DESC) == 72 && offsetof(DML_GRAPH_DESC, Nodes) == 16 &&
              offsetof(DML_GRAPH_DESC, IntermediateEdges) == 64);

struct DML_FEATURE_QUERY_FEATURE_LEVELS {
  UINT RequestedFeatureLevelCount;
  const DML_FEATURE_LEVEL* RequestedFeatureLevels;
};
struct DML_FEATURE_DATA_FEATURE_LEVELS {
  DML_FEATURE_LEVEL MaxSupportedFeatureLevel;
};
static_assert(sizeof(DML_FEATURE_QUERY_FEATURE_LEVELS) == 16 && sizeof(DML_FEATURE_DATA_FEATURE_LEVELS) == 4);

struct IDMLObject : IUnknown {
  NORMFUSE_COM_UNUSED_SLOT(3)             // GetPrivateData
  NORMFUSE_COM_UNUSED_SLOT(4)             // SetPrivateData
  NORMFUSE_COM_UNUSED_SLOT(5)             // SetPrivateDataInterface
  virtual HRESULT SetName(const void*) {  // 6
    return kOk;
  }
};

struct IDMLDeviceChild : IDMLObject {
  virtual HRESULT GetDevice(const GUID& iid, void** device) = 0;  // 7
};

struct IDMLOperator : IDMLDeviceChild {
  static constexpr GUID kIid = {0x26caae7a, 0x3081, 0x4633, {0x95, 0x81, 0x22, 0x6f, 0xbe, 0x57, 0x69, 0x5d}};
};

struct DML_OPERATOR_GRAPH_NODE_DESC {
  IDMLOperator* Operator;
  const char* Name;
};
static_assert(sizeof(DML_OPERATOR_GRAPH_NODE_DESC) == 16);

struct IDMLDispatchable : IDMLDeviceChild {
  NORMFUSE_COM_STRUCT_METHOD(DML_BINDING_PROPERTIES, GetBindingProperties)  // 8
};

struct DML_BINDING_TABLE_DESC {
  IDMLDispatchable* Dispatchable;
  D3D12_CPU_DESCRIPTOR_HANDLE CPUDescriptorHandle;
  D3D12_GPU_DESCRIPTOR_HANDLE GPUDescriptorHandle;
  UINT SizeInDescriptors;
};
static_assert(sizeof(DML_BINDING_TABLE_DESC) == 32);

struct IDMLCompiledOperator : IDMLDispatchable {
  static constexpr GUID kIid = {0x6b15e56a, 0xbf5c, 0x4902, {0x92, 0xd8, 0xda, 0x3a, 0x65, 0x0a, 0xfe, 0xa4}};
};

struct IDMLOperatorInitializer : IDMLDispatchable {
  static constexpr GUID kIid = {0x427c1113, 0x435c, 0x469c, {0x86, 0x76, 0x4d, 0x5d, 0xd0, 0x72, 0xf8, 0x13}};
  virtual HRESULT Reset(uint32_t count, IDMLCompiledOperator* const* operators) = 0;  // 9
};

struct IDMLBindingTable : IDMLDeviceChild {
  static constexpr GUID kIid = {0x29c687dc, 0xde74, 0x4e3b, {0xab, 0x00, 0x11, 0x68, 0xf2, 0xfc, 0x3c, 0xfc}};
  virtual void BindInputs(uint32_t count, const DML_BINDING_DESC* bindings) = 0;   // 8
  virtual void BindOutputs(uint32_t count, const DML_BINDING_DESC* bindings) = 0;  // 9
  virtual void BindTemporaryResource(const DML_BINDING_DESC* binding) = 0;         // 10
  virtual void BindPersistentResource(const DML_BINDING_DESC* binding) = 0;        // 11
  virtual HRESULT Reset(const DML_BINDING_TABLE_DESC* desc) = 0;                   // 12
};

struct IDMLCommandRecorder : IDMLDeviceChild {
  static constexpr GUID kIid = {0xe6857a76, 0x2e3e, 0x4fdd, {0xbf, 0xf4, 0x5d, 0x2b, 0xa1, 0x0f, 0xb4, 0x53}};
  virtual void RecordDispatch(ID3D12CommandList* list, IDMLDispatchable* dispatchable,  // 8
                              IDMLBindingTable* bindings) = 0;
};

struct IDMLDevice : IDMLObject {
  static constexpr GUID kIid = {0x6dbd6437, 0x96fd, 0x423f, {0xa9, 0x8c, 0xae, 0x5e, 0x7c, 0x2a, 0x57, 0x3f}};
  virtual HRESULT CheckFeatureSupport(DML_FEATURE feature, uint32_t query_bytes, const void* query,  // 7
                                      uint32_t data_bytes, void* data) = 0;
  virtual HRESULT CreateOperator(const DML_OPERATOR_DESC* desc, const GUID& iid, void** op) = 0;  // 8
  virtual HRESULT CompileOperator(IDMLOperator* op, DML_EXECUTION_FLAGS flags, const GUID& iid,   // 9
                                  void** compiled) = 0;
  virtual HRESULT CreateOperatorInitializer(uint32_t count, IDMLCompiledOperator* const* operators,  // 10
                                            const GUID& iid, void** initializer) = 0;
  virtual HRESULT CreateCommandRecorder(const GUID& iid, void** recorder) = 0;             // 11
  virtual HRESULT CreateBindingTable(const DML_BINDING_TABLE_DESC* desc, const GUID& iid,  // 12
                                     void** table) = 0;
  NORMFUSE_COM_UNUSED_SLOT(13)                                          // Evict
  NORMFUSE_COM_UNUSED_SLOT(14)                                          // MakeResident
  virtual HRESULT GetDeviceRemovedReason() = 0;                         // 15
  virtual HRESULT GetParentDevice(const GUID& iid, void** device) = 0;  // 16
};

struct IDMLDevice1 : IDMLDevice {
  static constexpr GUID kIid = {0xa0884f9a, 0xd2be, 0x4355, {0xaa, 0x5d, 0x59, 0x01, 0x28, 0x1a, 0xd1, 0xd2}};
  virtual HRESULT CompileGraph(const DML_GRAPH_DESC* desc, DML_EXECUTION_FLAGS flags, const GUID& iid,  // 17
                               void** compiled) = 0;
};

// Exported by DirectML.dll and libdirectml.so.
using DMLCreateDevice1Function = HRESULT (*)(ID3D12Device* d3d12, DML_CREATE_DEVICE_FLAGS flags,
                                             DML_FEATURE_LEVEL minimum, const GUID& iid, void** device);

}  // namespace normfuse::abi
