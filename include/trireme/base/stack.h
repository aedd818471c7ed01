#pragma once
// Stacks for the log: of a thread that a fatal signal ends, and of the training thread when the ranks hang.

#include <string>

namespace trireme {

/// From now on SIGSEGV, SIGBUS, SIGILL, SIGFPE and SIGABRT write one sentence and the stack of their thread to stderr
/// and then end the process as they would have. A signal that somebody else handles already (a sanitizer) is left
/// alone. Call it before MPI_Init, whose own handlers then stay away, and before threads start. The calling thread is
/// the one that training_stack() looks at.
void install_stack_handlers();

/// Who speaks in the sentence: "rank 3 on node7"; at most 100 bytes count.
void set_stack_speaker(const std::string& speaker);

/// The stack of the thread that called install_stack_handlers(), a frame a line, innermost first: "  #2
/// trireme::Trainer::run() + 0x1f2 (train_llama)". Empty when it does not answer in time (stopped, or inside the kernel
/// without a way out). From any other thread.
std::string training_stack(double seconds);

}  // namespace trireme
