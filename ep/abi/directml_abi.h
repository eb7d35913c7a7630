// The part of DirectML's C ABI that the DirectML path uses: enumerations, descriptions, interfaces. Numbers behind the
// methods are vtable slots. Everything here is checked against the real libraries by tests/native/directml/validate.cc.
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
enum DML_PADDING_MODE : uint32_t {
  DML_PADDING_MODE_CONSTANT = 0,
  DML_PADDING_MODE_EDGE = 1,
  DML_PADDING_MODE_REFLECTION = 2,
};

// A description of an operator is its fields, one after the other, each at a multiple of its size. Pointers come first.
enum class DmlField : uint8_t {
  kInput,   // DML_TENSOR_DESC of the next input; null where it is left out
  kOutput,  // DML_TENSOR_DESC
  kNone,    // anything, which is left out
  kScaleBias,
  kFused,    // DML_OPERATOR_DESC of an activation
  kTensors,  // an array of DML_TENSOR_DESC: all inputs that are left
  kAxes,
  kStrides,  // from here on lists with a number for each dimension, or each spatial one
  kDilations,
  kWindow,
  kStartPadding,
  kEndPadding,
  kOutputPadding,
  kOffsets,
  kSizes,
  kSteps,
  kTensorCount,  // from here on UINT, BOOL and enumerations
  kAxisCount,
  kDimensionCount,
  kAxis,
  kIndexDimensions,
  kGroups,
  kBackward,
  kPaddingMode,
  kReduceFunction,
  kQuantizationType,
  kIncludePadding,
  kUseMean,
  kNormalizeVariance,
  kZero,       // what is the same in all that are made: no transposition, halves to even
  kOne,        // cross-correlation, spatial statistics
  kParameter,  // from here on FLOAT: the next of two parameters
  kEpsilon,
  kAlpha,
  kBeta,
};

// The fields of a description and, to check them, its size.
struct DmlFields {
  template <typename... Fields>
  consteval DmlFields(uint32_t bytes, Fields... given) : count(sizeof...(given)), fields{given...} {
    uint32_t at = 0;
    for (DmlField field : *this) {
      const uint32_t size = field < DmlField::kTensorCount ? 8 : 4;
      at = (at + size - 1) / size * size + size;
    }
    if ((at + 7) / 8 * 8 != bytes) throw "fields of another size";
  }
  constexpr const DmlField* begin() const { return fields; }
  constexpr const DmlField* end() const { return fields + count; }

  uint32_t count;
  DmlField fields[17];
};

