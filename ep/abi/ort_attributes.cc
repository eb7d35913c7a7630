#include "abi/ort_attributes.h"

#include "abi/ort_kernel_node.h"

namespace normfuse::ort {
namespace {

bool HasType(const OpAttr* attribute, OpAttrType type) {
  OpAttrType actual = OpAttrType::kUndefined;
  return attribute != nullptr && FromStatus(GetApi().OpAttr_GetType(attribute, &actual)).ok() && actual == type;
}

template <typename T>
bool ReadOne(const OpAttr* attribute, OpAttrType type, T* value) {
  size_t needed = 0;
  return HasType(attribute, type) &&
         FromStatus(GetApi().ReadOpAttr(attribute, type, value, sizeof(*value), &needed)).ok();
}

// Many elements: ask for the size first, then for the bytes.
template <typename Container>
bool ReadMany(const OpAttr* attribute, OpAttrType type, Container* out) {
  if (!HasType(attribute, type)) return false;
  size_t needed = 0;
  (void)FromStatus(GetApi().ReadOpAttr(attribute, type, nullptr, 0, &needed));
  out->assign(needed / sizeof(typename Container::value_type), {});
  return needed == 0 || FromStatus(GetApi().ReadOpAttr(attribute, type, out->data(), needed, &needed)).ok();
}

template <typename T, typename Read>
bool ReadArray(std::vector<T>* value, Read&& read) {
  size_t size = 0;
  if (!FromStatus(read(nullptr, &size)).ok()) return false;
  value->resize(size);
  return size == 0 || FromStatus(read(value->data(), &size)).ok();
}

}  // namespace

bool OpAttrAttributes::GetInt(const char* name, int64_t* value) const {
  return ReadOne(Find(name), OpAttrType::kInt, value);
}

bool OpAttrAttributes::GetFloat(const char* name, float* value) const {
  return ReadOne(Find(name), OpAttrType::kFloat, value);
}

bool OpAttrAttributes::GetString(const char* name, std::string* value) const {
  if (!ReadMany(Find(name), OpAttrType::kString, value)) return false;
  while (!value->empty() && value->back() == '\0') value->pop_back();
  return true;
}

bool OpAttrAttributes::GetInts(const char* name, std::vector<int64_t>* value) const {
  return ReadMany(Find(name), OpAttrType::kInts, value);
}

const OpAttr* GraphNodeAttributes::Find(const char* name) const {
  const OpAttr* attribute = nullptr;
  // An operator whose schema does not know the name gives an error; to us that is the same as absent.
  return FromStatus(GetApi().Node_GetAttributeByName(node_, name, &attribute)).ok() ? attribute : nullptr;
}

const OpAttr* InferenceAttributes::Find(const char* name) const {
  const OpAttr* attribute = nullptr;
  return FromStatus(GetApi().ShapeInferContext_GetAttribute(context_, name, &attribute)).ok() ? attribute : nullptr;
}

bool KernelAttributes::GetInt(const char* name, int64_t* value) const {
  return FromStatus(GetApi().KernelInfoGetAttribute_int64(info_, name, value)).ok();
}

bool KernelAttributes::GetFloat(const char* name, float* value) const {
  return FromStatus(GetApi().KernelInfoGetAttribute_float(info_, name, value)).ok();
}

bool KernelAttributes::GetString(const char* name, std::string* value) const {
  const std::string text =
      ReadText([&](char* out, size_t* size) { return GetApi().KernelInfoGetAttribute_string(info_, name, out, size); });
  if (text.empty()) return false;
  *value = text;
  return true;
}

bool KernelAttributes::GetInts(const char* name, std::vector<int64_t>* value) const {
  return ReadArray(value, [&](int64_t* out, size_t* size) {
    return GetApi().KernelInfoGetAttributeArray_int64(info_, name, out, size);
  });
}

Result ListAttributes(const Node* node, std::vector<std::string>* names) {
  const Api& api = GetApi();
  size_t count = 0;
  NORMFUSE_RETURN_IF_ORT_ERROR(api.Node_GetNumAttributes(node, &count));
  std::vector<const OpAttr*> attributes(count);
  NORMFUSE_RETURN_IF_ORT_ERROR(api.Node_GetAttributes(node, attributes.data(), count));
  for (const OpAttr* attribute : attributes) {
    const char* name = nullptr;
    NORMFUSE_RETURN_IF_ORT_ERROR(api.OpAttr_GetName(attribute, &name));
    names->emplace_back(name);
  }
  return {};
}

Result ReadTensorAttribute(const Node* node, const char* name, std::shared_ptr<const ConstantTensor>* value) {
  const Api& api = GetApi();
  const OpAttr* attribute = nullptr;
  const bool found = FromStatus(api.Node_GetAttributeByName(node, name, &attribute)).ok();
  if (!found || !HasType(attribute, OpAttrType::kTensor)) return {};
  Value* tensor = nullptr;
  NORMFUSE_RETURN_IF_ORT_ERROR(api.OpAttr_GetTensorAttributeAsOrtValue(attribute, &tensor));
  std::shared_ptr<const ConstantTensor> seen;
  Result result = ReadConstant(tensor, &seen);
  if (result.ok()) *value = Owned(*seen);
  api.ReleaseValue(tensor);
  return result;
}

}  // namespace normfuse::ort
