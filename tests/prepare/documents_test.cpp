// Documents of each kind of file.

#include "data/text_file.h"

#include "prepare_testing.h"
#include "trireme/arrow/unpacked_file.h"
#include "trireme/base/error.h"
#include "trireme/base/text.h"
#include "trireme/formats/kineto/gzip.h"

namespace trireme {
namespace {

using Documents = Scratch;
using Found = std::vector<std::pair<std::string, int64_t>>;

Found documents(const std::filesystem::path& path, DocumentUnit unit, const std::string& field = "") {
  Found found;
  for_each_document(path, unit, field, [&](const Document& d) { found.emplace_back(std::string(d.text), d.number); });
  return found;
}

TEST_F(Documents, ParagraphsLieBetweenBlankLines) {
  EXPECT_EQ(documents(write("b.txt", "\xEF\xBB\xBFone\r\ntwo\r\n \t\r\n\n\nthree\n\nfour"), DocumentUnit::kParagraph),
            (Found{{"one\r\ntwo", 1}, {"three", 6}, {"four", 8}}));
  EXPECT_EQ(documents(write("c.txt", "\n\n"), DocumentUnit::kParagraph), Found{});
  EXPECT_EQ(documents(write("d.txt", ""), DocumentUnit::kParagraph), Found{});
}

TEST_F(Documents, LinesAndWholeFiles) {
  const auto file = write("a.txt", "one\n\ntwo\r\n");
  EXPECT_EQ(documents(file, DocumentUnit::kLine), (Found{{"one", 1}, {"", 2}, {"two", 3}}));
  EXPECT_EQ(documents(file, DocumentUnit::kFile), (Found{{"one\n\ntwo", 1}}));
}

TEST_F(Documents, JsonLinesGiveTheirField) {
  const auto file =
      write("a.jsonl", "{\"text\": \"na\\u00efve\\nline\", \"id\": 1}\n\n{\"text\": null}\n{\"text\": \"\"}\n");
  EXPECT_EQ(documents(file, DocumentUnit::kFile), (Found{{"na\xC3\xAFve\nline", 1}, {"", 3}, {"", 4}}));
}

TEST_F(Documents, GzipIsKnownByItsContent) {
  const std::string lines = "{\"text\": \"one\"}\r\n\n{\"text\": \"two\"}\n";
  gzip_file(write("plain", lines), path("packed.jsonl"));
  write("plain.jsonl.gz", lines);
  for (const char* name : {"packed.jsonl", "plain.jsonl.gz"})
    EXPECT_EQ(documents(path(name), DocumentUnit::kFile), (Found{{"one", 1}, {"two", 3}})) << name;
  write("cut.jsonl", slurp("packed.jsonl").substr(0, 30));
  EXPECT_THROW(documents(path("cut.jsonl"), DocumentUnit::kFile), DataError);
  // Lines are read in parts of 16 KiB.
  std::string text;
  for (const size_t length : {16382, 16383, 16384, 50000, 16383})
    text += (text.empty() ? "{\"text\": \"" : "\n{\"text\": \"") + std::string(length - 12, 'a') + "\"}";
  gzip_file(write("long.jsonl", text), path("long.gz.jsonl"));
  EXPECT_EQ(documents(path("long.gz.jsonl"), DocumentUnit::kFile), documents(path("long.jsonl"), DocumentUnit::kFile));
}

std::string complaint(const std::filesystem::path& path, const std::string& field = "",
                      ExitCode code = ExitCode::kData) {
  return message_of(code, [&] { return documents(path, DocumentUnit::kLine, field); });
}

TEST_F(Documents, TheNameOfJsonIsReadInAnyCase) {
  const auto lines = write("lines", "{\"text\": \"one\"}\n{\"text\": \"two\"}\n");
  const auto list = write("list", "\xEF\xBB\xBF [\n{\"text\": \"one\"},\n{\"text\": \"two\", \"n\": NaN}]\n");
  for (const char* name : {"a.json", "a.JSON", "a.JSONL", "a.NdJson"}) {
    std::filesystem::copy_file(lines, path(name));
    EXPECT_EQ(documents(path(name), DocumentUnit::kParagraph), (Found{{"one", 1}, {"two", 2}})) << name;
    for (const char* suffix : {".GZ", ".gzip", ".bgz"}) {
      const auto packed = path(std::string(name) + suffix);
      gzip_file(lines, packed);
      EXPECT_EQ(documents(packed, DocumentUnit::kParagraph), (Found{{"one", 1}, {"two", 2}})) << packed;
    }
  }
  for (const char* name : {"b.json", "b.JSON", "b.json.gz"}) {
    name == std::string("b.json.gz") ? gzip_file(list, path(name)) : std::filesystem::copy(list, path(name));
    EXPECT_EQ(documents(path(name), DocumentUnit::kParagraph), (Found{{"one", 0}, {"two", 1}})) << name;
  }
  const std::vector<std::pair<std::string, std::string>> wrong = {
      {R"([{"text": "a"}, "b"])", "c.json: item 1: a JSON string, expected an object"},
      {R"([{"text": "a"}, {"texts": "b"}])", "c.json: item 1: no field 'text'"},
      {R"([{"text": "a"}, {])", "c.json: not JSON"},
      {"{\n\"text\": \"a\"\n}, {\n\"text\": \"b\"\n}", "c.json: not JSON"},
      {"{\n\"text\": \"a\"\n}\n{\n\"text\": \"b\"\n", "c.json: not JSON"},
      {"{\"text\": \"a\n{\"text\": \"b\"}\n", "c.json:1: not JSON"}};
  for (const auto& [content, says] : wrong) EXPECT_TRUE(contains(complaint(write("c.json", content)), says));
  for (const char* printed : {"{\n\"text\": \"one\"\n}\n{\n\"text\": \"two\"\n}\n",
                              "\xEF\xBB\xBF\n{\"text\": \"one\",\n\"n\": {}}{\"text\": \"two\"}"})
    EXPECT_EQ(documents(write("printed.json", printed), DocumentUnit::kParagraph), (Found{{"one", 0}, {"two", 1}}));
  const auto one = write("one.json", "{\n\"text\": \"a\",\n\"n\": NaN\n}");
  EXPECT_EQ(documents(one, DocumentUnit::kParagraph), (Found{{"a", 0}}));
  std::string rows;
  for_each_object(one, {{"text"}}, [&](const std::string& place, double, const auto& object, const auto&) {
    rows += place + " " + object().dump();
  });
  EXPECT_EQ(rows, one.string() + ": item 0 {\"text\":\"a\",\"n\":null}");
  const auto lone = documents(write("d.json", R"([{"text": "half \uDE00"}, {"text": null}])"), DocumentUnit::kLine);
  ASSERT_EQ(lone.size(), 2u);
  EXPECT_FALSE(is_valid_utf8(lone[0].first));
  EXPECT_EQ(lone[1].first, "");
}

TEST_F(Documents, TablesOfTextAreRefused) {
  const auto table = write("a.csv", "id,text\n1,one\n");
  gzip_file(table, path("a.CSV.gz"));
  for (const auto& file : {table, path("a.CSV.gz"), write("a.tsv", "id\ttext\n1\tone\n")})
    EXPECT_TRUE(contains(complaint(file), "to_json(")) << file;
}

TEST_F(Documents, PlainTextHasNoFields) {
  const std::string says = complaint(write("a.txt", "one\n"), "text", ExitCode::kConfig);
  EXPECT_TRUE(contains(says, "--field text: "));
  EXPECT_TRUE(contains(says, "a.txt is plain text"));
}

TEST_F(Documents, BinaryFilesAreNoText) {
  const auto packed = [](const std::string& content, const char* otherwise) {
    return std::pair<std::string, std::string>(content, is_packed(content) ? "are damaged or end early" : otherwise);
  };
  const std::vector<std::pair<std::string, std::string>> files = {
      {"PK\x03\x04rest", "a zip archive"},
      {std::string("PK\x03\x04") + std::string(26, '\1') + "rows/data.pkl", "an archive of torch.save, a pickle"},
      {"\x80\x02\x8a\nl\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19.", "an archive of torch.save, a pickle"},
      {std::string("\xFD\x37zXZ\0rest", 10), "an xz archive: unpack it first"},
      packed("BZh91AY&SYrest", "a bzip2 archive: unpack it first"),
      packed("\x28\xB5\x2F\xFDrest", "a zstd archive: unpack it first")};
  for (const auto& [content, says] : files)
    for (const char* name : {"a.txt", "a.jsonl", "a"})
      EXPECT_TRUE(contains(complaint(write(name, content)), says)) << name << ": " << complaint(path(name));
  EXPECT_TRUE(contains(complaint(write("a", std::string("some text\n\0more", 15))), "holds zero bytes"));
  EXPECT_EQ(complaint(write("late.txt", std::string(8192, 'a') + std::string(1, '\0'))), "");
  gzip_file(write("plain", "one\n\ntwo\n"), path("plain.txt.gz"));
  EXPECT_EQ(documents(path("plain.txt.gz"), DocumentUnit::kParagraph), (Found{{"one", 1}, {"two", 3}}));
  gzip_file(path("late.txt"), path("late.gz"));
  EXPECT_EQ(documents(path("late.gz"), DocumentUnit::kFile).size(), 1u);
  gzip_file(path("a"), path("zeros.gz"));
  EXPECT_TRUE(contains(complaint(path("zeros.gz")), "holds zero bytes"));
}

TEST_F(Documents, ArrowColumns) {
  const auto fixture = [](const char* name) {
    return std::filesystem::path(TRIREME_SOURCE_DIR) / "tests/data/fixtures/stream" / name;
  };
  EXPECT_EQ(documents(fixture("texts.arrow"), DocumentUnit::kParagraph),
            (Found{{"one two", 0}, {"", 1}, {"three", 2}}));
  EXPECT_TRUE(contains(complaint(fixture("texts.arrow"), "body"), "no column 'body'; it has: text"));
  EXPECT_TRUE(contains(complaint(fixture("lists.arrow"), "input_ids"), "expected string"));
}

TEST_F(Documents, BadJsonLinesAreNamedByLine) {
  EXPECT_TRUE(contains(complaint(write("a.jsonl", "{\"text\": \"x\"}\n{\"text\": ")), "a.jsonl:2: not JSON"));
  EXPECT_TRUE(contains(complaint(write("b.jsonl", "[1]")), "b.jsonl:1: a JSON array"));
  EXPECT_TRUE(contains(complaint(write("c.jsonl", "{\"text\": 3}")), "expected a string"));
  const std::string missing = complaint(write("d.jsonl", "{\"contents\": \"x\"}"), "content");
  EXPECT_TRUE(contains(missing, "has: contents"));
  EXPECT_TRUE(contains(missing, "Did you mean 'contents'?"));
  // 100,000 levels must neither crash nor be accepted as text.
  EXPECT_TRUE(contains(complaint(write("e.jsonl", std::string(100000, '['))), "not JSON"));
}

TEST_F(Documents, JsonLinesAreWhatPythonTakes) {
  const auto path = write("python.jsonl",
                          "{\"id\": \"\\ud83d\", \"text\": \"a surrogate elsewhere\"}\n"
                          "{\"score\": NaN, \"low\": -Infinity, \"high\": [Infinity], \"text\": \"NaN and 1e999\"}\n"
                          "{\"score\": 1e999, \"text\": \"\\ud83d\\ude00 \\\\ud83d\"}\n"
                          "{\"text\": \"half \\uDE00\"}\n"
                          "{\"text\": \"the last\"}\n");
  std::vector<std::string> texts;
  for_each_document(path, DocumentUnit::kLine, "text", [&](const Document& d) { texts.emplace_back(d.text); });
  ASSERT_EQ(texts.size(), 5u);
  EXPECT_EQ(texts[0], "a surrogate elsewhere");
  EXPECT_EQ(texts[1], "NaN and 1e999");
  EXPECT_EQ(texts[2], "\xF0\x9F\x98\x80 \\ud83d");
  EXPECT_FALSE(is_valid_utf8(texts[3]));
  EXPECT_EQ(texts[4], "the last");
  for (const char* line :
       {"{\"a\": Nan, \"text\": \"x\"}", "{\"a\": 1e9e9, \"text\": \"x\"}", "{\"text\": \"\\ud8:0\"}"})
    EXPECT_TRUE(contains(complaint(write("bad.jsonl", line)), "bad.jsonl:1: not JSON")) << line;
}

/// What each reader of JSON lines says of the second line.
std::vector<std::string> complaints(const std::filesystem::path& path) {
  const auto said = [](const auto& read) { return message_of(ExitCode::kData, read); };
  return {complaint(path), said([&] { (void)open_text_file(path, "text", std::make_shared<TextGroups>())->text(1); }),
          said([&] {
            for_each_object(path, {{"text"}},
                            [](const std::string&, double, const auto& object, const auto&) { (void)object(); });
          })};
}

TEST_F(Documents, LinesThatEndWithACarriageReturnHaveTheSamePlacesAndReasons) {
  const std::vector<std::pair<std::string, std::string>> wrong = {{R"({"text": "one", "id": x})", "column 23"},
                                                                  {R"({"text": "one")", "column 15"},
                                                                  {R"({"text": "one)", "missing closing quote"},
                                                                  {R"({"text": "one"} 2)", "column 17"}};
  for (const auto& [line, says] : wrong) {
    SCOPED_TRACE(line);
    const std::string good = R"({"text": "a"})";
    const auto path = write("a.jsonl", good + "\n" + line + "\n" + good);
    const auto expected = complaints(path);
    write("a.jsonl", good + "\r\n" + line + "\r\n" + good);
    EXPECT_EQ(complaints(path), expected);
    for (const std::string& text : expected) {
      EXPECT_TRUE(contains(text, "a.jsonl:2"));
      EXPECT_TRUE(contains(text, says));
    }
  }
}

TEST_F(Documents, WideTextIsCalledByItsName) {
  const std::string text = "two words\n";
  std::string little = "\xFF\xFE", wide;
  for (const char c : text) {
    little += {c, '\0'};
    wide += {'\0', c};
  }
  for (const std::string& content : {little, little.substr(2), "\xFE\xFF" + wide, wide})
    for (const char* name : {"wide.txt", "wide.jsonl"})
      EXPECT_TRUE(contains(complaint(write(name, content)), "the text is UTF-16")) << name;
}

/// Every file's rows as pyarrow reads them are in a file of JSON lines beside it.
TEST_F(Documents, DictionariesAreReadAsPyarrowReadsThem) {
  if (!python_has("pyarrow.parquet")) GTEST_SKIP() << "no Python with pyarrow to write the files";
  python(R"(
import json, os, random, struct, sys
import pyarrow as pa, pyarrow.parquet as pq
os.chdir(sys.argv[1])
r = random.Random(2)
def coded(words, index, value, rows=7):
    codes = [r.choice([None] + list(range(len(words)))) for _ in range(rows)]
    return pa.DictionaryArray.from_arrays(pa.array(codes, index), words if isinstance(words, pa.Array) else pa.array(words, value))
def save(name, columns, file=False, **options):
    """One batch for each list of columns."""
    batches = [pa.record_batch({'n': pa.array(range(len(one['text']))), 'label': pa.array(['x', 'y'] * 10).dictionary_encode()[:len(one['text'])]} | one)
               for one in columns]
    with (pa.ipc.new_file if file else pa.ipc.new_stream)(name, batches[0].schema, options=pa.ipc.IpcWriteOptions(**options)) as out:
        for batch in batches: out.write_batch(batch)
    with (pa.ipc.open_file if file else pa.ipc.open_stream)(name) as back: keep(name, back.read_all())
def keep(name, table):
    with open(name + '.jsonl', 'w') as out:
        for row in table.to_pylist(): out.write(json.dumps({k: row[k] for k in ('text', 'label', 'chat') if k in row}) + '\n')
for index in (pa.int8(), pa.uint8(), pa.uint16(), pa.int32(), pa.int64()):
    for value in (pa.string(), pa.large_string(), pa.string_view()):
        kind = f'{index}-{value}.arrow'
        words = [['', 'one', 'zwei \u00fc', 'three words of text'], ['other', 'one'], ['', 'one', 'zwei \u00fc', 'three words of text', 'new']]
        save(f'replaced-{kind}', [{'text': coded(one, index, value)} for one in words])
        save(f'same-{kind}', [{'text': coded(words[0], index, value)} for _ in range(3)], file=True, compression='lz4')
        if value == pa.string_view(): continue  # pyarrow writes no deltas of them
        for file in (False, True):
            grown = [{'text': coded(words[2][:n], index, value)} for n in (2, 3, 3, 5)]
            save(f'delta{file}-{kind}', grown, file=file, emit_dictionary_deltas=True)
hidden = pa.StringArray.from_buffers(3, pa.py_buffer(struct.pack('<4i', 0, 1, 4, 5)), pa.py_buffer(b'aXXXc'), pa.py_buffer(bytes([5])))
for file in (False, True): save(f'null{file}.arrow', [{'text': coded(hidden, pa.int8(), None, 20)}], file=file)
role = pa.dictionary(pa.int8(), pa.string())
chat = pa.array([[{'role': 'user', 'content': 'q'}, {'role': 'bot', 'content': 'a'}], [], [{'role': 'bot', 'content': 'b'}]],
                pa.list_(pa.struct([('role', role), ('content', pa.string())])))
again = pa.array([[{'role': 'tool', 'content': 'q'}]] * 3, chat.type)
save('nested.arrow', [{'text': pa.array(['one', None, 'two']), 'chat': one} for one in (chat, again)])
groups = pa.table({'text': ['one', None, 'two'] * 3, 'chat': pa.chunked_array([chat, again, chat])})
pq.write_table(groups, 'nested.parquet', row_group_size=2)
keep('nested.parquet', groups)
table = pa.table({'text': coded(['', 'one'], pa.int8(), pa.string(), 20), 'label': pa.array(['x'] * 20).dictionary_encode()})
pq.write_table(table, 'coded.parquet')
keep('coded.parquet', pq.read_table('coded.parquet'))
)",
         root_.string());
  size_t files = 0;
  const auto objects = [&](const std::filesystem::path& file) {
    std::string rows;
    for_each_object(
        file, {{"text", "label", "chat"}},
        [&](const std::string&, double, const auto& object, const auto&) { rows += object().dump() + "\n"; });
    return rows;
  };
  for (const auto& entry : std::filesystem::directory_iterator(root_)) {
    const std::filesystem::path& file = entry.path();
    if (file.extension() != ".arrow" && file.extension() != ".parquet") continue;
    SCOPED_TRACE(file.filename());
    const std::filesystem::path lines = file.string() + ".jsonl";
    const Found found = documents(file, DocumentUnit::kLine), expected = documents(lines, DocumentUnit::kLine);
    ASSERT_EQ(found.size(), expected.size());
    for (size_t i = 0; i < found.size(); ++i) EXPECT_EQ(found[i].first, expected[i].first) << i;
    EXPECT_EQ(objects(file), objects(lines));
    ++files;
  }
  EXPECT_EQ(files, 55u);
  // As documents of a run: texts beside dictionaries are read, coded ones are refused.
  const auto open = [&](const char* name, const char* column) {
    return open_text_file(path(name), column, std::make_shared<TextGroups>());
  };
  EXPECT_EQ(open("nested.arrow", "text")->text(5), "two");
  for (const char* name : {"nested.arrow", "deltaFalse-int8-string.arrow", "deltaTrue-int8-string.arrow"}) {
    const std::string says = message_of<DataError>([&] { return open(name, "label"); });
    EXPECT_TRUE(contains(says, std::string(name) + ": column 'label' is dictionary<"));
    EXPECT_TRUE(contains(says, "make rows of them with `trireme data pack`"));
  }
}

TEST_F(Documents, ParquetColumns) {
  if (!python_has("pyarrow.parquet")) GTEST_SKIP() << "no Python with pyarrow to write the file";
  python(
      fmt::format("import pyarrow as pa, pyarrow.parquet as pq\n"
                  "pq.write_table(pa.table({{'body': ['one', None, 'drei ü'], 'n': [1, 2, 3]}}), r'{0}', "
                  "row_group_size=2)\n"
                  "pq.write_table(pa.table({{'body': pa.array(['x'] * 3000, pa.large_string())}}), r'{1}')\n"
                  "data = open(r'{1}', 'rb').read()\n"
                  "open(r'{2}', 'wb').write(data[:len(data) // 2])\n"
                  "open(r'{3}', 'wb').write(data[:40] + b'\\xff' * 60 + data[100:])\n"
                  "kinds = {{'coded': pa.array(['a', None, 'a']).dictionary_encode(), "
                  "'view': pa.array(['a', None, 'a'], pa.string_view())}}\n"
                  "pq.write_table(pa.table(kinds), r'{4}')\n"
                  "with pa.ipc.new_file(r'{5}', pa.table(kinds).schema) as out: out.write(pa.table(kinds))\n"
                  "pq.write_table(pa.table([pa.array(['x'])] * 2, ['body', 'body']), r'{6}')\n"
                  // A run of 20 times value 2 of a dictionary of 3: value 3.
                  "words = pa.DictionaryArray.from_arrays(pa.array([2] * 20, pa.int8()), pa.array(['a', 'b', 'c']))\n"
                  "pq.write_table(pa.table({{'body': words}}), r'{7}', compression='none', write_statistics=False)\n"
                  "data = open(r'{7}', 'rb').read()\n"
                  "assert data.count(b'\\x02\\x28\\x02') == 1\n"
                  "open(r'{7}', 'wb').write(data.replace(b'\\x02\\x28\\x02', b'\\x02\\x28\\x03'))\n",
                  path("a.parquet").string(), path("b.parquet").string(), path("cut.parquet").string(),
                  path("hurt.parquet").string(), path("kinds.parquet").string(), path("kinds.arrow").string(),
                  path("twice.parquet").string(), path("outside.parquet").string()));
  for (const char* name : {"kinds.parquet", "kinds.arrow"}) {
    for (const char* column : {"coded", "view"})
      EXPECT_EQ(documents(path(name), DocumentUnit::kLine, column), (Found{{"a", 0}, {"", 1}, {"a", 2}})) << name;
    std::string rows;
    for_each_object(path(name), {{"view", "absent"}},
                    [&](const std::string&, double, const auto& object, const std::vector<std::string>& unread) {
                      rows += object().dump() + " beside " + join(unread, ", ") + "\n";
                    });
    EXPECT_EQ(rows, "{\"view\":\"a\"} beside coded\n{\"view\":null} beside coded\n{\"view\":\"a\"} beside coded\n");
  }
  EXPECT_TRUE(contains(complaint(path("twice.parquet"), "body"), "2 columns have the name 'body'"));
  EXPECT_EQ(documents(path("a.parquet"), DocumentUnit::kLine, "body"),
            (Found{{"one", 0}, {"", 1}, {"drei \xC3\xBC", 2}}));
  EXPECT_EQ(documents(path("b.parquet"), DocumentUnit::kLine, "body").size(), 3000u);
  EXPECT_TRUE(contains(complaint(path("a.parquet"), "text"), "has: body, n"));
  EXPECT_TRUE(contains(complaint(path("a.parquet"), "n"), "int64, expected string"));
  EXPECT_TRUE(contains(complaint(path("cut.parquet"), "body"), "damaged"));
  EXPECT_TRUE(contains(complaint(path("hurt.parquet"), "body"), "damaged"));
  EXPECT_TRUE(contains(complaint(path("outside.parquet"), "body"), "damaged: value 3 of a dictionary of 3"));
  EXPECT_TRUE(contains(
      failure(ExitCode::kData, [&] { for_each_object(path("outside.parquet"), {{"body"}}, [](auto&&...) {}); }),
      "damaged: value 3 of a dictionary of 3"));
  EXPECT_TRUE(contains(complaint(write("no.parquet", "text that has the wrong name"), "body"), "no.parquet"));
}

}  // namespace
}  // namespace trireme
