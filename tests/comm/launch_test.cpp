// Launcher detection from the environment: the variables of each launcher, and fault F35 (missing or contradictory
// variables).
#include "trireme/comm/launch.h"

#include "../base/base_testing.h"
#include "store_world.h"
#include "trireme/comm/communicator.h"

#include <gtest/gtest.h>

#include <map>
#include <tuple>

namespace trireme {
namespace {

using Environment = std::map<std::string, std::string>;
using Kind = Launch::Kind;

Launch detect(const Environment& environment) {
  return detect_launch([&](const char* name) -> const char* {
    const auto found = environment.find(name);
    return found == environment.end() ? nullptr : found->second.c_str();
  });
}

Environment with(Environment base, const Environment& more) {
  for (const auto& [name, value] : more) base[name] = value;
  return base;
}

Environment without(Environment base, const std::string& name) {
  base.erase(name);
  return base;
}

/// The ConfigError's text, which must name every one of `words`.
void expect_refused(const Environment& environment, const std::vector<std::string>& words) {
  const std::string text = message_of<ConfigError>([&] { return detect(environment); });
  for (const std::string& word : words) EXPECT_TRUE(contains(text, word));
}

const Environment kExplicit = {{"RANK", "3"},         {"WORLD_SIZE", "4"},
                               {"LOCAL_RANK", "1"},   {"LOCAL_WORLD_SIZE", "2"},
                               {"MASTER_ADDR", "n0"}, {"MASTER_PORT", "29500"}};
const Environment kMpirun = {{"PMIX_RANK", "1"},
                             {"OMPI_COMM_WORLD_RANK", "1"},
                             {"OMPI_COMM_WORLD_SIZE", "4"},
                             {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                             {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}};
const Environment kJob = {{"SLURM_JOB_ID", "812"}, {"SLURM_NTASKS", "8"}, {"SLURM_JOB_NODELIST", "node[003-005,9]"}};
const Environment kStep = with(kJob, {{"SLURM_PROCID", "5"},
                                      {"SLURM_LOCALID", "1"},
                                      {"SLURM_NODEID", "2"},
                                      {"SLURM_STEP_ID", "3"},
                                      {"SLURM_STEP_NUM_TASKS", "8"},
                                      {"SLURM_STEP_TASKS_PER_NODE", "3,2(x2),1"},
                                      {"SLURM_STEP_NODELIST", "node[004-005,9]"}});
const Environment kPmixStep = with(kStep, {{"PMIX_RANK", "5"}, {"PMIX_NAMESPACE", "slurm.pmix.812.3"}});

/// Kind, rank, size, local rank and local size.
using Place = std::tuple<Kind, int, int, int, int>;
Place place(const Launch& launch) {
  return {launch.kind, launch.rank, launch.world_size, launch.local_rank, launch.local_world_size};
}

TEST(DetectLaunch, NothingMeansAlone) { EXPECT_EQ(place(detect({})), (Place{Kind::kAlone, 0, 1, 0, 1})); }

TEST(DetectLaunch, EmptyVariablesAreAbsent) {
  EXPECT_EQ(detect({{"RANK", ""}, {"WORLD_SIZE", ""}, {"SLURM_STEP_ID", ""}}).kind, Kind::kAlone);
}

TEST(DetectLaunch, ExplicitVariables) {
  const Launch launch = detect(kExplicit);
  EXPECT_EQ(place(launch), (Place{Kind::kEnvironment, 3, 4, 1, 2}));
  EXPECT_EQ(launch.master_address, "n0");
  EXPECT_EQ(launch.master_port, 29500);
}

/// What each launcher tells, and what the hosts of the ranks add to it.
TEST(CompleteLaunch, EveryLauncher) {
  const std::vector<std::string> pairs = {"a 1", "a 1", "b 2", "b 2"};      // two ranks a host
  const std::vector<std::string> single = {"a 1", "b 2", "c 3", "d 4"};     // one rank a host
  const std::vector<std::string> namesakes = {"a 1", "a 2", "a 3", "a 4"};  // hosts of one name
  const Environment bare = without(without(kExplicit, "LOCAL_RANK"), "LOCAL_WORLD_SIZE");
  const Environment pod = with(bare, {{"PET_NNODES", "4"}, {"PET_NODE_RANK", "3"}, {"PET_MASTER_ADDR", "n0"}});
  const Environment local_only = without(kExplicit, "LOCAL_WORLD_SIZE");
  const struct {
    const char* name;
    Environment environment;
    std::vector<std::string> hosts;
    int local_rank, local_size;
  } cases[] = {
      {"torchrun", kExplicit, pairs, 1, 2},
      {"torchrun in a PyTorchJob", with(kExplicit, {{"PET_NPROC_PER_NODE", "2"}}), pairs, 1, 2},
      {"PyTorchJob, a process in each pod", with(pod, {{"PET_NPROC_PER_NODE", "1"}}), single, 0, 1},
      {"PyTorchJob, auto", with(pod, {{"PET_NPROC_PER_NODE", "auto"}}), single, 0, 1},
      {"RANK and WORLD_SIZE, two ranks a host", bare, pairs, 1, 2},
      {"RANK and WORLD_SIZE, hosts of one name", bare, namesakes, 0, 1},
      {"RANK to LOCAL_RANK, 1 GPU a host", with(local_only, {{"LOCAL_RANK", "0"}}), single, 0, 1},
      {"RANK to LOCAL_RANK, two ranks a host", local_only, pairs, 1, 2},
      {"a container of its own for each rank", local_only, single, 1, 2},
  };
  for (const auto& each : cases) {
    Launch launch = detect(each.environment);
    complete_launch(launch, each.hosts);
    EXPECT_EQ(launch.local_rank, each.local_rank) << each.name;
    EXPECT_EQ(launch.local_world_size, each.local_size) << each.name;
  }
}

TEST(DetectLaunch, OneExplicitRankNeedsNoMaster) {
  EXPECT_EQ(detect({{"RANK", "0"}, {"WORLD_SIZE", "1"}}).world_size, 1);
}

TEST(DetectLaunch, ExplicitVariablesWinOverSlurmAndMpi) {
  // torchrun inside a Slurm step of one task per node: the world is larger than the step.
  const Launch launch = detect(with(with(kExplicit, {{"RANK", "9"}, {"WORLD_SIZE", "16"}}), kStep));
  EXPECT_EQ(launch.kind, Kind::kEnvironment);
  EXPECT_EQ(launch.rank, 9);
  // An MLPerf wrapper copies Slurm's numbers.
  EXPECT_EQ(detect(with(with(kExplicit, {{"RANK", "5"}, {"WORLD_SIZE", "8"}}), kPmixStep)).kind, Kind::kEnvironment);
}

TEST(DetectLaunch, MpirunIsFoundByItsOwnVariables) {
  const Launch launch = detect(kMpirun);
  EXPECT_EQ(place(launch), (Place{Kind::kMpi, 1, 4, 1, 2}));
  EXPECT_TRUE(launch.master_address.empty());
}

TEST(DetectLaunch, MpirunInsideASlurmStepIsMpi) {
  const Launch launch = detect(with(kStep, kMpirun));
  EXPECT_EQ(launch.kind, Kind::kMpi);
  EXPECT_EQ(launch.rank, 1);
  EXPECT_EQ(launch.world_size, 4);
}

TEST(DetectLaunch, SrunWithPmixIsMpi) { EXPECT_EQ(place(detect(kPmixStep)), (Place{Kind::kMpi, 5, 8, 1, 2})); }

TEST(DetectLaunch, SrunWithoutPmixIsSlurm) {
  const Launch launch = detect(kStep);
  EXPECT_EQ(place(launch), (Place{Kind::kSlurm, 5, 8, 1, 2}));
  EXPECT_EQ(launch.master_address, "node004");
  EXPECT_GE(launch.master_port, 20000);
  EXPECT_LT(launch.master_port, 32768);
  EXPECT_TRUE(contains(launch.description(), "SLURM_PROCID 5 of 8"));
}

TEST(DetectLaunch, LocalSizeIsThisNodesEntry) {
  const std::vector<int> sizes = {3, 2, 2, 1};
  for (int node = 0; node < 4; ++node)
    EXPECT_EQ(detect(with(kStep, {{"SLURM_NODEID", std::to_string(node)}, {"SLURM_LOCALID", "0"}})).local_world_size,
              sizes[node]);
}

TEST(DetectLaunch, MasterVariablesOverrideSlurms) {
  const Launch launch = detect(with(kStep, {{"MASTER_ADDR", "10.0.0.7"}, {"MASTER_PORT", "1234"}}));
  EXPECT_EQ(launch.kind, Kind::kSlurm);
  EXPECT_EQ(launch.master_address, "10.0.0.7");
  EXPECT_EQ(launch.master_port, 1234);
}

TEST(DetectLaunch, StepsAndJobsMeetOnDifferentPorts) {
  const int port = detect(kStep).master_port;
  EXPECT_NE(port, detect(with(kStep, {{"SLURM_STEP_ID", "4"}})).master_port);
  EXPECT_NE(port, detect(with(kStep, {{"SLURM_JOB_ID", "813"}})).master_port);
  for (const char* job : {"67043328", "4294967295"}) {  // the second: of a federation
    const int largest = detect(with(kStep, {{"SLURM_JOB_ID", job}})).master_port;
    EXPECT_GE(largest, 20000);
    EXPECT_LT(largest, 32768);
  }
}

TEST(DetectLaunch, ABatchScriptsOwnShellIsAlone) {
  EXPECT_EQ(detect(kJob).kind, Kind::kAlone);
  EXPECT_EQ(detect(with(kJob, {{"SLURM_PROCID", "0"}, {"SLURM_LOCALID", "0"}})).kind, Kind::kAlone);
}

TEST(DetectLaunch, AStepOfOneTaskIsAlone) {
  const Launch launch = detect(with(kJob, {{"SLURM_PROCID", "0"},
                                           {"SLURM_LOCALID", "0"},
                                           {"SLURM_STEP_ID", "4294967290"},  // salloc's interactive step
                                           {"SLURM_STEP_NUM_TASKS", "1"},
                                           {"SLURM_STEP_TASKS_PER_NODE", "1"}}));
  EXPECT_EQ(launch.kind, Kind::kAlone);
  EXPECT_EQ(launch.world_size, 1);
  EXPECT_EQ(launch.local_rank, 0);
}

struct Refused {
  const char* name;
  Environment environment;
  std::vector<std::string> words;
};

class Contradictions : public testing::TestWithParam<Refused> {};

TEST_P(Contradictions, AreRefusedByName) { expect_refused(GetParam().environment, GetParam().words); }

INSTANTIATE_TEST_SUITE_P(
    F35, Contradictions,
    testing::Values(
        Refused{"RankWithoutSize", {{"RANK", "0"}}, {"WORLD_SIZE", "missing", "RANK"}},
        Refused{"SizeWithoutRank", {{"WORLD_SIZE", "2"}}, {"RANK", "missing", "WORLD_SIZE"}},
        Refused{"RankBeyondSize", with(kExplicit, {{"RANK", "4"}}), {"RANK=4", "WORLD_SIZE=4"}},
        Refused{"ZeroRanks", {{"RANK", "0"}, {"WORLD_SIZE", "0"}}, {"WORLD_SIZE=0"}},
        Refused{"NegativeRank", with(kExplicit, {{"RANK", "-1"}}), {"RANK='-1'"}},
        Refused{"NotANumber", with(kExplicit, {{"WORLD_SIZE", "4x"}}), {"WORLD_SIZE='4x'"}},
        Refused{"BeyondInt", with(kExplicit, {{"WORLD_SIZE", "99999999999"}}), {"WORLD_SIZE='99999999999'"}},
        Refused{"NoAddress", without(kExplicit, "MASTER_ADDR"), {"MASTER_ADDR", "WORLD_SIZE=4"}},
        Refused{"NoPort", without(kExplicit, "MASTER_PORT"), {"MASTER_PORT", "WORLD_SIZE=4"}},
        Refused{"PortZero", with(kExplicit, {{"MASTER_PORT", "0"}}), {"MASTER_PORT=0"}},
        Refused{"PortTooLarge", with(kExplicit, {{"MASTER_PORT", "65536"}}), {"MASTER_PORT=65536"}},
        Refused{
            "LocalRankBeyondLocalSize", with(kExplicit, {{"LOCAL_RANK", "2"}}), {"LOCAL_RANK=2", "LOCAL_WORLD_SIZE=2"}},
        Refused{"PodOfSeveralProcessesWithoutTorchrun",
                with(without(kExplicit, "LOCAL_RANK"), {{"PET_NPROC_PER_NODE", "2"}}),
                {"PET_NPROC_PER_NODE=2", "RANK=3", "torchrun"}},
        Refused{"LeftoverRankUnderMpirun",
                with(kMpirun, {{"RANK", "0"}, {"WORLD_SIZE", "1"}}),
                {"WORLD_SIZE=1", "OMPI_COMM_WORLD_SIZE=4", "unset"}},
        Refused{"SameRankInEveryMpiCopy",
                with(kMpirun, {{"RANK", "0"}, {"WORLD_SIZE", "4"}, {"MASTER_ADDR", "n0"}, {"MASTER_PORT", "29500"}}),
                {"RANK=0", "OMPI_COMM_WORLD_RANK=1"}},
        Refused{"LeftoverRankUnderSrun",
                with(kStep, {{"RANK", "0"}, {"WORLD_SIZE", "1"}}),
                {"WORLD_SIZE=1", "SLURM_STEP_NUM_TASKS=8"}},
        Refused{"StepWithoutProcId", without(kStep, "SLURM_PROCID"), {"SLURM_PROCID", "missing"}},
        Refused{"StepWithoutSize",
                without(without(kStep, "SLURM_STEP_NUM_TASKS"), "SLURM_NTASKS"),
                {"SLURM_NTASKS", "missing"}},
        Refused{"ProcIdBeyondSize", with(kStep, {{"SLURM_PROCID", "8"}}), {"SLURM_PROCID=8", "SLURM_STEP_NUM_TASKS=8"}},
        Refused{"LocalIdBeyondTasks",
                with(kStep, {{"SLURM_LOCALID", "2"}}),
                {"SLURM_LOCALID=2", "SLURM_STEP_TASKS_PER_NODE=2"}},
        Refused{"NoNodeList",
                without(without(kStep, "SLURM_STEP_NODELIST"), "SLURM_JOB_NODELIST"),
                {"MASTER_ADDR", "SLURM_STEP_NODELIST"}},
        Refused{"BrokenNodeList", with(kStep, {{"SLURM_STEP_NODELIST", "node[003"}}), {"node[003"}},
        Refused{"BrokenTaskList",
                with(kStep, {{"SLURM_STEP_TASKS_PER_NODE", "two"}}),
                {"SLURM_STEP_TASKS_PER_NODE", "two"}},
        Refused{"MpirunOfMpich", {{"PMI_RANK", "0"}, {"PMI_SIZE", "2"}}, {"PMI_SIZE=2", "OpenMPI"}},
        Refused{
            "FluxRun", {{"FLUX_JOB_SIZE", "4"}, {"PMI_RANK", "0"}, {"PMI_SIZE", "4"}}, {"FLUX_JOB_SIZE=4", "set RANK"}},
        Refused{"MpiRankBeyondSize", with(kMpirun, {{"OMPI_COMM_WORLD_RANK", "4"}}), {"4"}}),
    [](const auto& case_info) { return std::string(case_info.param.name); });

TEST(FirstSlurmHost, ReadsSlurmsLists) {
  EXPECT_EQ(first_slurm_host("node7"), "node7");
  EXPECT_EQ(first_slurm_host("node7,node8"), "node7");
  EXPECT_EQ(first_slurm_host("node[003-005,9],login1"), "node003");
  EXPECT_EQ(first_slurm_host("node[9,12-14]"), "node9");
  EXPECT_EQ(first_slurm_host("node[12]"), "node12");
  EXPECT_EQ(first_slurm_host("gpu-a[1-4].cluster,x"), "gpu-a1.cluster");
  EXPECT_EQ(first_slurm_host("rack[1-2]node[3-4]"), "rack1node3");
  EXPECT_EQ(first_slurm_host("login1,node[1-2]"), "login1");
}

TEST(FirstSlurmHost, RefusesBrokenLists) {
  for (const char* list : {"", ",", "node[", "node[1-2"}) EXPECT_THROW(first_slurm_host(list), ConfigError) << list;
}

TEST(World, SeveralCpuRanksNeedMpi) {
  for (const Launch& launch : {detect(kStep), detect(kExplicit)}) {
    const std::string text = message_of<ConfigError>([&] { return World::join(launch, /*use_gpu=*/false, nullptr); });
    EXPECT_TRUE(contains(text, "mpirun -n " + std::to_string(launch.world_size)));
    EXPECT_TRUE(contains(text, "srun --mpi=pmix"));
  }
}

#ifndef TRIREME_WITH_CUDA
TEST(World, GpusNeedABuildWithCuda) { EXPECT_THROW(World::join(Launch{}, /*use_gpu=*/true, nullptr), ConfigError); }
#endif

}  // namespace
}  // namespace trireme
