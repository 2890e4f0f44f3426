#include <levin/core/c/levin.h>

#include <levin/build_info.h>
#include <levin/core/base/descriptor.h>
#include <levin/core/base/error.h>
#include <levin/core/base/log.h>
#include <levin/core/base/mutex.h>
#include <levin/core/base/seed.h>
#include <levin/core/c/array_module.h>
#include <levin/core/c/array_view.h>
#include <levin/core/engine/engine.h>
#include <levin/core/optim/named_optimizer.h>
#include <levin/core/options/registries.h>
#include <levin/core/trainer/trainer.h>
#include <levin/strategies/environments/cluster_environments.h>

#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <netinet/in.h>
#include <sys/socket.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>

namespace levin {
namespace {

// ---- What goes wrong, as a status and a message.

class HandleError : public Error {
 public:
  HandleError(levin_status status, const std::string& message) : Error("c", message), status(status) {}
  const levin_status status;
};

/// Of the calling thread. Where there is no memory for a message, that is the message.
class LastError {
 public:
  const char* text() const { return has_memory_ ? text_.c_str() : "[c] out of memory"; }
  void set(const char* text) noexcept {
    try {
      text_ = text;
      has_memory_ = true;
    } catch (...) {
      has_memory_ = false;
    }
  }

 private:
  std::string text_;
  bool has_memory_ = true;
};

LastError& last_error() {
  thread_local LastError error;
  return error;
}

/// Runs a call; what it throws becomes a status.
template <class Call>
levin_status guarded(const Call& call) noexcept {
  try {
    call();
    return LEVIN_OK;
  } catch (const ArgumentError& error) {
    last_error().set(error.what());
    return LEVIN_BAD_ARGUMENT;
  } catch (const HandleError& error) {
    last_error().set(error.what());
    return error.status;
  } catch (const ConfigError& error) {
    last_error().set(error.what());
    return LEVIN_BAD_CONFIG;
  } catch (const c10::Error& error) {
    last_error().set(error.what_without_backtrace());
  } catch (const std::exception& error) {
    last_error().set(error.what());
  } catch (...) {
    last_error().set("[c] an exception that is no std::exception");
  }
  return LEVIN_FAILED;
}

template <class T>
T* require_pointer(T* pointer, const char* call, const char* name) {
  if (pointer == nullptr) throw ArgumentError(fmt::format("{}: {} is a null pointer", call, name));
  return pointer;
}

const char* require_path(const char* path, const char* call, const char* name) {
  if (*require_pointer(path, call, name) == 0) throw ArgumentError(fmt::format("{}: {} is empty", call, name));
  return path;
}

// ---- Handles.

struct Handle {
  std::shared_ptr<ArrayModule> module;
  std::unique_ptr<Engine> engine;
  std::atomic<bool> in_use = false;
};

/// The engines that are open, by numbers that are never used again.
class Handles {
 public:
  levin_engine* add(std::shared_ptr<Handle> handle) {
    const MutexLock lock(mutex_);
    open_.emplace(++last_, std::move(handle));
    return reinterpret_cast<levin_engine*>(last_);  // NOLINT(performance-no-int-to-ptr)
  }
  std::shared_ptr<Handle> find(levin_engine* engine, const char* call) {
    const MutexLock lock(mutex_);
    return find_locked(engine, call);
  }
  /// The engine is only destroyed once it was removed.
  void request_stop(levin_engine* engine, const char* reason) {
    const MutexLock lock(mutex_);
    find_locked(engine, "levin_request_stop")->engine->request_stop(reason);
  }
  void remove(levin_engine* engine) {
    const MutexLock lock(mutex_);
    open_.erase(reinterpret_cast<uintptr_t>(engine));
  }

 private:
  std::shared_ptr<Handle> find_locked(levin_engine* engine, const char* call) LEVIN_REQUIRES(mutex_) {
    require_pointer(engine, call, "engine");
    const auto found = open_.find(reinterpret_cast<uintptr_t>(engine));
    if (found == open_.end())
      throw HandleError(LEVIN_CLOSED, fmt::format("{} of an engine that was closed, or never was one; valid: what "
                                                  "levin_create gave, before levin_close",
                                                  call));
    return found->second;
  }

