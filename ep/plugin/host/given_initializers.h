// The initializers that a session's options give in place of the model's (AddInitializer). A graph that ONNX Runtime shows has the
// model's own values of these, and ONNX Runtime puts the given ones in their place after it has compiled.
#pragma once

#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "abi/ort_host.h"

namespace normfuse::plugin {

class GivenInitializers {
 public:
  static Result Of(const ort::SessionOptions* session, GivenInitializers* given);

  // Whether the options give an initializer of that name.
  bool Has(const std::string& name);
  // Those that were found to be given.
  std::vector<std::string> Found() const;

 private:
  struct Release {
    void operator()(ort::SessionOptions* options) const { ort::GetApi().ReleaseSessionOptions(options); }
    void operator()(ort::Value* value) const { ort::GetApi().ReleaseValue(value); }
  };

  // ONNX Runtime cannot be asked, but adding another of a name that is there fails: names are tried on a copy of the options.
  std::unique_ptr<ort::Value, Release> tried_;
  std::unique_ptr<ort::SessionOptions, Release> copy_;
  std::unordered_map<std::string, bool> answers_;
};

}  // namespace normfuse::plugin
