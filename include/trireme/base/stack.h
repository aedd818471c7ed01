#pragma once
// Stack traces for the log: of a thread that receives a fatal signal, and of the training thread when the ranks hang.

#include <string>

namespace trireme {

/// Installs handlers for SIGSEGV, SIGBUS, SIGILL, SIGFPE and SIGABRT. They write one sentence and the stack of their
/// thread to stderr; then the signal's default action ends the process. A signal that already has a handler (a
/// sanitizer's) keeps it. Call this function before MPI_Init, which installs handlers only for signals without one, and
/// before threads start. training_stack() gives the stack of the calling thread.
void install_stack_handlers();

/// The name of this process in that sentence: "rank 3 on node7"; cut to 100 bytes.
void set_stack_speaker(const std::string& speaker);

/// The stack of the thread that called install_stack_handlers(), one frame a line, innermost first: " #2
/// trireme::Trainer::run() + 0x1f2 (train_llama)". Empty when that thread does not run the signal handler in time (the
/// process is stopped, or the thread is in an uninterruptible system call). Call it from another thread.
std::string training_stack(double seconds);

}  // namespace trireme