  Mutex mutex_;
  std::map<uintptr_t, std::shared_ptr<Handle>> open_ LEVIN_GUARDED_BY(mutex_);
  uintptr_t last_ LEVIN_GUARDED_BY(mutex_) = 0;
};

/// Lives as long as the process: threads of the program's may call until the very end.
Handles& handles() {
  static auto* const all = new Handles;
  return *all;
}

/// An engine for the time of one call.
class Use {
 public:
  Use(levin_engine* engine, const char* call) : handle_(handles().find(engine, call)) {
    if (handle_->in_use.exchange(true))
      throw HandleError(LEVIN_BUSY, fmt::format("{} while another thread uses the engine; valid: one thread at a time; "
                                                "hint: an engine for each thread, or a lock around its calls",
                                                call));
    try {
      handles().find(engine, call);  // it may have been closed meanwhile
    } catch (...) {
      handle_->in_use = false;
      throw;
    }
  }
  ~Use() { handle_->in_use = false; }
  Use(const Use&) = delete;
  Use& operator=(const Use&) = delete;

  Engine& engine() const { return *handle_->engine; }
  ArrayModule& module() const { return *handle_->module; }
  void destroy_engine() {
    const std::unique_ptr<Engine> engine = std::move(handle_->engine);
    engine->close();
  }

