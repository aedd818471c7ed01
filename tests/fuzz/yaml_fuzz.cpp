// The YAML configuration. An input that starts with "--set " is one override of a small configuration instead. A
// configuration that loads must be equal after printing and loading again.
#include "fuzz_target.h"
#include "trireme/config/config.h"

namespace {

constexpr std::string_view kSet = "--set ";
constexpr const char* kSmall = "model: {path: m}\ndata: {train: t.npy, seq_length: 8}\noutput: {dir: o}\n";

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace trireme;
  const std::string_view text = fuzz::as_text(data, size);
  fuzz::expect_only({ExitCode::kConfig}, [&] {
    std::vector<std::string> overrides;
    if (text.starts_with(kSet)) overrides.emplace_back(text.substr(kSet.size()));
    const fuzz::MemoryFile file(overrides.empty() ? text : std::string_view(kSmall));
    const Config config = load_config(file.path(), overrides);
    const fuzz::MemoryFile printed(print_config(config));
    fuzz::require(load_config(printed.path(), {}) == config,
                  "a printed configuration reads as the one that was printed");
  });
  return 0;
}
