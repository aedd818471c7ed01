// safetensors: the header, and that every accepted tensor lies inside the file.
#include "fuzz_target.h"
#include "trireme/formats/huggingface/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace trireme;
  const fuzz::MemoryFile memory(fuzz::as_text(data, size));
  fuzz::expect_only({ExitCode::kModel}, [&] {
    const SafetensorsFile file(memory.path());
    size_t bytes = 0;
    unsigned touched = 0;
    for (const auto& [name, entry] : file.entries()) {
      const auto content = file.bytes(entry);
      bytes += content.size();
      for (const std::byte value : content) touched += std::to_integer<unsigned>(value);
    }
    fuzz::require(bytes + 8 <= size, "tensors take no more than the file");
    fuzz::require(touched <= 255 * bytes, "every byte can be read");
  });
  return 0;
}
