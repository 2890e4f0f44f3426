#include <levin/core/tools/report/page.h>

#include <levin/core/base/error.h>
#include <levin/core/base/file_system.h>
#include <levin/core/tools/report/assets.h>
#include <levin/core/tools/report/device_scaling.h>
#include <levin/core/tools/report/down_sampling.h>
#include <levin/core/tools/report/findings.h>
#include <levin/core/tools/report/metric_placement.h>

#include <fmt/format.h>
#include <openssl/evp.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <utility>

namespace levin::report {
namespace {

using Json = nlohmann::json;

constexpr size_t kFewestPointsOfCurve = 64;
/// A chart has a row for each x of any of its curves, and a column for each curve.
constexpr size_t kMostCellsOfChart = 1'000'000;
constexpr size_t kMostProfileBytes = 64 << 10;

/// With as many digits as a curve can show, which keeps the page small. NaN and infinities are null in JSON.
double rounded(double value, int digits) {
  std::array<char, 32> text{};
  const auto end = fmt::format_to_n(text.data(), text.size(), "{:.{}g}", value, digits).out;
  double result = value;
  std::from_chars(text.data(), end, result);
  return result;
}

Json json_number(double value) { return std::isfinite(value) ? Json(rounded(value, 9)) : Json(nullptr); }

Json json_point(const Point* point) {
  return point == nullptr ? Json(nullptr) : Json::array({point->step, json_number(point->value)});
}

std::string percent_encoded(const std::string& path) {
  std::string text;
  for (const char c : path) {
    const auto byte = static_cast<unsigned char>(c);
    if ((byte < 0x80 && std::isalnum(byte) != 0) || std::string_view("/._-~").find(c) != std::string_view::npos)
      text += c;
    else
      text += fmt::format("%{:02X}", byte);
  }
  return text;
}

/// Each run's shortest name that no other run has: the folder's own, or with folders above it.
std::vector<std::string> distinct_names(const std::vector<RunFolder>& runs) {
  std::vector<std::filesystem::path> paths;
  paths.reserve(runs.size());
  for (const auto& run : runs) paths.push_back(std::filesystem::weakly_canonical(run.path));
  std::vector<std::string> names;
  for (size_t parts = 1;; ++parts) {
    names.clear();
    for (const auto& path : paths) {
      const auto count = static_cast<size_t>(std::distance(path.begin(), path.end()));
      std::filesystem::path name;
      for (auto part = std::next(path.begin(), static_cast<std::ptrdiff_t>(count - std::min(parts, count)));
           part != path.end(); ++part)
        name /= *part;
      names.push_back(name.string());
    }
    const bool is_whole = parts > 64;
    if (is_whole || std::set<std::string>(names.begin(), names.end()).size() == names.size()) return names;
  }
}

/// The last step at which something was logged in each epoch, so that the page can tell a step's share of its epoch.
Json epoch_ends(const RunFolder& run) {
  std::map<int64_t, int64_t> ends;
  for (const auto& [name, series] : run.metrics.all())
    for (const Point& point : series)
      if (std::isfinite(point.epoch)) {
        int64_t& end = ends[std::llround(point.epoch)];
        end = std::max(end, point.step);
      }
  Json result = Json::array();
  for (const auto& [epoch, step] : ends) result.push_back({epoch, step});
  return result;
}

Json profiles_json(const RunFolder& run) {
  Json result = Json::array();
  for (const auto& file : run.profiles) {
    std::string text;
    try {
      text = FileSystem::current().read_file(run.path + "/" + file.path);
    } catch (const Error& error) {
      text = error.what();  // it was there when the folder was listed
    }
    const bool is_cut = text.size() > kMostProfileBytes;
    result.push_back({{"name", file.path}, {"text", text.substr(0, kMostProfileBytes)}, {"cut", is_cut}});
  }
  return result;
}

/// With links as a page in `folder` has them.
Json traces_json(const RunFolder& run, const std::string& folder) {
  namespace fs = std::filesystem;
  Json result = Json::array();
  const fs::path way = fs::weakly_canonical(run.path).lexically_relative(fs::weakly_canonical(folder));
  for (const auto& file : run.traces)
    result.push_back({{"name", file.path}, {"size", file.size}, {"link", percent_encoded((way / file.path).string())}});
  return result;
}

std::string base64(const std::string& bytes) {
  std::string text(4 * ((bytes.size() + 2) / 3) + 1, '\0');  // and a zero, which the library writes
  const int size =
      EVP_EncodeBlock(reinterpret_cast<unsigned char*>(text.data()),
                      reinterpret_cast<const unsigned char*>(bytes.data()), static_cast<int>(bytes.size()));
  text.resize(static_cast<size_t>(size));
  return text;
}

Json data_json(const std::optional<DataSeen>& data) {
  if (!data) return nullptr;
  Json tensors = Json::array();
  for (const auto& tensor : data->tensors)
    tensors.push_back({{"name", tensor.name},
                       {"shape", tensor.shape},
                       {"type", tensor.type},
                       {"min", json_number(tensor.min)},
                       {"max", json_number(tensor.max)},
                       {"mean", json_number(tensor.mean)}});
  Json classes = Json::array();
  for (const auto& [name, count] : data->classes) classes.push_back({{"name", name}, {"count", count}});
  return {{"tensors", std::move(tensors)},
          {"classes", std::move(classes)},
          {"examples", data->examples},
          {"picture", data->picture.empty() ? "" : "data:image/png;base64," + base64(data->picture)}};
}

const char* status_text(RunStatus status) {
  switch (status) {
    case RunStatus::kFinished:
      return "finished";
    case RunStatus::kFailed:
      return "failed";
    case RunStatus::kUnfinished:
      return "unfinished";
    case RunStatus::kUnknown:
      break;
  }
  return "unknown";
}

Json run_json(const RunFolder& run, const std::string& name, const PageOptions& options) {
  const Findings findings = find_findings(run);
  Json found = Json::array();
  for (const auto& finding : findings.found)
    found.push_back(
        {{"problem", finding.kind == Finding::Kind::kProblem}, {"text", finding.text}, {"remedy", finding.remedy}});
  return {{"name", name},
          {"path", run.path},
          {"label", label_of(run)},
          {"status", status_text(run.status)},
          {"started", std::isfinite(run.first_time) ? Json(std::round(run.first_time)) : Json(nullptr)},
          {"seconds", json_number(run.seconds)},
          {"monitor", run.monitor},
          {"epochEnds", epoch_ends(run)},
          {"notes", run.notes},
          {"findings", found},
          {"withoutData", findings.without_data},
          {"profiles", profiles_json(run)},
          {"data", data_json(run.data)},
          {"traces", traces_json(run, options.folder)},
          {"checkpoints", run.checkpoints}};
}

/// The points of a curve as columns. Values that are not finite are null: gaps.
Json curve_json(const RunFolder& run, const Series& series, size_t most_points) {
  Json steps = Json::array(), values = Json::array(), seconds = Json::array(), means = Json::array();
  bool has_time = false;
  for (const auto& [point, mean] : down_sample(series, most_points)) {
    steps.push_back(point.step);
    values.push_back(std::isfinite(point.value) ? Json(rounded(point.value, 7)) : Json(nullptr));
    means.push_back(std::isfinite(mean) ? Json(rounded(mean, 7)) : Json(nullptr));
    const double time = point.wall_time - run.first_time;
    has_time = has_time || std::isfinite(time);
    seconds.push_back(std::isfinite(time) ? Json(std::round(time * 100) / 100) : Json(nullptr));
  }
  Json curve{{"steps", std::move(steps)}, {"values", std::move(values)}};
  if (has_time) curve["seconds"] = std::move(seconds);
  if (series.size() > most_points) curve["means"] = std::move(means);
  return curve;
}

/// A chart is its curves' indices in the list of all curves.
struct Chart {
  std::string title;
  std::string unit;
  std::vector<size_t> curves;
};

struct Curve {
  size_t run;
  std::string name;
  const Series* series;
  Placement place;
};

std::vector<Curve> curves_of(const std::vector<RunFolder>& runs) {
  std::vector<Curve> curves;
  for (size_t i = 0; i < runs.size(); ++i)
    for (const auto& [name, series] : runs[i].metrics.all()) curves.push_back({i, name, &series, place_metric(name)});
  return curves;
}

Json charts_json(const std::vector<Chart>& charts) {
  Json result = Json::array();
  for (const auto& chart : charts)
    result.push_back({{"title", chart.title}, {"unit", chart.unit}, {"curves", chart.curves}});
  return result;
}

/// The charts of one group, by title.
std::vector<Chart> charts_of(const std::vector<Curve>& curves, Group group) {
  std::map<std::pair<std::string, std::string>, Chart> charts;
  for (size_t i = 0; i < curves.size(); ++i) {
    const Placement& place = curves[i].place;
    if (place.group != group) continue;
    Chart& chart = charts[{place.chart, place.unit}];
    chart.title = place.chart;
    chart.unit = place.unit;
    chart.curves.push_back(i);
  }
  std::vector<Chart> result;
  result.reserve(charts.size());
  for (auto& [key, chart] : charts) result.push_back(std::move(chart));
  return result;
}

/// A chart for everything that is measured both in training and on held-out data.
std::vector<Chart> comparisons(const std::vector<Curve>& curves) {
  struct Candidate {
    Chart chart;
    std::set<Group> groups;
  };
  std::map<std::string, Candidate> candidates;
  for (size_t i = 0; i < curves.size(); ++i) {
    const Placement& place = curves[i].place;
    if (place.quantity.empty()) continue;
    Candidate& candidate = candidates[place.quantity];
    candidate.chart.curves.push_back(i);
    candidate.chart.unit = place.unit;
    candidate.groups.insert(place.group);
  }
  std::vector<Chart> result;
  for (auto& [quantity, candidate] : candidates) {
    if (!candidate.groups.contains(Group::kTraining) || candidate.groups.size() < 2) continue;
    candidate.chart.title = quantity;
    result.push_back(std::move(candidate.chart));
  }
  return result;
}

Json groups_json(const std::vector<Curve>& curves) {
  Json groups = Json::array();
  const auto add = [&](const std::string& title, const std::vector<Chart>& charts) {
    if (!charts.empty()) groups.push_back({{"title", title}, {"charts", charts_json(charts)}});
  };
  add("training and validation", comparisons(curves));
  for (int group = 0; group < kGroups; ++group)
    add(to_string(static_cast<Group>(group)), charts_of(curves, static_cast<Group>(group)));
  return groups;
}

Json curves_json(const std::vector<Curve>& curves, const std::vector<RunFolder>& runs, const PageOptions& options) {
  const size_t share = options.most_points / std::max<size_t>(curves.size(), 1);
  std::map<std::tuple<Group, std::string, std::string>, size_t> in_chart;
  for (const auto& curve : curves) ++in_chart[{curve.place.group, curve.place.chart, curve.place.unit}];
  Json result = Json::array();
  for (const auto& curve : curves) {
    const size_t beside = in_chart.at({curve.place.group, curve.place.chart, curve.place.unit});
    const size_t most_points = std::clamp(std::min(share, kMostCellsOfChart / (beside * beside)), kFewestPointsOfCurve,
                                          options.most_points_of_curve);
    const RunFolder& run = runs[curve.run];
    const auto summary = summarize(*curve.series);
    Json entry = curve_json(run, *curve.series, most_points);
    entry["run"] = curve.run;
    entry["name"] = curve.name;
    entry["line"] = curve.place.line;
    entry["group"] = to_string(curve.place.group);
    entry["points"] = summary.points;
    entry["nan"] = summary.not_a_number;
    entry["infinite"] = summary.infinite;
    entry["min"] = json_point(summary.min);
    entry["max"] = json_point(summary.max);
    entry["last"] = json_point(summary.last);
    entry["lastStep"] = curve.series->back().step;
    entry["mean"] = json_number(summary.mean);
    Direction direction = better_direction(curve.name);
    if (curve.name == run.monitor) direction = run.monitor_is_maximized ? Direction::kUp : Direction::kDown;
    entry["best"] = direction == Direction::kUp ? "max" : direction == Direction::kDown ? "min" : "";
    result.push_back(std::move(entry));
  }
  return result;
}

Json configuration_json(const std::vector<RunFolder>& runs) {
  std::vector<FlatConfig> configurations;
  configurations.reserve(runs.size());
  for (const auto& run : runs) configurations.push_back(run.configuration);
  Json rows = Json::array();
  for (const auto& row : compare_configs(configurations)) {
    Json values = Json::array();
    for (const auto& value : row.values) values.push_back(value ? Json(*value) : Json(nullptr));
    rows.push_back({{"path", row.path}, {"values", std::move(values)}, {"differs", row.differs}});
  }
  return rows;
}

Json scaling_json(const std::vector<RunFolder>& runs) {
  Json result = Json::array();
  for (const auto& series : find_scaling(runs)) {
    Json rows = Json::array();
    for (const auto& row : series.rows)
      rows.push_back({{"devices", row.devices},
                      {"runs", row.runs},
                      {"seconds", json_number(row.epoch_seconds)},
                      {"samples", json_number(row.samples_per_second)},
                      {"speedup", json_number(row.speedup)}});
    result.push_back({{"label", series.label}, {"rows", std::move(rows)}});
  }
  return result;
}

Json targets_json(const std::vector<RunFolder>& runs, const std::vector<Target>& targets) {
  Json result = Json::array();
  for (const auto& target : targets) {
    Json rows = Json::array();
    for (size_t i = 0; i < runs.size(); ++i) {
      const auto reached = time_to(runs[i], target);
      const auto devices = devices_of(runs[i]);
      rows.push_back({{"run", i},
                      {"devices", devices ? Json(*devices) : Json(nullptr)},
                      {"step", reached ? Json(reached->step) : Json(nullptr)},
                      {"seconds", reached ? json_number(reached->seconds) : Json(nullptr)}});
    }
    result.push_back({{"metric", target.metric}, {"value", target.value}, {"runs", std::move(rows)}});
  }
  return result;
}

Json sweep_json(const SweepFolder& sweep) {
  Json runs = Json::array();
  for (const auto& run : sweep.runs)
    runs.push_back({{"name", run.name},
                    {"status", run.status},
                    {"rung", run.rung},
                    {"seconds", json_number(run.seconds)},
                    {"options", run.options},
                    {"metrics", run.metrics},
                    {"error", run.error},
                    {"run", run.folder ? Json(*run.folder) : Json(nullptr)}});
  return {{"path", sweep.path},
          {"options", sweep.options},
          {"metrics", sweep.metrics},
          {"monitor", sweep.monitor},
          {"maximized", sweep.monitor_is_maximized},
          {"notes", sweep.notes},
          {"runs", std::move(runs)}};
}

/// `text` with each {{NAME}} replaced once; what is put in is not looked at again.
std::string filled(std::string_view text, const std::map<std::string, std::string, std::less<>>& parts) {
  std::string result;
  for (size_t begin = text.find("{{"); begin != std::string_view::npos; begin = text.find("{{")) {
    const size_t end = text.find("}}", begin);
    LEVIN_CHECK(end != std::string_view::npos, "a part of page.html has no end");
    const auto part = parts.find(text.substr(begin + 2, end - begin - 2));
    LEVIN_CHECK(part != parts.end(), "page.html names a part that is not there");
    result += text.substr(0, begin);
    result += part->second;
    text.remove_prefix(end + 2);
  }
  return result += text;
}

}  // namespace

std::string html_escaped(std::string_view text) {
  std::string escaped;
  for (const char c : text) {
    switch (c) {
      case '&':
        escaped += "&amp;";
        break;
      case '<':
        escaped += "&lt;";
        break;
      case '>':
        escaped += "&gt;";
        break;
      case '"':
        escaped += "&quot;";
        break;
      case '\'':
        escaped += "&#39;";
        break;
      default:
        escaped += c;
    }
  }
  return escaped;
}

std::string script_json(const Json& value) {
  const std::string text = value.dump(-1, ' ', /*ensure_ascii=*/true, Json::error_handler_t::replace);
  std::string escaped;
  escaped.reserve(text.size());
  // JSON has these characters in strings only, where they may be written so.
  for (const char c : text) {
    if (c == '<' || c == '>' || c == '&')
      escaped += fmt::format("\\u{:04x}", static_cast<int>(c));
    else
      escaped += c;
  }
  return escaped;
}

std::string make_page(const std::vector<RunFolder>& runs, const PageOptions& options, const SweepFolder* sweep) {
  auto names = distinct_names(runs);
  std::string title = runs.size() == 1 ? names.front() : fmt::format("{} runs", runs.size());
  if (sweep != nullptr) {
    for (const auto& run : sweep->runs)
      if (run.folder) names[*run.folder] = fmt::format("{} {}", run.name, sweep_run_label(*sweep, run));
    title = "sweep " + std::filesystem::weakly_canonical(sweep->path).filename().string();
  }
  const auto curves = curves_of(runs);
  Json run_list = Json::array();
  for (size_t i = 0; i < runs.size(); ++i) run_list.push_back(run_json(runs[i], names[i], options));
  const Json data{{"made", options.now},
                  {"runs", std::move(run_list)},
                  {"curves", curves_json(curves, runs, options)},
                  {"groups", groups_json(curves)},
                  {"scaling", scaling_json(runs)},
                  {"sweep", sweep == nullptr ? Json(nullptr) : sweep_json(*sweep)},
                  {"targets", targets_json(runs, options.targets)},
                  {"configuration", configuration_json(runs)}};
  return filled(assets::kPage, {{"title", html_escaped(title)},
                                {"dygraph-style", std::string(assets::kDygraphStyle)},
                                {"style", std::string(assets::kStyle)},
                                {"data", script_json(data)},
                                {"dygraph-script", std::string(assets::kDygraphScript)},
                                {"values-script", std::string(assets::kValuesScript)},
                                {"charts-script", std::string(assets::kChartsScript)},
                                {"figures-script", std::string(assets::kFiguresScript)},
                                {"studies-script", std::string(assets::kStudiesScript)},
                                {"sections-script", std::string(assets::kSectionsScript)},
                                {"dygraph-license", html_escaped(assets::kDygraphLicense)}});
}

}  // namespace levin::report