 private:
  const std::shared_ptr<Handle> handle_;
};

// ---- Creation.

/// The section `engine`.
struct EngineSection {
  ArrayModuleOptions parts = {};
  Spec<optim::NamedOptimizer> optimizer = "adam";
  SchedulerConfig scheduler = {};
  static void describe(Schema<EngineSection>& schema) {
    schema.fields_of(&EngineSection::parts);
    schema.field("optimizer", &EngineSection::optimizer, "the optimizer, with its options");
    schema.field("scheduler", &EngineSection::scheduler, "the learning rate's schedule, with its options");
  }
};

/// The whole configuration.
struct EngineFile {
  EngineSection engine = {};
  TrainerOptions trainer = {};
  std::optional<int64_t> seed = {};
  static void describe(Schema<EngineFile>& schema) {
    schema.field("engine", &EngineFile::engine, "model, loss, optimizer and scheduler");
    schema.field("trainer", &EngineFile::trainer, "options of the trainer");
    schema.field("seed", &EngineFile::seed, "seed of weights and of all that is random").at_least(0);
  }
};

ClusterPlace place_of(const levin_ranks& ranks) {
  if (ranks.struct_size != sizeof(levin_ranks))
    throw ArgumentError(fmt::format("ranks.struct_size is wrong; got {}; valid: sizeof(levin_ranks), which is {} here",
                                    ranks.struct_size, sizeof(levin_ranks)));
  const auto require_in = [](const char* name, int64_t value, int64_t lowest, int64_t end) {
    if (value < lowest || value >= end)
      throw ArgumentError(
          fmt::format("ranks.{} is out of range; got {}; valid: {} to {}", name, value, lowest, end - 1));
  };
  constexpr int64_t kMostRanks = int64_t{1} << 31;
  require_in("world_size", ranks.world_size, 1, kMostRanks);
  require_in("rank", ranks.rank, 0, ranks.world_size);
  require_in("local_world_size", ranks.local_world_size, 1, ranks.world_size + 1);
  require_in("local_rank", ranks.local_rank, 0, ranks.local_world_size);
  require_in("node_rank", ranks.node_rank, 0, ranks.world_size);
  require_in("main_port", ranks.main_port, 1, 65536);
  const size_t length = ::strnlen(ranks.main_address, sizeof(ranks.main_address));
  if (length == 0 || length == sizeof(ranks.main_address))
    throw ArgumentError("ranks.main_address is no name or address of a host that ends with a zero");
  return {.rank = ranks.rank,
          .world_size = ranks.world_size,
          .local_rank = ranks.local_rank,
          .local_world_size = ranks.local_world_size,
          .node_rank = ranks.node_rank,
          .main_address = std::string(ranks.main_address, length),
          .main_port = ranks.main_port};
}

levin_engine* create(const Config& config, const levin_ranks* ranks) {
  std::optional<GivenRanks> given;
  if (ranks != nullptr) given.emplace("the program", place_of(*ranks));
  if (const Config* trainer = config.is_mapping() ? config.find("trainer") : nullptr;
      trainer != nullptr && trainer->is_mapping())
    for (const char* option : {"optimizer", "scheduler"})
      if (trainer->find(option) != nullptr)
        throw ConfigError(
            fmt::format("{}trainer.{} is engine.{} here", trainer->find(option)->origin().prefix(), option, option));
  auto file = parse_options<EngineFile>(config, "");
  file.engine.optimizer.resolve(registries().optimizers, "engine.optimizer");  // what is wrong has its name
  file.trainer.optimizer = file.engine.optimizer;
  file.trainer.scheduler = file.engine.scheduler;
  // Ranks are started by a launcher, or this process is the only one.
  const Config& devices = file.trainer.devices.config();
  const bool names_devices = !devices.is_scalar() || devices.text() != "auto" || !file.trainer.gpus.config().is_null();
  const bool is_launched = ranks != nullptr || registries().detect_environment() != nullptr;
  if (!names_devices && !is_launched) file.trainer.devices = 1;
  const std::string number = devices.is_scalar() ? devices.text() : "";
  const bool is_number = !number.empty() && number.find_first_not_of("0123456789") == std::string::npos;
  if (is_number && number != "1" && !is_launched)
    throw ConfigError(
        fmt::format("{}trainer.devices: an engine of C or Fortran is one rank of those that a launcher or "
                    "MPI has started; got {} devices and no launcher; valid: 1; hint: mpirun with "
                    "levin_mpi.h, or torchrun",
                    devices.origin().prefix(), number));
  if (file.seed) seed_everything(static_cast<uint64_t>(*file.seed));
  const auto handle = std::make_shared<Handle>();
  handle->module = make<ArrayModule>(file.engine.parts);
  handle->engine = std::make_unique<Engine>(handle->module, std::move(file.trainer));
  return handles().add(handle);
}

int32_t find_free_port() {
  const Descriptor listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_ANY);
  socklen_t size = sizeof(address);
  auto* const any = reinterpret_cast<sockaddr*>(&address);
  if (!listener.is_open() || ::bind(listener.number(), any, size) != 0 ||
      ::getsockname(listener.number(), any, &size) != 0)
    throw Error("c", fmt::format("this host gives no free port: {}", std::strerror(errno)));
  return ntohs(address.sin_port);
}

// ---- Calls.

Batch batch_from(const Use& use, const levin_array* inputs, size_t num_inputs, const levin_array* targets,
                 size_t num_targets) {
  const auto input_tensors = view_arrays(inputs, num_inputs, "inputs");
  const auto target_tensors = view_arrays(targets, num_targets, "targets");
  use.module().check(input_tensors, target_tensors);
  return ArrayModule::batch_of(input_tensors, target_tensors);
}

/// What C gave to levin_set_message_handler; it may throw, where it is of C++.
void hand_line(levin_message_handler handler, void* user, const std::string& line) noexcept {
  try {
    if (handler(line.c_str(), user) == 0) return;
  } catch (...) {
    std::fputs("[levin] the handler of messages has thrown an exception; its line follows\n", stderr);
  }
  std::fputs((line + "\n").c_str(), stderr);
}

}  // namespace
}  // namespace levin

using levin::ArgumentError;
using levin::guarded;
using levin::require_pointer;
using levin::Use;

const char* levin_last_error(void) { return levin::last_error().text(); }
const char* levin_version(void) { return LEVIN_VERSION; }
int levin_c_abi(void) { return LEVIN_C_ABI; }

levin_status levin_create(const char* path, const levin_ranks* ranks, levin_engine** engine) {
  return guarded([&] {
    *require_pointer(engine, "levin_create", "engine") = nullptr;
    *engine = levin::create(levin::Config::load(require_pointer(path, "levin_create", "path")), ranks);
  });
}

levin_status levin_create_from_text(const char* yaml, const levin_ranks* ranks, levin_engine** engine) {
  return guarded([&] {
    *require_pointer(engine, "levin_create_from_text", "engine") = nullptr;
    require_pointer(yaml, "levin_create_from_text", "yaml");
    *engine = levin::create(levin::Config::parse(yaml, {.source = "text"}), ranks);
  });
}

