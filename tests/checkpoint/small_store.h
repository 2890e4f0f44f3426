#pragma once

#include "../support/s3_server.h"

#include <fmt/format.h>

#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>

namespace levin::testing {

/// A store of objects in memory. `instead` may answer a request in its place; `keep` says what it keeps of the bytes
/// that it says it has stored, nothing where it drops them.
class SmallStore {
 public:
  using Instead = std::function<std::optional<Answer>(const std::string& method, const std::string& path)>;
  using Keep = std::function<std::optional<std::string>(const std::string& path, const std::string& bytes)>;
  explicit SmallStore(
      Instead instead, Keep keep = [](const std::string&, const std::string& bytes) { return bytes; })
      : instead_(std::move(instead)),
        keep_(std::move(keep)),
        server_([this](const Request& request) { return answer(request); }),
        variables_("key", "secret", server_.uri()) {}

 private:
  Answer answer(const Request& request) {
    const std::string line = request.line();
    const std::string method = line.substr(0, line.find(' '));
    const std::string path = line.substr(line.find(' ') + 1);
    if (const auto other = instead_(method, path)) return *other;
    if (path.find("list-type=2") != std::string::npos) return list();
    if (method == "PUT") {
      if (auto kept = keep_(path, request.body)) objects_[path] = *std::move(kept);
      return {.headers = "ETag: \"1\"\r\n"};
    }
    if (method == "DELETE") {
      objects_.erase(path);
      return {.status = 204};
    }
    const auto found = objects_.find(path);
    if (found == objects_.end()) return {.status = 404, .body = "<Error><Code>NoSuchKey</Code></Error>"};
    return {.body = found->second, .headers = "ETag: \"1\"\r\nContent-Type: binary/octet-stream\r\n"};
  }
  /// Of the folders below "run".
  Answer list() const {
    const std::string prefix = "/bucket/run/";
    std::set<std::string> folders;
    for (const auto& [path, bytes] : objects_)
      folders.insert(path.substr(prefix.size(), path.find('/', prefix.size()) - prefix.size()));
    std::string text = "<ListBucketResult><IsTruncated>false</IsTruncated>";
    for (const auto& folder : folders)
      text += fmt::format("<CommonPrefixes><Prefix>run/{}/</Prefix></CommonPrefixes>", folder);
    return {.body = text + "</ListBucketResult>"};
  }

  const Instead instead_;
  const Keep keep_;
  std::map<std::string, std::string> objects_;
  const StandInServer server_;
  const StoreVariables variables_;
};

}  // namespace levin::testing
