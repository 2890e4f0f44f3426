#pragma once

#include <levin/core/base/error.h>
#include <levin/core/base/http_client.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace levin {

/// A place in a store of objects: s3://BUCKET/KEY or gs://BUCKET/KEY.
struct RemoteUrl {
  std::string scheme = {};  ///< "s3" or "gs"
  std::string bucket = {};
  std::string key = {};  ///< without a slash at its ends; empty: the whole bucket

  std::string text() const;
  /// Returns what has that name below this place.
  RemoteUrl operator/(const std::string& name) const;
};

/// Returns whether a path is one of a store of objects, right or wrong.
bool is_remote(std::string_view path);
/// Takes an address apart. Throws levin::ConfigError that begins with `option` for one that is none.
RemoteUrl parse_remote_url(const std::string& url, const std::string& option);

/// A store that gave no answer, or could not serve, each time it was asked.
class StoreUnavailable : public Error {
 public:
  using Error::Error;
};

/// How patient an ObjectStore is.
struct ObjectStoreOptions {
  std::vector<std::chrono::milliseconds> pauses{std::chrono::milliseconds(500), std::chrono::milliseconds(1000),
                                                std::chrono::milliseconds(2000)};  ///< before another try
  uint64_t part_bytes = uint64_t{64} << 20;  ///< larger files are sent in parts of this size; at least 5 MiB
};

/// What a store says of an object.
struct StoredObject {
  std::optional<uint64_t> size;  ///< in bytes; nothing where the server does not say
};

/// The objects of a bucket, by the REST API of Amazon S3, which Google's and most other stores have as well. Keys come
/// from AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN, the region from AWS_REGION or
/// AWS_DEFAULT_REGION, the server from AWS_ENDPOINT_URL_S3 or AWS_ENDPOINT_URL; gs:// has Google's server and HMAC keys
/// in the same variables. No message has a secret in it.
///
/// A request without an answer, one that a busy server refuses, and one that something else than a store has answered
/// (a network's login page, a proxy), is tried again after pauses; then StoreUnavailable is thrown. What the server
/// refuses is levin::Error. For one thread at a time.
class ObjectStore {
 public:
  /// Throws levin::Error where the keys are not set.
  explicit ObjectStore(const RemoteUrl& url, ObjectStoreOptions options = {});

  /// Stores a file as an object, which appears at once and whole.
  void put(const std::string& key, const std::string& path);
  /// Stores a small object likewise.
  void put_text(const std::string& key, const std::string& text);
  /// Returns a small object; nothing where there is none.
  std::optional<std::string> get(const std::string& key);
  /// Asks about an object without reading it; nothing where there is none.
  std::optional<StoredObject> find(const std::string& key);
  /// Writes an object of at most `limit` bytes into a file. Returns whether there is one.
  bool download(const std::string& key, const std::string& path, uint64_t limit);
  /// Removes an object; one that is not there is none.
  void remove(const std::string& key);
  /// Returns the names directly below a key (of the bucket where it is empty) that have objects below them; the first
  /// thousand at most where `first_only`. A list of more than a million is an error.
  std::vector<std::string> folders(const std::string& key, bool first_only = false);

 private:
  /// `is_answer` says whether an answer without an error's status is one to this request.
  using IsAnswer = bool (*)(const HttpResponse& response);
  HttpResponse send(HttpRequest request, const std::string& what, IsAnswer is_answer);
  void write(HttpRequest request);
  void put_in_parts(const std::string& key, const std::string& path, uint64_t size);
  std::string address(const std::string& key) const;

  const RemoteUrl url_;
  const ObjectStoreOptions options_;
  std::string server_;  ///< https://HOST
  std::optional<HttpClient> client_;
  const std::atomic<bool> never_ = false;
};

}  // namespace levin
