// Texts to Megatron's files: the same bytes for any number of threads, and after a stop anywhere.
#include "data/prepare/megatron_pack.h"
#include "prepare_testing.h"
#include "trireme/base/error.h"
#include "trireme/formats/kineto/gzip.h"
#include "trireme/formats/megatron/indexed_file.h"

#include <atomic>
#include <stdexcept>

namespace trireme {
namespace {

namespace fs = std::filesystem;

/// A byte is an id; end of document 256.
DocumentEncoder bytes_encoder(int64_t vocab_size = 257) {
  return {.encode =
              [](std::string_view text) {
                std::vector<int32_t> ids;
                for (const char c : text) ids.push_back(static_cast<unsigned char>(c));
                return ids;
              },
          .vocab_size = vocab_size,
          .eod = 256,
          .fingerprint = 1};
}

class MegatronPack : public Scratch {
 protected:
  MegatronPackOptions options(const std::vector<fs::path>& inputs, const std::string& prefix) const {
    return {.inputs = inputs, .output_prefix = path(prefix), .workers = 2, .part_bytes = 1000};
  }
  std::string both(const std::string& prefix) const {
    return slurp(prefix + "_text_document.bin") + slurp(prefix + "_text_document.idx");
  }
  std::string text_of(const std::string& prefix, int64_t document) const {
    const MegatronFile file(path(prefix + "_text_document"));
    std::vector<int64_t> ids;
    file.read(document, 0, file.length(document), ids);
    std::string text;
    for (const int64_t id : ids) text += id == 256 ? '|' : static_cast<char>(id);
    return text;
  }
  /// Some hundred lines; every batch of 4 MiB is a part of its own.
  fs::path corpus(const std::string& name, int lines = 60) const {
    std::string text;
    for (int i = 0; i < lines; ++i)
      text += fmt::format("{{\"text\": \"{} {}\", \"n\": {}}}\n", i,
                          std::string(static_cast<size_t>(i) * 7919 % 300000, 'a'), i);
    return write(name, text);
  }
};

TEST_F(MegatronPack, DocumentsInOrderWithTheirEnds) {
  const fs::path a = write(
      "a.jsonl", "\xEF\xBB\xBF{\"text\": \"one\"}\n\n{\"text\": \"\"}\n{\"text\": null}\n{\"text\": \"t\\u00fc\"}\r\n");
  const fs::path b = write("b.json", "{\"text\": \"three\"}\n{\"text\": \"\\ud800\"}\n");
  MegatronPackOptions chosen = options({a, b}, "out");
  chosen.append_eod = true;
  const MegatronPackReport report = pack_megatron(bytes_encoder(), chosen);
  EXPECT_EQ(report.documents, 3);
  EXPECT_EQ(report.empty, 2);
  EXPECT_EQ(report.invalid_utf8, 1);
  EXPECT_EQ(report.first_invalid, b.string() + ":2");
  EXPECT_EQ(report.bytes, 3 + 3 + 5);
  EXPECT_EQ(text_of("out", 0), "one|");
  EXPECT_EQ(text_of("out", 1), "t\xC3\xBC|");
  EXPECT_EQ(text_of("out", 2), "three|");
  EXPECT_FALSE(fs::exists(path("out_text_document.parts")));
  EXPECT_EQ(MegatronFile(path("out_text_document")).type(), MegatronType::kU16);
  (void)pack_megatron(bytes_encoder(70000), options({a}, "wide"));
  EXPECT_EQ(MegatronFile(path("wide_text_document")).type(), MegatronType::kI32);
}

TEST_F(MegatronPack, ThreadsAndCompressionChangeNothing) {
  const fs::path plain = corpus("corpus.jsonl");
  gzip_file(plain, path("corpus.json.gz"));
  std::string first;
  for (const unsigned workers : {1u, 2u, 5u}) {
    MegatronPackOptions chosen = options({plain}, "out");
    chosen.workers = workers;
    EXPECT_GT(pack_megatron(bytes_encoder(), chosen).parts, 1);
    if (first.empty()) first = both("out");
    EXPECT_TRUE(both("out") == first) << workers;
  }
  (void)pack_megatron(bytes_encoder(), options({path("corpus.json.gz")}, "packed"));
  EXPECT_TRUE(both("packed") == first);
  (void)pack_megatron(bytes_encoder(), options({write("lines.json", "{\"text\": \"a\"}\n{\"text\": \"b\"}")}, "lines"));
  (void)pack_megatron(bytes_encoder(),
                      options({write("list.json", "[{\"text\": \"a\"},\n{\"text\": \"b\"}]")}, "list"));
  EXPECT_TRUE(both("lines") == both("list"));
  (void)pack_megatron(bytes_encoder(), options({plain, path("corpus.json.gz")}, "twice"));
  EXPECT_EQ(merge_megatron({path("out_text_document"), path("packed_text_document.idx")}, path("merged_text_document")),
            120);
  EXPECT_TRUE(both("merged") == both("twice"));
  EXPECT_THROW(merge_megatron({path("out_text_document")}, path("out_text_document")), ConfigError);
}

TEST_F(MegatronPack, AMergedFileIsOfTheTokenizerOfItsParts) {
  const auto note = [&](const std::string& prefix, const std::string& hash) {
    const std::string name = prefix + "_text_document";
    write(name + ".tokenizer.json", "{\"tokenizer\": \"/t\", \"vocabulary\": 256, \"vocabulary_hash\": \"" + hash +
                                        "\", \"bytes\": " + std::to_string(fs::file_size(path(name + ".bin"))) + "}");
  };
  for (const char* name : {"one", "two"})
    (void)pack_megatron(bytes_encoder(), options({corpus(std::string(name) + ".jsonl")}, name));
  const auto merged = [&] {
    (void)merge_megatron({path("one_text_document"), path("two_text_document")}, path("both"));
    return fs::exists(path("both.tokenizer.json"));
  };
  note("one", "a");
  EXPECT_FALSE(merged()) << "who made the second part is not known";
  note("two", "b");
  EXPECT_THROW(merged(), DataError);
  note("two", "a");
  EXPECT_TRUE(merged());
}

TEST_F(MegatronPack, GoesOnAfterAStop) {
  const fs::path a = corpus("a.jsonl"), b = corpus("b.jsonl", 40);
  (void)pack_megatron(bytes_encoder(), options({a, b}, "whole"));
  for (const int stop : {1, 30, 70, 99}) {
    SCOPED_TRACE(stop);
    std::atomic<int> encoded = 0;
    DocumentEncoder stopping = bytes_encoder();
    stopping.encode = [&](std::string_view text) {
      if (++encoded == stop) throw std::runtime_error("stopped");
      return bytes_encoder().encode(text);
    };
    EXPECT_THROW((void)pack_megatron(stopping, options({a, b}, "out")), std::runtime_error);
    EXPECT_FALSE(fs::exists(path("out_text_document.idx")));
    encoded = 1000;
    const MegatronPackReport report = pack_megatron(stopping, options({a, b}, "out"));
    if (stop == 99) {
      EXPECT_GT(report.kept_parts, 1);
      EXPECT_LT(encoded - 1000, 60) << "finished parts are not made again";
    }
    EXPECT_EQ(report.documents, 100);
    EXPECT_TRUE(both("out") == both("whole"));
    fs::remove(path("out_text_document.bin"));
    fs::remove(path("out_text_document.idx"));
  }
  // Parts of another tokenizer, or of other options, are made again.
  std::atomic<int> encoded = 0;
  DocumentEncoder stopping = bytes_encoder();
  stopping.encode = [&](std::string_view text) {
    if (++encoded == 99) throw std::runtime_error("stopped");
    return bytes_encoder().encode(text);
  };
  EXPECT_THROW((void)pack_megatron(stopping, options({a, b}, "out")), std::runtime_error);
  DocumentEncoder another = bytes_encoder();
  another.fingerprint = 2;
  EXPECT_EQ(pack_megatron(another, options({a, b}, "out")).kept_parts, 0);
  EXPECT_TRUE(both("out") == both("whole"));
  encoded = 0;
  EXPECT_THROW((void)pack_megatron(stopping, options({a, b}, "out")), std::runtime_error);
  MegatronPackOptions other = options({a, b}, "out");
  other.append_eod = true;
  EXPECT_EQ(pack_megatron(bytes_encoder(), other).kept_parts, 0);
  EXPECT_EQ(text_of("out", 0), "0 |");
}

TEST_F(MegatronPack, Refusals) {
  const auto complaint = [&](const fs::path& input) {
    return message_of<DataError>([&] { return pack_megatron(bytes_encoder(), options({input}, "out")); });
  };
  EXPECT_TRUE(
      contains(complaint(write("a.jsonl", "{\"text\": \"x\"}\n{\"body\": \"x\"}\n")), "a.jsonl:2: no field 'text'"));
  EXPECT_FALSE(fs::exists(path("out_text_document.parts"))) << "no part was done";
  EXPECT_TRUE(contains(complaint(write("b.jsonl", "{\"text\": \n")), "b.jsonl:1: not JSON"));
  EXPECT_TRUE(contains(complaint(write("c.txt", "text\n")), "neither JSON lines"));
  EXPECT_TRUE(contains(complaint(write("d.jsonl", "{\"text\": \"\"}\n")), "no document with a token"));
  EXPECT_TRUE(contains(complaint(path("absent.jsonl")), "is not a file"));
  gzip_file(corpus("e.jsonl"), path("e.jsonl.gz"));
  fs::resize_file(path("e.jsonl.gz"), fs::file_size(path("e.jsonl.gz")) / 2);
  EXPECT_TRUE(contains(complaint(path("e.jsonl.gz")), "the packed bytes are damaged or end early"));
  EXPECT_FALSE(fs::exists(path("out_text_document.bin")));
  write("model.bin", "weights");
  (void)pack_megatron(bytes_encoder(), options({path("e.jsonl")}, "e"));
  EXPECT_THROW((void)merge_megatron({path("e_text_document")}, path("model")), ConfigError);
  EXPECT_EQ(slurp("model.bin"), "weights");
  write("e_text_document.idx", "notes");
  EXPECT_THROW((void)pack_megatron(bytes_encoder(), options({path("e.jsonl")}, "e")), ConfigError);
  EXPECT_EQ(slurp("e_text_document.idx"), "notes");
  DocumentEncoder endless = bytes_encoder();
  endless.eod.reset();
  MegatronPackOptions chosen = options({path("a.jsonl")}, "out");
  chosen.append_eod = true;
  EXPECT_THROW((void)pack_megatron(endless, chosen), ConfigError);
}

}  // namespace
}  // namespace trireme
