// Every unit (a chain, or a node alone) gets a stage: along an edge the stage never falls, and between a unit of the GPU and
// one of the CPU it rises. A path from one unit of the GPU to another of the same stage then stays among units of the GPU of
// that stage: those that are connected are convex, and fusing all of them leaves the graph without a cycle.
#include "plugin/islands/island_finder.h"

#include <algorithm>
#include <numeric>
#include <string_view>
#include <unordered_set>

#include "directml/islands/island.h"
#include "directml/islands/known_tensors.h"
#include "directml/lowering/chain_lowering.h"
#include "plugin/islands/island_operators.h"

namespace normfuse::plugin {
namespace {

bool KeepsElements(const GraphNode& node) {
  static const std::unordered_set<std::string_view> kNames = {"Identity",  "Reshape",   "Flatten", "Squeeze",
                                                              "Unsqueeze", "Transpose", "Expand",  "Cast"};
  return kNames.count(node.op_type) != 0;
}

class Finder {
 public:
  Finder(GraphView& graph, const std::vector<Site>& sites, const directml::Capabilities& capabilities)
      : graph_(graph),
        level_(capabilities.level),
        unit_of_(graph.nodes().size(), kNone),
        knowable_(graph.values().size(), false),
        of_content_(graph.values().size(), false) {
    for (size_t i = 0; i < sites.size(); ++i) {
      if (sites[i].declined || !sites[i].found) continue;
      const int unit = AddUnit(static_cast<int>(i));
      units_.back().on_gpu = !directml::CheckLowering(sites[i].found->chain, capabilities);
      for (int node : sites[i].found->nodes) unit_of_[static_cast<size_t>(node)] = unit;
    }
    for (size_t i = 0; i < graph.nodes().size(); ++i) {
      if (unit_of_[i] == kNone) unit_of_[i] = AddUnit(kNone);
    }
    for (size_t i = 0; i < graph.nodes().size(); ++i) units_[UnitOf(i)].nodes.push_back(static_cast<int>(i));
  }

  // Why operators stay on the CPU goes to `left`, where it is given.
  std::vector<FoundIsland> Run(std::vector<LeftOperator>* left) {
    left_ = left;
    Connect();
    if (!Sort()) return {};
    for (const int unit : order_) JudgeUnit(unit);
    LeaveContents();
    SetStages();
    JoinStages();
    std::vector<FoundIsland> islands = Collect();
    for (FoundIsland& island : islands) Weigh(&island);
    std::erase_if(islands, [](const FoundIsland& island) { return island.nodes.empty(); });
    return islands;
  }

 private:
  struct Unit {
    int site = kNone;
    std::vector<int> nodes;
    std::vector<int> behind;  // units that read what it makes
    int before = 0;           // how many edges lead to it
    bool on_gpu = false;
    bool is_shape = false;  // all that it makes is known on the CPU
    bool fits = false;      // the GPU could compute it; not asked of shapes that follow from dimensions alone
    int stage = 0;
    int island = kNone;
  };

  int AddUnit(int site) {
    units_.emplace_back().site = site;
    return static_cast<int>(units_.size()) - 1;
  }
  // Where to say why the operator at hand stays on the CPU.
  std::string* Why() { return left_ == nullptr ? nullptr : &why_; }
  void Leave(int node) {
    if (left_ != nullptr) left_->push_back({node, std::move(why_)});
  }
  size_t UnitOf(size_t node) const { return static_cast<size_t>(unit_of_[node]); }

  void Connect() {
    for (size_t n = 0; n < graph_.nodes().size(); ++n) {
      const GraphNode& node = graph_.nodes()[n];
      for (const std::vector<int>* values : {&node.inputs, &node.implicit_inputs}) {
        for (const int value : *values) {
          const int producer = value == kNone ? kNone : graph_.value(value).producer;
          if (producer == kNone || unit_of_[static_cast<size_t>(producer)] == unit_of_[n]) continue;
          units_[UnitOf(static_cast<size_t>(producer))].behind.push_back(unit_of_[n]);
          ++units_[UnitOf(n)].before;
        }
      }
    }
  }

  bool Sort() {
    std::vector<int> left;
    for (const Unit& unit : units_) left.push_back(unit.before);
    for (size_t u = 0; u < units_.size(); ++u) {
      if (left[u] == 0) order_.push_back(static_cast<int>(u));
    }
    for (size_t next = 0; next < order_.size(); ++next) {
      for (const int behind : units_[static_cast<size_t>(order_[next])].behind) {
        if (--left[static_cast<size_t>(behind)] == 0) order_.push_back(behind);
      }
    }
    return order_.size() == units_.size();
  }

