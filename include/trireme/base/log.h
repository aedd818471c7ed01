#pragma once
// Log messages on stderr, through spdlog. Rank 0 prints information and warnings; other ranks print warnings only,
// prefixed with their rank.

#include <filesystem>
#include <functional>
#include <string>

namespace trireme {

void set_log_rank(int rank, int world_size);
void log_info(const std::string& message);      // rank 0 only
void log_warn(const std::string& message);      // every rank, prefixed "rank r: " when there are several
void log_run_warn(const std::string& message);  // of the whole run: rank 0 only, and information in files

/// Messages are also written to this file, one line each in NeMo's form: "[NeMo I 2026-11-22 10:20:30] text". kAll: the
/// file also has this rank's information, although stderr has only rank 0's. WriteError when the file cannot be opened;
/// a disk that is full later loses lines and does not end the run.
enum class LogFile { kAll, kWarnings };
void add_log_file(const std::filesystem::path& path, LogFile what);
/// Writes a line of stdout to the files of add_log_file().
void log_to_files(const std::string& message);

/// Runs a main function body: maps Error to its exit code, other exceptions to 70, and prints "train_llama: <message>"
/// as the last line on stderr (of a message of several lines, only the last gets the prefix). `on_error(message)` runs
/// before the exit, to end the other ranks. If stdout could not be written completely, success becomes 73. In a program
/// with this function, descriptors 0 to 2 that were closed are open on /dev/null before main(). Writes the code to the
/// file that TRIREME_EXIT_FILE names.
int run_main(const char* program, const std::function<int()>& body,
             const std::function<void(const std::string&)>& on_error = {});

}  // namespace trireme
