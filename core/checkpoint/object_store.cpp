#include <levin/core/checkpoint/object_store.h>

#include <levin/core/checkpoint/store_answer.h>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>
#include <filesystem>
#include <iterator>
#include <thread>
#include <utility>

namespace levin {
namespace {

constexpr std::array<std::string_view, 2> kSchemes{"s3://", "gs://"};
/// S3 takes no more parts of one object.
constexpr uint64_t kMostParts = 10'000;
/// Pages of a list, of a thousand names each, and bytes of all of them.
constexpr int kMostPages = 1000;
constexpr uint64_t kMostListed = uint64_t{1} << 30;
/// S3 may take minutes to put the parts of a large object together.
constexpr int kPutTogetherSeconds = 600;
constexpr const char* kUnsignedPayload = "x-amz-content-sha256: UNSIGNED-PAYLOAD";

std::string variable(std::initializer_list<const char*> names) {
  for (const char* name : names)
    if (const char* value = std::getenv(name); value != nullptr && *value != '\0') return value;
  return "";
}

/// A key with its slashes, everything else escaped.
std::string escaped_key(const std::string& key) {
  std::string escaped;
  size_t begin = 0;
  while (begin <= key.size()) {
    const size_t end = std::min(key.find('/', begin), key.size());
    escaped += (begin > 0 ? "/" : "") + url_escaped(key.substr(begin, end - begin));
    begin = end + 1;
  }
  return escaped;
}

/// Whether the same request may be answered otherwise in a moment.
bool is_busy(const HttpResponse& response) {
  const std::string code = xml_element(response.body, "Code");
  return response.status == 408 || response.status == 429 || response.status >= 500 || code == "RequestTimeout" ||
         code == "OperationAborted";
}

bool has_code(const HttpResponse& response) { return !xml_element(response.body, "Code").empty(); }

bool is_read(const HttpResponse& response) { return is_of_object(response, /*has_body=*/true); }
bool is_written(const HttpResponse& response) { return is_of_object(response, /*has_body=*/false); }
bool is_removed(const HttpResponse& response) { return response.body.empty(); }
bool is_begun(const HttpResponse& response) { return !xml_element(response.body, "UploadId").empty(); }
bool is_completed(const HttpResponse& response) { return !xml_element(response.body, "ETag").empty(); }
bool is_list(const HttpResponse& response) { return is_object_list(response.body); }

std::string words_for_stranger(const HttpResponse& response) {
  return fmt::format(
      "what answered, with status {}, is no store of objects; hint: a proxy, a network's login page, or "
      "another server at AWS_ENDPOINT_URL",
      response.status);
}

}  // namespace

std::string RemoteUrl::text() const { return scheme + "://" + bucket + (key.empty() ? "" : "/" + key); }

RemoteUrl RemoteUrl::operator/(const std::string& name) const {
  return {scheme, bucket, key.empty() ? name : key + "/" + name};
}

bool is_remote(std::string_view path) {
  return std::any_of(kSchemes.begin(), kSchemes.end(), [&](auto scheme) { return path.starts_with(scheme); });
}

RemoteUrl parse_remote_url(const std::string& url, const std::string& option) {
  const auto fail = [&] {
    throw ConfigError(fmt::format("{} is no folder of a store; got '{}'; valid: s3://BUCKET/FOLDER, gs://BUCKET/FOLDER",
                                  option, without_user(url).url));
  };
  if (!is_remote(url)) fail();
  const std::string rest = url.substr(kSchemes.front().size());
  RemoteUrl parts{.scheme = url.substr(0, 2), .bucket = rest.substr(0, rest.find('/'))};
  if (parts.bucket.empty() || parts.bucket.find_first_of("@:?# ") != std::string::npos) fail();
  std::string key = rest.substr(std::min(rest.size(), parts.bucket.size() + 1));
  while (key.ends_with('/')) key.pop_back();
  if (key.starts_with('/') || key.find("//") != std::string::npos) fail();
  parts.key = key;
  return parts;
}

ObjectStore::ObjectStore(const RemoteUrl& url, ObjectStoreOptions options) : url_(url), options_(std::move(options)) {
  HttpOptions http{.user_name = variable({"AWS_ACCESS_KEY_ID"}),
                   .password = variable({"AWS_SECRET_ACCESS_KEY"}),
                   .token = variable({"AWS_SESSION_TOKEN"})};
  if (http.user_name.empty() || http.password.empty())
    throw Error("checkpoint", fmt::format("cannot reach {}: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY are not set{}",
                                          url.text(), url.scheme == "gs" ? "; hint: an HMAC key of Google's" : ""));
  std::string region = variable({"AWS_REGION", "AWS_DEFAULT_REGION"});
  if (region.empty()) region = "us-east-1";
  server_ = variable({"AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"});
  if (url.scheme == "gs") {
    region = "auto";
    if (server_.empty()) server_ = "https://storage.googleapis.com";
  }
  if (server_.empty()) server_ = fmt::format("https://s3.{}.amazonaws.com", region);
  server_ = without_user(server_).url;
  while (server_.ends_with('/')) server_.pop_back();
  http.signature = fmt::format("aws:amz:{}:s3", region);
  client_.emplace(std::move(http));
}

std::string ObjectStore::address(const std::string& key) const {
  return server_ + "/" + url_escaped(url_.bucket) + (key.empty() ? "" : "/" + escaped_key(key));
}

HttpResponse ObjectStore::send(HttpRequest request, const std::string& what, IsAnswer is_answer) {
  // What is sent is checked by TLS on the way, and by the manifest's checksums when it is read.
  request.headers.emplace_back(kUnsignedPayload);
  // curl's own is that of a form.
  if (request.method == "POST") request.headers.emplace_back("Content-Type: application/xml");
  std::string reason;
  for (size_t tries = 0;; ++tries) {
    try {
      HttpResponse response = client_->send(request, never_);
      const bool is_of_store = has_code(response);
      if (response.status < 300 ? is_answer(response)
                                : response.status == 404 && (is_of_store || request.method == "HEAD"))
        return response;
      const bool is_stranger = !is_of_store && (response.status < 400 || response.status == 404);
      reason = is_stranger ? words_for_stranger(response) : reason_of(response);
      if (!is_stranger && !is_busy(response))
        throw Error("checkpoint", fmt::format("cannot {} {}: {}", what, url_.text(), reason));
    } catch (const Error& error) {
      if (error.component() != "http") throw;
      reason = error.what();
    }
    if (tries == options_.pauses.size()) break;
    std::this_thread::sleep_for(options_.pauses[tries]);
  }
  throw StoreUnavailable("checkpoint", fmt::format("cannot {} {}: {}", what, url_.text(), reason));
}

void ObjectStore::put(const std::string& key, const std::string& path) {
  std::error_code error;
  const uint64_t size = std::filesystem::file_size(path, error);
  if (error) throw Error("checkpoint", fmt::format("cannot read {}: {}", path, error.message()));
  if (size > options_.part_bytes) return put_in_parts(key, path, size);
  write({.method = "PUT", .url = address(key), .file = path});
}

void ObjectStore::put_text(const std::string& key, const std::string& text) {
  write({.method = "PUT", .url = address(key), .body = text});
}

void ObjectStore::write(HttpRequest request) {
  const HttpResponse response = send(std::move(request), "write to", is_written);
  if (response.status == 404)
    throw Error("checkpoint", fmt::format("cannot write to {}: {}", url_.text(), reason_of(response)));
}

void ObjectStore::put_in_parts(const std::string& key, const std::string& path, uint64_t size) {
  const uint64_t part_bytes = std::max(options_.part_bytes, (size + kMostParts - 1) / kMostParts);
  const auto require = [&](const HttpResponse& response) {
    if (response.status == 404)
      throw Error("checkpoint", fmt::format("cannot write to {}: {}", url_.text(), reason_of(response)));
  };
  const HttpResponse begun =
      send({.method = "POST", .url = address(key) + "?uploads=", .body = ""}, "write to", is_begun);
  require(begun);
  const std::string upload = xml_element(begun.body, "UploadId");
  const std::string query = "uploadId=" + url_escaped(upload);
  try {
    std::string parts;
    for (uint64_t offset = 0, number = 1; offset < size; offset += part_bytes, ++number) {
      HttpResponse response = send({.method = "PUT",
                                    .url = fmt::format("{}?partNumber={}&{}", address(key), number, query),
                                    .file = path,
                                    .file_offset = offset,
                                    .file_size = part_bytes},
                                   "write to", is_written);
      require(response);
      parts += fmt::format("<Part><PartNumber>{}</PartNumber><ETag>{}</ETag></Part>", number, response.headers["etag"]);
    }
    // An error may also come with status 200, when it happened after the answer had begun.
    require(send({.method = "POST",
                  .url = address(key) + "?" + query,
                  .body = "<CompleteMultipartUpload>" + parts + "</CompleteMultipartUpload>",
                  .answer_seconds = kPutTogetherSeconds},
                 "write to", is_completed));
  } catch (...) {
    try {
      client_->send({.method = "DELETE", .url = address(key) + "?" + query, .headers = {kUnsignedPayload}}, never_);
    } catch (const Error&) {
      // The bucket's rule for uploads that were not completed removes the parts.
    }
    throw;
  }
}

std::optional<std::string> ObjectStore::get(const std::string& key) {
  HttpResponse response = send({.method = "GET", .url = address(key)}, "read from", is_read);
  if (response.status != 404) return std::move(response.body);
  if (xml_element(response.body, "Code") == "NoSuchBucket")
    throw Error("checkpoint", fmt::format("cannot read from {}: {}", url_.text(), reason_of(response)));
  return {};
}

std::optional<StoredObject> ObjectStore::find(const std::string& key) {
  const HttpResponse response = send({.method = "HEAD", .url = address(key)}, "read from", is_read);
  if (response.status == 404) return {};
  StoredObject object;
  if (const auto length = response.headers.find("content-length"); length != response.headers.end()) {
    uint64_t size = 0;
    const char* const end = length->second.data() + length->second.size();
    if (std::from_chars(length->second.data(), end, size).ptr == end) object.size = size;
  }
  return object;
}

bool ObjectStore::download(const std::string& key, const std::string& path, uint64_t limit) {
  const HttpResponse response =
      send({.method = "GET", .url = address(key), .output = path, .output_limit = limit}, "read from", is_read);
  return response.status != 404;
}

void ObjectStore::remove(const std::string& key) {
  send({.method = "DELETE", .url = address(key)}, "remove from", is_removed);
}

std::vector<std::string> ObjectStore::folders(const std::string& key, bool first_only) {
  const std::string prefix = key.empty() ? "" : key + "/";
  std::vector<std::string> names;
  std::string next;
  int pages = 0;
  uint64_t bytes = 0;
  do {
    // In the order of their names, as they are signed.
    const std::string url =
        fmt::format("{}?{}delimiter=%2F&list-type=2&prefix={}", address(""),
                    next.empty() ? "" : "continuation-token=" + url_escaped(next) + "&", url_escaped(prefix));
    const HttpResponse response = send({.method = "GET", .url = url}, "list", is_list);
    if (response.status == 404)
      throw Error("checkpoint", fmt::format("cannot list {}: {}", url_.text(), reason_of(response)));
    bytes += response.body.size();
    if (++pages > kMostPages || bytes > kMostListed)
      throw Error("checkpoint", fmt::format("cannot list {}: the server sends a list without end; got {} pages of {} "
                                            "bytes; valid: at most {} pages",
                                            url_.text(), pages, bytes, kMostPages));
    ObjectList page = parse_object_list(response.body, prefix);
    std::move(page.folders.begin(), page.folders.end(), std::back_inserter(names));
    if (!page.next_page.empty() && page.next_page == next)
      throw Error(
          "checkpoint",
          fmt::format("cannot list {}: the server sends the same page of the list again and again", url_.text()));
    next = std::move(page.next_page);
  } while (!next.empty() && !first_only);
  // Pages may overlap where something is written meanwhile.
  std::ranges::sort(names);
  names.erase(std::ranges::unique(names).begin(), names.end());
  return names;
}

}  // namespace levin
