#include <levin/loggers/mlflow_client.h>

#include <levin/core/base/error.h>
#include <levin/core/base/tree_budget.h>
#include <levin/loggers/mlflow_names.h>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <utility>

namespace levin {
namespace {

using Json = nlohmann::json;

constexpr const char* kApi = "/api/2.0/mlflow/";

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : "";
}

/// As MLflow reads its variables.
bool says_yes(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) { return std::tolower(c); });
  return text == "true" || text == "1";
}

}  // namespace

MlflowAccess mlflow_access(const std::string& tracking_uri, int stall_seconds) {
  UrlWithoutUser server = without_user(tracking_uri);
  while (server.url.ends_with('/')) server.url.pop_back();
  HttpOptions http{.certificate_file = environment("MLFLOW_TRACKING_SERVER_CERT_PATH"),
                   .verify_certificates = !says_yes(environment("MLFLOW_TRACKING_INSECURE_TLS")),
                   .stall_seconds = stall_seconds};
  if (!server.user_name.empty() || !server.password.empty()) {
    http.user_name = std::move(server.user_name);
    http.password = std::move(server.password);
  } else {
    http.user_name = environment("MLFLOW_TRACKING_USERNAME");
    http.password = environment("MLFLOW_TRACKING_PASSWORD");
    http.token = environment("MLFLOW_TRACKING_TOKEN");
  }
  return {.address = std::move(server.url), .http = std::move(http)};
}

bool mlflow::is_answer(const HttpResponse& response) {
  return Json::parse(response.body, nullptr, /*allow_exceptions=*/false).is_object();
}

bool mlflow::refuses(const HttpResponse& response) {
  // A server that keeps runs in a folder, not in a database, says so with 500.
  const bool changes_parameter =
      response.status == 500 && response.body.find("Changing param values is not allowed") != std::string::npos;
  return response.status == 400 || response.status == 413 || response.status == 422 || changes_parameter;
}

std::string mlflow::error_code(const HttpResponse& response) {
  const Json json = Json::parse(response.body, nullptr, /*allow_exceptions=*/false);
  const auto code = json.find("error_code");
  return code != json.end() && code->is_string() ? code->get<std::string>() : "";
}

bool mlflow::is_missing(const HttpResponse& response) { return error_code(response) == "RESOURCE_DOES_NOT_EXIST"; }

std::string mlflow::message_of(const HttpResponse& response) {
  const Json json = Json::parse(response.body, nullptr, /*allow_exceptions=*/false);
  std::string text = response.body;
  if (json.is_object() && json.contains("message") && json["message"].is_string()) text = json["message"];
  for (char& c : text)
    if (c == '\n') c = ' ';
  return mlflow_text(text, 300);
}

MlflowClient::MlflowClient(MlflowAccess access) : access_(std::move(access)), http_(access_.http) {}

HttpResponse MlflowClient::request(const std::string& method, const std::string& path, const std::string& body) {
  if (!address().starts_with("http://") && !address().starts_with("https://"))
    throw Error("mlflow", fmt::format("{}; valid: the address of an MLflow server, such as http://127.0.0.1:5000; set "
                                      "the logger's tracking_uri or MLFLOW_TRACKING_URI",
                                      address().empty() ? "no tracking_uri"
                                                        : fmt::format("wrong tracking_uri; got '{}'", address())));
  HttpResponse response = send({.method = method, .url = address() + kApi + path, .body = body});
  if (is_too_deep_json(response.body))
    throw Error("mlflow", fmt::format("{} answered with lists and objects too deep inside each other", address()));
  if (response.status == 200 ? mlflow::is_answer(response) : mlflow::refuses(response)) return response;
  const bool passing =
      response.status == 401 || response.status == 403 || response.status == 429 || response.status >= 500;
  if (!passing && !mlflow::error_code(response).empty()) return response;
  const char* hint = response.status == 200
                         ? "; hint: that is no answer of MLflow but of a proxy, or a network's login page"
                     : response.status == 401 || response.status == 403
                         ? "; hint: MLFLOW_TRACKING_TOKEN, or MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD"
                         : "";
  throw Error("mlflow", fmt::format("{} answered with status {}: {}{}", address(), response.status,
                                    mlflow::message_of(response), hint));
}

Json MlflowClient::call(const std::string& method, const std::string& path, const Json& body) {
  const HttpResponse response =
      request(method, path, body.is_null() ? "" : body.dump(-1, ' ', false, Json::error_handler_t::replace));
  if (response.status != 200)
    throw Error("mlflow", fmt::format("{} answered {} with status {}: {}", address(), path.substr(0, path.find('?')),
                                      response.status, mlflow::message_of(response)));
  return Json::parse(response.body);
}

}  // namespace levin
