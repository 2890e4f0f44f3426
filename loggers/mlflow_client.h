#pragma once

#include <levin/core/base/http_client.h>

#include <nlohmann/json_fwd.hpp>

#include <atomic>
#include <string>

namespace levin {

/// Address of an MLflow server, and the options of requests to it.
struct MlflowAccess {
  std::string address;  ///< without credentials: what is shown and kept
  HttpOptions http;
};
/// Finds out how to reach a server. Credentials are those in `tracking_uri`, else MLFLOW_TRACKING_TOKEN, else
/// MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD. Certificates are as MLFLOW_TRACKING_SERVER_CERT_PATH and
/// MLFLOW_TRACKING_INSECURE_TLS say.
MlflowAccess mlflow_access(const std::string& tracking_uri, int stall_seconds);

/// Sends requests to an MLflow server, for one thread at a time.
class MlflowClient {
 public:
  explicit MlflowClient(MlflowAccess access);

  const std::string& address() const { return access_.address; }

  /// Requests throw soon after `stop`, which must live as long, becomes true.
  void set_stop(const std::atomic<bool>& stop) { stop_ = &stop; }
  bool stopped() const { return *stop_; }

  /// Asks the REST API 2.0; `path`: what follows /api/2.0/mlflow/. Throws levin::Error when there is no answer, and for
  /// an answer that is not about what was asked: 401, 403, 429, 5xx, or one that is not MLflow's.
  HttpResponse request(const std::string& method, const std::string& path, const std::string& body = "");
  /// Asks where nothing but success is of use: throws levin::Error for all else. `body`: null for none.
  nlohmann::json call(const std::string& method, const std::string& path, const nlohmann::json& body);
  /// Sends a request of another kind; returns any answer.
  HttpResponse send(const HttpRequest& request) { return http_.send(request, *stop_); }

 private:
  const MlflowAccess access_;
  HttpClient http_;
  const std::atomic<bool>* stop_ = nullptr;
};

namespace mlflow {

/// Whether an answer with status 200 is MLflow's, which are objects of JSON. What is between here and the server (a
/// network's login page, a proxy) may answer so, too.
bool is_answer(const HttpResponse& response);
/// Whether the answer is about what was sent, so that sending it again is of no use.
bool refuses(const HttpResponse& response);
/// Whether MLflow says that what was asked for is not there; a 404 alone may come from what is before the server.
bool is_missing(const HttpResponse& response);
/// MLflow's name for what went wrong, such as RESOURCE_ALREADY_EXISTS; may be empty.
std::string error_code(const HttpResponse& response);
/// The text of an answer, short enough for a message.
std::string message_of(const HttpResponse& response);

}  // namespace mlflow
}  // namespace levin
