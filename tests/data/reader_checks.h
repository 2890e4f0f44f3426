#pragma once

#include <levin/core/base/error.h>
#include <levin/core/data/data_loader.h>
#include <levin/core/data/generator.h>

#include "photographs.h"
#include "temporary_folder.h"
#include "tests/support/tree.h"

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

/// What the tests of readers share.
namespace levin::testing {

/// The message of the levin::Error that a function throws; empty where it throws none.
template <class Function>
std::string message_of(const Function& function) {
  try {
    function();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

/// The batches of a pass, in order.
inline std::vector<Batch> all_batches(const DataLoader& loader, const DataLoaderPosition& position = {}) {
  std::vector<Batch> batches;
  auto pass = loader.pass(position);
  while (auto batch = pass.next()) batches.push_back(std::move(*batch));
  return batches;
}

/// The values of a tensor of whole numbers in all batches of a pass.
inline std::vector<int64_t> values_in(const DataLoader& loader, const std::string& name,
                                      const DataLoaderPosition& position = {}) {
  std::vector<int64_t> values;
  for (const Batch& batch : all_batches(loader, position)) {
    const auto flat = batch[name].reshape({-1}).to(at::kLong).contiguous();
    values.insert(values.end(), flat.const_data_ptr<int64_t>(), flat.const_data_ptr<int64_t>() + flat.numel());
  }
  return values;
}

/// Reads damaged copies of a file: cut short, with other bytes, with bytes put in and taken out. Each must be read, or
/// be a levin::Error that names the file; returns how many were errors. The sanitizers see what else goes wrong.
inline int64_t read_damaged(const std::string& bytes, const std::string& path, int64_t copies,
                            const std::function<void(const std::string& path)>& read) {
  data::Generator generator(7, 0);
  int64_t errors = 0;
  for (int64_t copy = 0; copy < copies; ++copy) {
    std::string damaged = bytes;
    const auto place = [&] { return static_cast<size_t>(generator.below(std::ssize(damaged) + 1)); };
    switch (generator.below(4)) {
      case 0:
        damaged.resize(place());
        break;
      case 1:
        for (int64_t i = generator.below(4); i >= 0; --i)
          if (const size_t at = place(); at < damaged.size()) damaged[at] = static_cast<char>(generator.below(256));
        break;
      case 2:
        damaged.insert(place(), std::string(static_cast<size_t>(1 + generator.below(20)),
                                            static_cast<char>(generator.below(256))));
        break;
      default:
        damaged.erase(place(), static_cast<size_t>(1 + generator.below(600)));
    }
    std::ofstream(path, std::ios::binary | std::ios::trunc) << damaged;
    const std::string message = message_of([&] { read(path); });
    if (message.empty()) continue;
    ++errors;
    EXPECT_NE(message.find(path), std::string::npos) << message;
  }
  return errors;
}

/// Runs a script beside the tests of data with the Python that has NumPy.
inline ProgramResult run_with_numpy(const std::string& script, std::vector<std::string> arguments) {
  std::vector<std::string> words{torch_python(), "-W", "ignore", source_path("tests/data/" + script)};
  for (auto& argument : arguments) words.push_back(std::move(argument));
  return run_program(std::move(words));
}

}  // namespace levin::testing
