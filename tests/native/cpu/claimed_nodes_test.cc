// What GetCapability keeps for Compile: found by any name, given once, gone with the next graph.
#include "plugin/claim/claimed_nodes.h"

#include "check.h"

namespace normfuse::plugin {
namespace {

// A node of one chain, of that name.
ClaimedNode Node(const char* name) {
  ClaimedNode node;
  node.chains.emplace_back().chain.name = name;
  return node;
}

// The name of the chain that makes one of these; a message where there is none.
std::string Taken(ClaimedNodes* nodes, const std::vector<std::string>& made) {
  ClaimedNode node;
  const Result result = nodes->Take(made, &node);
  return result.ok() ? node.chains.front().chain.name : result.message();
}

void CheckMissing(ClaimedNodes* nodes, const char* name, const char* why) {
  const std::string message = Taken(nodes, {name});
  CHECK(message.find("compiles the node that makes '" + std::string(name) + "'") != std::string::npos, "%s: %s", why,
        message.c_str());
  CHECK(message.find("compile=0") != std::string::npos, "%s: %s", why, message.c_str());
}

void TestNodes() {
  ClaimedNodes nodes;
  CheckMissing(&nodes, "y", "nothing was claimed");
  nodes.Keep({"a", "b"}, Node("first"));
  nodes.Keep({"c"}, Node("second"));
  nodes.Keep({"d"}, Node("third"));
  CHECK(Taken(&nodes, {"unknown", "b"}) == "first", "a node is not found by its second name");
  CheckMissing(&nodes, "a", "taken under another name");
  CHECK(Taken(&nodes, {"c"}) == "second", "a node is not found beside one that was taken");
  nodes.Clear();
  CheckMissing(&nodes, "d", "of the graph before");
  nodes.Keep({"c"}, Node("of the next graph"));
  CHECK(Taken(&nodes, {"c"}) == "of the next graph", "a name is the one of the graph before");
  CheckMissing(&nodes, "c", "all were taken");
}

// Two chains, of which the second reads what the first makes and an input.
std::vector<NamedChain> TwoChains() {
  std::vector<NamedChain> chains(2);
  chains[0] = {{}, {"x"}, {"inner"}};
  chains[0].chain.x.tensor.input = 0;
  chains[1] = {{}, {"r", "inner"}, {"y"}};
  chains[1].chain.x.tensor.input = 1;
  Operand residual;
  residual.tensor.input = 0;
  chains[1].chain.before.push_back(Add(residual));
  return chains;
}

void TestConnections() {
  ChainSequence sequence;
  Result result = Connect(TwoChains(), {{{"r", 0}, {"x", 4}}, {{"y", 2}}}, &sequence);
  CHECK(result.ok(), "%s", result.message().c_str());
  const Chain& first = sequence.chains[0];
  const Chain& second = sequence.chains[1];
  CHECK(sequence.output_count == 3 && first.x.tensor.input == 4 && first.store.output == 3, "the first chain");
  CHECK(second.x.tensor.input == kFromOutput + 3 && second.before[0].operand.tensor.input == 0, "the second's inputs");
  CHECK(second.store.output == 2, "the second's output");
  result = Connect(TwoChains(), {{{"r", 0}}, {{"y", 0}}}, &sequence);
  CHECK(!result.ok() && result.message().find("'x'") != std::string::npos, "%s", result.message().c_str());
}

// A chain whose X is the Concat of two inputs, one of them twice, and whose Y is split.
void TestParts() {
  NamedChain chain{{}, {"b", "a"}, {"y", "z"}, {"b", "a", "b"}, {"y", "z"}, {2, 4}, 1};
  chain.chain.x.tensor.input = 0;
  ChainOfParts connected;
  Result result = Connect(chain, {{{"a", 0}, {"b", 3}}, {{"z", 0}, {"y", 1}}}, &connected);
  CHECK(result.ok(), "%s", result.message().c_str());
  CHECK((connected.x_parts == std::vector<int>{3, 0, 3}), "the ports of X's parts");
  CHECK((connected.y_parts == std::vector<int>{1, 0}), "the ports of Y's parts");
  CHECK(connected.chain.x.tensor.input == 3 && connected.chain.store.output == 1, "X and Y are the first of them");
  CHECK((connected.sizes == std::vector<int64_t>{2, 4}) && connected.axis == 1, "the sizes");
  result = Connect(chain, {{{"b", 0}}, {{"y", 0}, {"z", 1}}}, &connected);
  CHECK(!result.ok() && result.message().find("'a'") != std::string::npos, "%s", result.message().c_str());
  chain = {{}, {"b", "a"}, {"y"}, {"b", "a"}};
  chain.chain.x.tensor.input = 0;
  ChainOfParts joined;
  result = Connect(chain, {{{"a", 0}, {"b", 3}}, {{"y", 2}}}, &joined);
  CHECK((result.ok() && joined.y_parts == std::vector<int>{2}) && joined.sizes.empty(), "Y is one");
}

}  // namespace
}  // namespace normfuse::plugin

int main() {
  normfuse::plugin::TestNodes();
  normfuse::plugin::TestConnections();
  normfuse::plugin::TestParts();
  return normfuse::test::ExitCode();
}