levin_status levin_close(levin_engine* engine) {
  return guarded([&] {
    Use use(engine, "levin_close");
    levin::handles().remove(engine);
    use.destroy_engine();
  });
}

levin_status levin_train(levin_engine* engine, const levin_array* inputs, size_t num_inputs, const levin_array* targets,
                         size_t num_targets, double* loss) {
  return guarded([&] {
    const Use use(engine, "levin_train");
    const levin::StepOutput output =
        use.engine().train_step(levin::batch_from(use, inputs, num_inputs, targets, num_targets));
    if (loss != nullptr) *loss = output.has_loss() ? output.loss().item<double>() : 0;
  });
}

levin_status levin_evaluate(levin_engine* engine, const levin_array* inputs, size_t num_inputs,
                            const levin_array* targets, size_t num_targets, double* loss) {
  return guarded([&] {
    const Use use(engine, "levin_evaluate");
    require_pointer(loss, "levin_evaluate", "loss");
    *loss =
        use.engine().eval_step(levin::batch_from(use, inputs, num_inputs, targets, num_targets)).loss().item<double>();
  });
}

levin_status levin_predict(levin_engine* engine, const levin_array* inputs, size_t num_inputs,
                           const levin_array* outputs, size_t num_outputs) {
  return guarded([&] {
    const Use use(engine, "levin_predict");
    const auto tensors = levin::view_arrays(inputs, num_inputs, "inputs");
    levin::view_arrays(outputs, num_outputs, "outputs");
    use.module().check(tensors, {});
    const levin::Batch prediction = use.engine().predict_step(levin::ArrayModule::batch_of(tensors, {}));
    levin::write_arrays(levin::ArrayModule::outputs_of(prediction), outputs, num_outputs, "outputs");
  });
}

levin_status levin_save(levin_engine* engine, const char* path) {
  return guarded([&] {
    const Use use(engine, "levin_save");
    use.engine().save(levin::require_path(path, "levin_save", "path"));
  });
}

levin_status levin_load(levin_engine* engine, const char* checkpoint) {
  return guarded([&] {
    const Use use(engine, "levin_load");
    const char* const path = levin::require_path(checkpoint, "levin_load", "checkpoint");
    try {
      use.engine().load(path);
    } catch (const levin::Error& error) {
      // A call that is wrong here changes nothing.
      if (error.component() == "engine") throw ArgumentError(fmt::format("levin_load: {}", error.what()));
      throw;
    }
  });
}

levin_status levin_log(levin_engine* engine, const char* name, double value) {
  return guarded([&] {
    const Use use(engine, "levin_log");
    use.engine().log(require_pointer(name, "levin_log", "name"), value);
  });
}

levin_status levin_step(levin_engine* engine, int64_t* step) {
  return guarded([&] {
    const Use use(engine, "levin_step");
    *require_pointer(step, "levin_step", "step") = use.engine().step();
  });
}

levin_status levin_stop_requested(levin_engine* engine, int* stop) {
  return guarded([&] {
    const Use use(engine, "levin_stop_requested");
    *require_pointer(stop, "levin_stop_requested", "stop") = use.engine().stop_requested() ? 1 : 0;
  });
}

levin_status levin_request_stop(levin_engine* engine, const char* reason) {
  return guarded([&] {
    require_pointer(reason, "levin_request_stop", "reason");
    levin::handles().request_stop(engine, reason);
  });
}

levin_status levin_rank(levin_engine* engine, int64_t* rank, int64_t* world_size) {
  return guarded([&] {
    const Use use(engine, "levin_rank");
    *require_pointer(rank, "levin_rank", "rank") = use.engine().global_rank();
    *require_pointer(world_size, "levin_rank", "world_size") = use.engine().world_size();
  });
}

levin_status levin_free_port(int32_t* port) {
  return guarded([&] { *require_pointer(port, "levin_free_port", "port") = levin::find_free_port(); });
}

levin_status levin_set_message_handler(levin_message_handler handler, void* user) {
  return guarded([&] {
    if (handler == nullptr) return levin::log::set_sink(nullptr);
    levin::log::set_sink([handler, user](const std::string& line) { levin::hand_line(handler, user, line); });
  });
}