namespace dml_fields {
using enum DmlField;
inline constexpr DmlFields kCast(16, kInput, kOutput);
inline constexpr DmlFields kUnary(24, kInput, kOutput, kScaleBias);  // f(x * scale + bias)
inline constexpr DmlFields kBinary(24, kInput, kInput, kOutput);
inline constexpr DmlFields kPow(32, kInput, kInput, kOutput, kNone);
inline constexpr DmlFields kConstantPow(32, kInput, kOutput, kNone, kParameter);
inline constexpr DmlFields kTernary(32, kInput, kInput, kInput, kOutput);  // of an IF: condition, A, B
inline constexpr DmlFields kClip(32, kInput, kOutput, kNone, kParameter, kParameter);
inline constexpr DmlFields kRound(24, kInput, kOutput, kZero);
inline constexpr DmlFields kActivation(24, kInput, kOutput, kParameter, kParameter);  // those without a further tensor
inline constexpr DmlFields kSoftmax(32, kInput, kOutput, kAxisCount, kAxes);
inline constexpr DmlFields kReduce(40, kReduceFunction, kInput, kOutput, kAxisCount, kAxes);
// Alpha * A x B + Beta * C over the last two of four dimensions.
inline constexpr DmlFields kGemm(56, kInput, kInput, kInput, kOutput, kZero, kZero, kAlpha, kBeta, kNone);
// Output[.., i.., ..] = Input[.., Indices[i..], ..] at the axis; all tensors have the same number of dimensions.
inline constexpr DmlFields kGather(32, kInput, kInput, kOutput, kAxis, kIndexDimensions);
inline constexpr DmlFields kJoin(32, kTensorCount, kTensors, kOutput, kAxis);
inline constexpr DmlFields kSlice(48, kInput, kOutput, kDimensionCount, kOffsets, kSizes, kSteps);
inline constexpr DmlFields kConvolution(104, kInput, kInput, kInput, kOutput, kOne, kBackward, kDimensionCount,
                                        kStrides, kDilations, kStartPadding, kEndPadding, kOutputPadding, kGroups,
                                        kNone);
inline constexpr DmlFields kAveragePooling(64, kInput, kOutput, kDimensionCount, kStrides, kWindow, kStartPadding,
                                           kEndPadding, kIncludePadding);
inline constexpr DmlFields kMaxPooling(72, kInput, kOutput, kNone, kDimensionCount, kStrides, kWindow, kStartPadding,
                                       kEndPadding, kDilations);
inline constexpr DmlFields kPadding(48, kInput, kOutput, kPaddingMode, kParameter, kDimensionCount, kStartPadding,
                                    kEndPadding);
// Input, mean, variance, scale, bias.
inline constexpr DmlFields kBatchNormalization(64, kInput, kInput, kInput, kInput, kInput, kOutput, kOne, kEpsilon,
                                               kNone);
// A, its zero point, B, its zero point. One element, or one a row of A or a column of B.
inline constexpr DmlFields kMatrixMultiplyInteger(40, kInput, kInput, kInput, kInput, kOutput);
// A, B and the output, each with its scale and zero point.
inline constexpr DmlFields kQuantizedMatrixMultiply(72, kInput, kInput, kInput, kInput, kInput, kInput, kInput, kInput,
                                                    kOutput);
inline constexpr DmlFields kConvolutionInteger(88, kInput, kInput, kInput, kInput, kOutput, kDimensionCount, kStrides,
                                               kDilations, kStartPadding, kEndPadding, kGroups);
// Input and filter, each with its scale and zero point, the bias of int32, the output's scale and zero point.
inline constexpr DmlFields kQuantizedConvolution(128, kInput, kInput, kInput, kInput, kInput, kInput, kInput, kInput,
                                                 kInput, kOutput, kDimensionCount, kStrides, kDilations, kStartPadding,
                                                 kEndPadding, kGroups);
// The array is scale and zero point.
inline constexpr DmlFields kQuantize(32, kInput, kQuantizationType, kTensorCount, kTensors, kOutput);
inline constexpr DmlFields kNormalization1(64, kInput, kInput, kInput, kOutput, kAxisCount, kAxes, kNormalizeVariance,
                                           kEpsilon, kFused);
inline constexpr DmlFields kNormalization2(72, kInput, kInput, kInput, kOutput, kAxisCount, kAxes, kUseMean,
                                           kNormalizeVariance, kEpsilon, kFused);
}  // namespace dml_fields

