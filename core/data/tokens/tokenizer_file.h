#pragma once

#include <nlohmann/json.hpp>

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace levin::data {

/// What is said of a tokenizer.json that is not as it should be.
class TokenizerFile {
 public:
  explicit TokenizerFile(std::string path) : path_(std::move(path)) {}
  const std::string& path() const { return path_; }

  /// Throws levin::Error: "the tokenizer PATH ...".
  [[noreturn]] void fail(const std::string& what) const;
  /// Throws levin::Error: what is not supported, what the file has, and what is supported.
  [[noreturn]] void refuse(const std::string& what, const nlohmann::json& got, std::string_view valid) const;
  /// Returns an id. Throws levin::Error when it is none.
  int32_t id(const nlohmann::json& number, const std::string& token) const;
  /// Returns the elements of a part of the file: none, the one, or those of a sequence and of sequences in it. Throws
  /// levin::Error when there are too many.
  std::vector<const nlohmann::json*> elements(const nlohmann::json& part, const char* key) const;

 private:
  std::string path_;
};

/// The tokens of a model: what the file has as they are spelled there.
struct Vocabulary {
  std::unordered_map<std::string, int32_t> ids;
  std::unordered_map<int64_t, std::string> tokens;
  int64_t size = 0;  ///< one more than the largest id

  void add(const std::string& token, int32_t id);
};

}  // namespace levin::data
