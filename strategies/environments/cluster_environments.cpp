#include <levin/strategies/environments/cluster_environments.h>

#include <levin/core/base/error.h>
#include <levin/strategies/environments/environment_variables.h>
#include <levin/strategies/environments/launched_environment.h>
#include <levin/strategies/environments/slurm_node_list.h>

#include <fmt/format.h>

#include <string_view>
#include <utility>

namespace levin {
namespace {

constexpr const char* kLoopback = "127.0.0.1";

thread_local const GivenRanks* given_ranks = nullptr;

/// The same port on all ranks, and most likely another one for another job: outside of the ports that systems hand out.
constexpr int64_t kFirstPort = 16'000;
constexpr int64_t kPorts = 16'000;

int64_t port_of(int64_t number) { return kFirstPort + number % kPorts; }

int64_t port_of(std::string_view job) {
  uint32_t hash = 2166136261u;  // FNV-1a, which is the same everywhere
  for (const unsigned char character : job) hash = (hash ^ character) * 16777619u;
  return port_of(static_cast<int64_t>(hash));
}

bool is_loopback(const std::string& address) {
  return address.starts_with("127.") || address == "localhost" || address == "::1";
}

/// MASTER_ADDR and MASTER_PORT, without which the launcher leaves the ranks no place to meet.
void require_main_address(const LauncherVariables& variables, ClusterPlace& place) {
  place.main_address = variables.text("MASTER_ADDR", "export MASTER_ADDR, a name or address of the host of rank 0");
  variables.text("MASTER_PORT", "export MASTER_PORT, a free port of the host of rank 0");
  place.main_port = variables.port("MASTER_PORT");
}

/// For launchers that say nothing of a rendezvous: what the user exported, else what follows from the job.
void choose_main_address(const LauncherVariables& variables, ClusterPlace& place, const std::string& address,
                         int64_t port) {
  place.main_address = variables.text_or("MASTER_ADDR", address);
  place.main_port = variables.has("MASTER_PORT") ? variables.port("MASTER_PORT") : port;
}

/// The ranks among all and on this host, for launchers whose four variables are named alike: prefix + "RANK" and
/// prefix + `size`, and the same with "LOCAL_" between.
ClusterPlace read_ranks(const LauncherVariables& variables, const std::string& prefix,
                        const std::string& size = "SIZE") {
  const std::string world_size = prefix + size;
  const std::string local_world_size = prefix + "LOCAL_" + size;
  ClusterPlace place;
  place.world_size = variables.size(world_size);
  place.rank = variables.rank(prefix + "RANK", world_size, place.world_size);
  place.local_world_size = variables.part_size(local_world_size, world_size, place.world_size);
  place.local_rank = variables.rank(prefix + "LOCAL_RANK", local_world_size, place.local_world_size);
  return place;
}

ClusterPlace read_levin(const LauncherVariables& variables) {
  ClusterPlace place = read_ranks(variables, "LEVIN_", "WORLD_SIZE");
  place.node_rank = variables.number("LEVIN_NODE_RANK", 0);
  place.main_address = variables.text("LEVIN_MAIN_ADDRESS");
  place.main_port = variables.port("LEVIN_MAIN_PORT");
  place.run_id = variables.text_or("LEVIN_RUN_ID", "");
  return place;
}

/// torch.distributed.launch, the predecessor of torchrun, did not say how many ranks a host has.
int64_t read_local_world_size(const LauncherVariables& variables, const ClusterPlace& place) {
  if (variables.has("LOCAL_WORLD_SIZE") || !is_loopback(place.main_address))
    return variables.part_size("LOCAL_WORLD_SIZE", "WORLD_SIZE", place.world_size);
  return place.world_size;
}

ClusterPlace read_torchrun(const LauncherVariables& variables) {
  ClusterPlace place;
  place.world_size = variables.size("WORLD_SIZE");
  place.rank = variables.rank("RANK", "WORLD_SIZE", place.world_size);
  require_main_address(variables, place);
  place.local_world_size = read_local_world_size(variables, place);
  place.local_rank = variables.rank("LOCAL_RANK", "LOCAL_WORLD_SIZE", place.local_world_size);
  place.node_rank =
      variables.number_or("GROUP_RANK", variables.number_or("NODE_RANK", place.rank / place.local_world_size));
  // The agents keep their store when they start the ranks again. TORCHELASTIC_RESTART_COUNT does not tell the attempts
  // apart: each agent counts the failures of its own host only, so the hosts of one attempt may have different counts.
  place.external_store = variables.text_or("TORCHELASTIC_USE_AGENT_STORE", "") == "True";
  place.store_outlives_attempts = place.external_store;
  place.run_id = variables.text_or("TORCHELASTIC_RUN_ID", "");
  return place;
}

ClusterPlace read_horovod(const LauncherVariables& variables) {
  ClusterPlace place = read_ranks(variables, "HOROVOD_");
  place.node_rank = variables.number_or("HOROVOD_CROSS_RANK", place.rank / place.local_world_size);
  // Horovod's own rendezvous speaks another protocol. It runs where horovodrun does: on the host of rank 0.
  const std::string hint = "export MASTER_ADDR and MASTER_PORT, an address and a free port of the host of rank 0";
  std::string address = kLoopback;
  if (place.local_world_size < place.world_size && !variables.has("MASTER_ADDR"))
    address = variables.text("HOROVOD_GLOO_RENDEZVOUS_ADDR", hint);
  if (!variables.has("MASTER_PORT")) variables.text("HOROVOD_GLOO_RENDEZVOUS_PORT", hint);
  const std::string job = variables.text_or("HOROVOD_GLOO_RENDEZVOUS_ADDR", "") + ":" +
                          variables.text_or("HOROVOD_GLOO_RENDEZVOUS_PORT", "");
  choose_main_address(variables, place, address, port_of(job));
  return place;
}

/// The first of the job's hosts that runs ranks, from "hostA 2 hostB 2". Some clusters put the host from which jobs are
/// launched before those `nodes` hosts.
std::string first_lsf_host(const LauncherVariables& variables, int64_t nodes) {
  const std::string list = variables.text("LSB_MCPU_HOSTS", "export MASTER_ADDR, an address of the host of rank 0");
  std::vector<std::string> words;
  for (size_t begin = list.find_first_not_of(' '); begin != std::string::npos;) {
    const size_t end = list.find(' ', begin);
    words.push_back(list.substr(begin, end - begin));
    begin = list.find_first_not_of(' ', end);
  }
  if (words.empty() || words.size() % 2 != 0)
    variables.fail(fmt::format("the variable LSB_MCPU_HOSTS is wrong; got '{}'; valid: hostA 2 hostB 2", list));
  const auto hosts = static_cast<int64_t>(words.size() / 2);
  return words.at(hosts == nodes + 1 ? 2 : 0);
}

ClusterPlace read_lsf(const LauncherVariables& variables) {
  ClusterPlace place = read_ranks(variables, "JSM_NAMESPACE_");
  place.node_rank = place.rank / place.local_world_size;
  const std::string address = variables.has("MASTER_ADDR") ? ""
                              : place.local_world_size == place.world_size
                                  ? kLoopback
                                  : first_lsf_host(variables, place.world_size / place.local_world_size);
  place.run_id = variables.text("LSB_JOBID");
  choose_main_address(variables, place, address, port_of(place.run_id));
  return place;
}

ClusterPlace read_open_mpi(const LauncherVariables& variables) {
  ClusterPlace place = read_ranks(variables, "OMPI_COMM_WORLD_");
  // OMPI_COMM_WORLD_NODE_RANK is not that of the host but of the process on its host. mpirun numbers ranks host by
  // host.
  place.node_rank = place.rank / place.local_world_size;
  if (place.local_world_size < place.world_size)
    variables.text("MASTER_ADDR",
                   fmt::format("{} of {} ranks run on this host, and mpirun does not tell them where rank 0 is; call "
                               "mpirun with -x MASTER_ADDR=HOST, a name or address of the host of rank 0",
                               place.local_world_size, place.world_size));
  place.run_id = variables.text_or("OMPI_MCA_ess_base_jobid", variables.text_or("PMIX_NAMESPACE", ""));
  if (place.run_id.empty())
    variables.text("MASTER_PORT", "call mpirun with -x MASTER_PORT=PORT, a free port of the host of rank 0");
  choose_main_address(variables, place, kLoopback, port_of(place.run_id));
  return place;
}

/// Whether srun started this process as a task. In a batch script there is no step, and the shell of an interactive job
/// is a step of one task.
bool started_by_srun(const EnvironmentVariables& variables) {
  if (!variables.has("SLURM_PROCID") || !variables.has("SLURM_STEP_ID")) return false;
  // SLURM's numbers for steps that are no tasks: batch script, interactive shell and the like.
  const std::string step = *variables.find("SLURM_STEP_ID");
  if (step.size() == 10 && step >= "4294967280") return false;
  if (variables.find("SLURM_STEP_NUM_TASKS") != "1") return true;
  const auto job_name = variables.find("SLURM_JOB_NAME");
  return !(variables.has("SLURM_PTY_PORT") || job_name == "bash" || job_name == "interactive");
}

ClusterPlace read_slurm(const LauncherVariables& variables) {
  // The variables of the step are those of the ranks; those of the job may speak of more nodes.
  const auto step_or_job = [&](const char* step, const char* job) { return variables.has(step) ? step : job; };
  ClusterPlace place;
  const char* size_name = step_or_job("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS");
  place.world_size = variables.size(size_name);
  place.rank = variables.rank("SLURM_PROCID", size_name, place.world_size);
  const char* tasks_name = step_or_job("SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE");
  const auto tasks = expand_tasks_per_node(variables.text(tasks_name));
  place.node_rank = variables.rank("SLURM_NODEID", tasks_name, static_cast<int64_t>(tasks.size()));
  place.local_world_size = tasks[static_cast<size_t>(place.node_rank)];
  place.local_rank = variables.rank("SLURM_LOCALID", tasks_name, place.local_world_size);

  std::string address = kLoopback;
  if (tasks.size() > 1 && !variables.has("MASTER_ADDR"))
    address = expand_node_list(variables.text(step_or_job("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST"))).front();
  const int64_t job = variables.number("SLURM_JOB_ID", 0, int64_t{1} << 32);
  const int64_t step = variables.number("SLURM_STEP_ID", 0, int64_t{1} << 32);
  // Jobs and steps that follow one another get different ports.
  choose_main_address(variables, place, address, port_of(job * 37 + step));
  place.run_id = fmt::format("{}.{}.{}", job, step, variables.number_or("SLURM_RESTART_COUNT", 0));
  return place;
}

ClusterPlace read_plain(const LauncherVariables& variables) {
  ClusterPlace place;
  place.world_size = variables.size("WORLD_SIZE");
  place.rank = variables.rank("RANK", "WORLD_SIZE", place.world_size);
  place.node_rank = variables.number_or("NODE_RANK", place.rank);
  require_main_address(variables, place);
  return place;
}

struct KnownLauncher {
  const char* name;
  bool (*has_started)(const EnvironmentVariables& variables);
  ClusterPlace (*read)(const LauncherVariables& variables);
};

using Variables = EnvironmentVariables;

constexpr KnownLauncher kLaunchers[] = {
    {"Levin", [](const Variables& variables) { return variables.has("LEVIN_RANK"); }, read_levin},
    {"torchrun",
     [](const Variables& variables) {
       return variables.has("TORCHELASTIC_RUN_ID") || (variables.has("RANK") && variables.has("LOCAL_RANK"));
     },
     read_torchrun},
    {"Horovod", [](const Variables& variables) { return variables.has("HOROVOD_RANK"); }, read_horovod},
    {"LSF",
     [](const Variables& variables) { return variables.has("JSM_NAMESPACE_RANK") && variables.has("LSB_JOBID"); },
     read_lsf},
    {"Open MPI", [](const Variables& variables) { return variables.has("OMPI_COMM_WORLD_RANK"); }, read_open_mpi},
    {"SLURM", started_by_srun, read_slurm},
    {"plain variables", [](const Variables& variables) { return variables.has("RANK") || variables.has("WORLD_SIZE"); },
     read_plain},
};

}  // namespace

std::unique_ptr<ClusterEnvironment> detect_environment(const EnvironmentVariables& variables) {
  for (const KnownLauncher& launcher : kLaunchers)
    if (launcher.has_started(variables))
      return std::make_unique<LaunchedEnvironment>(launcher.name,
                                                   launcher.read(LauncherVariables(variables, launcher.name)));
  return nullptr;
}

std::unique_ptr<ClusterEnvironment> detect_environment() {
  if (given_ranks != nullptr) return std::make_unique<LaunchedEnvironment>(given_ranks->by(), given_ranks->place());
  return detect_environment(ProcessVariables());
}

GivenRanks::GivenRanks(std::string by, ClusterPlace place)
    : by_(std::move(by)), place_(std::move(place)), former_(given_ranks) {
  given_ranks = this;
}
GivenRanks::~GivenRanks() { given_ranks = former_; }

void check_agreement(const ClusterEnvironment& environment, int64_t num_nodes, int64_t devices) {
  const int64_t expected = num_nodes * devices;
  if (expected != environment.world_size())
    throw ConfigError(fmt::format("trainer.num_nodes x trainer.devices is {} x {} = {} rank{}, but {} started {}",
                                  num_nodes, devices, expected, expected == 1 ? "" : "s", environment.name(),
                                  environment.world_size()));
  if (devices != environment.local_world_size())
    throw ConfigError(fmt::format("trainer.devices is {}, but {} started {} rank{} on this host", devices,
                                  environment.name(), environment.local_world_size(),
                                  environment.local_world_size() == 1 ? "" : "s"));
}

}  // namespace levin
