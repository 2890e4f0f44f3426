#include <levin/core/export/einsum_equation.h>

#include <algorithm>
#include <cctype>
#include <iterator>

namespace levin {
namespace {

constexpr std::string_view kEllipsis = "...";

std::vector<std::string> split(const std::string& operands) {
  std::vector<std::string> parts{""};
  for (const char letter : operands) {
    if (letter == ',')
      parts.emplace_back();
    else
      parts.back() += letter;
  }
  return parts;
}

void replace_ellipsis(std::string& labels, std::string_view letters) {
  if (const size_t place = labels.find(kEllipsis); place != std::string::npos)
    labels.replace(place, kEllipsis.size(), letters);
}

/// Of an operand, how many dimensions its ellipsis stands for.
size_t hidden_dimensions(const std::string& labels, size_t rank) {
  if (labels.find(kEllipsis) == std::string::npos) return 0;
  return rank + kEllipsis.size() - labels.size();
}

std::string letters_that_are_not_in(std::string_view equation, size_t count) {
  std::string letters;
  for (const std::string_view alphabet : {"ABCDEFGHIJKLMNOPQRSTUVWXYZ", "abcdefghijklmnopqrstuvwxyz"})
    for (const char letter : alphabet)
      if (letters.size() < count && equation.find(letter) == std::string_view::npos) letters += letter;
  return letters;
}

/// What the result has where the equation does not say it: labels that occur once, in the order of the alphabet, with
/// capitals first.
std::string implied_result(const std::string& operands) {
  std::string labels;
  for (const char letter : operands)
    if (std::isalpha(static_cast<unsigned char>(letter)) != 0 &&
        std::count(operands.begin(), operands.end(), letter) == 1)
      labels += letter;
  std::sort(labels.begin(), labels.end());
  return std::string(kEllipsis) + labels;
}

/// Takes out of each operand the labels of size 1 that are of another size elsewhere; returns where they were.
std::vector<std::vector<int64_t>> without_broadcast_labels(std::vector<std::string>& operands,
                                                           const std::vector<std::vector<int64_t>>& sizes) {
  std::string wide;  // labels of which an operand has more than one
  for (size_t i = 0; i < operands.size(); ++i)
    for (size_t d = 0; d < operands[i].size(); ++d)
      if (sizes[i].at(d) != 1) wide += operands[i][d];
  std::vector<std::vector<int64_t>> squeezed(operands.size());
  for (size_t i = 0; i < operands.size(); ++i) {
    std::string kept;
    for (size_t d = 0; d < operands[i].size(); ++d) {
      if (sizes[i][d] == 1 && wide.find(operands[i][d]) != std::string::npos)
        squeezed[i].push_back(static_cast<int64_t>(d));
      else
        kept += operands[i][d];
    }
    operands[i] = kept;
  }
  return squeezed;
}

}  // namespace

EinsumEquation explicit_einsum(std::string_view equation, const std::vector<std::vector<int64_t>>& sizes) {
  std::string dense;
  std::copy_if(equation.begin(), equation.end(), std::back_inserter(dense), [](char letter) { return letter != ' '; });
  const size_t arrow = dense.find("->");
  const std::string given = dense.substr(0, arrow);
  std::string result = arrow == std::string::npos ? implied_result(given) : dense.substr(arrow + 2);
  std::vector<std::string> operands = split(given);

  size_t hidden = 0;
  for (size_t i = 0; i < operands.size(); ++i)
    hidden = std::max(hidden, hidden_dimensions(operands[i], sizes.at(i).size()));
  const std::string letters = letters_that_are_not_in(dense, hidden);
  if (letters.size() < hidden) return {};
  for (size_t i = 0; i < operands.size(); ++i) {
    // Those of an operand with fewer are the last ones, as in broadcasting.
    const size_t own = hidden_dimensions(operands[i], sizes[i].size());
    replace_ellipsis(operands[i], std::string_view(letters).substr(hidden - own));
  }
  replace_ellipsis(result, letters);
  EinsumEquation made{.text = {}, .squeezed = without_broadcast_labels(operands, sizes)};
  for (size_t i = 0; i < operands.size(); ++i) made.text += (i == 0 ? "" : ",") + operands[i];
  made.text += "->" + result;
  return made;
}

}  // namespace levin
