#include "plugin/claim/tuning.h"

#include <algorithm>

#include "cpu/kernels/simd/isa.h"

namespace normfuse::plugin {
namespace {

constexpr const char* kMetadataKey = "ai.normfuse.tuning";
constexpr std::string_view kVersion = "1";

// "1.31" of "1.31.1".
std::string_view ReleaseOf(std::string_view version) {
  const size_t minor = version.find('.');
  return minor == std::string_view::npos ? version : version.substr(0, version.find('.', minor + 1));
}

// Takes the part in front of `end` off the text.
std::string_view TakeUpTo(char end, std::string_view* text) {
  const size_t length = std::min(text->find(end), text->size());
  const std::string_view part = text->substr(0, length);
  text->remove_prefix(std::min(length + 1, text->size()));
  return part;
}

std::string Mismatch(std::string_view what, std::string_view stored, std::string_view here) {
  return "it was made with " + std::string(what) + " " + std::string(stored) + ", and this is " + std::string(here);
}

Result Lookup(const ort::ModelMetadata* metadata, std::string* text) {
  const ort::Api& api = ort::GetApi();
  ort::Allocator* allocator = nullptr;
  NORMFUSE_RETURN_IF_ORT_ERROR(api.GetAllocatorWithDefaultOptions(&allocator));
  char* value = nullptr;
  NORMFUSE_RETURN_IF_ORT_ERROR(api.ModelMetadataLookupCustomMetadataMap(metadata, allocator, kMetadataKey, &value));
  if (value == nullptr) return {};
  *text = value;
  return ort::FromStatus(api.AllocatorFree(allocator, value));
}

}  // namespace

Tuning Tuning::Parse(std::string_view text, std::string_view isa, std::string_view host, std::string* unused) {
  Tuning tuning;
  bool known = false;
  while (!text.empty() && unused->empty()) {
    std::string_view rest = TakeUpTo('\n', &text);
    const std::string_view word = TakeUpTo(' ', &rest);
    if (word == "on" || word == "off") {
      tuning.groups_[std::string(rest)] = word == "on";
    } else if (word == "version") {
      known = rest == kVersion;
    } else if (word == "isa" && rest != isa) {
      *unused = Mismatch("instruction set", rest, isa);
    } else if (word == "onnxruntime" && ReleaseOf(rest) != ReleaseOf(host)) {
      *unused = Mismatch("onnxruntime", rest, host);
    } else if (word == "others" && rest != "cost") {
      tuning.others_ = rest == "on";
    }
  }
  if (!known && unused->empty()) *unused = "it is not of a version that this library knows";
  return unused->empty() ? tuning : Tuning();
}

std::optional<bool> Tuning::Decision(const std::string& group) const {
  const auto found = groups_.find(group);
  return found == groups_.end() ? others_ : found->second;
}

Result ReadTuning(const ort::Graph* graph, Tuning* tuning, std::string* unused) {
  ort::ModelMetadata* metadata = nullptr;
  NORMFUSE_RETURN_IF_ORT_ERROR(ort::GetApi().Graph_GetModelMetadata(graph, &metadata));
  std::string text;
  const Result looked_up = Lookup(metadata, &text);
  ort::GetApi().ReleaseModelMetadata(metadata);
  NORMFUSE_RETURN_IF_ERROR(looked_up);
  if (text.empty()) return {};
  cpu::Isa isa = cpu::Isa::kBaseline;
  // An instruction set that does not exist is an error when the chain is compiled.
  if (!cpu::SelectIsa(&isa).ok()) return {};
  *tuning = Tuning::Parse(text, cpu::NameOf(isa), ort::GetHost().version_string, unused);
  return {};
}

std::string GroupOf(GraphView& graph, const FoundChain& found, std::string_view place) {
  const int input = found.chain.x.tensor.input;
  std::string group = found.description + " " + NameOf(found.chain.x.type);
  if (input != TensorRef::kAbsent) {
    const TensorFacts& x = graph.Facts(found.inputs[static_cast<size_t>(input)]);
    for (int i = 0; i < x.rank; ++i) {
      group += (i == 0 ? "[" : ",") + (x.dims[i] < 0 ? std::string("?") : std::to_string(x.dims[i]));
    }
    if (x.rank > 0) group += ']';
  }
  if (!place.empty()) group += " " + std::string(place);
  // Names of operators come from the model, and may hold anything.
  std::replace_if(group.begin(), group.end(), [](char c) { return static_cast<unsigned char>(c) < ' '; }, '?');
  return group;
}

}  // namespace normfuse::plugin
