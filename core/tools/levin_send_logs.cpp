// levin-send-logs: sends what the MLflow logger of earlier runs could not.

#include <levin/core/tools/tool_main.h>
#include <levin/levin.h>

#include <boost/program_options.hpp>

#include <exception>
#include <iostream>
#include <string>
#include <vector>

namespace {

namespace options = boost::program_options;

constexpr int kSuccess = 0;
constexpr int kLeft = 1;

constexpr const char* kUsage =
    "Usage: levin-send-logs RUN_FOLDER...\n"
    "\n"
    "Sends what the MLflow logger left in run folders (levin_logs/version_N), to the server that the run was given or "
    "to\n"
    "another. Credentials: MLFLOW_TRACKING_TOKEN, or MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD.\n"
    "Status 0: everything is sent; 1: something is left, or was refused; 2: wrong usage.\n";

/// Whether everything in the folder is sent.
bool send(const std::string& folder, const std::string& tracking_uri) {
  const auto result = levin::MlflowLogger::send_unsent(folder, tracking_uri);
  if (result.left > 0) std::cerr << folder << ": " << result.left << " records are left\n";
  if (result.refused > 0)
    std::cerr << folder << ": the server will never take " << result.refused << " records, which are kept; see "
              << folder << "/mlflow/refused.txt\n";
  if (result.left + result.refused > 0) return false;
  std::cout << folder << ": everything is sent\n";
  return true;
}

int run(int argc, char** argv) {
  options::options_description visible("Options");
  visible.add_options()("help,h", "print this help")("tracking-uri",
                                                     options::value<std::string>()->default_value("", ""),
                                                     "the server; that of the run, when not given");
  options::options_description all;
  all.add(visible).add_options()("folders", options::value<std::vector<std::string>>()->default_value({}, ""));
  options::positional_options_description positions;
  positions.add("folders", -1);
  options::variables_map parsed;
  options::store(options::command_line_parser(argc, argv).options(all).positional(positions).run(), parsed);
  if (parsed.count("help") > 0) {
    std::cout << kUsage << "\n" << visible;
    return kSuccess;
  }
  const auto folders = parsed["folders"].as<std::vector<std::string>>();
  if (folders.empty())
    throw levin::Error("command line", "no run given; hint: levin-send-logs levin_logs/version_0, or --help");
  int status = kSuccess;
  for (const auto& folder : folders) {
    try {
      if (!send(folder, parsed["tracking-uri"].as<std::string>())) status = kLeft;
    } catch (const std::exception& error) {  // the other folders are none the worse for it
      std::cerr << error.what() << "\n";
      status = kLeft;
    }
  }
  return status;
}

}  // namespace

int main(int argc, char** argv) { return levin::tool_main("mlflow", run, argc, argv); }
