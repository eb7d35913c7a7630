// The part of ONNX Runtime's C ABI that this library uses, declared from measured facts: enumerations, opaque types, the
// structs that we fill in, and the slots of its function tables that we call. ONNX Runtime ships no header in an
// installable package; the layouts below are append-only by ORT's own promise, and tests hold them against real
// libraries of every supported version.
//
// Every function of a table is declared with X(slot, since, name, result, (arguments)): `slot` is its position in the
// table, `since` the first API version that has it. A slot is touched only when the host's version reaches `since`.
#pragma once

#include <cstddef>
#include <cstdint>

namespace normfuse::ort {

// API version N belongs to ONNX Runtime 1.N. Structs are stamped with min(kNewestKnown, host).
inline constexpr uint32_t kOldestSupported = 24;
inline constexpr uint32_t kNewestKnown = 31;

struct Status;
struct SessionOptions;
struct Logger;
struct Graph;
struct Node;
struct ValueInfo;
struct OpAttr;
struct Value;
struct TypeInfo;
struct TensorTypeAndShapeInfo;
struct KeyValuePairs;
struct Allocator;
struct ModelMetadata;
struct KernelContext;
struct KernelInfo;
struct ShapeInferContext;
struct MemoryInfo;
struct MemoryDevice;
struct SyncStream;
struct HardwareDevice;
struct EpDevice;
struct EpGraphSupportInfo;
struct NodeComputeContext;
struct CustomOpDomain;
struct CustomOp;
struct DataTransferImpl;
struct Ep;
struct EpFactory;
struct NodeComputeInfo;
struct KernelRegistry;
struct KernelDef;
struct KernelDefBuilder;
struct KernelImpl;

enum class OpAttrType : int {
  kUndefined = 0,
  kInt = 1,
  kInts = 2,
  kFloat = 3,
  kFloats = 4,
  kString = 5,
  kStrings = 6,
  kTensor = 8
};
enum class LoggingLevel : int { kVerbose = 0, kInfo = 1, kWarning = 2, kError = 3, kFatal = 4 };
enum class HardwareDeviceType : int { kCpu = 0, kGpu = 1, kNpu = 2 };
enum class OnnxType : int { kUnknown = 0, kTensor = 1 };
enum class CustomOpIo : int { kRequired = 0, kOptional = 1, kVariadic = 2 };
enum class MemType : int { kDefault = 0 };
enum class AllocatorType : int { kDevice = 0 };
enum class MemoryDeviceType : int { kCpu = 0, kGpu = 1 };
enum class DeviceMemoryType : int { kDefault = 0 };

#ifdef _WIN32
using PathChar = wchar_t;
#else
using PathChar = char;
#endif

// Entry point handed to every exported function.
struct ApiBase {
  const void* (*GetApi)(uint32_t version);
  const char* (*GetVersionString)();
};

struct NodeFusionOptions {
  uint32_t ort_version_supported;
  bool drop_constant_initializers;
};
static_assert(sizeof(NodeFusionOptions) == 8 && offsetof(NodeFusionOptions, drop_constant_initializers) == 4);

// clang-format off
#define NORMFUSE_ORT_API_SLOTS(X) \
  X(0, 14, CreateStatus, Status*, (int code, const char* message)) \
  X(2, 14, GetErrorMessage, const char*, (const Status*)) \
  X(12, 14, CloneSessionOptions, Status*, (const SessionOptions*, SessionOptions** out)) \
  X(26, 14, CreateCustomOpDomain, Status*, (const char* domain, CustomOpDomain** out)) \
  X(27, 14, CustomOpDomain_Add, Status*, (CustomOpDomain*, const CustomOp*)) \
  X(28, 14, AddCustomOpDomain, Status*, (SessionOptions*, CustomOpDomain*)) \
  X(49, 14, CreateTensorWithDataAsOrtValue, Status*, (const MemoryInfo*, void* data, size_t bytes, const int64_t* dims, size_t rank, int type, Value** out)) \
  X(51, 14, GetTensorMutableData, Status*, (Value*, void** out)) \
  X(55, 14, CastTypeInfoToTensorInfo, Status*, (const TypeInfo*, const TensorTypeAndShapeInfo** out)) \
  X(57, 14, CreateTensorTypeAndShapeInfo, Status*, (TensorTypeAndShapeInfo** out)) \
  X(58, 14, SetTensorElementType, Status*, (TensorTypeAndShapeInfo*, int type)) \
  X(59, 14, SetDimensions, Status*, (TensorTypeAndShapeInfo*, const int64_t* dims, size_t count)) \
  X(60, 14, GetTensorElementType, Status*, (const TensorTypeAndShapeInfo*, int* out)) \
  X(61, 14, GetDimensionsCount, Status*, (const TensorTypeAndShapeInfo*, size_t* out)) \
  X(62, 14, GetDimensions, Status*, (const TensorTypeAndShapeInfo*, int64_t* out, size_t count)) \
  X(63, 14, GetSymbolicDimensions, Status*, (const TensorTypeAndShapeInfo*, const char** out, size_t count)) \
  X(69, 14, CreateCpuMemoryInfo, Status*, (AllocatorType, MemType, MemoryInfo** out)) \
  X(76, 14, AllocatorFree, Status*, (Allocator*, void* memory)) \
  X(78, 14, GetAllocatorWithDefaultOptions, Status*, (Allocator** out)) \
  X(85, 14, KernelInfoGetAttribute_float, Status*, (const KernelInfo*, const char* name, float* out)) \
  X(86, 14, KernelInfoGetAttribute_int64, Status*, (const KernelInfo*, const char* name, int64_t* out)) \
  X(87, 14, KernelInfoGetAttribute_string, Status*, (const KernelInfo*, const char* name, char* out, size_t* size)) \
  X(90, 14, KernelContext_GetInput, Status*, (const KernelContext*, size_t index, const Value** out)) \
  X(91, 14, KernelContext_GetOutput, Status*, (KernelContext*, size_t index, const int64_t* dims, size_t rank, Value** out)) \
  X(93, 14, ReleaseStatus, void, (Status*)) \
  X(94, 14, ReleaseMemoryInfo, void, (MemoryInfo*)) \
  X(96, 14, ReleaseValue, void, (Value*)) \
  X(98, 14, ReleaseTypeInfo, void, (TypeInfo*)) \
  X(99, 14, ReleaseTensorTypeAndShapeInfo, void, (TensorTypeAndShapeInfo*)) \
  X(100, 14, ReleaseSessionOptions, void, (SessionOptions*)) \
  X(116, 14, ModelMetadataLookupCustomMetadataMap, Status*, (const ModelMetadata*, Allocator*, const char* key, char** out)) \
  X(118, 14, ReleaseModelMetadata, void, (ModelMetadata*)) \
  X(130, 14, AddSessionConfigEntry, Status*, (SessionOptions*, const char* key, const char* value)) \
  X(150, 14, AddInitializer, Status*, (SessionOptions*, const char* name, const Value*)) \
  X(163, 14, KernelInfoGetAttributeArray_int64, Status*, (const KernelInfo*, const char* name, int64_t* out, size_t* size)) \
  X(230, 14, KernelInfo_GetInputCount, Status*, (const KernelInfo*, size_t* out)) \
  X(231, 14, KernelInfo_GetOutputCount, Status*, (const KernelInfo*, size_t* out)) \
  X(232, 14, KernelInfo_GetInputName, Status*, (const KernelInfo*, size_t index, char* out, size_t* size)) \
  X(233, 14, KernelInfo_GetOutputName, Status*, (const KernelInfo*, size_t index, char* out, size_t* size)) \
  X(234, 14, KernelInfo_GetInputTypeInfo, Status*, (const KernelInfo*, size_t index, TypeInfo** out)) \
  X(235, 14, KernelInfo_GetOutputTypeInfo, Status*, (const KernelInfo*, size_t index, TypeInfo** out)) \
  X(237, 14, HasSessionConfigEntry, Status*, (const SessionOptions*, const char* key, int* out)) \
  X(244, 15, KernelInfo_GetNodeName, Status*, (const KernelInfo*, char* out, size_t* size)) \
  X(246, 15, KernelContext_GetLogger, Status*, (const KernelContext*, const Logger** out)) \
  X(247, 15, Logger_LogMessage, Status*, (const Logger*, LoggingLevel, const char* message, const PathChar* file, int line, const char* function)) \
  X(249, 15, KernelInfoGetConstantInput_tensor, Status*, (const KernelInfo*, size_t index, int* is_constant, const Value** out)) \
  X(267, 17, ShapeInferContext_GetInputCount, Status*, (const ShapeInferContext*, size_t* out)) \
  X(268, 17, ShapeInferContext_GetInputTypeShape, Status*, (const ShapeInferContext*, size_t index, TensorTypeAndShapeInfo** out)) \
  X(269, 17, ShapeInferContext_GetAttribute, Status*, (const ShapeInferContext*, const char* name, const OpAttr** out)) \
  X(270, 17, ShapeInferContext_SetOutputTypeShape, Status*, (const ShapeInferContext*, size_t index, const TensorTypeAndShapeInfo*)) \
  X(271, 17, SetSymbolicDimensions, Status*, (TensorTypeAndShapeInfo*, const char** names, size_t count)) \
  X(272, 17, ReadOpAttr, Status*, (const OpAttr*, OpAttrType, void* out, size_t bytes, size_t* needed)) \
  X(274, 17, KernelContext_ParallelFor, Status*, (const KernelContext*, void (*task)(void*, size_t), size_t total, size_t batches, void* user)) \
  X(289, 22, GetValueInfoName, Status*, (const ValueInfo*, const char** out)) \
  X(290, 22, GetValueInfoTypeInfo, Status*, (const ValueInfo*, const TypeInfo** out)) \
  X(295, 22, CreateKeyValuePairs, void, (KeyValuePairs** out)) \
  X(296, 22, AddKeyValuePair, void, (KeyValuePairs*, const char* key, const char* value)) \
  X(297, 22, GetKeyValue, const char*, (const KeyValuePairs*, const char* key)) \
  X(298, 22, GetKeyValuePairs, void, (const KeyValuePairs*, const char* const** keys, const char* const** values, size_t* count)) \
  X(300, 22, ReleaseKeyValuePairs, void, (KeyValuePairs*)) \
  X(307, 22, HardwareDevice_Type, HardwareDeviceType, (const HardwareDevice*)) \
  X(311, 22, HardwareDevice_Metadata, const KeyValuePairs*, (const HardwareDevice*)) \
  X(317, 22, GetEpApi, const void*, ()) \
  X(318, 23, GetTensorSizeInBytes, Status*, (const Value*, size_t* out)) \
  X(320, 23, CreateMemoryInfo_V2, Status*, (const char* name, MemoryDeviceType, uint32_t vendor, int32_t device, DeviceMemoryType, size_t alignment, AllocatorType, MemoryInfo** out)) \
  X(326, 23, ValueInfo_GetInitializerValue, Status*, (const ValueInfo*, const Value** out)) \
  X(331, 23, ValueInfo_IsConstantInitializer, Status*, (const ValueInfo*, bool* out)) \
  X(333, 23, Graph_GetName, Status*, (const Graph*, const char** out)) \
  X(340, 23, Graph_GetNumOutputs, Status*, (const Graph*, size_t* out)) \
  X(341, 23, Graph_GetOutputs, Status*, (const Graph*, const ValueInfo** out, size_t count)) \
  X(344, 23, Graph_GetNumNodes, Status*, (const Graph*, size_t* out)) \
  X(345, 23, Graph_GetNodes, Status*, (const Graph*, const Node** out, size_t count)) \
  X(349, 23, Node_GetName, Status*, (const Node*, const char** out)) \
  X(350, 23, Node_GetOperatorType, Status*, (const Node*, const char** out)) \
  X(351, 23, Node_GetDomain, Status*, (const Node*, const char** out)) \
  X(352, 23, Node_GetSinceVersion, Status*, (const Node*, int* out)) \
  X(353, 23, Node_GetNumInputs, Status*, (const Node*, size_t* out)) \
  X(354, 23, Node_GetInputs, Status*, (const Node*, const ValueInfo** out, size_t count)) \
  X(355, 23, Node_GetNumOutputs, Status*, (const Node*, size_t* out)) \
  X(356, 23, Node_GetOutputs, Status*, (const Node*, const ValueInfo** out, size_t count)) \
  X(357, 23, Node_GetNumImplicitInputs, Status*, (const Node*, size_t* out)) \
  X(358, 23, Node_GetImplicitInputs, Status*, (const Node*, const ValueInfo** out, size_t count)) \
  X(359, 23, Node_GetNumAttributes, Status*, (const Node*, size_t* out)) \
  X(360, 23, Node_GetAttributes, Status*, (const Node*, const OpAttr** out, size_t count)) \
  X(361, 23, Node_GetAttributeByName, Status*, (const Node*, const char* name, const OpAttr** out)) \
  X(362, 23, OpAttr_GetTensorAttributeAsOrtValue, Status*, (const OpAttr*, Value** out)) \
  X(363, 23, OpAttr_GetType, Status*, (const OpAttr*, OpAttrType* out)) \
  X(364, 23, OpAttr_GetName, Status*, (const OpAttr*, const char** out)) \
  X(368, 23, Node_GetEpName, Status*, (const Node*, const char** out)) \
  X(378, 23, GetTensorData, Status*, (const Value*, const void** out)) \
  X(379, 23, GetSessionOptionsConfigEntries, Status*, (const SessionOptions*, KeyValuePairs** out)) \
  X(387, 23, Graph_GetModelMetadata, Status*, (const Graph*, ModelMetadata** out)) \
  X(390, 24, TensorTypeAndShape_HasShape, bool, (const TensorTypeAndShapeInfo*)) \
  X(391, 24, KernelInfo_GetConfigEntries, Status*, (const KernelInfo*, KeyValuePairs** out)) \
  X(392, 24, KernelInfo_GetOperatorDomain, Status*, (const KernelInfo*, char* out, size_t* size)) \
  X(394, 24, KernelInfo_GetOperatorSinceVersion, Status*, (const KernelInfo*, int* out)) \
  X(393, 24, KernelInfo_GetOperatorType, Status*, (const KernelInfo*, char* out, size_t* size)) \
  X(414, 24, GetTensorElementTypeAndShapeDataReference, Status*, (const Value*, int* type, const int64_t** dims, size_t* rank))

#define NORMFUSE_ORT_EP_API_SLOTS(X) \
  X(0, 22, CreateEpDevice, Status*, (EpFactory*, const HardwareDevice*, const KeyValuePairs* metadata, const KeyValuePairs* options, EpDevice** out)) \
  X(2, 23, EpGraphSupportInfo_AddNodesToFuse, Status*, (EpGraphSupportInfo*, const Node* const* nodes, size_t count, const NodeFusionOptions*)) \
  X(3, 23, EpGraphSupportInfo_AddSingleNode, Status*, (EpGraphSupportInfo*, const Node*)) \
  X(5, 23, EpDevice_AddAllocatorInfo, Status*, (EpDevice*, const MemoryInfo*)) \
  X(6, 23, MemoryInfo_GetMemoryDevice, const MemoryDevice*, (const MemoryInfo*)) \
  X(9, 23, MemoryDevice_GetDeviceType, MemoryDeviceType, (const MemoryDevice*)) \
  X(11, 23, MemoryDevice_GetVendorId, uint32_t, (const MemoryDevice*)) \
  X(18, 24, CreateKernelRegistry, Status*, (KernelRegistry** out)) \
  X(20, 24, KernelRegistry_AddKernel, Status*, (KernelRegistry*, const KernelDef*, Status* (*create)(void* state, const KernelInfo*, KernelImpl** out), void* state)) \
  X(21, 24, CreateKernelDefBuilder, Status*, (KernelDefBuilder** out)) \
  X(22, 24, ReleaseKernelDefBuilder, void, (KernelDefBuilder*)) \
  X(23, 24, KernelDefBuilder_SetOperatorType, Status*, (KernelDefBuilder*, const char*)) \
  X(24, 24, KernelDefBuilder_SetDomain, Status*, (KernelDefBuilder*, const char*)) \
  X(25, 24, KernelDefBuilder_SetSinceVersion, Status*, (KernelDefBuilder*, int first, int last)) \
  X(26, 24, KernelDefBuilder_SetExecutionProvider, Status*, (KernelDefBuilder*, const char*)) \
  X(32, 24, KernelDefBuilder_Build, Status*, (KernelDefBuilder*, KernelDef** out)) \
  X(33, 24, ReleaseKernelDef, void, (KernelDef*)) \
  X(41, 24, EpGraphSupportInfo_LookUpKernel, Status*, (EpGraphSupportInfo*, const Node*, const KernelDef** out)) \
  X(43, 24, KernelInfo_GetEp, Status*, (const KernelInfo*, const Ep** out))
// clang-format on

// Function tables with one typed member per slot that we use; null where the host is older than the slot.
#define NORMFUSE_MEMBER(slot, since, name, result, arguments) result(*name) arguments = nullptr;
struct Api {
  NORMFUSE_ORT_API_SLOTS(NORMFUSE_MEMBER)
};

struct EpApi {
  NORMFUSE_ORT_EP_API_SLOTS(NORMFUSE_MEMBER)
};
#undef NORMFUSE_MEMBER

// Structs that we fill in. ORT reads a member only when ort_version_supported reaches the version that added it.

struct Ep {
  uint32_t ort_version_supported;
  const char* (*GetName)(const Ep*);
  Status* (*GetCapability)(Ep*, const Graph*, EpGraphSupportInfo*);
  Status* (*Compile)(Ep*, const Graph**, const Node**, size_t count, NodeComputeInfo**, Node** ep_context_nodes);
  void (*ReleaseNodeComputeInfos)(Ep*, NodeComputeInfo**, size_t count);
  // Layout, dynamic options, run hooks, allocators, streams, compatibility (23): null, not needed by an execution
  // provider that works on CPU memory.
  void* unused_23[8];
  Status* (*GetKernelRegistry)(Ep*, const KernelRegistry** out);  // 24
  // Concurrency (24), sync, profiler (25), graph capture, resources (26): null.
  void* unused_24[8];
  Status* (*OnSessionInitializationEnd)(Ep*);                              // 28
  Status* (*GetDefaultMemoryDevice)(const Ep*, const MemoryDevice** out);  // 28
  // Capture release (28), weightless (29): null.
  void* unused_28[2];
};
static_assert(offsetof(Ep, OnSessionInitializationEnd) == 176 && offsetof(Ep, GetDefaultMemoryDevice) == 184);
static_assert(offsetof(Ep, GetKernelRegistry) == 104);
static_assert(offsetof(Ep, GetName) == 8 && offsetof(Ep, GetCapability) == 16 && offsetof(Ep, Compile) == 24);
static_assert(offsetof(Ep, ReleaseNodeComputeInfos) == 32 && sizeof(Ep) == 208);

struct EpFactory {
  uint32_t ort_version_supported;
  const char* (*GetName)(const EpFactory*);
  const char* (*GetVendor)(const EpFactory*);
  Status* (*GetSupportedDevices)(EpFactory*, const HardwareDevice* const* devices, size_t count, EpDevice** ep_devices,
                                 size_t max_ep_devices, size_t* ep_device_count);
  Status* (*CreateEp)(EpFactory*, const HardwareDevice* const* devices, const KeyValuePairs* const* metadata,
                      size_t count, const SessionOptions*, const Logger*, Ep** ep);
  void (*ReleaseEp)(EpFactory*, Ep*);
  uint32_t (*GetVendorId)(const EpFactory*);
  const char* (*GetVersion)(const EpFactory*);
  void* unused_compatibility;  // 23; null
  Status* (*CreateAllocator)(EpFactory*, const MemoryInfo*, const KeyValuePairs* options, Allocator** out);
  void (*ReleaseAllocator)(EpFactory*, Allocator*);
  // ORT 1.31 calls this at registration without asking whether it is there.
  Status* (*CreateDataTransfer)(EpFactory*, DataTransferImpl** out);
  // Streams (23), incompatibility details, importers, custom-op domains (24), graphics interop (25), model
  // candidates (28): all null.
  void* unused[9];
};
static_assert(offsetof(EpFactory, CreateDataTransfer) == 88);
static_assert(offsetof(EpFactory, GetSupportedDevices) == 24 && offsetof(EpFactory, CreateEp) == 32);
static_assert(offsetof(EpFactory, GetVendorId) == 48 && offsetof(EpFactory, GetVersion) == 56);
static_assert(sizeof(EpFactory) == 168);

struct Allocator {
  uint32_t version;
  void* (*Alloc)(Allocator*, size_t bytes);
  void (*Free)(Allocator*, void* memory);
  const MemoryInfo* (*Info)(const Allocator*);
  // Reservation (18), statistics, streams (23), shrinking (25): null.
  void* unused[4];
};
static_assert(sizeof(Allocator) == 64 && offsetof(Allocator, Info) == 24);

struct DataTransferImpl {
  uint32_t ort_version_supported;
  void (*Release)(DataTransferImpl*);
  bool (*CanCopy)(const DataTransferImpl*, const MemoryDevice* from, const MemoryDevice* to);
  Status* (*CopyTensors)(DataTransferImpl*, const Value** from, Value** to, SyncStream** streams, size_t count);
};
static_assert(sizeof(DataTransferImpl) == 32 && offsetof(DataTransferImpl, CopyTensors) == 24);

struct NodeComputeInfo {
  uint32_t ort_version_supported;
  Status* (*CreateState)(NodeComputeInfo*, NodeComputeContext*, void** state);
  Status* (*Compute)(NodeComputeInfo*, void* state, KernelContext*);
  void (*ReleaseState)(NodeComputeInfo*, void* state);
};
static_assert(sizeof(NodeComputeInfo) == 32 && offsetof(NodeComputeInfo, ReleaseState) == 24);

struct KernelImpl {
  uint32_t ort_version_supported;
  uint32_t flags;
  Status* (*Compute)(KernelImpl*, KernelContext*);
  void (*Release)(KernelImpl*);
  void* unused_prepacking[2];
};
static_assert(sizeof(KernelImpl) == 40 && offsetof(KernelImpl, Compute) == 8);

struct CustomOp {
  uint32_t version;
  void* (*CreateKernel)(const CustomOp*, const void* api, const KernelInfo*);
  const char* (*GetName)(const CustomOp*);
  const char* (*GetExecutionProviderType)(const CustomOp*);
  int (*GetInputType)(const CustomOp*, size_t index);
  size_t (*GetInputTypeCount)(const CustomOp*);
  int (*GetOutputType)(const CustomOp*, size_t index);
  size_t (*GetOutputTypeCount)(const CustomOp*);
  void (*KernelCompute)(void* kernel, KernelContext*);
  void (*KernelDestroy)(void* kernel);
  CustomOpIo (*GetInputCharacteristic)(const CustomOp*, size_t index);
  CustomOpIo (*GetOutputCharacteristic)(const CustomOp*, size_t index);
  MemType (*GetInputMemoryType)(const CustomOp*, size_t index);
  int (*GetVariadicInputMinArity)(const CustomOp*);
  int (*GetVariadicInputHomogeneity)(const CustomOp*);
  int (*GetVariadicOutputMinArity)(const CustomOp*);
  int (*GetVariadicOutputHomogeneity)(const CustomOp*);
  Status* (*CreateKernelV2)(const CustomOp*, const void* api, const KernelInfo*, void** kernel);
  Status* (*KernelComputeV2)(void* kernel, KernelContext*);
  Status* (*InferOutputShapeFn)(const CustomOp*, ShapeInferContext*);
  int (*GetStartVersion)(const CustomOp*);
  int (*GetEndVersion)(const CustomOp*);
  size_t (*GetMayInplace)(int** inputs, int** outputs);
  void (*ReleaseMayInplace)(int* inputs, int* outputs);
  size_t (*GetAliasMap)(int** inputs, int** outputs);
  void (*ReleaseAliasMap)(int* inputs, int* outputs);
};
static_assert(sizeof(CustomOp) == 208 && offsetof(CustomOp, KernelDestroy) == 72);
static_assert(offsetof(CustomOp, CreateKernelV2) == 136 && offsetof(CustomOp, InferOutputShapeFn) == 152);
static_assert(offsetof(CustomOp, GetEndVersion) == 168 && offsetof(CustomOp, ReleaseAliasMap) == 200);

}  // namespace normfuse::ort
