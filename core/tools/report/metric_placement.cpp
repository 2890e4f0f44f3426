#include <levin/core/tools/report/metric_placement.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <utility>
#include <vector>

namespace levin::report {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }

/// Takes `word` and the number behind it off the front, up to `end`; the number's text, or nothing when they are not
/// there.
std::string take_numbered(std::string_view& name, std::string_view word, char end) {
  if (!name.starts_with(word)) return "";
  size_t size = word.size();
  while (size < name.size() && is_digit(name[size])) ++size;
  if (size == word.size() || size + 1 >= name.size() || name[size] != end) return "";
  std::string number(name.substr(word.size(), size - word.size()));
  name.remove_prefix(size + 1);
  return number;
}

std::vector<std::string> words_of(std::string_view name) {
  std::vector<std::string> words(1);
  for (const char c : name) {
    if (c == '_' || c == '/' || c == '-' || c == '.' || c == ' ' || c == ':')
      words.emplace_back();
    else
      words.back() += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  return words;
}

bool take_suffix(std::string_view& name, std::string_view suffix) {
  if (!name.ends_with(suffix) || name.size() == suffix.size()) return false;
  name.remove_suffix(suffix.size());
  return true;
}

/// Takes the unit off the end of a name: "power_watts" -> "W".
std::string take_unit(std::string_view& name) {
  if (take_suffix(name, "_per_second")) {
    const size_t start = name.rfind('_') == std::string_view::npos ? 0 : name.rfind('_') + 1;
    const std::string what(name.substr(start));
    if (what == "mib" || what == "tflops" || what == "gib") {
      if (start > 0) name = name.substr(0, start - 1);
      return what == "mib" ? "MiB/s" : what == "gib" ? "GiB/s" : "TFLOP/s";
    }
    return what + "/s";
  }
  static constexpr std::array<std::pair<std::string_view, const char*>, 10> kUnits{{{"_percent", "%"},
                                                                                    {"_mib", "MiB"},
                                                                                    {"_gib", "GiB"},
                                                                                    {"_bytes", "B"},
                                                                                    {"_watts", "W"},
                                                                                    {"_celsius", "°C"},
                                                                                    {"_mhz", "MHz"},
                                                                                    {"_milliseconds", "ms"},
                                                                                    {"_microseconds", "µs"},
                                                                                    {"_seconds", "s"}}};
  for (const auto& [suffix, unit] : kUnits)
    if (take_suffix(name, suffix)) return unit;
  return "";
}

std::string spaced(std::string_view name) {
  std::string text(name);
  std::replace(text.begin(), text.end(), '_', ' ');
  return text;
}

void add_line(std::string& line, const std::string& part) { line += (line.empty() ? "" : ", ") + part; }

/// The rest of a name behind the stage that begins it; nothing when another word does.
std::string_view after_stage(std::string_view name, std::initializer_list<std::string_view> stages) {
  const std::string first = words_of(name).front();
  if (first.size() + 1 >= name.size()) return {};
  for (const auto& stage : stages)
    if (first == stage) return name.substr(first.size() + 1);
  return {};
}

/// What bounds a quantity is drawn in the quantity's chart.
struct Bound {
  std::string_view name;
  std::string_view quantity;
  const char* line;
};
constexpr std::array<Bound, 2> kBounds{
    {{"memory_total_mib", "memory_used_mib", "total"}, {"power_limit_watts", "power_watts", "limit"}}};

/// `what`: "GPU", "CPU" or "Host"; `device`: which one, such as "gpu0", or nothing.
void place_hardware(std::string_view name, const std::string& what, std::string device, Placement& place) {
  place.group = Group::kHardware;
  for (const Bound& bound : kBounds) {
    if (name != bound.name) continue;
    name = bound.quantity;
    device += (device.empty() ? "" : " ") + std::string(bound.line);
  }
  if (!device.empty()) add_line(place.line, device);
  place.unit = take_unit(name);
  place.chart = what + " " + spaced(name);
  static constexpr std::array<std::pair<std::string_view, std::string_view>, 3> kAcronyms{
      {{" pcie ", " PCIe "}, {" nvlink ", " NVLink "}, {" sm ", " SM "}}};
  for (const auto& [word, acronym] : kAcronyms)
    if (const size_t at = place.chart.find(word); at != std::string::npos)
      place.chart.replace(at, word.size(), acronym);
}

}  // namespace

