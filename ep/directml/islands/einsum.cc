#include "directml/islands/einsum.h"

#include <algorithm>
#include <set>

namespace normfuse::directml {
namespace {

bool Has(const std::string& letters, char letter) { return letters.find(letter) != std::string::npos; }

bool IsTerm(const std::string& term) {
  const bool letters =
      std::all_of(term.begin(), term.end(), [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); });
  return letters && std::set<char>(term.begin(), term.end()).size() == term.size();
}

}  // namespace

std::optional<Einsum> ReadEinsum(const std::string& equation) {
  std::string text;
  std::copy_if(equation.begin(), equation.end(), std::back_inserter(text), [](char c) { return c != ' '; });
  const size_t arrow = text.find("->"), comma = text.find(',');
  if (comma == std::string::npos || (arrow != std::string::npos && comma > arrow)) return std::nullopt;
  Einsum sum;
  sum.a = text.substr(0, comma);
  const size_t end = arrow == std::string::npos ? text.size() : arrow;
  sum.b = text.substr(comma + 1, end - comma - 1);
  if (arrow != std::string::npos) {
    sum.result = text.substr(arrow + 2);
  } else {  // the letters that are there once, in the order of the alphabet
    for (char c : std::set<char>(text.begin(), text.end())) {
      if (c != ',' && std::count(text.begin(), text.end(), c) == 1) sum.result += c;
    }
  }
  if (!IsTerm(sum.a) || !IsTerm(sum.b) || !IsTerm(sum.result)) return std::nullopt;
  for (char c : sum.result) {
    if (!Has(sum.a, c) && !Has(sum.b, c)) return std::nullopt;
  }
  for (char c : sum.a) {
    if (Has(sum.b, c)) {
      (Has(sum.result, c) ? sum.batch : sum.inner) += c;
    } else if (Has(sum.result, c)) {
      sum.rows += c;
    } else {
      return std::nullopt;
    }
  }
  for (char c : sum.b) {
    if (Has(sum.a, c)) continue;
    if (!Has(sum.result, c)) return std::nullopt;
    sum.columns += c;
  }
  return sum;
}

}  // namespace normfuse::directml
