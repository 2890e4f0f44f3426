#include "tests/fuzz/fuzz.h"

#include <levin/core/base/http_client.h>
#include <levin/loggers/mlflow_client.h>
#include <levin/loggers/mlflow_records.h>

// An answer of an MLflow server, and a record that waited on the disk to be sent to one.
void levin::fuzzing::fuzz(std::string_view input) {
  for (const long status : {200, 404, 503}) {
    const HttpResponse response{.status = status, .body = std::string(input)};
    mlflow::refuses(response);
    mlflow::is_missing(response);
    mlflow::error_code(response);
    mlflow::message_of(response);
  }
  mlflow::kind_of(input);
  mlflow::is_artifact(input);
  mlflow::artifact_of(input);
}
