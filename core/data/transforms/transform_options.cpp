#include <levin/core/data/transforms/transform_options.h>

namespace levin::data {

const std::vector<std::pair<std::string, operations::Interpolation>>& interpolation_names() {
  static const std::vector<std::pair<std::string, operations::Interpolation>> names = {
      {"nearest", operations::Interpolation::kNearest},
      {"nearest-exact", operations::Interpolation::kNearestExact},
      {"bilinear", operations::Interpolation::kBilinear},
      {"bicubic", operations::Interpolation::kBicubic}};
  return names;
}

const std::vector<std::pair<std::string, operations::PaddingMode>>& padding_mode_names() {
  static const std::vector<std::pair<std::string, operations::PaddingMode>> names = {
      {"constant", operations::PaddingMode::kConstant},
      {"edge", operations::PaddingMode::kEdge},
      {"reflect", operations::PaddingMode::kReflect},
      {"symmetric", operations::PaddingMode::kSymmetric}};
  return names;
}

bool is_size(const OneOrMore<int64_t>& size) {
  if (size.count() != 1 && size.count() != 2) return false;
  for (int64_t value : size.values())
    if (value < 1 || value > (int64_t{1} << 20)) return false;
  return true;
}

bool is_range(const std::vector<double>& range, double least, double most) {
  return range.size() == 2 && range[0] >= least && range[0] <= range[1] && range[1] <= most;
}

operations::Padding to_padding(const OneOrMore<int64_t>& padding) {
  if (padding.count() == 4) return {padding[0], padding[1], padding[2], padding[3]};
  return {padding.at(0), padding.at(1), padding.at(0), padding.at(1)};
}

double uniform(Generator& generator, double low, double high) { return low + (high - low) * generator.uniform(); }

}  // namespace levin::data
