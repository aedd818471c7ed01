// A tokenizer for tests and the benchmark in other languages. usage: tokenizer_probe MODEL [REPEATS]
//
// stdin: texts, each a 32-bit length and its bytes. stdout: for each the number of its ids, the ids, and the length and
// bytes of their text with and without special tokens; all 32 bits, little-endian. REPEATS: only encodes all texts, on
// one thread, so many times; writes the seconds of each repeat as a line.
#include "data/tokenizer/tokenizer.h"
#include "trireme/base/error.h"
#include "trireme/base/time.h"

#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <iterator>

using namespace trireme;

namespace {

void put(const void* data, size_t size) { std::fwrite(data, 1, size, stdout); }
void put_count(size_t count) {
  const auto value = static_cast<uint32_t>(count);
  put(&value, sizeof(value));
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const Tokenizer tokenizer{std::filesystem::path(argv[1])};
    const std::string input{std::istreambuf_iterator<char>(std::cin), {}};
    std::vector<std::string_view> texts;
    for (size_t at = 0; at + 4 <= input.size();) {
      uint32_t size = 0;
      input.copy(reinterpret_cast<char*>(&size), 4, at);
      texts.push_back(std::string_view(input).substr(at + 4, size));
      at += 4 + size;
    }
    if (argc > 2) {
      for (int repeat = 0; repeat < std::atoi(argv[2]); ++repeat) {
        const double start = steady_seconds();
        const auto ids = tokenizer.encode_all(texts, 1);
        std::printf("%.6f %zu\n", steady_seconds() - start, ids.size());
      }
      return 0;
    }
    for (const std::string_view text : texts) {
      const auto ids = tokenizer.encode(text);
      put_count(ids.size());
      put(ids.data(), ids.size() * sizeof(int32_t));
      for (const bool specials : {true, false}) {
        const std::string back = tokenizer.decode(ids, specials);
        put_count(back.size());
        put(back.data(), back.size());
      }
    }
    return 0;
  } catch (const Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return static_cast<int>(error.code());
  }
}