// The operators that a lowering can contain: name, number, fields, the level that each came with, that from which it takes
// other ranks than four, and types of its first input and its output (see directml/lowering/rules.h).
// Levels from the feature level history; ranks and types from the operators' pages, those of 5_0, 6_2 and 6_4 proven with
// the libraries of these levels. CONVOLUTION, pooling and PADDING move over the spatial dimensions: four or five in all, from
// 3_0 on three for a CONVOLUTION; those of NEVER take two to four dimensions at every level. The LOGICAL_ operators' output
// is of UINT8, as is the condition of an IF.
#define NORMFUSE_FOR_EACH_DML_OPERATOR(X)                                                            \
  X(ELEMENT_WISE_IDENTITY, 1, kUnary, 1_0, 3_0, kAnyType, kAnyType)                                  \
  X(ELEMENT_WISE_ABS, 2, kUnary, 1_0, 3_0, kAnyType, kAnyType)                                       \
  X(ELEMENT_WISE_ADD, 4, kBinary, 1_0, 3_0, kAnyType, kAnyType)                                      \
  X(ELEMENT_WISE_CLIP, 8, kClip, 1_0, 3_0, kAnyType, kAnyType)                                       \
  X(ELEMENT_WISE_COS, 9, kUnary, 1_0, 3_0, kFloatTypes, kFloatTypes)                                 \
  X(ELEMENT_WISE_DIVIDE, 10, kBinary, 1_0, 3_0, kAnyType, kAnyType)                                  \
  X(ELEMENT_WISE_EXP, 11, kUnary, 1_0, 3_0, kFloatTypes, kFloatTypes)                                \
  X(ELEMENT_WISE_LOG, 13, kUnary, 1_0, 3_0, kAnyType, kAnyType)                                      \
  X(ELEMENT_WISE_LOGICAL_AND, 14, kBinary, 1_0, 3_0, kAnyType, kAnyType)                             \
  X(ELEMENT_WISE_LOGICAL_EQUALS, 15, kBinary, 1_0, 3_0, kAnyType, kAnyType)                          \
  X(ELEMENT_WISE_LOGICAL_GREATER_THAN, 16, kBinary, 1_0, 3_0, kAnyType, kAnyType)                    \
  X(ELEMENT_WISE_LOGICAL_LESS_THAN, 17, kBinary, 1_0, 3_0, kAnyType, kAnyType)                       \
  X(ELEMENT_WISE_LOGICAL_NOT, 18, kCast, 1_0, 3_0, kAnyType, kAnyType)                               \
  X(ELEMENT_WISE_LOGICAL_OR, 19, kBinary, 1_0, 3_0, kAnyType, kAnyType)                              \
  X(ELEMENT_WISE_LOGICAL_XOR, 20, kBinary, 1_0, 3_0, kAnyType, kAnyType)                             \
  X(ELEMENT_WISE_MAX, 21, kBinary, 1_0, 3_0, kAnyType, kAnyType)                                     \
  X(ELEMENT_WISE_MIN, 23, kBinary, 1_0, 3_0, kAnyType, kAnyType)                                     \
  X(ELEMENT_WISE_MULTIPLY, 24, kBinary, 1_0, 3_0, kAnyType, kAnyType)                                \
  X(ELEMENT_WISE_POW, 25, kPow, 1_0, 3_0, kAnyType, kAnyType)                                        \
  X(ELEMENT_WISE_CONSTANT_POW, 26, kConstantPow, 1_0, 3_0, kAnyType, kAnyType)                       \
  X(ELEMENT_WISE_RECIP, 27, kUnary, 1_0, 3_0, kFloatTypes, kFloatTypes)                              \
  X(ELEMENT_WISE_SIN, 28, kUnary, 1_0, 3_0, kFloatTypes, kFloatTypes)                                \
  X(ELEMENT_WISE_SQRT, 29, kUnary, 1_0, 3_0, kFloatTypes, kFloatTypes)                               \
  X(ELEMENT_WISE_SUBTRACT, 30, kBinary, 1_0, 3_0, kAnyType, kAnyType)                                \
  X(ELEMENT_WISE_QUANTIZE_LINEAR, 33, kTernary, 1_0, 3_0, kAnyType, kByteTypes)                      \
  X(ELEMENT_WISE_DEQUANTIZE_LINEAR, 34, kTernary, 1_0, 3_0, kIntegerTypes, kFloat32Type)             \
  X(ACTIVATION_PARAMETERIZED_RELU, 42, kBinary, 1_0, 3_0, kAnyType, kAnyType)                        \
  X(CONVOLUTION, 53, kConvolution, 1_0, 3_0, kAnyType, kAnyType)                                     \
  X(GEMM, 54, kGemm, 1_0, NEVER, kAnyType, kAnyType)                                                 \
  X(REDUCE, 55, kReduce, 1_0, 3_0, kAnyType, kAnyType)                                               \
  X(AVERAGE_POOLING, 56, kAveragePooling, 1_0, 3_0, kAnyType, kAnyType)                              \
  X(CAST, 61, kCast, 1_0, 3_1, kAnyType, kAnyType)                                                   \
  X(JOIN, 63, kJoin, 1_0, 3_0, kAnyType, kAnyType)                                                   \
  X(PADDING, 64, kPadding, 1_0, 3_0, kAnyType, kAnyType)                                             \
  X(GATHER, 67, kGather, 1_0, 3_0, kAnyType, kAnyType)                                               \
  X(BATCH_NORMALIZATION, 72, kBatchNormalization, 1_0, 3_1, kAnyType, kAnyType)                      \
  X(ELEMENT_WISE_IS_NAN, 80, kCast, 2_0, 3_0, kAnyType, kAnyType)                                    \
  X(ELEMENT_WISE_ERF, 81, kUnary, 2_0, 3_0, kFloatTypes, kFloatTypes)                                \
  X(ELEMENT_WISE_IF, 88, kTernary, 2_0, 3_0, kAnyType, kAnyType)                                     \
  X(ELEMENT_WISE_ROUND, 99, kRound, 2_1, 3_0, kFloatTypes, kFloatTypes)                              \
  X(MAX_POOLING2, 110, kMaxPooling, 2_1, 3_0, kAnyType, kAnyType)                                    \
  X(SLICE1, 111, kSlice, 2_1, 3_0, kAnyType, kAnyType)                                               \
  X(MEAN_VARIANCE_NORMALIZATION1, 115, kNormalization1, 2_1, 3_1, kFloatTypes, kFloatTypes)          \
  X(MATRIX_MULTIPLY_INTEGER, 117, kMatrixMultiplyInteger, 2_1, NEVER, kAnyType, kAnyType)            \
  X(QUANTIZED_LINEAR_MATRIX_MULTIPLY, 118, kQuantizedMatrixMultiply, 2_1, NEVER, kAnyType, kAnyType) \
  X(CONVOLUTION_INTEGER, 119, kConvolutionInteger, 2_1, NEVER, kAnyType, kAnyType)                   \
  X(QUANTIZED_LINEAR_CONVOLUTION, 120, kQuantizedConvolution, 2_1, NEVER, kAnyType, kAnyType)        \
  X(ELEMENT_WISE_LOGICAL_GREATER_THAN_OR_EQUAL, 126, kBinary, 3_0, 3_0, kAnyType, kAnyType)          \
  X(ELEMENT_WISE_LOGICAL_LESS_THAN_OR_EQUAL, 127, kBinary, 3_0, 3_0, kAnyType, kAnyType)             \
  X(ACTIVATION_SOFTMAX1, 158, kSoftmax, 5_1, 5_1, kAnyType, kAnyType)                                \
  X(ACTIVATION_LOG_SOFTMAX1, 159, kSoftmax, 5_1, 5_1, kAnyType, kAnyType)                            \
  X(MEAN_VARIANCE_NORMALIZATION2, 171, kNormalization2, 6_3, 6_3, kFloatTypes, kFloatTypes)          \
  X(QUANTIZE, 173, kQuantize, 6_3, 6_3, kFloatTypes, kByteTypes | kNibbleTypes)                      \
  X(DEQUANTIZE, 174, kQuantize, 6_3, 6_3, kByteTypes | kNibbleTypes, kFloatTypes)