  // --- what may run on the GPU --------------------------------------------------------------------------------------

  void JudgeUnit(int index) {
    Unit& unit = units_[static_cast<size_t>(index)];
    if (unit.site != kNone) return;
    const GraphNode& node = graph_.node(unit.nodes.front());
    const DirectMlOperatorSpec* row = FindDirectMlOperator(node, Why());
    if (row != nullptr && static_cast<uint32_t>(row->level) > level_) {
      why_ = "it needs DirectML feature level " + directml::LevelName(static_cast<uint32_t>(row->level));
      row = nullptr;
    }
    unit.is_shape = row != nullptr && IsShape(node, *row);
    const bool of_content = unit.is_shape && ReadsContent(node);
    unit.fits = row != nullptr && (!unit.is_shape || of_content) && Fits(node, *row);
    unit.on_gpu = unit.is_shape || unit.fits;
    if (!unit.on_gpu) Leave(unit.nodes.front());
    if (!unit.is_shape) return;
    for (int value : node.outputs) {
      if (value == kNone) continue;
      knowable_[static_cast<size_t>(value)] = true;
      of_content_[static_cast<size_t>(value)] = of_content;
    }
  }

  // Whether its content is known when a program is made. What arrives from outside is read where it has few elements.
  bool IsKnowable(int value) {
    if (value == kNone || knowable_[static_cast<size_t>(value)]) return true;
    const TensorFacts& facts = graph_.Facts(value);
    if (!directml::IsKnowable(facts.type)) return false;
    if (facts.constant) return facts.constant->ElementCount() <= directml::kMostKnownElements;
    const int producer = graph_.value(value).producer;
    const bool outside = producer == kNone || !units_[UnitOf(static_cast<size_t>(producer))].on_gpu;
    return outside && facts.rank >= 0 && facts.rank <= 1;
  }

  bool IsShape(const GraphNode& node, const DirectMlOperatorSpec& row) {
    if (node.op_type == "Shape") return true;
    const bool knowable = row.on_cpu && std::all_of(node.inputs.begin(), node.inputs.end(),
                                                    [this](int value) { return IsKnowable(value); });
    return knowable && directml::IsKnowable(graph_.Facts(node.outputs.front()).type);
  }

  bool Fits(const GraphNode& node, const DirectMlOperatorSpec& row) {
    if (!TensorsFit(graph_, node, row, [this](int value) { return IsKnowable(value); }, Why())) return false;
    if (node.op_type != "Gather" || IndicesAreChecked(node.inputs[1])) return true;
    why_ = "its indices are computed by the GPU, which does not check them";
    return false;
  }

  // Whether they are known, or are those that arrive from outside, moved at most: these are checked on their way.
  bool IndicesAreChecked(int value) {
    for (;;) {
      const auto& constant = graph_.Facts(value).constant;
      if (constant) return constant->ElementCount() <= directml::kMostKnownElements;
      if (knowable_[static_cast<size_t>(value)] && !of_content_[static_cast<size_t>(value)]) return true;
      const int producer = graph_.value(value).producer;
      if (producer == kNone) return true;
      const Unit& unit = units_[UnitOf(static_cast<size_t>(producer))];
      if (unit.site != kNone) return !unit.on_gpu;
      if (!unit.fits) return true;  // left to the CPU, or known: see LeaveContents
      const GraphNode& node = graph_.node(producer);
      const bool is_integer = directml::StoredType(graph_.Facts(node.inputs.front()).type) == DataType::kInt32;
      if (!is_integer || !KeepsElements(node)) return false;
      value = node.inputs.front();
    }
  }

