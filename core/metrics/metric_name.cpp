#include <levin/core/metrics/metric_name.h>

#include <levin/core/base/error.h>

#include <fmt/format.h>

namespace levin::metrics {

void check_metric_name(std::string_view name) {
  if (name.empty()) throw Error("log", "a logged value needs a name");
  if (name == "epoch" || name == "step")
    throw Error("log", fmt::format("a metric cannot be called '{}', the trainer's own counter, which the loggers write "
                                   "beside all metrics anyway; hint: leave it out, or log it under another name",
                                   name));
}

}  // namespace levin::metrics
