#include <levin/core/base/error.h>
#include <levin/strategies/environments/cluster_environments.h>
#include <levin/strategies/environments/environment_variables.h>
#include <levin/strategies/environments/local_environment.h>
#include <levin/strategies/environments/slurm_node_list.h>

#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace levin {
namespace {

using Table = std::map<std::string, std::string>;

class TableVariables : public EnvironmentVariables {
 public:
  explicit TableVariables(Table table) : table_(std::move(table)) {}
  std::optional<std::string> find(const std::string& name) const override {
    const auto entry = table_.find(name);
    if (entry == table_.end() || entry->second.empty()) return std::nullopt;
    return entry->second;
  }

 private:
  const Table table_;
};

/// The tables together; entries of the later ones win.
Table together(const std::vector<Table>& tables) {
  Table all;
  for (const Table& table : tables)
    for (const auto& [name, value] : table) all[name] = value;
  return all;
}

Table with(Table table, const std::string& name, const std::string& value) {
  table[name] = value;
  return table;
}

Table without(Table table, const std::string& name) {
  table.erase(name);
  return table;
}

std::string launcher_of(const Table& table) {
  const auto environment = detect_environment(TableVariables(table));
  return environment == nullptr ? "none" : environment->name();
}

ClusterPlace place_of(const Table& table) {
  const auto environment = detect_environment(TableVariables(table));
  if (environment == nullptr) {
    ADD_FAILURE() << "no launcher";
    return {};
  }
  EXPECT_TRUE(environment->creates_processes_externally());
  return environment->place();
}

/// "rank/world local/ranks of the host @host's number"
std::string ranks_of(const Table& table) {
  const ClusterPlace place = place_of(table);
  return std::to_string(place.rank) + "/" + std::to_string(place.world_size) + " " + std::to_string(place.local_rank) +
         "/" + std::to_string(place.local_world_size) + " @" + std::to_string(place.node_rank);
}

std::string address_of(const Table& table) {
  const ClusterPlace place = place_of(table);
  return place.main_address + ":" + std::to_string(place.main_port);
}

std::string error_of(const Table& table) {
  try {
    detect_environment(TableVariables(table));
  } catch (const Error& error) {
    EXPECT_EQ(error.component(), "environment");
    return error.what();
  }
  return "no error";
}

#define EXPECT_ERROR_HAS(table, part) EXPECT_PRED2(contains, error_of(table), part)

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

const Table kLevin = {{"LEVIN_RANK", "3"},       {"LEVIN_WORLD_SIZE", "4"},       {"LEVIN_LOCAL_RANK", "1"},
                      {"LEVIN_NODE_RANK", "1"},  {"LEVIN_LOCAL_WORLD_SIZE", "2"}, {"LEVIN_MAIN_ADDRESS", "10.0.0.1"},
                      {"LEVIN_MAIN_PORT", "99"}, {"LEVIN_RUN_ID", "run"}};
const Table kTorchrun = {{"RANK", "3"},
                         {"WORLD_SIZE", "4"},
                         {"LOCAL_RANK", "1"},
                         {"LOCAL_WORLD_SIZE", "2"},
                         {"GROUP_RANK", "1"},
                         {"MASTER_ADDR", "alpha"},
                         {"MASTER_PORT", "29500"},
                         {"TORCHELASTIC_RUN_ID", "job"},
                         {"TORCHELASTIC_RESTART_COUNT", "2"},
                         {"TORCHELASTIC_USE_AGENT_STORE", "True"}};
const Table kHorovod = {{"HOROVOD_RANK", "3"},
                        {"HOROVOD_SIZE", "4"},
                        {"HOROVOD_LOCAL_RANK", "1"},
                        {"HOROVOD_LOCAL_SIZE", "2"},
                        {"HOROVOD_CROSS_RANK", "1"},
                        {"HOROVOD_CROSS_SIZE", "2"},
                        {"HOROVOD_GLOO_RENDEZVOUS_ADDR", "10.0.0.7"},
                        {"HOROVOD_GLOO_RENDEZVOUS_PORT", "41234"}};
const Table kLsf = {{"LSB_JOBID", "77"},
                    {"LSB_MCPU_HOSTS", "launch 1 alpha 42 beta 42"},
                    {"JSM_NAMESPACE_RANK", "3"},
                    {"JSM_NAMESPACE_SIZE", "4"},
                    {"JSM_NAMESPACE_LOCAL_RANK", "1"},
                    {"JSM_NAMESPACE_LOCAL_SIZE", "2"}};
const Table kOpenMpi = {{"OMPI_COMM_WORLD_RANK", "1"},       {"OMPI_COMM_WORLD_SIZE", "2"},
                        {"OMPI_COMM_WORLD_LOCAL_RANK", "1"}, {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                        {"OMPI_COMM_WORLD_NODE_RANK", "1"},  {"OMPI_MCA_ess_base_jobid", "1119551489"},
                        {"PMIX_NAMESPACE", "1119551489"}};
const Table kSlurm = {{"SLURM_PROCID", "2"},
                      {"SLURM_LOCALID", "0"},
                      {"SLURM_NODEID", "1"},
                      {"SLURM_NTASKS", "3"},
                      {"SLURM_TASKS_PER_NODE", "2,1"},
                      {"SLURM_STEP_NUM_TASKS", "3"},
                      {"SLURM_STEP_TASKS_PER_NODE", "2,1"},
                      {"SLURM_JOB_NODELIST", "front,gpu[07-09]"},
                      {"SLURM_STEP_NODELIST", "gpu[07-08]"},
                      {"SLURM_JOB_ID", "1234"},
                      {"SLURM_STEP_ID", "5"},
                      {"SLURM_JOB_NAME", "train"}};
const Table kPlain = {{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "job-master-0"}, {"MASTER_PORT", "23456"}};

// --- What each launcher says ---

TEST(EnvironmentsTest, NoLauncher) {
  EXPECT_EQ(launcher_of({}), "none");
  EXPECT_EQ(launcher_of({{"MASTER_ADDR", "alpha"}, {"MASTER_PORT", "1"}, {"SLURM_JOB_ID", "1"}, {"LSB_JOBID", "1"}}),
            "none");
  EXPECT_EQ(launcher_of({{"RANK", ""}, {"WORLD_SIZE", ""}}), "none");
}

TEST(EnvironmentsTest, LocalIsRankZeroOfOne) {
  const LocalEnvironment environment;
  EXPECT_FALSE(environment.creates_processes_externally());
  EXPECT_EQ(environment.rank(), 0);
  EXPECT_EQ(environment.world_size(), 1);
  EXPECT_EQ(environment.local_world_size(), 1);
}

TEST(EnvironmentsTest, Levin) {
  EXPECT_EQ(launcher_of(kLevin), "Levin");
  EXPECT_EQ(ranks_of(kLevin), "3/4 1/2 @1");
  EXPECT_EQ(address_of(kLevin), "10.0.0.1:99");
  EXPECT_EQ(place_of(kLevin).run_id, "run");
  EXPECT_EQ(place_of(without(kLevin, "LEVIN_RUN_ID")).run_id, "");
}

TEST(EnvironmentsTest, Torchrun) {
  EXPECT_EQ(launcher_of(kTorchrun), "torchrun");
  EXPECT_EQ(ranks_of(kTorchrun), "3/4 1/2 @1");
  EXPECT_EQ(address_of(kTorchrun), "alpha:29500");
  EXPECT_TRUE(place_of(kTorchrun).external_store);
  EXPECT_TRUE(place_of(kTorchrun).store_outlives_attempts);

  const ClusterPlace own_store = place_of(with(kTorchrun, "TORCHELASTIC_USE_AGENT_STORE", "False"));
  EXPECT_FALSE(own_store.external_store);
  EXPECT_FALSE(own_store.store_outlives_attempts);
}

TEST(EnvironmentsTest, HostsOfOneTorchrunAttemptMayCountRestartsDifferently) {
  EXPECT_EQ(place_of(kTorchrun).run_id, place_of(with(kTorchrun, "TORCHELASTIC_RESTART_COUNT", "0")).run_id);
  EXPECT_NE(place_of(kTorchrun).run_id, place_of(with(kTorchrun, "TORCHELASTIC_RUN_ID", "other")).run_id);
}

TEST(EnvironmentsTest, PredecessorOfTorchrun) {
  const Table one_host = {
      {"RANK", "1"}, {"WORLD_SIZE", "2"}, {"LOCAL_RANK", "1"}, {"MASTER_ADDR", "127.0.0.1"}, {"MASTER_PORT", "29500"}};
  EXPECT_EQ(launcher_of(one_host), "torchrun");
  EXPECT_EQ(ranks_of(one_host), "1/2 1/2 @0");
  EXPECT_FALSE(place_of(one_host).external_store);
  const Table two_hosts = together({one_host, {{"RANK", "3"}, {"WORLD_SIZE", "4"}, {"MASTER_ADDR", "alpha"}}});
  EXPECT_ERROR_HAS(two_hosts, "LOCAL_WORLD_SIZE is not set");
  EXPECT_EQ(ranks_of(with(two_hosts, "LOCAL_WORLD_SIZE", "2")), "3/4 1/2 @1");
}

TEST(EnvironmentsTest, Horovod) {
  EXPECT_EQ(launcher_of(kHorovod), "Horovod");
  EXPECT_EQ(ranks_of(kHorovod), "3/4 1/2 @1");
  const ClusterPlace place = place_of(kHorovod);
  EXPECT_EQ(place.main_address, "10.0.0.7");
  EXPECT_NE(place.main_port, 41234) << "Horovod's own rendezvous listens there";
  EXPECT_EQ(place.main_port, place_of(with(kHorovod, "HOROVOD_RANK", "2")).main_port);
  EXPECT_NE(place.main_port, place_of(with(kHorovod, "HOROVOD_GLOO_RENDEZVOUS_PORT", "41235")).main_port);
  EXPECT_EQ(place_of(with(kHorovod, "HOROVOD_LOCAL_SIZE", "4")).main_address, "127.0.0.1");
  EXPECT_EQ(address_of(together({kHorovod, {{"MASTER_ADDR", "alpha"}, {"MASTER_PORT", "1"}}})), "alpha:1");
  EXPECT_ERROR_HAS(without(kHorovod, "HOROVOD_GLOO_RENDEZVOUS_ADDR"), "MASTER_ADDR");
  EXPECT_ERROR_HAS(without(kHorovod, "HOROVOD_GLOO_RENDEZVOUS_PORT"), "MASTER_PORT");
}

TEST(EnvironmentsTest, Lsf) {
  EXPECT_EQ(launcher_of(kLsf), "LSF");
  EXPECT_EQ(ranks_of(kLsf), "3/4 1/2 @1");
  EXPECT_EQ(place_of(kLsf).main_address, "alpha") << "not the host that launches";
  EXPECT_EQ(place_of(with(kLsf, "LSB_MCPU_HOSTS", "alpha 42 beta 42")).main_address, "alpha");
  EXPECT_EQ(place_of(with(kLsf, "JSM_NAMESPACE_LOCAL_SIZE", "4")).main_address, "127.0.0.1");
  EXPECT_NE(place_of(kLsf).main_port, place_of(with(kLsf, "LSB_JOBID", "78")).main_port);
  EXPECT_EQ(address_of(together({kLsf, {{"MASTER_ADDR", "gamma"}, {"MASTER_PORT", "1"}}})), "gamma:1");
  EXPECT_ERROR_HAS(with(kLsf, "LSB_MCPU_HOSTS", "alpha beta gamma"), "LSB_MCPU_HOSTS is wrong; got 'alpha beta gamma'");
  EXPECT_ERROR_HAS(without(kLsf, "LSB_MCPU_HOSTS"), "LSB_MCPU_HOSTS is not set");
}

TEST(EnvironmentsTest, OpenMpi) {
  EXPECT_EQ(launcher_of(kOpenMpi), "Open MPI");
  EXPECT_EQ(ranks_of(kOpenMpi), "1/2 1/2 @0") << "the rank of the node is not OMPI_COMM_WORLD_NODE_RANK";
  EXPECT_EQ(place_of(kOpenMpi).main_address, "127.0.0.1");
  EXPECT_EQ(address_of(kOpenMpi), address_of(with(kOpenMpi, "OMPI_COMM_WORLD_RANK", "0")));
  EXPECT_EQ(address_of(kOpenMpi), address_of(without(kOpenMpi, "OMPI_MCA_ess_base_jobid")));
  EXPECT_NE(address_of(kOpenMpi), address_of(with(kOpenMpi, "OMPI_MCA_ess_base_jobid", "1119551490")));
  EXPECT_EQ(address_of(together({kOpenMpi, {{"MASTER_ADDR", "alpha"}, {"MASTER_PORT", "1"}}})), "alpha:1");
  const Table without_job = without(without(kOpenMpi, "OMPI_MCA_ess_base_jobid"), "PMIX_NAMESPACE");
  EXPECT_ERROR_HAS(without_job, "-x MASTER_PORT=PORT");
  EXPECT_EQ(address_of(with(without_job, "MASTER_PORT", "7")), "127.0.0.1:7");
}

TEST(EnvironmentsTest, OpenMpiOnSeveralHostsNeedsAnAddress) {
  const Table several = with(with(kOpenMpi, "OMPI_COMM_WORLD_SIZE", "4"), "OMPI_COMM_WORLD_RANK", "3");
  EXPECT_ERROR_HAS(several, "[environment] Open MPI: the variable MASTER_ADDR is not set");
  EXPECT_ERROR_HAS(several, "2 of 4 ranks run on this host");
  EXPECT_ERROR_HAS(several, "-x MASTER_ADDR=HOST");
  EXPECT_EQ(ranks_of(with(several, "MASTER_ADDR", "alpha")), "3/4 1/2 @1");
  EXPECT_EQ(place_of(with(several, "MASTER_ADDR", "alpha")).main_address, "alpha");
}

TEST(EnvironmentsTest, PlainVariables) {
  EXPECT_EQ(launcher_of(kPlain), "plain variables");
  EXPECT_EQ(ranks_of(kPlain), "1/2 0/1 @1");
  EXPECT_EQ(address_of(kPlain), "job-master-0:23456");
}

TEST(EnvironmentsTest, ReadsTheHostsNumberAsLightningDoes) {
  EXPECT_EQ(ranks_of(with(kPlain, "NODE_RANK", "7")), "1/2 0/1 @7");
  EXPECT_EQ(ranks_of(with(without(kTorchrun, "GROUP_RANK"), "NODE_RANK", "7")),
            ranks_of(with(kTorchrun, "GROUP_RANK", "7")));
  EXPECT_EQ(ranks_of(with(kTorchrun, "NODE_RANK", "7")), ranks_of(kTorchrun));
}

TEST(EnvironmentsTest, OfThisProcess) {
  for (const auto& [name, value] : kLevin) setenv(name.c_str(), value.c_str(), 1);
  const auto environment = detect_environment();
  for (const auto& [name, value] : kLevin) unsetenv(name.c_str());
  ASSERT_NE(environment, nullptr);
  EXPECT_EQ(environment->rank(), 3);
  EXPECT_FALSE(ProcessVariables().has("LEVIN_RANK"));
}

// --- SLURM ---

TEST(SlurmEnvironmentTest, RanksAndAddressAreThoseOfTheStep) {
  EXPECT_EQ(launcher_of(kSlurm), "SLURM");
  EXPECT_EQ(ranks_of(kSlurm), "2/3 0/1 @1");
  EXPECT_EQ(place_of(kSlurm).main_address, "gpu07");
  EXPECT_EQ(place_of(kSlurm).run_id, "1234.5.0");
  EXPECT_EQ(place_of(with(kSlurm, "SLURM_RESTART_COUNT", "1")).run_id, "1234.5.1");
  EXPECT_EQ(address_of(together({kSlurm, {{"MASTER_ADDR", "alpha"}, {"MASTER_PORT", "1"}}})), "alpha:1");
}

TEST(SlurmEnvironmentTest, OlderSlurmSaysItOfTheJobOnly) {
  Table job = kSlurm;
  for (const char* name : {"SLURM_STEP_NUM_TASKS", "SLURM_STEP_TASKS_PER_NODE", "SLURM_STEP_NODELIST"}) job.erase(name);
  EXPECT_EQ(ranks_of(job), "2/3 0/1 @1");
  EXPECT_EQ(place_of(job).main_address, "front");
}

TEST(SlurmEnvironmentTest, OneNodeMeetsOnTheLoopback) {
  const Table one_node = together({kSlurm,
                                   {{"SLURM_PROCID", "1"},
                                    {"SLURM_LOCALID", "1"},
                                    {"SLURM_NODEID", "0"},
                                    {"SLURM_STEP_NUM_TASKS", "2"},
                                    {"SLURM_STEP_TASKS_PER_NODE", "2"},
                                    {"SLURM_STEP_NODELIST", "gpu07"}}});
  EXPECT_EQ(ranks_of(one_node), "1/2 1/2 @0");
  EXPECT_EQ(place_of(one_node).main_address, "127.0.0.1");
}

TEST(SlurmEnvironmentTest, PortFollowsFromJobAndStep) {
  std::set<int64_t> ports;
  for (const char* job : {"1234", "1235", "1236", "4294967295"})
    for (const char* step : {"0", "1", "2"}) {
      const Table table = with(with(kSlurm, "SLURM_JOB_ID", job), "SLURM_STEP_ID", step);
      const int64_t port = place_of(table).main_port;
      EXPECT_EQ(port, place_of(with(table, "SLURM_PROCID", "0")).main_port);
      EXPECT_GE(port, 16000);
      EXPECT_LT(port, 32000);
      ports.insert(port);
    }
  EXPECT_EQ(ports.size(), 12u);
}

TEST(SlurmEnvironmentTest, ShellsAndBatchScriptsAreNotStartedBySrun) {
  EXPECT_EQ(launcher_of(without(kSlurm, "SLURM_STEP_ID")), "none") << "a batch script";
  EXPECT_EQ(launcher_of(without(without(kSlurm, "SLURM_STEP_ID"), "SLURM_PROCID")), "none") << "the shell of salloc";
  EXPECT_EQ(launcher_of(with(kSlurm, "SLURM_STEP_ID", "4294967290")), "none") << "the interactive step of salloc";
  EXPECT_EQ(launcher_of(with(kSlurm, "SLURM_STEP_ID", "4294967291")), "none") << "the batch step";

  const Table one_task = with(kSlurm, "SLURM_STEP_NUM_TASKS", "1");
  EXPECT_EQ(launcher_of(with(one_task, "SLURM_JOB_NAME", "bash")), "none") << "srun --pty bash";
  EXPECT_EQ(launcher_of(with(one_task, "SLURM_JOB_NAME", "interactive")), "none");
  EXPECT_EQ(launcher_of(with(one_task, "SLURM_PTY_PORT", "40000")), "none") << "srun --pty fish";
}

TEST(SlurmEnvironmentTest, TasksWhoseJobHasTheNameOfAShellAreStartedBySrun) {
  EXPECT_EQ(launcher_of(with(kSlurm, "SLURM_JOB_NAME", "interactive")), "SLURM") << "srun in the shell of salloc";
  EXPECT_EQ(launcher_of(with(kSlurm, "SLURM_JOB_NAME", "bash")), "SLURM") << "srun bash -c program";
}

TEST(SlurmEnvironmentTest, WrongVariables) {
  EXPECT_ERROR_HAS(with(kSlurm, "SLURM_PROCID", "3"),
                   "SLURM_PROCID is 3, but SLURM_STEP_NUM_TASKS is 3; valid: 0 to 2");
  EXPECT_ERROR_HAS(with(kSlurm, "SLURM_NODEID", "2"), "SLURM_NODEID is 2");
  EXPECT_ERROR_HAS(with(kSlurm, "SLURM_LOCALID", "1"), "SLURM_LOCALID is 1, but SLURM_STEP_TASKS_PER_NODE is 1");
  EXPECT_ERROR_HAS(with(kSlurm, "SLURM_STEP_TASKS_PER_NODE", "2(y3)"), "got '2(y3)'");
  EXPECT_ERROR_HAS(with(kSlurm, "SLURM_STEP_NODELIST", "gpu[07"), "got 'gpu[07'");
  EXPECT_ERROR_HAS(without(kSlurm, "SLURM_JOB_ID"), "SLURM_JOB_ID is not set");
}

struct NodeListCase {
  const char* list;
  std::vector<std::string> nodes;
};

TEST(SlurmEnvironmentTest, NodeLists) {
  const NodeListCase cases[] = {
      {"alpha", {"alpha"}},
      {"alpha,beta", {"alpha", "beta"}},
      {"node[1-3]", {"node1", "node2", "node3"}},
      {"node[01-03,7]", {"node01", "node02", "node03", "node7"}},
      {"node[08-11]", {"node08", "node09", "node10", "node11"}},
      {"node[098-101]", {"node098", "node099", "node100", "node101"}},
      {"node[9-10]", {"node9", "node10"}},
      {"node[5]", {"node5"}},
      {"node[01-02],gpu-[1-2]x", {"node01", "node02", "gpu-1x", "gpu-2x"}},
      {"login,node[3,1]", {"login", "node3", "node1"}},
      {"r[1-2]n[01-02]", {"r1n01", "r1n02", "r2n01", "r2n02"}},
      {"[1-2]", {"1", "2"}},
      {"a-1.example.org", {"a-1.example.org"}},
  };
  for (const NodeListCase& each : cases) EXPECT_EQ(expand_node_list(each.list), each.nodes) << each.list;
}

TEST(SlurmEnvironmentTest, BadNodeLists) {
  for (const char* list : {"", ",", "a,,b", "a,", "node[1-2", "node1]", "node]1[", "node[[1]]", "node[]", "node[1,]",
                           "node[3-1]", "node[a-b]", "node[-1]", "node[1-2-3]", "node[1-99999999999999999999]",
                           "node[0-4000000]", "a[0-9999]b[0-9999]"})
    EXPECT_THROW(expand_node_list(list), Error) << list;
}

TEST(SlurmEnvironmentTest, TasksPerNode) {
  EXPECT_EQ(expand_tasks_per_node("2"), (std::vector<int64_t>{2}));
  EXPECT_EQ(expand_tasks_per_node("2(x3),1"), (std::vector<int64_t>{2, 2, 2, 1}));
  EXPECT_EQ(expand_tasks_per_node("1,4(x2)"), (std::vector<int64_t>{1, 4, 4}));
  for (const char* text : {"", "x", "2,", "2(x)", "2(x0)", "2(x-1)", "2(3)", "2(x3", "-1", "1(x4000000)", "(x2)"})
    EXPECT_THROW(expand_tasks_per_node(text), Error) << text;
}

// --- Which one, when the variables of several are there ---

TEST(EnvironmentOrderTest, TheInnermostLauncherWins) {
  const std::pair<const char*, Table> order[] = {
      {"Levin", kLevin},      {"torchrun", kTorchrun}, {"Horovod", kHorovod},      {"LSF", kLsf},
      {"Open MPI", kOpenMpi}, {"SLURM", kSlurm},       {"plain variables", kPlain}};
  Table all;
  for (size_t i = std::size(order); i-- > 0;) {
    all = together({all, order[i].second});
    EXPECT_EQ(launcher_of(all), order[i].first);
  }
}

TEST(EnvironmentOrderTest, MpirunOfASlurmJob) {
  // mpirun starts its daemons with srun, so its ranks see a step of one task a node.
  EXPECT_EQ(ranks_of(together({kSlurm, kOpenMpi})), "1/2 1/2 @0");
}

TEST(EnvironmentOrderTest, MpirunOfAnLsfJob) {
  EXPECT_EQ(launcher_of(together({{{"LSB_JOBID", "77"}, {"LSB_MCPU_HOSTS", "alpha 2"}}, kOpenMpi})), "Open MPI");
}

TEST(EnvironmentOrderTest, TorchrunOfASlurmJob) { EXPECT_EQ(address_of(together({kSlurm, kTorchrun})), "alpha:29500"); }

// --- Errors ---

TEST(EnvironmentErrorsTest, MissingVariables) {
  const std::pair<Table, std::vector<const char*>> launchers[] = {
      {kLevin,
       {"LEVIN_WORLD_SIZE", "LEVIN_LOCAL_RANK", "LEVIN_LOCAL_WORLD_SIZE", "LEVIN_NODE_RANK", "LEVIN_MAIN_ADDRESS",
        "LEVIN_MAIN_PORT"}},
      {kTorchrun, {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}},
      {kHorovod, {"HOROVOD_SIZE", "HOROVOD_LOCAL_RANK", "HOROVOD_LOCAL_SIZE"}},
      {kLsf, {"JSM_NAMESPACE_SIZE", "JSM_NAMESPACE_LOCAL_RANK", "JSM_NAMESPACE_LOCAL_SIZE"}},
      {kOpenMpi, {"OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"}},
      {kSlurm, {"SLURM_LOCALID", "SLURM_NODEID", "SLURM_JOB_ID"}},
      {kPlain, {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}}};
  for (const auto& [table, names] : launchers)
    for (const char* name : names)
      EXPECT_ERROR_HAS(without(table, name), std::string("the variable ") + name + " is not set");
}

TEST(EnvironmentErrorsTest, MissingMainAddressSaysWhatToDo) {
  EXPECT_EQ(error_of(without(kPlain, "MASTER_ADDR")),
            "[environment] plain variables: the variable MASTER_ADDR is not set; hint: export MASTER_ADDR, a name or "
            "address of the host of rank 0");
}

TEST(EnvironmentErrorsTest, MalformedNumbers) {
  EXPECT_EQ(error_of(with(kPlain, "RANK", "one")),
            "[environment] plain variables: the variable RANK is wrong; got 'one'; valid: a whole number from 0");
  for (const char* value : {"-1", "1x", " 1", "1.5", "99999999999999999999", "0x1"})
    EXPECT_ERROR_HAS(with(kTorchrun, "LOCAL_RANK", value), std::string("LOCAL_RANK is wrong; got '") + value + "'");
  for (const char* value : {"0", "65536", "-5", "port"})
    EXPECT_ERROR_HAS(with(kTorchrun, "MASTER_PORT", value), "MASTER_PORT is wrong");
  for (const char* value : {"0", "-2"}) EXPECT_ERROR_HAS(with(kPlain, "WORLD_SIZE", value), "WORLD_SIZE is wrong");
}

TEST(EnvironmentErrorsTest, RanksThatDoNotFit) {
  EXPECT_ERROR_HAS(with(kPlain, "RANK", "2"), "RANK is 2, but WORLD_SIZE is 2; valid: 0 to 1");
  EXPECT_ERROR_HAS(with(kTorchrun, "LOCAL_RANK", "2"), "LOCAL_RANK is 2, but LOCAL_WORLD_SIZE is 2");
  EXPECT_ERROR_HAS(with(kTorchrun, "LOCAL_WORLD_SIZE", "5"), "LOCAL_WORLD_SIZE is 5, but WORLD_SIZE is only 4");
  EXPECT_ERROR_HAS(with(kLevin, "LEVIN_RANK", "4"), "LEVIN_RANK is 4, but LEVIN_WORLD_SIZE is 4");
  EXPECT_ERROR_HAS(with(kHorovod, "HOROVOD_RANK", "4"), "HOROVOD_RANK is 4");
  EXPECT_ERROR_HAS(with(kLsf, "JSM_NAMESPACE_RANK", "4"), "JSM_NAMESPACE_RANK is 4");
  EXPECT_ERROR_HAS(with(kOpenMpi, "OMPI_COMM_WORLD_RANK", "2"), "OMPI_COMM_WORLD_RANK is 2");
}

// --- Agreement with the trainer's options ---

std::string disagreement(const Table& table, int64_t num_nodes, int64_t devices) {
  try {
    check_agreement(*detect_environment(TableVariables(table)), num_nodes, devices);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "none";
}

TEST(EnvironmentAgreementTest, SaysBothNumbers) {
  const Table two_ranks =
      together({kTorchrun, {{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"LOCAL_WORLD_SIZE", "2"}, {"GROUP_RANK", "0"}}});
  EXPECT_EQ(disagreement(two_ranks, 1, 2), "none");
  EXPECT_EQ(disagreement(kTorchrun, 2, 2), "none");
  EXPECT_EQ(disagreement(two_ranks, 2, 2),
            "[config] trainer.num_nodes x trainer.devices is 2 x 2 = 4 ranks, but torchrun started 2");
  EXPECT_EQ(disagreement(two_ranks, 1, 1),
            "[config] trainer.num_nodes x trainer.devices is 1 x 1 = 1 rank, but torchrun started 2");
  EXPECT_EQ(disagreement(two_ranks, 2, 1), "[config] trainer.devices is 1, but torchrun started 2 ranks on this host");
  EXPECT_EQ(disagreement(kPlain, 1, 2),
            "[config] trainer.devices is 2, but plain variables started 1 rank on this host");
}

}  // namespace
}  // namespace levin
