// levin-send-logs: sends what the MLflow logger of earlier runs could not.

#include <levin/levin.h>

#include <exception>
#include <iostream>
#include <string>
#include <vector>

int main(int argc, char** argv) {
  std::vector<std::string> folders;
  std::string tracking_uri;
  const std::string kUri = "--tracking-uri=";
  bool wrong = argc < 2;
  bool help = false;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word.starts_with(kUri))
      tracking_uri = word.substr(kUri.size());
    else if (word == "--help" || word == "-h")
      help = true;
    else if (word.starts_with('-'))
      wrong = true;
    else
      folders.push_back(word);
  }
  if (help || wrong || folders.empty()) {
    (help ? std::cout : std::cerr)
        << "Usage: levin-send-logs [--tracking-uri=URI] RUN_FOLDER...\n\n"
           "Sends what the MLflow logger left in run folders (version_N), to the server that the run was given or\n"
           "to another. Credentials: MLFLOW_TRACKING_TOKEN, or MLFLOW_TRACKING_USERNAME and "
           "MLFLOW_TRACKING_PASSWORD.\nStatus 0: everything is sent; 1: something is left, or was refused; 2: wrong "
           "usage.\n";
    return help ? 0 : 2;
  }
  int status = 0;
  for (const auto& folder : folders) {
    try {
      const auto result = levin::MlflowLogger::send_unsent(folder, tracking_uri);
      if (result.left > 0) std::cerr << folder << ": " << result.left << " records are left\n";
      if (result.refused > 0)
        std::cerr << folder << ": the server will never take " << result.refused << " records, which are kept; see "
                  << folder << "/mlflow/refused.txt\n";
      if (result.left + result.refused > 0)
        status = 1;
      else
        std::cout << folder << ": everything is sent\n";
    } catch (const std::exception& error) {
      std::cerr << error.what() << "\n";
      status = 1;
    }
  }
  return status;
}
