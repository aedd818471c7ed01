#include "trireme/base/error.h"
#include "trireme/launcher/launcher.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>

extern char** environ;

namespace trireme {

namespace {

std::atomic<pid_t> g_group = 0;    // of the command; 0: none runs
std::atomic<int> g_signal = 0;     // the last that was to end this process
std::atomic<unsigned> g_sent = 0;  // SIGUSR1

/// Signals that would end this process become SIGUSR1 of g_group, which mpirun and srun pass on to the ranks; of
/// SIGTERM they kill them. Sent again, because mpirun drops it as long as it has no ranks.
void stop_group(int signal) {
  if (signal != SIGALRM) g_signal = signal;
  if (g_group == 0) return;
  const int before = errno;
  (void)kill(-g_group, SIGUSR1);
  (void)alarm(++g_sent);
  errno = before;
}

void suspend(int /*signal*/) {
  const int before = errno;
  if (g_group != 0) (void)kill(-g_group, SIGTSTP);
  (void)raise(SIGSTOP);
  if (g_group != 0) (void)kill(-g_group, SIGCONT);
  errno = before;
}

void handle(int signal, void (*handler)(int)) {
  struct sigaction action{}, before{};
  action.sa_handler = handler;
  action.sa_flags = SA_RESTART;
  if (sigaction(signal, nullptr, &before) == 0 && before.sa_handler != SIG_IGN)
    (void)sigaction(signal, &action, nullptr);
}

std::vector<char*> pointers(const std::vector<std::string>& arguments) {
  std::vector<char*> argv;
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  return argv;
}

int code_of(int status) { return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status); }

}  // namespace

CommandResult run_command(const std::vector<std::string>& arguments) {
  const std::vector<char*> argv = pointers(arguments);
  int ends[2] = {-1, -1};
  if (pipe(ends) != 0) throw WriteError(fmt::format("cannot make a pipe: {}", std::strerror(errno)));
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
  posix_spawn_file_actions_addclose(&actions, ends[0]);
  posix_spawn_file_actions_addclose(&actions, ends[1]);
  pid_t child = 0;
  const int error = posix_spawnp(&child, argv[0], &actions, nullptr, argv.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  close(ends[1]);
  CommandResult result;
  if (error == 0) {
    char buffer[4096];
    ssize_t count = 0;
    while ((count = read(ends[0], buffer, sizeof buffer)) > 0 || (count < 0 && errno == EINTR))
      if (count > 0) result.output.append(buffer, static_cast<size_t>(count));
  }
  close(ends[0]);
  if (error != 0) throw WriteError(fmt::format("cannot start {}: {}", arguments.front(), std::strerror(error)));
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  result.code = code_of(status);
  return result;
}

GroupResult run_group(const std::vector<std::string>& arguments) {
  const std::vector<char*> argv = pointers(arguments);
  for (const int signal : {SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGXCPU, SIGALRM})
    handle(signal, stop_group);
  handle(SIGTSTP, suspend);
  (void)prctl(PR_SET_CHILD_SUBREAPER, 1);  // it waits for what outlives the command, too
  const pid_t parent = getpid();
  const pid_t child = fork();
  if (child < 0) throw WriteError(fmt::format("cannot start {}: {}", arguments.front(), std::strerror(errno)));
  if (child == 0) {
    (void)setpgid(0, 0);
    (void)prctl(PR_SET_PDEATHSIG, SIGTERM);
    (void)signal(SIGTTOU, SIG_IGN);  // stty tostop
    // Reading from the terminal would stop a group in the background.
    (void)close(STDIN_FILENO);
    (void)open("/dev/null", O_RDONLY);
    if (getppid() != parent) _exit(127);
    (void)execvp(argv[0], argv.data());
    std::perror(argv[0]);
    _exit(127);
  }
  (void)setpgid(child, child);
  g_group = child;
  if (g_signal != 0) stop_group(g_signal);
  int status = 0;
  (void)waitpid(child, &status, 0);
  while (waitpid(-child, nullptr, 0) > 0) {
  }
  g_group = 0;
  GroupResult result = {.code = code_of(status)};
  if (g_signal != 0 && result.code == 128 + SIGUSR1) result = {.code = 128 + g_signal, .stopped = true};
  return result;
}

}  // namespace trireme
