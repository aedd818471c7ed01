#include "trireme/base/error.h"
#include "trireme/launcher/launcher.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>

extern char** environ;

namespace trireme {

namespace {

std::atomic<pid_t> g_group = 0;  // of the child; 0: none runs
std::atomic<bool> g_stop = false;
void stop_group(int /*signal*/) {
  g_stop = true;
  if (const pid_t group = g_group; group != 0) (void)kill(-group, SIGUSR1);
}

/// Signals that would end this process become SIGUSR1 of g_group, which mpirun and srun pass on to the ranks; of
/// SIGTERM they kill them.
void pass_signals_on() {
  struct sigaction action{}, before{};
  action.sa_handler = stop_group;
  action.sa_flags = SA_RESTART;
  for (const int signal : {SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGUSR1})
    if (sigaction(signal, nullptr, &before) == 0 && before.sa_handler != SIG_IGN)
      (void)sigaction(signal, &action, nullptr);
}

}  // namespace

CommandResult run_command(const std::vector<std::string>& arguments, bool capture) {
  std::vector<char*> argv;
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  int ends[2] = {-1, -1};
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  if (capture) {
    if (pipe(ends) != 0) throw WriteError(fmt::format("cannot make a pipe: {}", std::strerror(errno)));
    posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
    posix_spawn_file_actions_addclose(&actions, ends[0]);
    posix_spawn_file_actions_addclose(&actions, ends[1]);
  }
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  if (!capture) {
    pass_signals_on();
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP);
    // Reading from the terminal would stop a group in the background.
    posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  }
  pid_t child = 0;
  const int error = posix_spawnp(&child, argv[0], &actions, &attributes, argv.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  posix_spawnattr_destroy(&attributes);
  if (!capture && error == 0) {
    g_group = child;
    if (g_stop) stop_group(0);
  }
  if (capture) close(ends[1]);
  CommandResult result;
  if (capture && error == 0) {
    char buffer[4096];
    ssize_t count = 0;
    while ((count = read(ends[0], buffer, sizeof buffer)) > 0 || (count < 0 && errno == EINTR))
      if (count > 0) result.output.append(buffer, static_cast<size_t>(count));
  }
  if (capture) close(ends[0]);
  if (error != 0) throw WriteError(fmt::format("cannot start {}: {}", arguments.front(), std::strerror(error)));
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  g_group = 0;
  result.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return result;
}

}  // namespace trireme
