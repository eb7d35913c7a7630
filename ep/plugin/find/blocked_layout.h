// Which tensors ORT's CPU provider keeps in a blocked layout (NCHWc) around convolutions.
//
// ORT's layout pass runs after we have claimed: it gives Conv and pooling a blocked form, passes the blocked tensors on
// through the operators that can read them, and reorders them before any other. A claim of an operator that would have
// been passed through adds two reorders, which take longer than an activation of ours gains; where ORT reorders anyway a
// claim costs nothing more. What is passed on was read off the models that ORT 1.31.1 writes (docs/decisions/0016);
// tests/operators/test_blocked_layout.py compares the two on random networks.
#pragma once

#include <vector>

#include "plugin/find/found_chain.h"

namespace normfuse::plugin {

class BlockedLayout {
 public:
  // `sites`: those of the graph; an activation written in several nodes is one to ORT as well.
  BlockedLayout(GraphView& graph, const std::vector<Site>& sites);

  // Whether ORT, with nothing claimed, may keep the value blocked. Where that depends on shapes that are not known, it is
  // taken to do so.
  bool Holds(int value) const { return value != kNone && holds_[static_cast<size_t>(value)]; }

 private:
  bool KeptBy(const GraphNode& node);
  bool KeptByConv(const GraphNode& node);
  bool IsScaleOfBlocked(const GraphNode& node);
  bool KeptByActivation(const FoundChain& found);
  bool IsProductOfBlocked(const FoundChain& found, const Step& step);
  bool HoldsAll(const std::vector<int>& values) const;
  bool IsConstantFloat(int value);
  bool HasWholeBlocks(int value);
  bool MayHaveOneShape(const std::vector<int>& values);

  GraphView& graph_;
  std::vector<bool> holds_;  // by value
};

}  // namespace normfuse::plugin