enum DML_OPERATOR_TYPE : uint32_t {
  DML_OPERATOR_INVALID = 0,
#define NORMFUSE_NUMBER(name, number, ...) DML_OPERATOR_##name = number,
  NORMFUSE_FOR_EACH_DML_OPERATOR(NORMFUSE_NUMBER)
#undef NORMFUSE_NUMBER
  // The other activations carry the number that ep/spec/activations.toml gives them.
  DML_OPERATOR_ACTIVATION_ELU = 35,
  DML_OPERATOR_ACTIVATION_HARD_SIGMOID = 37,
  DML_OPERATOR_ACTIVATION_IDENTITY = 38,
  DML_OPERATOR_ACTIVATION_LEAKY_RELU = 39,
  DML_OPERATOR_ACTIVATION_LINEAR = 40,
  DML_OPERATOR_ACTIVATION_RELU = 44,
  DML_OPERATOR_ACTIVATION_SIGMOID = 47,
  DML_OPERATOR_ACTIVATION_SOFTPLUS = 49,
  DML_OPERATOR_ACTIVATION_TANH = 51,
};

constexpr const DmlFields& FieldsOf(DML_OPERATOR_TYPE type) {
  switch (type) {
#define NORMFUSE_FIELDS(name, number, fields, ...) \
  case DML_OPERATOR_##name:                        \
    return dml_fields::fields;
    NORMFUSE_FOR_EACH_DML_OPERATOR(NORMFUSE_FIELDS)
#undef NORMFUSE_FIELDS
    default:
      return dml_fields::kActivation;
  }
}

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

// An activation that is fused into another operator: both tensors are null.
struct DML_ACTIVATION_OPERATOR_DESC {
  const DML_TENSOR_DESC* InputTensor;
  const DML_TENSOR_DESC* OutputTensor;
  FLOAT Parameters[2];
};
static_assert(sizeof(DML_ACTIVATION_OPERATOR_DESC) == 24 && offsetof(DML_ACTIVATION_OPERATOR_DESC, Parameters) == 16);

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
  // GetPrivateData, SetPrivateData, SetPrivateDataInterface
  NORMFUSE_COM_UNUSED_SLOTS_3(3, 4, 5)
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
