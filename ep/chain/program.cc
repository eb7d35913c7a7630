#include "chain/program.h"

#include <algorithm>
#include <iterator>

namespace normfuse {
namespace {

constexpr std::string_view kBlank = " \t\r\n";

std::vector<std::string_view> Words(std::string_view text) {
  std::vector<std::string_view> words;
  size_t begin = text.find_first_not_of(kBlank);
  while (begin != std::string_view::npos) {
    const size_t end = std::min(text.find_first_of(kBlank, begin), text.size());
    words.emplace_back(text.substr(begin, end - begin));
    begin = text.find_first_not_of(kBlank, end);
  }
  return words;
}

class Parser {
 public:
  Parser(const std::string& node, std::vector<ProgramStep>* steps) : node_(node), steps_(*steps) {}

  std::optional<Declined> Parse(std::string_view text) {
    while (!declined_) {
      const size_t end = text.find(';');
      ReadStep(Words(text.substr(0, end)));
      if (end == std::string_view::npos) break;
      text.remove_prefix(end + 1);
    }
    if (!declined_) CheckPlaces();
    return declined_;
  }

 private:
  void Invalid(const std::string& detail) {
    if (!declined_) declined_ = Decline(Reason::kInvalidConfiguration, {{"node", node_}, {"detail", detail}});
  }

  void ReadStep(const std::vector<std::string_view>& words) {
    ProgramStep step;
    step.number = steps_.size() + 1;
    if (words.empty()) return Invalid("attribute steps: step " + std::to_string(step.number) + " is empty");
    step.name = words[0];
    const auto* named = std::find_if(std::begin(kSteps), std::end(kSteps), [&](auto& s) { return words[0] == s.name; });
    if (named != std::end(kSteps)) {
      step.step = named;
    } else {
      while (step.activation < kActivationCount && words[0] != kActivations[step.activation].name) ++step.activation;
      if (step.activation == kActivationCount) {
        declined_ = Decline(Reason::kUnknownStep, {{"node", node_}, {"step", words[0]}});
        return;
      }
    }
    for (size_t i = 1; i < words.size() && !declined_; ++i) ReadWord(words[i], i == 1, &step);
    if (declined_) return;
    const bool has_operand = step.step != nullptr ? step.step->has_operand : kActivations[step.activation].has_slope;
    if (has_operand && step.operand.empty()) {
      return Invalid(step.Where() + (step.step != nullptr ? " has no operand" : " has no operand, its slope"));
    }
    if (!has_operand && !step.operand.empty()) {
      return Invalid(step.Where() + " has the operand " + std::string(step.operand) +
                     (step.step != nullptr ? "" : ", a slope") + ", but takes none");
    }
    steps_.push_back(std::move(step));
  }

  void ReadWord(std::string_view word, bool is_first, ProgramStep* step) {
    const size_t equals = word.find('=');
    if (equals == std::string_view::npos) {
      if (!is_first || !IsLabel(word))
        return Invalid(step->Where() + ": '" + std::string(word) + "' is no argument, key=value");
      step->operand = word;
      return;
    }
    const std::string_view key = word.substr(0, equals);
    if (!Takes(*step, key)) return Invalid(step->Where() + " takes no argument " + std::string(key));
    if (step->Find(key)) return Invalid(step->Where() + ": " + std::string(key) + " is given twice");
    step->arguments.emplace_back(key, word.substr(equals + 1));
  }

  static bool Takes(const ProgramStep& step, std::string_view key) {
    if (step.step == nullptr) {
      const ActivationSpec& spec = kActivations[step.activation];
      return std::any_of(spec.params, spec.params + spec.param_count, [&](const auto& p) { return key == p.name; });
    }
    const Argument* arguments = step.step->arguments;
    return std::any_of(arguments, arguments + step.step->argument_count,
                       [&](Argument a) { return key == kArgumentNames[static_cast<int>(a)]; });
  }

  // Steps that stand beside a core are before it or behind it; without a core all are behind.
  void CheckPlaces() {
    const auto place_of = [](const ProgramStep& s) { return s.step == nullptr ? StepPlace::kBehind : s.step->place; };
    bool in_front = std::any_of(steps_.begin(), steps_.end(),
                                [&](const ProgramStep& step) { return place_of(step) == StepPlace::kCore; });
    StepPlace reached = StepPlace::kFirst;
    for (size_t i = 0; i < steps_.size(); ++i) {
      StepPlace place = place_of(steps_[i]);
      if (place == StepPlace::kBeside) place = in_front ? StepPlace::kBefore : StepPlace::kBehind;
      const bool once = place == StepPlace::kFirst || place == StepPlace::kCore || place == StepPlace::kLast;
      if (place < reached || (i > 0 && once && place == reached)) {
        return Invalid(steps_[i].Where() + " cannot stand behind " + steps_[i - 1].Where());
      }
      if (place == StepPlace::kBefore && !in_front)
        return Invalid(steps_[i].Where() + " stands before no normalisation");
      if (place == StepPlace::kCore) in_front = false;
      steps_[i].in_front = in_front;
      reached = place;
    }
  }

  const std::string& node_;
  std::vector<ProgramStep>& steps_;
  std::optional<Declined> declined_;
};

}  // namespace

std::optional<std::string_view> ProgramStep::Find(std::string_view key) const {
  const auto found = std::find_if(arguments.begin(), arguments.end(), [&](const auto& a) { return a.first == key; });
  return found == arguments.end() ? std::nullopt : std::optional(found->second);
}

std::string ProgramStep::Where() const { return "step " + std::to_string(number) + " (" + std::string(name) + ")"; }

bool IsLabel(std::string_view word) {
  const auto fits = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
  };
  return !word.empty() && std::all_of(word.begin(), word.end(), fits);
}

std::optional<Declined> ParseProgram(const std::string& node, std::string_view text, std::vector<ProgramStep>* steps) {
  return Parser(node, steps).Parse(text);
}

}  // namespace normfuse