  // Integers that only data come of, and that only the CPU computes, are left to it: known to an island, they would be part
  // of what a program is compiled for.
  void LeaveContents() {
    std::vector<bool> needed(graph_.values().size(), false);
    for (auto index = order_.rbegin(); index != order_.rend(); ++index) {
      Unit& unit = units_[static_cast<size_t>(*index)];
      if (!unit.on_gpu || unit.site != kNone) continue;
      const GraphNode& node = graph_.node(unit.nodes.front());
      const DirectMlOperatorSpec& row = *FindDirectMlOperator(node);
      const auto need = [&](int value) {
        if (value != kNone) needed[static_cast<size_t>(value)] = true;
      };
      for (size_t i = 0; i < node.inputs.size(); ++i) {
        if (DecidesShapes(row, i)) need(node.inputs[i]);
      }
      const bool is_needed = std::any_of(node.outputs.begin(), node.outputs.end(), [&](int value) {
        return value != kNone && needed[static_cast<size_t>(value)];
      });
      if (is_needed) {
        for (int value : node.inputs) need(value);
      } else if (unit.is_shape && ReadsContent(node) && !Fits(node, row)) {
        unit.on_gpu = unit.is_shape = false;
        Leave(unit.nodes.front());
      }
    }
  }

  // Whether a shape depends on what arrives from outside, beyond its dimensions.
  bool ReadsContent(const GraphNode& node) {
    if (node.op_type == "Shape") return false;
    return std::any_of(node.inputs.begin(), node.inputs.end(), [this](int value) {
      if (value == kNone || graph_.Facts(value).constant) return false;
      return !knowable_[static_cast<size_t>(value)] || of_content_[static_cast<size_t>(value)];
    });
  }

  // --- islands ------------------------------------------------------------------------------------------------------

  void SetStages() {
    for (const int index : order_) {
      const Unit& unit = units_[static_cast<size_t>(index)];
      for (const int behind : unit.behind) {
        Unit& next = units_[static_cast<size_t>(behind)];
        next.stage = std::max(next.stage, unit.stage + (unit.on_gpu != next.on_gpu ? 1 : 0));
      }
    }
    // What is ready early may wait for the stage that needs it.
    for (auto index = order_.rbegin(); index != order_.rend(); ++index) {
      Unit& unit = units_[static_cast<size_t>(*index)];
      if (unit.behind.empty()) continue;
      int latest = std::numeric_limits<int>::max();
      for (const int behind : unit.behind) {
        const Unit& next = units_[static_cast<size_t>(behind)];
        latest = std::min(latest, next.stage - (unit.on_gpu != next.on_gpu ? 1 : 0));
      }
      unit.stage = std::max(unit.stage, latest);
    }
  }

  int Root(int unit) {
    while (root_[static_cast<size_t>(unit)] != unit) {
      root_[static_cast<size_t>(unit)] = root_[static_cast<size_t>(root_[static_cast<size_t>(unit)])];
      unit = root_[static_cast<size_t>(unit)];
    }
    return unit;
  }

  void JoinStages() {
    root_.resize(units_.size());
    std::iota(root_.begin(), root_.end(), 0);
    for (size_t u = 0; u < units_.size(); ++u) {
      for (const int behind : units_[u].behind) {
        const Unit& next = units_[static_cast<size_t>(behind)];
        if (!units_[u].on_gpu || !next.on_gpu || units_[u].stage != next.stage) continue;
        root_[static_cast<size_t>(Root(behind))] = Root(static_cast<int>(u));
      }
    }
  }

  // Shapes that nobody in the island needs stay outside: without them at its end it is as convex as before.
  void DropShapes() {
    for (auto index = order_.rbegin(); index != order_.rend(); ++index) {
      Unit& unit = units_[static_cast<size_t>(*index)];
      if (!unit.is_shape) continue;
      const bool needed = std::any_of(unit.behind.begin(), unit.behind.end(), [&](int behind) {
        return units_[static_cast<size_t>(behind)].on_gpu && Root(behind) == Root(*index);
      });
      if (!needed) unit.on_gpu = false;
    }
  }

  std::vector<FoundIsland> Collect() {
    DropShapes();
    std::vector<int> island_of(units_.size(), kNone);
    std::vector<FoundIsland> islands;
    for (const int index : order_) {
      const Unit& unit = units_[static_cast<size_t>(index)];
      if (!unit.on_gpu) continue;
      int& island = island_of[static_cast<size_t>(Root(index))];
      if (island == kNone) {
        island = static_cast<int>(islands.size());
        islands.emplace_back();
      }
      FoundIsland& found = islands[static_cast<size_t>(island)];
      found.nodes.insert(found.nodes.end(), unit.nodes.begin(), unit.nodes.end());
      if (unit.site != kNone) found.sites.push_back(static_cast<size_t>(unit.site));
    }
    return islands;
  }

