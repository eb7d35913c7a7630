// A host application: loads an ONNX Runtime library and the library under test, both by path, runs every case of a
// manifest through the execution provider or the custom operators, and compares with stored bounds.
//   host ORT_LIBRARY NORMFUSE_LIBRARY MANIFEST [OPTION=VALUE...]
// Options of the execution provider can be given; claim=all and a claim_report beside the manifest are set.
// Links against nothing, so that the same program runs on Linux, under Wine and under qemu.
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "ort.h"

namespace {

using namespace host;

// One tensor of the manifest. `low` and `high` are the bounds of an output, empty for an input.
struct Tensor {
  std::string name;
  int type = 0;
  std::vector<int64_t> dims;
  std::vector<char> data;
  std::vector<double> low, high;
};

struct Case {
  std::string name, route;
  std::vector<char> model;
  std::vector<Tensor> inputs, outputs;
};

std::vector<char> ReadFile(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::runtime_error("cannot read " + path.string());
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

std::vector<double> ReadBounds(const std::filesystem::path& path) {
  const std::vector<char> bytes = ReadFile(path);
  std::vector<double> values(bytes.size() / sizeof(double));
  std::memcpy(values.data(), bytes.data(), values.size() * sizeof(double));
  return values;
}

Tensor ReadTensor(std::istringstream& line, const std::filesystem::path& folder, bool is_output) {
  Tensor tensor;
  size_t rank = 0;
  std::string first, second;
  line >> tensor.name >> tensor.type >> rank;
  tensor.dims.resize(rank);
  for (int64_t& dim : tensor.dims) line >> dim;
  line >> first;
  if (!is_output) {
    tensor.data = ReadFile(folder / first);
    return tensor;
  }
  line >> second;
  tensor.low = ReadBounds(folder / first);
  tensor.high = ReadBounds(folder / second);
  return tensor;
}

// Lines: "case NAME ROUTE MODEL", then "input NAME TYPE RANK DIMS... FILE" and "output NAME TYPE RANK DIMS... LOW HIGH".
std::vector<Case> ReadManifest(const std::filesystem::path& path) {
  std::vector<Case> cases;
  std::ifstream file(path);
  for (std::string text; std::getline(file, text);) {
    std::istringstream line(text);
    std::string kind;
    line >> kind;
    if (kind == "case") {
      std::string model;
      Case& added = cases.emplace_back();
      line >> added.name >> added.route >> model;
      added.model = ReadFile(path.parent_path() / model);
    } else if (kind == "input") {
      cases.back().inputs.push_back(ReadTensor(line, path.parent_path(), false));
    } else if (kind == "output") {
      cases.back().outputs.push_back(ReadTensor(line, path.parent_path(), true));
    }
  }
  if (cases.empty()) throw std::runtime_error("no case in " + path.string());
  return cases;
}

double Element(const void* data, int type, size_t index) {
  if (type == kFloat) return static_cast<const float*>(data)[index];
  if (type == kInt8) return static_cast<const int8_t*>(data)[index];
  throw std::runtime_error("element type " + std::to_string(type) + " is not one of the host's");
}

// How many elements lie outside their bounds.
size_t CountWrong(const Tensor& expected, const void* data) {
  size_t wrong = 0;
  for (size_t i = 0; i < expected.low.size(); ++i) {
    const double value = Element(data, expected.type, i);
    wrong += !(value >= expected.low[i] && value <= expected.high[i]);
  }
  return wrong;
}

EpOptions ReadOptions(const std::filesystem::path& manifest, const std::vector<std::string>& given) {
  // In no code page of Windows but UTF-8.
  const std::u8string claim_report = (manifest.parent_path() / u8"claims \u00df\u4e2d.jsonl").u8string();
  EpOptions options = {{"claim", "all"}, {"claim_report", std::string(claim_report.begin(), claim_report.end())}};
  for (const std::string& text : given) options[text.substr(0, text.find('='))] = text.substr(text.find('=') + 1);
  return options;
}

std::string RunCase(Runtime& runtime, const Case& test, const std::filesystem::path& library,
                    const EpOptions& ep_options) {
  Options options(runtime);
  options.Use(test.route, library, ep_options);
  Session session(runtime, options, test.model);
  if (test.route == "plugin") session.RequireNodesOn(kEpName);
  std::vector<Value> inputs;
  std::vector<const char*> input_names, output_names;
  for (const Tensor& tensor : test.inputs) {
    inputs.emplace_back(runtime, tensor.type, tensor.dims, tensor.data);
    input_names.push_back(tensor.name.c_str());
  }
  for (const Tensor& tensor : test.outputs) output_names.push_back(tensor.name.c_str());
  const std::vector<Value> outputs = session.Run(input_names, inputs, output_names);
  for (size_t i = 0; i < outputs.size(); ++i) {
    const size_t wrong = CountWrong(test.outputs[i], outputs[i].data());
    if (wrong) return test.outputs[i].name + ": " + std::to_string(wrong) + " elements are outside their bounds";
  }
  return {};
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) {
    std::cerr << "usage: host ORT_LIBRARY NORMFUSE_LIBRARY MANIFEST [OPTION=VALUE...]\n";
    return 2;
  }
  int failed = 0, passed = 0;
  try {
    Runtime runtime(argv[1]);
    std::cout << "onnxruntime " << runtime.version() << std::endl;
    runtime.RegisterPlugin(argv[2]);
    const EpOptions ep_options = ReadOptions(argv[3], {argv + 4, argv + argc});
    for (const Case& test : ReadManifest(argv[3])) {
      std::string problem;
      try {
        problem = RunCase(runtime, test, argv[2], ep_options);
      } catch (const std::exception& error) {
        problem = error.what();
      }
      std::cout << (problem.empty() ? "ok   " : "FAIL ") << test.name << " " << test.route
                << (problem.empty() ? "" : ": " + problem) << std::endl;
      ++(problem.empty() ? passed : failed);
    }
  } catch (const std::exception& error) {
    std::cout << "FAIL host: " << error.what() << std::endl;
    ++failed;
  }
  std::cout << passed << " passed, " << failed << " failed" << std::endl;
  return failed ? 1 : 0;
}
