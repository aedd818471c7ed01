// Submission scripts of scripts/launch/conf, and what is refused.
#include "trireme/launcher/launcher.h"

#include "../base/base_testing.h"
#include "../base/temporary_directory.h"
#include "trireme/base/text.h"

#include <gtest/gtest.h>
#include <signal.h>

#include <cstdlib>

namespace trireme {

namespace {

const std::filesystem::path kConfig =
    std::filesystem::path(TRIREME_SOURCE_DIR) / "scripts" / "launch" / "conf" / "config.yaml";

LauncherSettings settings() {
  setenv("PWD", "/site", 1);
  LauncherSettings result;
  result.programs = "/opt/trireme/build/release/bin";
  result.directory = "/site";
  result.time_tag = "1122_224310";
  return result;
}

/// The script of one stage.
std::string script(const std::vector<std::string>& overrides, const LauncherSettings& with, size_t index = 0,
                   const std::string& dependency = "") {
  const LaunchStage stage = Launcher(kConfig, overrides, with).stage(index, dependency);
  for (const auto& [file, text] : stage.files)
    if (file == stage.submission) return text;
  return "no script";
}

bool has_line(const std::string& text, const std::string& line) {
  const std::vector<std::string> lines = split(text, '\n');
  return std::find(lines.begin(), lines.end(), line) != lines.end();
}

std::string refusal(const std::vector<std::string>& overrides) {
  return message_of<ConfigError>([&] { Launcher(kConfig, overrides, settings()); });
}

}  // namespace

TEST(Launcher, WritesTheScriptOfNemosLauncher) {
  EXPECT_EQ(script({"training=gpt3/126m", "training.trainer.num_nodes=2", "cluster.account=me", "+cluster.gres=gpu:8",
                    "container=nvcr.io/x:y", "container_mounts=[/fsx,/a:/b]", "env_vars.NCCL_PROTO=simple",
                    "+env_vars.LABEL='two words'"},
                   settings()),
            R"(#!/bin/bash

# Parameters
#SBATCH --account=me
#SBATCH --dependency=singleton
#SBATCH --error=/site/results/gpt3_126m/log-nemo-megatron-gpt3_126m_%j.err
#SBATCH --exclusive
#SBATCH --gpus-per-node=8
#SBATCH --gres=gpu:8
#SBATCH --job-name=nemo-megatron-gpt3_126m
#SBATCH --mem=0
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=8
#SBATCH --output=/site/results/gpt3_126m/log-nemo-megatron-gpt3_126m_%j.out
#SBATCH --time=1-00:00:00

# setup
export NCCL_DEBUG=WARN
export NCCL_NVLS_ENABLE=0
export NCCL_PROTO=simple
export LABEL='two words'
export TRIREME_NUMA_MAPPING=mode=unique_contiguous,scope=node,cores=all_logical,balanced=true,min_cores=1,max_cores=8

# command 1
srun --output /site/results/gpt3_126m/log-nemo-megatron-gpt3_126m_%j.out --error /site/results/gpt3_126m/log-nemo-megatron-gpt3_126m_%j.err --container-image nvcr.io/x:y --container-mounts /site:/site,/site/data:/site/data,/site/results:/site/results,/opt/trireme:/opt/trireme,/fsx:/fsx,/a:/b --no-container-mount-home --kill-on-bad-exit=1 bash -c "
  CUDA_VISIBLE_DEVICES=0,1,2,3,4,5,6,7 /opt/trireme/build/release/bin/train_gpt --config /site/results/gpt3_126m/gpt3_126m.yaml "
)");
}

TEST(Launcher, NullsAndFalseAreLeftOut) {
  const std::string text =
      script({"training=gpt3/5b", "cluster.exclusive=False", "cluster.mem=1.5", "cluster.job_name_prefix=my-",
              "cluster.stderr_to_stdout=True", "training.run.dependency=null", "+training.run.nodes=3",
              "+training.run.ntasks_per_node=4", "training.trainer.devices=4", "training.trainer.num_nodes=4",
              "numa_mapping.enable=False", "cluster.srun_args=[--mpi=pmix,--no-container-mount-home]"},
             settings());
  EXPECT_TRUE(has_line(text, "#SBATCH --mem=1536MB")) << text;
  EXPECT_TRUE(has_line(text, "#SBATCH --job-name=my-gpt3_5b"));
  EXPECT_TRUE(has_line(text, "#SBATCH --nodes=3"));
  EXPECT_TRUE(has_line(text, "#SBATCH --ntasks-per-node=4"));
  for (const char* absent :
       {"exclusive", "--error", "dependency", "partition", "TRIREME_NUMA_MAPPING", "container", "None"})
    EXPECT_FALSE(contains(text, absent));
  EXPECT_TRUE(has_line(text, "srun --output /site/results/gpt3_5b/log-my-gpt3_5b_%j.out --mpi=pmix bash -c \""))
      << text;
}

TEST(Launcher, StagesDependOnEachOther) {
  const std::vector<std::string> overrides = {"training=gpt3/126m", "stages=[training,training]"};
  const Launcher launcher(kConfig, overrides, settings());
  ASSERT_EQ(launcher.stages(), 2u);
  const LaunchStage second = launcher.stage(1, "afterany:17");
  EXPECT_EQ(second.files.front().first, "/site/results/gpt3_126m/gpt3_126m_hydra.yaml");
  EXPECT_TRUE(contains(second.files.front().second, "  dependency: afterany:17\n"));
  EXPECT_TRUE(has_line(script(overrides, settings(), 1, "afterany:17"), "#SBATCH --dependency=afterany:17"));
}

TEST(Launcher, TheRestOfAChainHasNothingToDo) {
  const std::vector<std::string> overrides = {"training=gpt3/126m", "stages=[training,training]"};
  const char* line = "if grep -Eqs '\"max_steps\": 600000,?$' /site/results/gpt3_126m/results/finished.json; then";
  EXPECT_FALSE(has_line(script(overrides, settings()), line));
  EXPECT_TRUE(has_line(script(overrides, settings(), 1, "afterany:17"), line)) << script(overrides, settings(), 1);
}

TEST(Launcher, AcceleratorCpu) {
  const std::string text = script({"training=gpt3/126m", "training.trainer.accelerator=cpu"}, settings());
  EXPECT_TRUE(has_line(text, "export TRIREME_DEVICE=cpu")) << text;
  EXPECT_FALSE(contains(text, "CUDA_VISIBLE_DEVICES"));
}

TEST(Launcher, TheHydraFileIsInterpolated) {
  const LaunchStage stage = Launcher(kConfig, {"training=gpt3/126m"}, settings()).stage(0, "");
  const std::string& text = stage.files.front().second;
  EXPECT_FALSE(contains(text, "${"));
  for (const char* line :
       {"  name: gpt3_126m", "  time_limit: 1-00:00:00", "  explicit_log_dir: /site/results/gpt3_126m/results",
        "  ffn_hidden_size: 3072", "    lr: 0.0006", "      min_lr: 6.0e-05", "    seq_length: 2048", "    - 0.95"})
    EXPECT_TRUE(has_line(text, line)) << line << "\n" << text;
  EXPECT_EQ(stage.model_directory, "/site/results/gpt3_126m/model");
  ASSERT_TRUE(stage.imported.model);
  EXPECT_EQ(stage.imported.model->hidden_size, 768);
}

TEST(Launcher, EnvironmentOfTheLauncher) {
  LauncherSettings with = settings();
  with.ci = true;
  const std::string ci = script({"training=gpt3/126m"}, with);
  EXPECT_TRUE(has_line(ci, "#SBATCH --output=/site/results/gpt3_126m/slurm_%j.out")) << ci;
  EXPECT_TRUE(has_line(ci, "#SBATCH --error=/site/results/gpt3_126m/slurm_%j.out"));
  with = settings();
  with.memory_measure = true;
  const std::string memory = script({"training=gpt3/126m"}, with);
  EXPECT_TRUE(contains(memory,
                       "srun --ntasks=1 --ntasks-per-node=1 --output "
                       "/site/results/gpt3_126m/log-nemo-megatron-gpt3_126m_mem_%j.out"));
  EXPECT_EQ(split(memory, '\n').size(), split(script({"training=gpt3/126m"}, settings()), '\n').size() + 4);
  with = settings();
  with.program = "/bin/o'clock $1";
  EXPECT_TRUE(contains(script({"training=gpt3/126m"}, with), "'/bin/o'\\\"'\\\"'clock \\$1' --config"));
}

TEST(Launcher, NsysAndFreshRuns) {
  const std::string text = script(
      {"training=gpt3/126m", "training.model.nsys_profile.enabled=True", "training.exp_manager.resume_if_exists=False"},
      settings());
  EXPECT_TRUE(contains(
      text,
      "nsys profile -s none -t nvtx,cuda -o /site/results/gpt3_126m/results/profile_logs/profile_\\${SLURM_JOB_ID}_"
      "node\\${SLURM_NODEID}_rank\\${SLURM_PROCID} --force-overwrite true --capture-range=cudaProfilerApi "
      "--capture-range-end=stop /opt/trireme"));
  EXPECT_TRUE(has_line(text, "results=/site/results/gpt3_126m/results"));
  EXPECT_FALSE(contains(script({"training=gpt3/126m"}, settings()), "run_")) << "resumed runs keep their files";
  const LaunchStage stage = Launcher(kConfig,
                                     {"training=gpt3/126m", "training.exp_manager.explicit_log_dir=null",
                                      "training.exp_manager.resume_if_exists=False"},
                                     settings())
                                .stage(0, "");
  EXPECT_TRUE(contains(stage.imported.yaml, "dir: \"" + stage.imported.output_dir + "\""));
  EXPECT_TRUE(has_line(stage.files.back().second, "results=" + stage.imported.output_dir)) << stage.imported.output_dir;
}

TEST(Launcher, Interactive) {
  const std::vector<std::string> overrides = {"training=gpt3/126m", "cluster=interactive", "cluster_type=interactive",
                                              "training.trainer.num_nodes=1", "training.trainer.devices=2"};
  const std::string alone = script(overrides, settings());
  EXPECT_TRUE(has_line(alone, "exec mpirun -n 2 bash -c \"")) << alone;
  EXPECT_TRUE(contains(alone, "exec tee -a /site/results/gpt3_126m/log-gpt3_126m_1122_224310.out"));
  LauncherSettings with = settings();
  with.in_allocation = true;
  EXPECT_TRUE(has_line(script(overrides, with),
                       "exec srun --nodes=1 --ntasks-per-node=2 --ntasks=2 --kill-on-bad-exit=1 bash -c \""));
  std::vector<std::string> two = overrides;
  two[3] = "training.trainer.num_nodes=2";
  EXPECT_THROW(script(two, settings()), ConfigError);
}

TEST(Launcher, RefusesWithAllProblems) {
  const std::string text = refusal({"training=gpt3/126m", "stages=[training,evaluation,trainng]", "cluster_type=bcp",
                                    "numa_mapping.mode=unique", "training.model.hidden_size=???"});
  for (const char* part :
       {"stage 'evaluation' is not there", "there is no stage 'trainng', only training. Did you mean 'training'?",
        "cluster_type must be bcm (Slurm) or interactive, not 'bcp'", "mode is one of",
        "training.model.hidden_size: ??? must be set", "has 5 problems"})
    EXPECT_TRUE(contains(text, part));
  EXPECT_TRUE(contains(refusal({"training=gpt3/126n"}), "Did you mean 'gpt3/126m'?"));
  EXPECT_TRUE(contains(refusal({"stages=[]"}), "'stages' is empty"));
  EXPECT_TRUE(contains(refusal({"~training"}), "training"));
  EXPECT_TRUE(
      contains(refusal({"training=gpt3/126m", "training.model.tensor_model_parallel_size=2"}), "parallel.policy"));
  const Launcher noted(kConfig, {"training=gpt3/126m", "+cluster.foo=1", "+wandb_api_key_file=x", "hydra.run.dir=."},
                       settings());
  EXPECT_EQ(noted.notes().size(), 3u);
}

TEST(Launcher, NotesATimeLimitThatKills) {
  const auto notes = [](const std::vector<std::string>& overrides) {
    std::vector<std::string> all = {"training=gpt3/126m"};
    all.insert(all.end(), overrides.begin(), overrides.end());
    return join(Launcher(kConfig, all, settings()).notes(), "\n");
  };
  EXPECT_EQ(notes({}), "");
  const std::string above = notes({"training.run.time_limit='23:00:00'"});
  EXPECT_TRUE(contains(above, "time_limit 23:00:00 is not above training.trainer.max_time 00:23:30:00"));
  for (const char* limit : {"1410", "'1410:00'", "'23:30:00'", "0-23", "'0-23:30'"})
    EXPECT_TRUE(contains(notes({std::string("training.run.time_limit=") + limit}), "is not above")) << limit;
  for (const char* limit : {"1411", "'1410:01'", "'23:30:01'", "1-0", "'0-23:31'", "0", "UNLIMITED", "null"})
    EXPECT_EQ(notes({std::string("training.run.time_limit=") + limit}), "") << limit;
  const std::string without = notes({"training.trainer.max_time=null"});
  EXPECT_TRUE(contains(without, "1-00:00:00 without training.trainer.max_time: Slurm stops"));
  EXPECT_FALSE(contains(notes({"training.trainer.max_time=null", "+cluster.signal=TERM@300"}), "KillWait"));
  EXPECT_EQ(notes({"training.trainer.max_time=null", "cluster=interactive", "cluster_type=interactive"}), "");
}

TEST(Launcher, QuotesForTheShell) {
  EXPECT_EQ(shell_quote("a/b-c_1.2:3@x%y+z=,"), "a/b-c_1.2:3@x%y+z=,");
  EXPECT_EQ(shell_quote(""), "''");
  EXPECT_EQ(shell_quote("it's $x"), "'it'\"'\"'s $x'");
}

TEST(Launcher, RunsCommands) {
  const CommandResult said = run_command({"sh", "-c", "echo Submitted batch job 7; exit 3"});
  EXPECT_EQ(said.output, "Submitted batch job 7\n");
  EXPECT_EQ(said.code, 3);
  EXPECT_THROW(run_command({"no-such-program-of-trireme"}), WriteError);
  EXPECT_EQ(run_group({"sh", "-c", "kill -9 $$"}).code, 137);
  EXPECT_EQ(run_group({"no-such-program-of-trireme"}).code, 127);
  // What outlives the command is waited for.
  const TemporaryDirectory folder;
  const std::filesystem::path late = folder.path("late");
  EXPECT_EQ(run_group({"sh", "-c", "(sleep 0.3; touch \"$0\") & kill -9 $$", late.string()}).code, 137);
  EXPECT_TRUE(std::filesystem::exists(late));
  // A signal to this process: the command and what it started get SIGUSR1, again where they miss it. The last test: no
  // further command starts.
  const char* script =
      "trap '' USR1; kill -TERM $PPID; sleep 0.3; trap 'wait; exit 75' USR1; (trap 'exit 0' USR1; sleep 60 & wait) & "
      "wait";
  EXPECT_EQ(run_group({"sh", "-c", script}).code, 75);
  const GroupResult stopped = run_group({"sleep", "60"});
  EXPECT_TRUE(stopped.stopped);
  EXPECT_EQ(stopped.code, 128 + SIGTERM);
}

}  // namespace trireme