  // Products for each element of a convolution's result.
  double OfKernel(const GraphNode& node) {
    const TensorFacts& filter = graph_.Facts(node.inputs[node.op_type == "QLinearConv" ? 3 : 1]);
    const bool known = filter.rank > 0 && filter.rank <= kMaxRank && filter.dims[0] > 0;
    return ElementsOf(filter) / (known ? static_cast<double>(filter.dims[0]) : kAssumedDimension);
  }

  double OperationsOf(int index) {
    const GraphNode& node = graph_.node(index);
    const DirectMlOperatorSpec* row = FindDirectMlOperator(node);
    if (node.outputs.empty()) return 0;
    const double elements = ElementsOf(graph_.Facts(node.outputs.front()));
    const auto is_one_of = [&](std::initializer_list<std::string_view> names) {
      return std::find(names.begin(), names.end(), node.op_type) != names.end();
    };
    if (is_one_of({"Conv", "ConvTranspose", "ConvInteger", "QLinearConv"})) return 2 * elements * OfKernel(node);
    if (is_one_of({"MatMul", "Gemm", "Einsum", "MatMulInteger", "QLinearMatMul"})) {
      const TensorFacts& a = graph_.Facts(node.inputs.front());
      const bool known = a.rank > 0 && a.rank <= kMaxRank && a.dims[a.rank - 1] > 0;
      return 2 * elements * (known ? static_cast<double>(a.dims[a.rank - 1]) : kAssumedDimension);
    }
    const bool moves = row != nullptr && row->moves;
    return moves ? 0 : kOperationsOfAnElement * elements;
  }

  bool Leaves(int value, const std::unordered_set<int>& inside) {
    if (value == kNone) return false;
    const GraphValue& made = graph_.value(value);
    return made.is_output ||
           std::any_of(made.consumers.begin(), made.consumers.end(), [&](int node) { return inside.count(node) == 0; });
  }

  // Whether anybody reads what it makes.
  bool IsUsed(const FoundIsland& island) {
    const std::unordered_set<int> inside(island.nodes.begin(), island.nodes.end());
    return std::any_of(island.nodes.begin(), island.nodes.end(), [&](int index) {
      const std::vector<int>& outputs = graph_.node(index).outputs;
      return std::any_of(outputs.begin(), outputs.end(), [&](int value) { return Leaves(value, inside); });
    });
  }

  double BytesAcross(const FoundIsland& island) {
    const std::unordered_set<int> inside(island.nodes.begin(), island.nodes.end());
    std::unordered_set<int> crossing;
    for (const int index : island.nodes) {
      for (const int value : graph_.node(index).inputs) {
        if (value == kNone || graph_.Facts(value).constant) continue;
        if (inside.count(graph_.value(value).producer) == 0) crossing.insert(value);
      }
      for (const int value : graph_.node(index).outputs) {
        if (Leaves(value, inside)) crossing.insert(value);
      }
    }
    double bytes = 0;
    for (const int value : crossing) {
      const TensorFacts& facts = graph_.Facts(value);
      bytes += ElementsOf(facts) * std::max(8, BitsOf(facts.type)) / 8;
    }
    return bytes;
  }

  void Weigh(FoundIsland* island) {
    double operations = 0;
    for (const int node : island->nodes) operations += OperationsOf(node);
    island->computes = (!island->sites.empty() || operations > 0) && IsUsed(*island);
    const double on_gpu =
        kSecondsOfAWait + BytesAcross(*island) / kCopiedBytesPerSecond + operations / kGpuOperationsPerSecond;
    island->pays = on_gpu < operations / kCpuOperationsPerSecond;
  }

  GraphView& graph_;
  uint32_t level_;
  std::vector<Unit> units_;
  std::vector<int> unit_of_;      // by node
  std::vector<bool> knowable_;    // by value: a shape, or computed of shapes
  std::vector<bool> of_content_;  // of these: computed of what arrives from outside
  std::vector<int> order_;        // of units, producers first
  std::vector<int> root_;         // of the island that a unit is in
  std::vector<LeftOperator>* left_ = nullptr;
  std::string why_;
};

}  // namespace

std::vector<Site> FindSitesForGpu(GraphView& graph) {
  IntegerUnits none(graph);
  return FindSites(graph, {ChainLength::kOwnNodesAlone, &none});
}

std::vector<FoundIsland> FindIslands(GraphView& graph, const std::vector<Site>& sites,
                                     const directml::Capabilities& capabilities, std::vector<LeftOperator>* left) {
  return Finder(graph, sites, capabilities).Run(left);
}

}  // namespace normfuse::plugin