const char* to_string(Group group) {
  static constexpr std::array<const char*, kGroups> kNames{"training",   "validation", "test", "learning rate",
                                                           "throughput", "hardware",   "other"};
  return kNames[static_cast<size_t>(group)];
}

Placement place_metric(std::string_view name) {
  Placement place;
  const std::string_view whole = name;
  if (const std::string rank = take_numbered(name, "rank", '/'); !rank.empty()) place.line = "rank " + rank;
  const std::string_view without_rank = name;

  // Over all GPUs, "gpu/"; of one, "gpu0/".
  if (const std::string gpu = take_numbered(name, "gpu", '/'); !gpu.empty()) {
    place_hardware(name, "GPU", "gpu" + gpu, place);
    return place;
  }
  static constexpr std::array<std::pair<std::string_view, const char*>, 3> kDevices{
      {{"gpu/", "GPU"}, {"cpu/", "CPU"}, {"host/", "Host"}}};
  for (const auto& [prefix, what] : kDevices) {
    if (!name.starts_with(prefix) || name.size() == prefix.size()) continue;
    place_hardware(name.substr(prefix.size()), what, "", place);
    return place;
  }
  if (name.starts_with("lr-") || name == "lr" || name == "learning_rate") {
    place.group = Group::kLearningRate;
    place.chart = "Learning rate";
    add_line(place.line, std::string(name.starts_with("lr-") ? name.substr(3) : name));
    return place;
  }
  if (const size_t loader = name.rfind("/dataloader_idx_"); loader != std::string_view::npos && loader > 0) {
    add_line(place.line, "loader " + std::string(name.substr(loader + 16)));
    name = name.substr(0, loader);
  }

  std::string_view quantity;
  if (name.starts_with("throughput/") && name.size() > 11) {
    place.group = Group::kThroughput;
    name.remove_prefix(11);
    place.unit = take_unit(name);
    place.chart = name == "mfu" ? "MFU" : spaced(name);
    if (place.unit == "TFLOP/s") place.chart += " FLOPs";
    if (place.unit == place.chart + "/s") place.chart += " per second";
    place.chart[0] = static_cast<char>(std::toupper(static_cast<unsigned char>(place.chart[0])));
    return place;
  }
  if (!(quantity = after_stage(name, {"train", "training"})).empty())
    place.group = Group::kTraining;
  else if (!(quantity = after_stage(name, {"val", "valid", "validation", "eval"})).empty())
    place.group = Group::kValidation;
  else if (!(quantity = after_stage(name, {"test"})).empty())
    place.group = Group::kTest;
  else if (name.ends_with("_per_second"))
    place.group = Group::kThroughput;
  if (!take_suffix(quantity, "_step")) take_suffix(quantity, "_epoch");
  place.quantity = quantity;
  place.chart = name;
  std::string_view rest = name;
  place.unit = take_unit(rest);
  if (place.chart.empty()) place.chart = whole.empty() ? "(no name)" : std::string(without_rank);
  return place;
}

Direction better_direction(std::string_view name) {
  static constexpr std::array<std::string_view, 10> kSmall{"loss", "error", "err", "perplexity", "ppl",
                                                           "nll",  "mse",   "mae", "rmse",       "wer"};
  static constexpr std::array<std::string_view, 13> kLarge{
      "acc", "accuracy", "top1", "top5", "f1", "auc", "auroc", "precision", "recall", "iou", "bleu", "score", "psnr"};
  // "loss" in "accuracy_loss" is what counts: the last word that says something.
  const auto words = words_of(name);
  for (auto word = words.rbegin(); word != words.rend(); ++word) {
    if (std::find(kSmall.begin(), kSmall.end(), *word) != kSmall.end()) return Direction::kDown;
    if (std::find(kLarge.begin(), kLarge.end(), *word) != kLarge.end()) return Direction::kUp;
  }
  return Direction::kUnknown;
}

}  // namespace levin::report
