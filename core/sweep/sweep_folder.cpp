#include <levin/core/sweep/sweep_folder.h>

#include <levin/core/base/csv.h>
#include <levin/core/base/error.h>
#include <levin/core/base/file_system.h>
#include <levin/core/base/flat_config.h>

#include <fmt/format.h>
#include <signal.h>
#include <sys/file.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <filesystem>
#include <optional>
#include <string_view>
#include <system_error>
#include <thread>
#include <vector>

namespace levin::sweep {
namespace {

constexpr const char* kDescription = "/sweep.yaml";
constexpr const char* kTable = "/sweep.csv";
constexpr const char* kLock = "/.lock";

/// "model.lr: 0.001 there, 0.002 here"; empty where both are the same.
std::string differences(const Config& there, const Config& here) {
  constexpr size_t kMost = 6;
  std::vector<std::string> lines;
  for (const auto& row : compare_configs({flatten(there), flatten(here)}))
    if (row.differs)
      lines.push_back(fmt::format("{}: {} there, {} here", row.path, row.values[0].value_or("nothing"),
                                  row.values[1].value_or("nothing")));
  const size_t all = lines.size();
  if (all > kMost) {
    lines.resize(kMost);
    lines.push_back(fmt::format("and {} more", all - kMost));
  }
  return join(lines, "; ");
}

bool is_whole(const std::string& folder) {
  const auto rows = parse_csv(FileSystem::current().read_file(folder + kTable));
  return std::all_of(rows.begin() + (rows.empty() ? 0 : 1), rows.end(), [](const CsvRow& row) {
    return row.size() > 1 && (row[1] == "finished" || row[1] == "stopped_early");
  });
}

std::optional<int64_t> version_number(std::string_view name) {
  constexpr std::string_view kPrefix = "version_";
  if (!name.starts_with(kPrefix)) return {};
  int64_t number = 0;
  const auto [end, error] = std::from_chars(name.data() + kPrefix.size(), name.data() + name.size(), number);
  if (error != std::errc() || end != name.data() + name.size()) return {};
  return number;
}

}  // namespace

SweepFolder::SweepFolder(const std::string& path, const Config& description)
    : path_(std::filesystem::absolute(path).lexically_normal().string()) {
  auto& files = FileSystem::current();
  // One that was killed before it had written its description leaves these.
  const auto is_of_sweep = [](const std::string& name) {
    return name == kLock + 1 || name.starts_with(kDescription + 1);
  };
  const auto names = files.exists(path_) ? files.list(path_) : std::vector<std::string>();
  if (!files.exists(path_ + kDescription) && !std::all_of(names.begin(), names.end(), is_of_sweep))
    throw ConfigError(fmt::format("{} is no folder of a sweep: it holds other files; hint: sweep.dir", path_));
  files.create_directories(path_);
  take_lock();
  if (!files.exists(path_ + kDescription)) {
    FileSystem::current().replace_file(path_ + kDescription, description.to_yaml());
    return;
  }
  const std::string differing = differences(Config::load(path_ + kDescription), description);
  if (!differing.empty())
    throw ConfigError(fmt::format("{} has another sweep; differing: {}; hint: another sweep.name", path_, differing));
}

void SweepFolder::take_lock() {
  const std::string path = path_ + kLock;
  lock_ = Descriptor(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666));
  if (!lock_.is_open())
    throw Error("sweep", fmt::format("cannot open {}: {}", path, std::generic_category().message(errno)));
  // Runs of a sweep that was killed keep the lock until they have noticed and ended.
  constexpr std::chrono::seconds kPatience{10};
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  while (flock(lock_.number(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK)
      throw Error("sweep", fmt::format("cannot lock {}: {}", path, std::generic_category().message(errno)));
    const std::string owner = FileSystem::current().read_file(path);
    const auto process = static_cast<pid_t>(std::strtol(owner.c_str(), nullptr, 10));
    const bool runs = process > 0 && kill(process, 0) == 0;
    if (runs || std::chrono::steady_clock::now() > deadline)
      throw Error("sweep", fmt::format("{} is in use by {}; hint: wait for its end, or give this one another "
                                       "sweep.name",
                                       path_,
                                       runs ? fmt::format("the sweep of process {}", process)
                                            : "runs of a sweep that has ended"));
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  const std::string owner = std::to_string(getpid()) + "\n";
  if (ftruncate(lock_.number(), 0) != 0 || pwrite(lock_.number(), owner.data(), owner.size(), 0) < 0)
    throw Error("sweep", fmt::format("cannot write {}: {}", path, std::generic_category().message(errno)));
}

std::string SweepFolder::read_table() const {
  auto& files = FileSystem::current();
  return files.exists(path_ + kTable) ? files.read_file(path_ + kTable) : "";
}

void SweepFolder::write_table(const std::string& csv) const { FileSystem::current().replace_file(path_ + kTable, csv); }

std::string next_version(const std::string& folder, const Config& description) {
  auto& files = FileSystem::current();
  std::optional<int64_t> newest;
  for (const std::string& name : files.list(folder))
    if (const auto number = version_number(name)) newest = std::max(newest.value_or(0), *number);
  if (!newest) return folder + "/version_0";
  const std::string path = fmt::format("{}/version_{}", folder, *newest);
  if (files.exists(path + kDescription) && (!files.exists(path + kTable) || !is_whole(path)) &&
      differences(Config::load(path + kDescription), description).empty())
    return path;
  return fmt::format("{}/version_{}", folder, *newest + 1);
}

std::string named_folder(const std::string& folder, const std::string& name) {
  for (const auto& part : std::filesystem::path(name))
    if (part == "." || part == "..")
      throw ConfigError(
          fmt::format("sweep.name leaves the folder of all sweeps, {}; got '{}'; valid: a name without "
                      "'.' and '..'; hint: sweep.dir takes any folder",
                      folder, name));
  return folder + "/" + name;
}

}  // namespace levin::sweep
